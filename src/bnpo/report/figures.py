"""The paper's figures, and one of what the estimators climb: for print, in colours that all readers can tell apart."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy.integrate import cumulative_simpson
from scipy.stats import beta as beta_distribution

from bnpo.algorithm.beta import BetaFit, inverse_density
from bnpo.report.curves import Band, Run, band, variation

# Okabe and Ito's colours but the yellow, which is faint on paper; dashes besides, for prints without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (7, 2)), (0, (2, 1)), (0, (4, 1, 1, 1, 1, 1)))
WIDTH = 5.5
"""Inches: the text of a page of the paper."""
STYLE = {"font.size": 8, "legend.fontsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.2, "pdf.fonttype": 42}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "figure.dpi": 200}
BETA_METRICS = {"E": r"$\mathrm{E}[p]$", "V": r"$\mathrm{Var}[p]$", "alpha": r"$\alpha$", "beta": r"$\beta$"}

FITS = ((0.3, 0.09), (0.5, 0.02), (0.1, 0.01))
"""Batches for which `draw_estimators` shows BNPO, by mean and variance of the accuracies: of questions of all kinds, of
about equally hard ones, of hard ones."""


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `figure` as PDF and PNG beside each other; the same figure gives the same bytes."""
    files = [path.with_suffix(suffix) for suffix in (".pdf", ".png")]
    for file, metadata in zip(files, ({"CreationDate": None}, None), strict=True):
        figure.savefig(file, metadata=metadata)
    return files


def _figure(height: float, columns: int, **options) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, columns, **options))


def _line(number: int) -> dict:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def draw_densities() -> Figure:
    """Figure 1: densities of the Beta distribution."""
    with matplotlib.rc_context(STYLE):
        p = np.linspace(0.001, 0.999, 999)
        figure, [axes] = _figure(2.6, 1)
        for number, (a, b) in enumerate(((0.5, 0.5), (1, 1), (1.5, 1.5), (2, 5), (5, 2), (1, 3), (6, 6))):
            label = f"$\\alpha={a:g},\\ \\beta={b:g}$"
            axes.plot(p, beta_distribution.pdf(p, a, b), label=label, **_line(number))
        axes.set(xlabel="$p$", ylabel=r"$f(p;\alpha,\beta)$", xlim=(0, 1), ylim=(0, 3.2))
        figure.legend(loc="outside right center")
        return figure


def draw_norms(groups: Mapping[str, Sequence[Run]], window: int) -> Figure:
    """Figure 2: the norm of the gradient before clipping, by step and, as coefficient of variation, by run."""
    with matplotlib.rc_context(STYLE):
        figure, [curves, dots] = _figure(2.6, 2, width_ratios=(2.2, 1))
        for number, (label, runs) in enumerate(groups.items()):
            _draw_band(curves, band(runs, "grad_norm", window), label, number)
            spread = [variation(run.metrics["grad_norm"]) for run in runs]
            dots.plot(spread, [number] * len(runs), "o", markersize=3, color=_line(number)["color"])
        curves.set(xlabel="step", ylabel="norm of the gradient", yscale="log")
        curves.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        curves.yaxis.set_major_formatter("{x:g}")
        curves.minorticks_off()
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        dots.set(xlabel="coefficient\nof variation", ylim=(len(groups) - 0.5, -0.5), yticks=range(len(groups)))
        dots.set_yticklabels([label.replace(", ", ",\n") for label in groups])
        dots.update_datalim([(0, 0)])
        dots.autoscale_view(scaley=False)
        dots.set_xlim(left=0)
        figure.legend(loc="outside upper center", ncols=4)
        return figure


def draw_fits(groups: Mapping[str, Sequence[Run]], window: int) -> Figure:
    """Figure 3: mean and variance of the accuracies, and alpha and beta, by step.

    A line for each group and each reward that was fitted. Raises ValueError when there is none.
    """
    lines = [(label, prefix) for label, runs in groups.items() for prefix in _fitted(runs)]
    if not lines:
        raise ValueError("no run has Beta statistics: they are recorded by --algo bnpo")
    with matplotlib.rc_context(STYLE):
        figure, panels = _figure(1.9, 4)
        for axes, (name, title) in zip(panels, BETA_METRICS.items(), strict=True):
            for number, (label, prefix) in enumerate(lines):
                reward = prefix.removeprefix("beta/").removesuffix("/")
                full = f"{label}, {reward}" if reward else label
                _draw_band(axes, band(groups[label], prefix + name, window), full, number)
            axes.set(xlabel="step", title=title)
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        return figure


def _fitted(runs: Sequence[Run]) -> list[str]:
    """Where the Beta statistics of each reward are among the metrics: beta/, or beta/<reward>/."""
    names = {name for run in runs for name in run.metrics}
    return sorted(name.removesuffix("alpha") for name in names if name.startswith("beta/") and name.endswith("/alpha"))


def _draw_band(axes: Axes, values: Band, label: str, number: int) -> None:
    axes.plot(values.steps, values.mean, label=label, **_line(number))
    axes.fill_between(values.steps, values.low, values.high, color=_line(number)["color"], alpha=0.12, linewidth=0)


def estimator_weights() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """The weight w(p) by which each estimator multiplies R - p, or R minus another baseline, by label."""
    weights = {
        "REINFORCE: $p$": np.ones_like,
        r"GRPO: $2\,\arcsin\sqrt{p}$": lambda p: 1 / np.sqrt(p * (1 - p)),
        r"MaxRL: $\log\,p$": lambda p: 1 / p,
    }
    for mean, variance in FITS:
        concentration = mean * (1 - mean) / variance - 1
        fit = BetaFit(mean, variance, concentration * mean, concentration * (1 - mean), "")
        label = f"BNPO at E[p] = {mean}, Var[p] = {variance}"
        weights[label] = lambda p, fit=fit: inverse_density(p, fit.alpha, fit.beta)
    return weights


def climbed(p: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The integral of `weights` over `p`, an odd number of points of which the middle one gets 0."""
    integral = cumulative_simpson(weights, x=p, initial=0)
    return integral - integral[len(p) // 2]


def draw_estimators() -> Figure:
    """The weight that each estimator gives to a question of accuracy p, and what it climbs: the integral.

    Both are divided by the weight at p = 1/2, since gradients are clipped and Adam forgets factors.
    """
    with matplotlib.rc_context(STYLE):
        p = np.linspace(0.005, 0.995, 1981)
        figure, [left, right] = _figure(2.7, 2)
        for number, (label, weight) in enumerate(estimator_weights().items()):
            relative = weight(p) / weight(np.array([0.5]))
            left.plot(p, relative, label=label, **_line(number))
            right.plot(p, climbed(p, relative), **_line(number))
        left.set(xlabel="$p$", ylabel="weight", yscale="log", xlim=(0, 1), ylim=(0.2, 20))
        left.set_yticks([0.2, 0.5, 1, 2, 5, 10, 20], ["0.2", "0.5", "1", "2", "5", "10", "20"])
        left.minorticks_off()
        right.set(xlabel="$p$", ylabel="what is climbed", xlim=(0, 1), ylim=(-1.2, 1.2))
        figure.legend(loc="outside upper center", ncols=2)
        return figure
