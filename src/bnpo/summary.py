"""What a run came to, in a few lines for a terminal: from its files alone, whether it has ended or not."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bnpo.files import InputError, whole_json_lines

BESIDES = ("watch", "evaluate")
"""Phases that are not part of a step's total."""


def ends(lines: Sequence[dict], metric: str) -> tuple[float, float] | None:
    """The first and the last value of a metric in the lines of metrics.jsonl; None where it was never logged."""
    values = [line[metric] for line in lines if line.get(metric) is not None]
    return (values[0], values[-1]) if values else None


def why_ended(run: Path) -> str:
    """Why the run in the folder `run` ended, as far as it did."""
    end = run / "end.json"
    return json.loads(end.read_text(encoding="utf-8"))["why"] if end.exists() else "goes on, or was killed"


def mean_seconds(lines: Sequence[dict]) -> dict[str, float]:
    """Seconds of every phase, on average over the lines that have it; the longest first."""
    names = {name for line in lines for name in line if name.startswith("seconds/")}
    means = {name.removeprefix("seconds/"): fmean(line[name] for line in lines if name in line) for name in names}
    return dict(sorted(means.items(), key=lambda phase: -phase[1]))


def summary(run: Path) -> str:
    """How far a run came and why it ended, reward and pass@1 from and to, seconds a phase, where everything is. Raises
    InputError for a folder without metrics."""
    lines = whole_json_lines(run / "metrics.jsonl")
    if not lines:
        raise InputError(f"{run}: has no metrics.jsonl with a step in it; name the folder of a run that has begun")
    rows = {"run": f"{run}: {why_ended(run)} after step {lines[-1]['step']}"}
    told = {"reward": "reward/mean", "pass@1": "eval/average", "answer tokens": "answers/mean_tokens"}
    for name, metric in told.items():
        if found := ends(lines, metric):
            rows[name] = "{:.4g} -> {:.4g}".format(*found)
    seconds = mean_seconds(lines)
    if total := seconds.pop("total", None):
        parts = {name: f"{name} {value:.2g}" for name, value in seconds.items()}
        besides = [parts.pop(name) for name in BESIDES if name in parts]
        rows["seconds"] = f"{total:.3g} a step: {', '.join(parts.values())}"
        if besides:
            rows["besides"] = f"{', '.join(besides)} each time"
    places = [
        name for name in ("last", "best", "rollouts", "tokens", "watch", "evals", "wandb") if (run / name).exists()
    ]
    rows["in it"] = ", ".join(["config.json", "metrics.jsonl", *places])
    rows["see it"] = f"python -m bnpo.report {run}"
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
