"""The rows of the study, one for each finished run: what the reports take from them."""

from collections.abc import Mapping, Sequence

import numpy as np

from study.design import EVALUATED
from study.shared import HERE

ROWS, ROWS_2 = HERE / "rows/rows.jsonl", HERE / "rows/rows-2.jsonl"
"""The rows of the first study, and of the second."""
Place = tuple[str, str, str]
"""Part, regime and method."""
RowList = Sequence[Mapping]
"""Rows: of a run its name, part, regime, method, lr, seed and commit, why it ended, curves
by step, pass@1 by step, and medians of seconds."""


def height(row: Mapping, step: int) -> float:
    """Return pass@1 after a step; 0 for a run that failed before."""
    return row["evals"].get(str(step), 0.0)


def heights(row: Mapping) -> list[float]:
    """Return pass@1 after each step of EVALUATED."""
    return [height(row, step) for step in EVALUATED[row["regime"]]]


def final(row: Mapping) -> float:
    """Return pass@1 after the last step."""
    return heights(row)[-1]


def middle(row: Mapping) -> float:
    """Return pass@1 in the middle of the run."""
    return heights(row)[1]


def trained(row: Mapping) -> float:
    """Return the mean over steps of the reward that is trained on, where steps have one."""
    return float(np.nanmean(np.array(row["curves"]["reward"], dtype=float)))


def area(row: Mapping) -> float:
    """Return the mean height of the curve of pass@1 from the first step to the last
    (trapezoids).
    """
    curve = heights(row)
    return float(np.trapezoid(curve) / (len(curve) - 1))


def select(rows: RowList, *place: str) -> dict[int, Mapping]:
    """Return the rows of one method (part, regime, name) by seed."""
    return {
        row["seed"]: row for row in rows if (row["part"], row["regime"], row["method"]) == place
    }


def both_done(rows: RowList, first: Place, second: Place) -> list[tuple[Mapping, Mapping]]:
    """Return pairs of rows of two methods, by seed, of those seeds that ended well in both."""
    ours, theirs = select(rows, *first), select(rows, *second)
    seeds = [seed for seed in sorted(ours.keys() & theirs.keys()) if ours[seed]["ended"] == "done"]
    return [(ours[seed], theirs[seed]) for seed in seeds if theirs[seed]["ended"] == "done"]
