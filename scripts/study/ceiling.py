"""Print and draw what a weight of BNPO's kind can gain over REINFORCE, in theory and as the study measured it.

    python scripts/study/ceiling.py        # prints a table, writes docs/study/figures/theory.png

Theory: the squared cosine between the advantages of BNPO and REINFORCE, for accuracies with a Beta(a, b) distribution
(docs/study/theory.md). Measured: the ratio of their signals over noise at the nine checkpoints of evals/results/study/
noise.json, and its two parts, the ratio of squared signals and the ratio of noises.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

# Started as a file, this folder is first on the path, where `study` is not found and `statistics` hides Python's own.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import Method
from bnpo.files import ROOT
from paper.figures import COLOURS, DASHES, STYLE, WIDTH
from study.rows import NOISE
from verify_theorem import log_variance, squared_cosine

BATCH, ANSWERS, BATCHES = 32, 16, 400
"""Questions and answers of the batches whose noise the study measured, and how many batches are simulated."""
MEANS = (0.5, 0.3, 0.1, 0.02)


@dataclass(frozen=True)
class Checkpoint:
    """Squared cosines and measured ratios of BNPO to REINFORCE at one checkpoint."""

    a: float
    b: float
    formula: float  # squared cosine, if the accuracies were known
    simulated: float  # squared cosine with 16 answers and a fit for every batch
    ratio: tuple[float, float]  # of the signals over noise, with its standard error
    signal: float  # ratio of squared signals
    noise: float  # ratio of noises
    lowest: float  # Theorem 1's ratio of noises at its minimum for (a, b)
    rho: float  # squared signal over noise of a question, from REINFORCE's measured signal over noise
    gain: float  # signal over noise of the best weight over REINFORCE's, for this rho


def simulated_cosine(a: float, b: float) -> float:
    """Return the squared cosine between BNPO's and REINFORCE's advantages over simulated batches of all answers."""
    rng = np.random.default_rng(0)
    products = np.zeros(3)  # both, BNPO with itself, REINFORCE with itself
    for _ in range(BATCHES):
        rewards = (rng.random((BATCH, ANSWERS)) < rng.beta(a, b, size=(BATCH, 1))).astype(float)[:, :, None]
        bnpo, reinforce = (compute_advantages(Method(name), rewards).values for name in ("bnpo", "reinforce"))
        products += [(bnpo * reinforce).sum(), (bnpo**2).sum(), (reinforce**2).sum()]
    return float(products[0] ** 2 / (products[1] * products[2]))


def best_gain(a: float, b: float, ratio: float) -> tuple[float, float]:
    """Return rho and what the best weight gains over REINFORCE, in the model of docs/study/theory.md, section 4.

    `ratio` is REINFORCE's signal over noise for batches of BATCH questions. In units of the noise of a question, the
    signal is E[v]^2 rho, and the variance of a batch (E[v^2] rho + E[v] - E[v]^2 rho) / BATCH. This gives rho.
    """
    p = np.random.default_rng(0).beta(a, b, size=200_000)
    v = p * (1 - p)
    mean, square = v.mean(), (v**2).mean()
    rho = ratio * mean / (BATCH * mean**2 - ratio * (square - mean**2))
    best, reinforce = (v / (1 + rho * v)).mean() * rho, mean**2 * rho / (square * rho + mean)  # (E w u)^2 / E[w^2 M]
    return rho, best / (1 - best) / (reinforce / (1 - reinforce))  # from squares to variances


def read_checkpoints() -> dict[str, Checkpoint]:
    """Return the checkpoints of noise.json by name."""
    found = {}
    for name, measured in json.loads(NOISE.read_text()).items():
        a, b = measured["a"], measured["b"]
        bnpo, reinforce = (measured["methods"][method] for method in ("bnpo", "reinforce"))
        base = reinforce["ratio"][0]
        # The jackknife error of the difference has the covariance of both; REINFORCE's own ratio is taken as known.
        ratio = bnpo["ratio"][0] / base, reinforce["bnpo_less"][1] / base
        noise = bnpo["noise_ratio"][0]
        lowest = float(np.exp(log_variance(1 + a / 3, 1 + b / 3, a, b) - log_variance(1, 1, a, b)))
        formula = squared_cosine(a, b)
        measured_parts = (ratio, ratio[0] * noise, noise)
        found[name] = Checkpoint(a, b, formula, simulated_cosine(a, b), *measured_parts, lowest, *best_gain(a, b, base))
    return found


def draw(checkpoints: dict[str, Checkpoint]) -> Figure:
    """Draw the squared cosine by a + b with its limits, and beside it what was measured."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        totals = np.geomspace(0.1, 1e4, 200)
        for index, mean in enumerate(MEANS):
            values = squared_cosine(mean * totals, (1 - mean) * totals)
            left.plot(totals, values, label=f"E[p] = {mean:g}", color=COLOURS[index], linestyle=DASHES[index])
        for limit, label in ((1, "REINFORCE"), (3**0.5 / 2, r"$\sqrt{3}/2$"), (0.75, "3/4")):
            left.axhline(limit, color="0.8", linewidth=0.8, zorder=0)
            left.annotate(label, (0.11, limit + 0.005), fontsize=7, color="0.4")
        left.set(xscale="log", xlabel="$a + b$", ylabel="signal over noise, BNPO / REINFORCE", ylim=(0.7, 1.1))
        left.legend(loc="upper right", ncols=2)
        right.plot([0.85, 1], [0.85, 1], color="0.8", linewidth=0.8, zorder=0)
        for index, regime in enumerate(dict.fromkeys(name.split(",")[0] for name in checkpoints)):
            points = [point for name, point in checkpoints.items() if name.startswith(regime)]
            right.errorbar(
                [point.simulated for point in points],
                [point.ratio[0] for point in points],
                yerr=[2 * point.ratio[1] for point in points],
                fmt="o",
                markersize=3,
                label=regime,
                color=COLOURS[index],
            )
        right.set(xlabel="squared cosine of the advantages")
        right.legend(loc="lower right")
        return figure


def main() -> None:
    checkpoints = read_checkpoints()
    table = Table(title="BNPO over REINFORCE at the checkpoints of the first study")
    columns = ("checkpoint", "a", "b", "cos^2, exact p", "cos^2, 16 answers", "signal / noise", "signal^2", "noise")
    for column in (*columns, "least noise", "rho", "best weight"):
        table.add_column(column, justify="right")
    for name, point in checkpoints.items():
        cells = [f"{value:.2f}" for value in (point.a, point.b)]
        cells += [f"{value:.3f}" for value in (point.formula, point.simulated)]
        cells += [f"{point.ratio[0]:.3f} ± {point.ratio[1]:.3f}"]
        cells += [f"{value:.3f}" for value in (point.signal, point.noise, point.lowest, point.rho)]
        table.add_row(name, *cells, f"{point.gain - 1:+.3%}")
    Console(width=160).print(table)
    draw(checkpoints).savefig(ROOT / "docs" / "study" / "figures" / "theory.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
