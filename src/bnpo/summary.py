"""The summary of a run for the terminal, from its files alone, whether it has ended or not."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bnpo.files import InputError, whole_json_lines

NOT_IN_TOTAL = ("watch", "evaluate")
"""Phases that are not part of a step's total seconds."""


def ends(lines: Sequence[dict], metric: str) -> tuple[float, float] | None:
    """Return the first and the last value of a metric in the lines of metrics.jsonl, None if it was never logged."""
    values = [line[metric] for line in lines if line.get(metric) is not None]
    return (values[0], values[-1]) if values else None


def why_ended(run: Path) -> str:
    """Return why the run in the folder `run` ended. A run without end.json is still going or was killed."""
    end = run / "end.json"
    return json.loads(end.read_text(encoding="utf-8"))["why"] if end.exists() else "still running or killed"


def mean_seconds(lines: Sequence[dict]) -> dict[str, float]:
    """Return the mean seconds of every phase over the lines that have it, the longest first."""
    names = {name for line in lines for name in line if name.startswith("seconds/")}
    means = {name.removeprefix("seconds/"): fmean(line[name] for line in lines if name in line) for name in names}
    return dict(sorted(means.items(), key=lambda phase: -phase[1]))


def summary(run: Path) -> str:
    """Return the summary of a run: last step and why it ended, first and last reward and pass@1, seconds per phase, and
    its files. Raises InputError for a folder without metrics."""
    lines = whole_json_lines(run / "metrics.jsonl")
    if not lines:
        raise InputError(
            f"{run}: has no metrics.jsonl with a step in it; name the folder of a run that has finished a step"
        )
    rows = {"run": f"{run}: {why_ended(run)} after step {lines[-1]['step']}"}
    metrics = {"reward": "reward/mean", "pass@1": "eval/average", "answer tokens": "answers/mean_tokens"}
    for name, metric in metrics.items():
        first_and_last = ends(lines, metric)
        if first_and_last:
            rows[name] = "{:.4g} -> {:.4g}".format(*first_and_last)
    seconds = mean_seconds(lines)
    total = seconds.pop("total", None)
    if total:
        parts = {name: f"{name} {value:.2g}" for name, value in seconds.items()}
        others = [parts.pop(name) for name in NOT_IN_TOTAL if name in parts]
        rows["seconds"] = f"{total:.3g} per step: {', '.join(parts.values())}"
        if others:
            rows["other seconds"] = f"{', '.join(others)} per call"
    places = [
        name for name in ("last", "best", "rollouts", "tokens", "watch", "evals", "wandb") if (run / name).exists()
    ]
    rows["files"] = ", ".join(["config.json", "metrics.jsonl", *places])
    rows["page"] = f"python -m bnpo.report {run}"
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
