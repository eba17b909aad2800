"""Print the sample size calculation of the second study (docs/study/plan-2.md).

    python scripts/study/power.py

For each registered family of comparisons: the half width of a 95 % interval, the smallest difference that is found with
80 % power, alone and in the first step of Holm's correction, and the probability that an interval ends below the bound
if the true difference is 0. The standard deviation of a paired difference comes from the pilot of the cliff, or from
the areas of the first study.
"""

import sys
from pathlib import Path

# Started as a file, this folder is first on the path, where `study` is not found and `statistics` hides Python's own.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import nct, t

from study.design import REGIMES, SEEDS
from study.rows import Rows, area, select
from study.statistics import smallest_found

PILOT = {
    "unclipped": {"reinforce": (0.44, 0.52), "grpo": (0.41, 0.40), "bnpo": (0.37, 0.61)},
    "clipped": {"reinforce": (0.43, 0.51), "grpo": (0.59, 0.53), "bnpo": (0.38, 0.50)},
}
"""pass@1 at the end of the cliff's pilot, whose two seeds count for nothing."""


def pilot_deviation() -> float:
    """Return the standard deviation of the pilot's eight differences of BNPO and REINFORCE or GRPO, in points."""
    differences = [
        100 * (ours - theirs)
        for runs in PILOT.values()
        for other in ("reinforce", "grpo")
        for ours, theirs in zip(runs["bnpo"], runs[other], strict=True)
    ]
    return float(np.std(differences, ddof=1))


def first_study_deviations(other: str) -> list[float]:
    """Return, for each regime, the standard deviation of BNPO's area minus that of `other` in the first study."""
    rows = Rows().all
    deviations = []
    for regime in REGIMES:
        ours, theirs = (select(rows, "main", regime, name) for name in ("bnpo", other))
        differences = [100 * (area(ours[seed]) - area(theirs[seed])) for seed in SEEDS]
        deviations.append(float(np.std(differences, ddof=1)))
    return deviations


def chance_below(bound: float, deviation: float, seeds: int) -> float:
    """Return the probability that a 95 % interval ends below `bound` if the true difference is 0."""
    return float(nct.sf(t.ppf(0.975, seeds - 1), seeds - 1, bound * np.sqrt(seeds) / deviation))


def main() -> None:
    table = Table(title="Points of pass@1 (cliff) or of the area (prior)")
    columns = ("part", "seeds", "sd", "half width", "found alone", "found by Holm", "bound", "P(ends below bound)")
    for column in columns:
        table.add_column(column, justify="right")
    grpo, maxrl = (first_study_deviations(other) for other in ("grpo", "maxrl"))
    cases = [("cliff", 40, pilot_deviation(), 4, 5.0), ("cliff, less likely", 40, 2**0.5 * pilot_deviation(), 4, 5.0)]
    cases += [
        ("prior, as BNPO and GRPO", 12, max(grpo), 12, 1.0),
        ("prior, as BNPO and MaxRL", 12, max(maxrl), 12, 1.0),
    ]
    for part, seeds, deviation, comparisons, bound in cases:
        half = t.ppf(0.975, seeds - 1) * deviation / np.sqrt(seeds)
        found = [smallest_found(deviation, seeds, 0.05 / k) for k in (1, comparisons)]
        cells = [f"{value:.2f}" for value in (deviation, half, *found)]
        table.add_row(part, str(seeds), *cells, f"{bound:g}", f"{chance_below(bound, deviation, seeds):.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
