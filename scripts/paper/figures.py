"""The paper's figures, and one of the objectives that the estimators maximise, for print."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy.special import stdtrit
from scipy.stats import beta as beta_distribution

from bnpo.files import writing
from bnpo_estimators import exact_objective, exact_weight
from paper.curves import Band, RunCurves, band, variation
from paper.objectives import atlas

# Okabe and Ito's colours for the colour-blind, without the yellow, which is faint on paper. The
# dashes are for prints without colour.
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


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `figure` as PDF and PNG, and return both paths. The same figure gives the same
    bytes. Raises InputError.
    """
    pdf, png = path.with_suffix(".pdf"), path.with_suffix(".png")
    with writing(path.parent, "choose another --output-dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(pdf, metadata={"CreationDate": None})
        figure.savefig(png)
    return [pdf, png]


def _figure(height: float, columns: int, **options) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, columns, **options))


def _line(index: int) -> dict:
    """Return colour and dashes of the line with this index. After all colours, each gets others."""
    again, colour = divmod(index, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": DASHES[(colour + again) % len(DASHES)]}


def draw_densities() -> Figure:
    """Draw Figure 1: densities of the Beta distribution."""
    with matplotlib.rc_context(STYLE):
        p = np.linspace(0.001, 0.999, 999)
        figure, [axes] = _figure(2.6, 1)
        for index, (a, b) in enumerate(
            ((0.5, 0.5), (1, 1), (1.5, 1.5), (2, 5), (5, 2), (1, 3), (6, 6))
        ):
            label = f"$\\alpha={a:g},\\ \\beta={b:g}$"
            axes.plot(p, beta_distribution.pdf(p, a, b), label=label, **_line(index))
        axes.set(xlabel="$p$", ylabel=r"$f(p;\alpha,\beta)$", xlim=(0, 1), ylim=(0, 3.2))
        figure.legend(loc="outside right center")
        return figure


def draw_rewards(groups: Mapping[str, Sequence[RunCurves]], window: int) -> Figure:
    """Draw the mean reward of the sampled answers, by step."""
    with matplotlib.rc_context(STYLE):
        figure, [axes] = _figure(2.6, 1)
        for index, (label, runs) in enumerate(groups.items()):
            _draw_band(axes, band(runs, "reward/mean", window), label, index)
        axes.set(xlabel="step", ylabel="mean reward")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside right center")
        return figure


def draw_scores(groups: Mapping[str, Sequence[RunCurves]]) -> Figure:
    """Draw the score of every evaluated run as a dot, and of each group the mean with its 95 % t
    interval over seeds, which needs two.

    Raises ValueError if no run was evaluated, or if they were evaluated differently.
    """
    scores = {
        label: np.array([100 * run.score for run in runs if run.score is not None])
        for label, runs in groups.items()
    }
    scores = {label: values for label, values in scores.items() if len(values)}
    if not scores:
        raise ValueError("no run has a results.json of eval.py beside it")
    every = {run.evaluated for runs in groups.values() for run in runs if run.score is not None}
    if len(every) > 1:
        raise ValueError(f"runs were evaluated differently: {'; '.join(sorted(every))}")
    with matplotlib.rc_context(STYLE):
        figure, [axes] = _figure(0.6 + 0.24 * len(scores), 1)
        for index, values in enumerate(scores.values()):
            colour = COLOURS[0]
            axes.plot(values, [index] * len(values), "o", color=colour, alpha=0.35, markersize=3)
            if len(values) > 1:
                error = values.std(ddof=1) / np.sqrt(len(values))
                half = error * stdtrit(len(values) - 1, 0.975)
                axes.errorbar(
                    values.mean(), index, xerr=half, fmt="|", color=colour, capsize=2, markersize=9
                )
        axes.set(
            xlabel="pass@1 in percent, average of the data sets",
            ylim=(len(scores) - 0.5, -0.5),
            yticks=range(len(scores)),
        )
        axes.set_yticklabels(scores)
        axes.grid(axis="x", linewidth=0.3)
        return figure


def draw_norms(groups: Mapping[str, Sequence[RunCurves]], window: int) -> Figure:
    """Draw Figure 2: the gradient norm before clipping, by step, and its coefficient of
    variation, by run.
    """
    with matplotlib.rc_context(STYLE):
        figure, [curves, dots] = _figure(2.6, 2, width_ratios=(2.2, 1))
        for index, (label, runs) in enumerate(groups.items()):
            norms = band(runs, "grad_norm", window)
            # A step without any signal has a norm of 0, which a logarithmic axis cannot show.
            norms.mean[norms.mean == 0] = np.nan
            _draw_band(curves, norms, label, index)
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
        raise ValueError("no run has Beta statistics: they are recorded where rewards have a range")
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


def draw_weights(gains: Mapping[str, np.ndarray], answers: int) -> Figure:
    """Draw the exact weight and objective of estimators with m = `answers`, from their gains [m]
    by label.

    Both are divided by the objective at p = 1, which is the mean of the weight over p: gradients
    are clipped and Adam is scale-free, so factors have no effect. Estimators that differ by such a
    factor share a line.
    """
    with matplotlib.rc_context(STYLE):
        p = np.linspace(0.005, 0.995, 397)
        lines: dict[tuple, list[str]] = {}  # rounded relative gains -> labels
        for label, values in gains.items():
            mean = exact_objective(np.ones(1), values)[0]
            relative = values / (mean or 1)  # a weight of 0 stays 0
            lines.setdefault(tuple(relative.round(5)), []).append(label)
        figure, [left, right] = _figure(2.9 + 0.12 * len(lines), 2)
        for index, (relative, labels) in enumerate(lines.items()):
            values = np.array(relative)
            left.plot(p, exact_weight(p, values), label=", ".join(labels), **_line(index))
            right.plot(p, exact_objective(p, values), **_line(index))
        ends = {"xlabel": "accuracy $p$ of a question", "xlim": (0, 1)}
        left.set_title("weight, scaled to mean 1", fontsize=8)
        left.set(yscale="log", ylim=(0.05, 20), **ends)
        left.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20])
        left.yaxis.set_major_formatter("{x:g}")
        left.minorticks_off()
        right.set_title("objective, the integral of the weight", fontsize=8)
        right.set(ylim=(0, 1.01), **ends)
        figure.suptitle(f"What each method maximises, with {answers} answers to a question")
        figure.legend(loc="outside lower center", ncols=2)
        return figure


def draw_estimators(answers: int = 16) -> Figure:
    """Draw the exact weight and objective of the estimators. CurveRL is shown for the first
    batch only.
    """
    gains = {
        label: values
        for label, values in atlas(answers).items()
        if "curverl" not in label or "0.09" in label
    }
    return draw_weights(gains, answers)
