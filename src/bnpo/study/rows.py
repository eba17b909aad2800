"""A finished run of the study as one row, and the file of all rows."""

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bnpo.files import ROOT, InputError, read_json_lines, whole_json_lines
from bnpo.study.registry import EVAL_EVERY, LEARNING_RATES, STEPS, TUNING_SEEDS, StudyRun

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


class Rows:
    """The rows of a file, in the order in which runs ended; `add` writes one more."""

    def __init__(self, path: Path = ROWS):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.all = [row for _, row in read_json_lines(path)] if path.exists() else []
        self.names = {row["name"] for row in self.all}
        if len(self.names) < len(self.all):
            raise InputError(f"{path}: a run has two rows; keep the one that is committed")

    def add(self, row: dict) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.all.append(row)
        self.names.add(row["name"])


def row_of(run: StudyRun, folder: Path, status: int | None) -> dict:
    """The row of `run`, which ended with exit status `status` and left `folder`. One that failed has a row too: its
    `ended` says why."""
    row: dict = {"name": run.name, "part": run.part, "regime": run.regime, "method": run.method, "lr": run.lr}
    row |= {"seed": run.seed, "commit": commit(), "ended": _ended(folder, status)}
    lines = whole_json_lines(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    if (config := folder / "config.json").exists():
        settings = json.loads(config.read_text()) | {"output_dir": None}
        row["config_sha256"] = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    steps = [line for line in lines if line["step"]]
    row["curves"] = {name: _column(steps, metric) for name, metric in CURVES.items() if _has(steps, metric)}
    row["evals"] = {
        line["step"]: [_short(line["eval/average"]), _short(_standard_error(line))]
        for line in lines
        if "eval/average" in line
    }
    for name in ("seconds/generate", "seconds/update", "seconds/total", "tokens/sampled", "tokens/greedy"):
        if _has(steps, name):
            row[name] = _short(float(np.median([step[name] for step in steps])))
    return row


def _ended(folder: Path, status: int | None) -> str:
    end = json.loads((folder / "end.json").read_text())["why"] if (folder / "end.json").exists() else ""
    return end if status == 0 else f"exit status {status} {end}".strip()


def _has(steps: Sequence[Mapping], metric: str) -> bool:
    return bool(steps) and all(metric in step for step in steps)


def _column(steps: Sequence[Mapping], metric: str) -> list[float | None]:
    return [None if step[metric] is None else _short(step[metric]) for step in steps]


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _standard_error(line: Mapping[str, float]) -> float:
    return next(value for name, value in line.items() if name.startswith("eval/") and name.endswith("/se"))


def commit() -> str:
    """The commit that computes, with `-dirty` where files that can change a result differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "src", "data", "train.py", "requirements-cpu.txt")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


def final(row: Mapping) -> float:
    """pass@1 after the last step; 0 for a run that failed before."""
    return row["evals"].get(str(STEPS), row["evals"].get(STEPS, [0.0]))[0]


def area(row: Mapping) -> float:
    """The mean height of the curve of pass@1 from the first step to the last (trapezoids); what a run that failed did
    not reach counts 0."""
    evals = {int(step): score for step, (score, _) in row["evals"].items()}
    heights = [evals.get(step, 0.0) for step in range(0, STEPS + 1, EVAL_EVERY)]
    return float(np.trapezoid(heights) / (len(heights) - 1))


def chosen_lr(rows: Sequence[Mapping], regime: str, method: str) -> float:
    """The learning rate with the greatest mean area under the validation curve; the lowest of those that tie.

    Raises InputError where a tuning run has no row yet.
    """
    part = "tags-tuning" if regime == "tags" else "tuning"
    found = [row for row in rows if (row["part"], row["regime"], row["method"]) == (part, regime, method)]
    means = []
    for lr in LEARNING_RATES:
        areas = [area(row) for row in found if row["lr"] == lr]
        if len(areas) < len(TUNING_SEEDS):
            raise InputError(f"{regime}, {method}: learning rate {lr:g} was not tried yet; run --only {part} first")
        means.append(np.mean(areas))
    return LEARNING_RATES[int(np.argmax(means))]
