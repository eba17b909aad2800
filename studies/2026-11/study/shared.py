"""What the studies took from the rest of the repository when they were frozen: tables, curves and
figures of scripts/paper, and the formulas of src/bnpo/algorithm for the methods they compare.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy import special

HERE = Path(__file__).resolve().parents[1]
PAPER_SCORES = json.loads((HERE.parents[1] / "data/paper_tables.json").read_text("utf-8"))["tables"]
"""The paper's numbers: table title -> model -> method -> the cells of its columns in one text."""
MAX_GRAD_NORM = 1.0
PAPER_DATASETS = {
    "MATH500": (500, 1),
    "AMC23": (40, 16),
    "AIME2024": (30, 16),
    "AIME2025": (30, 16),
}
"""The paper's data sets: number of problems, and repetitions over which pass@1 is the mean
(Section 5.1)."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (4, 1, 1, 1)),
    (0, (7, 2)),
    (0, (2, 1)),
    (0, (4, 1, 1, 1, 1, 1)),
)
WIDTH = 5.5
"""Inches: the width of the paper's text."""
STYLE = {
    "font.size": 8,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
}
STYLE |= {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 200,
}
BETA_METRICS = {
    "E": r"$\mathrm{E}[p]$",
    "V": r"$\mathrm{Var}[p]$",
    "alpha": r"$\alpha$",
    "beta": r"$\beta$",
}


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def inverse_density(p: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Return 1 / f(p; alpha, beta), of the shape of `p`. f is the Beta density (Eq. 1). Where p is
    0 or 1, return 0.

    >>> inverse_density(np.array([0.0, 0.5]), 2, 2).round(4)  # the density is 6 p (1 - p)
    array([0.    , 0.6667])
    """
    # Where p is 0 or 1, R - p is 0 for all answers. The weight 0 avoids the product 0 * inf.
    inside = (p > 0) & (p < 1)
    q = np.where(inside, p, 0.5)  # 0.5 is a placeholder
    # In logarithms, because the Beta function underflows for large alpha and beta.
    log_inverse = (
        special.betaln(alpha, beta) - special.xlogy(alpha - 1, q) - special.xlog1py(beta - 1, -q)
    )
    return np.where(inside, np.exp(log_inverse), 0.0)


def advantages(method: str, rewards: np.ndarray) -> np.ndarray:
    """Return the advantages [n, m] of rewards [n, m] that are 0 or 1, for equally long answers."""
    n, m = rewards.shape
    p = rewards.mean(axis=1, keepdims=True)  # [n, 1]
    centred = rewards - p
    if method == "reinforce":
        return centred
    if method == "maxrl":
        return centred / np.where(p > 0, p, 1)
    if method == "grpo":
        deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / max(1, m - 1))
        return centred / (deviation + 1e-6)
    if method == "reinforce_pp":
        return (rewards - rewards.mean()) / np.sqrt(rewards.var(ddof=1) + 1e-8)
    assert method == "bnpo"
    mean, variance = p.mean(), p.var(ddof=1) if n > 1 else 0.0
    coin_variance, points = mean * (1 - mean), p
    if coin_variance <= 0 or variance >= coin_variance:
        concentration = 0.0
    elif coin_variance >= 101 * variance:  # the accuracies differ by noise only
        concentration, points = 100.0, np.full_like(p, mean)
    else:
        concentration = coin_variance / variance - 1
    a, b = concentration * mean, concentration * (1 - mean)
    return centred * inverse_density(points, 1 + a / 3, 1 + b / 3)


@dataclass(frozen=True)
class RunCurves:
    """A training run: method, seed, the settings by which runs are grouped, and its metrics by
    name, each [steps] with nan where it was not logged.
    """

    folder: Path
    method: str
    seed: int
    settings: dict[str, str]
    metrics: dict[str, np.ndarray]


@dataclass(frozen=True)
class Band:
    """A metric by step, pooled over a window of steps and all seeds: the mean, and the deciles that
    enclose 80 % of the values. All arrays are [steps with a value].
    """

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(runs: Sequence[RunCurves], name: str, window: int) -> Band:
    """Pool metric `name` over the runs of one group and over `window` steps around every step.

    At the ends, and where runs are shorter, fewer values are pooled. nan is left out.
    """
    length = int(max(run.metrics["step"][-1] for run in runs))
    values = np.full((len(runs), length), np.nan)  # [runs, steps]
    for row, run in zip(values, runs, strict=True):
        if name in run.metrics:
            row[run.metrics["step"].astype(int) - 1] = run.metrics[name]
    # Pad with nan, so that the first and the last step have a window too.
    margin = np.full((len(runs), window), np.nan)
    padded = np.hstack([margin[:, : (window - 1) // 2], values, margin[:, : window // 2]])
    # [runs, steps, window]
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)
    pooled = windows.transpose(1, 0, 2).reshape(length, -1)  # [steps, runs * window]
    has_value = ~np.isnan(pooled).all(axis=1)  # [steps]
    low, high = np.nanquantile(pooled[has_value], [0.1, 0.9], axis=1)
    return Band(1 + np.flatnonzero(has_value), np.nanmean(pooled[has_value], axis=1), low, high)


def variation(values: np.ndarray) -> float:
    """Return the coefficient of variation of values [steps]: sample standard deviation over
    mean, without nan.
    """
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / known.mean()) if len(known) > 1 else float("nan")


def _figure(height: float, columns: int, **options) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, columns, **options))


def _line(index: int) -> dict:
    """Return colour and dashes of the line with this index."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def draw_norms(groups: Mapping[str, Sequence[RunCurves]], window: int) -> Figure:
    """Draw Figure 2: the gradient norm before clipping, by step, and its coefficient of
    variation, by run.
    """
    with matplotlib.rc_context(STYLE):
        figure, [curves, dots] = _figure(2.6, 2, width_ratios=(2.2, 1))
        for index, (label, runs) in enumerate(groups.items()):
            _draw_band(curves, band(runs, "grad_norm", window), label, index)
            variations = [variation(run.metrics["grad_norm"]) for run in runs]
            dots.plot(
                variations, [index] * len(runs), "o", markersize=3, color=_line(index)["color"]
            )
        curves.set(xlabel="step", ylabel="norm of the gradient", yscale="log")
        curves.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        curves.yaxis.set_major_formatter("{x:g}")
        curves.minorticks_off()
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        dots.set(
            xlabel="coefficient\nof variation",
            ylim=(len(groups) - 0.5, -0.5),
            yticks=range(len(groups)),
        )
        dots.set_yticklabels([label.replace(", ", ",\n") for label in groups])
        # From 0, with matplotlib's margin on the right: `set_xlim` alone would cut the last dot.
        dots.update_datalim([(0, 0)])
        dots.autoscale_view(scaley=False)
        dots.set_xlim(left=0)
        figure.legend(loc="outside upper center", ncols=4)
        return figure


def draw_fits(groups: Mapping[str, Sequence[RunCurves]], window: int) -> Figure:
    """Draw Figure 3: mean and variance of the accuracies, and alpha and beta, by step.

    One line per group and fitted reward. Raises ValueError if no run fitted a density.
    """
    lines = []  # (group, prefix of the metrics)
    for label, runs in groups.items():
        lines += [(label, prefix) for prefix in _fitted(runs)]
    if not lines:
        raise ValueError("no run has Beta statistics: they are recorded by --algo bnpo")
    with matplotlib.rc_context(STYLE):
        figure, panels = _figure(1.9, 4)
        for axes, (name, title) in zip(panels, BETA_METRICS.items(), strict=True):
            for index, (label, prefix) in enumerate(lines):
                reward = prefix.removeprefix("beta/").removesuffix("/")
                line_label = f"{label}, {reward}" if reward else label
                _draw_band(axes, band(groups[label], prefix + name, window), line_label, index)
            axes.set(xlabel="step", title=title)
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return figure


def _fitted(runs: Sequence[RunCurves]) -> list[str]:
    """Return the prefixes of the metrics with Beta statistics: beta/, or beta/<reward>/ for each
    reward.
    """
    names = set().union(*(run.metrics for run in runs))
    return sorted(
        name.removesuffix("alpha")
        for name in names
        if name.startswith("beta/") and name.endswith("/alpha")
    )


def _draw_band(axes: Axes, values: Band, label: str, index: int) -> None:
    axes.plot(values.steps, values.mean, label=label, **_line(index))
    axes.fill_between(
        values.steps, values.low, values.high, color=_line(index)["color"], alpha=0.12, linewidth=0
    )


@dataclass(frozen=True)
class Table:
    """Cells by model and row label, and the notes below them. A cell in bold starts with an
    asterisk.
    """

    title: str
    columns: list[str]
    blocks: dict[str, dict[str, list[str]]]
    notes: list[str]
    below: "Table | None" = None
    """A second table, printed below the notes."""


def to_markdown(tables: Sequence[Table], heading: str = "##") -> str:
    """Return the tables as Markdown: for each a heading, one table per model, and the notes."""
    parts = []
    for table in tables:
        parts.append(f"{heading} {table.title}")
        for model, rows in table.blocks.items():
            # Numbers are aligned to the right, words to the left.
            columns = zip(*rows.values(), strict=True) if rows else [()] * len(table.columns)
            rules = [
                "---" if any(re.search("[a-z]{4}", cell) for cell in column) else "---:"
                for column in columns
            ]
            lines = [[model, *table.columns], ["---", *rules]]
            for label, cells in rows.items():
                lines.append(
                    [
                        label,
                        *(f"**{cell[1:]}**" if cell.startswith("*") else cell for cell in cells),
                    ]
                )
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts.append("\n".join(f"- {note}" for note in table.notes))
        if table.below:
            parts.append(to_markdown([table.below], f"{heading}#").rstrip())
    return "\n\n".join(parts) + "\n"
