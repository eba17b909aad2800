"""The study's figures: every seed a dot, the norm of the gradient (Figure 2), the fitted Beta
(Figure 3).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from study.comparisons import (
    METRICS,
    Pairs,
    against_fixed,
    corrected,
    decomposed,
    differences,
    rescaled,
)
from study.design import ALGORITHMS, FAVOURED, REGIMES
from study.rows import area, final, select
from study.shared import COLOURS, DASHES, STYLE, WIDTH, RunCurves, draw_fits, draw_norms
from study.statistics import t_interval
from study.weights import WEIGHING, base_accuracies, base_weights

FITTED = ("E", "V", "alpha", "beta")


def draw_all(rows: Sequence[Mapping], folder: Path) -> dict[str, Path]:
    """Write the figures as PNG; title -> file."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "Weight of a question by its accuracy, at the base model": ("weights", draw_weights())
    }
    figures["Every seed, at the end and as area"] = ("seeds", draw_seeds(rows))
    figures["The other parts: differences, every seed a dot"] = (
        "differences",
        draw_differences(rows),
    )
    for regime in REGIMES:
        groups = {name: _runs(rows, regime, name) for name in ALGORITHMS}
        figures[f"Norm of the gradient, {regime}"] = (f"norms-{regime}", draw_norms(groups, 1))
    fitted = {regime: _runs(rows, regime, "bnpo") for regime in REGIMES}
    figures["The fitted Beta distribution"] = ("fits", draw_fits(fitted, 1))
    files = {}
    for title, (name, figure) in figures.items():
        files[title] = folder / f"{name}.png"
        figure.savefig(files[title], metadata={"Software": None})
    return files


def _other_parts(rows: Sequence[Mapping]) -> dict[str, Pairs]:
    """What the parts but the main one compare, by title."""
    parts = {
        f"BNPO less fixed densities, {regime}": against_fixed(rows, regime) for regime in FAVOURED
    }
    parts |= {
        "Rescaled less as it is, concentrated": rescaled(),
        "Corrected moments less the paper's": corrected(),
    }
    return parts | {"Decomposed less plain": decomposed()}


def _runs(rows: Sequence[Mapping], regime: str, method: str) -> list[RunCurves]:
    """Return the finished rows of one method as runs whose metrics the figures of runs can draw."""
    runs = []
    for seed, row in select(rows, "main", regime, method).items():
        if row["ended"] == "done":
            curves = {
                f"beta/{k}" if k in FITTED else k: np.array(v, dtype=float)
                for k, v in row["curves"].items()
            }
            curves["step"] = np.arange(1.0, len(row["curves"]["grad_norm"]) + 1)
            runs.append(RunCurves(Path(row["name"]), method, seed, {}, curves))
    return runs


def draw_weights() -> Figure:
    """The weight w(p) of each method that multiplies R - p by one, scaled to equal advantages in
    the root mean square, over how many questions have that accuracy.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
        for axes, regime in zip(figure.subplots(1, len(REGIMES)), REGIMES, strict=True):
            weights, accuracies = base_weights(regime), base_accuracies(regime)
            questions = axes.twinx()
            questions.hist(accuracies, bins=np.linspace(-0.5, 32.5, 34) / 32, color="0.88")
            questions.set_yticks([])
            questions.spines["left"].set_visible(False)
            axes.set_zorder(questions.get_zorder() + 1)
            axes.patch.set_visible(False)
            for number, name in enumerate(WEIGHING):
                axes.plot(
                    *weights[name], label=name, color=COLOURS[number], linestyle=DASHES[number]
                )
            axes.set(xlabel="$p$", title=regime, ylim=(0, 8))
            axes.set_xlim(accuracies.min() - 0.03, accuracies.max() + 0.03)
        figure.axes[0].set_ylabel("weight")
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(),
            loc="outside upper center",
            ncols=len(WEIGHING),
        )
        return figure


def draw_seeds(rows: Sequence[Mapping]) -> Figure:
    """Every run a dot, by method and regime, beside the mean of its method."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        panels = figure.subplots(2, len(REGIMES), sharey=True)
        for line, (metric, label) in zip(
            panels, ((final, "pass@1 at the end"), (area, "area")), strict=True
        ):
            for axes, regime in zip(line, REGIMES, strict=True):
                for place, method in enumerate(ALGORITHMS):
                    values = [metric(row) for row in select(rows, "main", regime, method).values()]
                    colour = COLOURS[place % len(COLOURS)]
                    axes.plot(
                        values, [place] * len(values), "o", markersize=2.5, alpha=0.6, color=colour
                    )
                    axes.plot(np.mean(values), place, "|", markersize=12, color="black")
                axes.set(
                    yticks=range(len(ALGORITHMS)), ylim=(len(ALGORITHMS) - 0.5, -0.5), title=regime
                )
                axes.set_xlabel(label)
                axes.set_yticklabels(ALGORITHMS)
        return figure


def draw_differences(rows: Sequence[Mapping]) -> Figure:
    """Every seed's paired difference a dot, in points, beside the mean with its 95 % t interval."""
    compared = _other_parts(rows)
    with matplotlib.rc_context(STYLE):
        ratios = [len(pairs) + 2 for pairs in compared.values()]
        figure = Figure(figsize=(WIDTH, 0.16 * sum(ratios)), layout="constrained")
        panels = figure.subplots(len(compared), 2, sharey="row", height_ratios=ratios)
        for line, (title, pairs) in zip(panels, compared.items(), strict=True):
            line[0].set_yticks(range(len(pairs)), pairs)
            line[0].set_ylim(len(pairs) - 0.5, -0.5)
            for axes, metric in zip(line, METRICS.values(), strict=True):
                axes.axvline(0, color="0.8", zorder=0)
                for place, places in enumerate(pairs.values()):
                    values = 100 * differences(rows, places, metric)
                    axes.plot(
                        values,
                        [place] * len(values),
                        "o",
                        markersize=2.5,
                        alpha=0.5,
                        color=COLOURS[0],
                    )
                    mean, half = t_interval(values)
                    axes.errorbar(
                        mean, place, xerr=half, fmt="|", markersize=9, color="black", elinewidth=1
                    )
            line[0].set_title(title, loc="left", fontsize=8)
        for axes, name in zip(panels[-1], METRICS, strict=True):
            axes.set_xlabel(f"points of pass@1: {name}")
        return figure
