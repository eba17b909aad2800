"""The rows of the study, one for each finished run: what the reports take from them, and how to
train them again.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bnpo.files import ROOT, whole_json_lines
from runpage.run_files import why_ended
from study.design import EVALUATED, command

RESULTS = ROOT / "evals" / "results" / "study"
ROWS, ROWS_2 = RESULTS / "rows.jsonl", RESULTS / "rows-2.jsonl"
"""The rows of the first study, and of the second."""
Place = tuple[str, str, str]
"""Part, regime and method."""
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
"""What is kept of every step, by its name in metrics.jsonl; the last four only where there is
one fit, BNPO's."""
DIGITS = 6
RowList = Sequence[Mapping]
"""Rows: of a run its name, part, regime, method, lr, seed and commit, its `result_of`, and
medians of seconds."""


def result_of(folder: Path) -> dict:
    """Return what a row says of the run in `folder`: why it ended, `curves` by step, and
    accuracies by step.
    """
    lines = whole_json_lines(folder / "metrics.jsonl")
    steps = [line for line in lines if line["step"]]
    curves = {}
    for name, metric in CURVES.items():
        if steps and all(metric in step for step in steps):
            curves[name] = [
                None if step[metric] is None else _short(step[metric]) for step in steps
            ]
    evals = {
        str(line["step"]): _short(line["eval/average"]) for line in lines if "eval/average" in line
    }
    return {"ended": why_ended(folder), "curves": curves, "evals": evals}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


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


def train_again(row: Mapping, folder: Path, steps: int | None = None) -> dict:
    """Train the run of a row in `folder`, or its first `steps` only, and return its `result_of`."""
    launcher = [sys.executable, "scripts/launch.py", "--num_gpus", "1", "train.py"]
    flags = command(row, steps)
    # One thread, as in the study: the number of threads changes the last bits.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*launcher, *flags, "--output-dir", str(folder)], cwd=ROOT, env=environment, check=False
    )
    return result_of(folder)


def compare_with(row: Mapping, result: Mapping) -> str:
    """Return a line that says how far a run that was trained again is what its row says."""
    same = [name for name, values in row["curves"].items() if result["curves"].get(name) == values]
    (step, recorded), found = list(row["evals"].items())[-1], result["evals"]
    return (
        f"{row['name']}: {result['ended']} (recorded: {row['ended']}), {len(same)} of "
        f"{len(row['curves'])} curves are equal, pass@1 after step {step} is "
        f"{found.get(step, float('nan')):g} (recorded: {recorded:g})"
    )
