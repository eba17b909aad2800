"""The rows of the study, one for each finished run, and what the reports take from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bnpo.files import ROOT, whole_json_lines
from bnpo.report.summary import why_ended
from study.design import EVALUATED, Grid

RESULTS = ROOT / "evals" / "results" / "study"
ROWS, NOISE = RESULTS / "rows.jsonl", RESULTS / "noise.json"
CURVES = {
    "reward": "reward/mean",
    "grad_norm": "grad_norm",
    "tokens": "answers/mean_tokens",
    "all_equal": "groups/all_equal",
    "entropy": "entropy",
    "E": "beta/E",
    "V": "beta/V",
    "alpha": "beta/alpha",
    "beta": "beta/beta",
}
"""What is kept of every step, by its name in metrics.jsonl; the last four only where there is one fit, BNPO's."""
DIGITS = 6
RowList = Sequence[Mapping]
"""Rows: of a run its name, part, regime, method, lr, seed and commit, its `result_of`, and medians of seconds."""


def read_rows(path: Path = ROWS) -> RowList:
    """Return the rows of a file, in the order in which the runs ended."""
    return whole_json_lines(path)


def result_of(folder: Path) -> dict:
    """Return what a row says of the run in `folder`: why it ended, `curves` by step, and accuracies by step."""
    lines = whole_json_lines(folder / "metrics.jsonl")
    steps = [line for line in lines if line["step"]]
    curves = {}
    for name, metric in CURVES.items():
        if steps and all(metric in step for step in steps):
            curves[name] = [None if step[metric] is None else _short(step[metric]) for step in steps]
    evals = {str(line["step"]): _short(line["eval/average"]) for line in lines if "eval/average" in line}
    return {"ended": why_ended(folder), "curves": curves, "evals": evals}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def final(row: Mapping) -> float:
    """pass@1 after the last step; 0 for a run that failed before."""
    return row["evals"].get(str(EVALUATED[row["regime"]][-1]), 0.0)


def middle(row: Mapping) -> float:
    """pass@1 in the middle of the run; 0 for a run that failed before."""
    return row["evals"].get(str(EVALUATED[row["regime"]][1]), 0.0)


def trained(row: Mapping) -> float:
    """The mean over steps of the reward that is trained on, where steps have one."""
    return float(np.nanmean(np.array(row["curves"]["reward"], dtype=float)))


def area(row: Mapping) -> float:
    """The mean height of the curve of pass@1 from the first step to the last (trapezoids); what a run that failed did
    not reach counts 0."""
    heights = [row["evals"].get(str(step), 0.0) for step in EVALUATED[row["regime"]]]
    return float(np.trapezoid(heights) / (len(heights) - 1))


def select(rows: RowList, part: str, regime: str, method: str) -> dict[int, Mapping]:
    """The rows of one method by seed."""
    wanted = (part, regime, method)
    return {row["seed"]: row for row in rows if (row["part"], row["regime"], row["method"]) == wanted}


def tuned(rows: RowList, regime: str, method: str, grid: Grid) -> dict[float, list[float]]:
    """Areas under the validation curves by learning rate, one for each tuning seed that has a row."""
    wanted = (grid.part, regime, method)
    areas: dict[float, list[float]] = {}
    for row in rows:
        if (row["part"], row["regime"], row["method"]) == wanted:
            areas.setdefault(row["lr"], []).append(area(row))
    return areas


def rates_to_try(rows: RowList, regime: str, method: str, grid: Grid) -> tuple[float, ...]:
    """The grid of learning rates and, when the best of it is at one of its ends, one rate beyond."""
    areas = tuned(rows, regime, method, grid)
    best = max(grid.rates, key=lambda lr: _mean(areas[lr]))
    return tuple(sorted((*grid.rates, grid.beyond[best]))) if best in grid.beyond else grid.rates


def both_done(
    rows: RowList, first: tuple[str, str, str], second: tuple[str, str, str]
) -> list[tuple[Mapping, Mapping]]:
    """Pairs of rows of two methods (part, regime, name), by seed, of those seeds that ended well in both."""
    ours, theirs = select(rows, *first), select(rows, *second)
    seeds = [seed for seed in sorted(ours.keys() & theirs.keys()) if ours[seed]["ended"] == "done"]
    return [(ours[seed], theirs[seed]) for seed in seeds if theirs[seed]["ended"] == "done"]


def chosen_lr(rows: RowList, regime: str, method: str, grid: Grid) -> float:
    """The learning rate with the greatest mean area under the validation curve; the lowest of those that tie."""
    areas, rates = tuned(rows, regime, method, grid), rates_to_try(rows, regime, method, grid)
    return max(rates, key=lambda lr: _mean(areas[lr]))


def _mean(areas: Sequence[float]) -> float:
    """Return the mean without its error of rounding, which would decide between rates that tie."""
    return round(float(np.mean(areas)), 9)
