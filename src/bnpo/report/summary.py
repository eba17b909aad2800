"""Summary of a run in a few lines, made from the files of a finished, running or killed run."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bnpo.files import InputError, whole_json_lines

NO_END = "still running or killed"
"""Stands for the reason of the end where a run has no end.json."""


def ends(lines: Sequence[dict], metric: str) -> tuple[float, float] | None:
    """Return the first and the last value of a metric in the lines of metrics.jsonl. None: it was never logged."""
    values = [line[metric] for line in lines if line.get(metric) is not None]
    return (values[0], values[-1]) if values else None


def why_ended(run: Path) -> str:
    """Return the reason in the run's end.json."""
    end = run / "end.json"
    return json.loads(end.read_text(encoding="utf-8"))["why"] if end.exists() else NO_END


def summary(run: Path) -> str:
    """Return a run's last step, why it ended, its first and last scores, its seconds per phase, and its files.

    Raises InputError for a folder without metrics.
    """
    lines = whole_json_lines(run / "metrics.jsonl")
    if not lines:
        raise InputError(f"{run}: has no metrics.jsonl with a step in it. Name the folder of a run that has started")
    rows = {"run": f"{run}: {why_ended(run)} after step {lines[-1]['step']}"}
    metrics = {"reward": "reward/mean", "pass@1": "eval/average", "answer tokens": "answers/mean_tokens"}
    for name, metric in metrics.items():
        first_and_last = ends(lines, metric)
        if first_and_last:
            rows[name] = "{:.4g} -> {:.4g}".format(*first_and_last)
    failures = _failures(lines)
    if failures:
        rows["failed rewards"] = ", ".join(f"{kind} {count:.0f} times" for kind, count in failures.items())
    findings = run / "findings.json"
    if findings.exists():
        for finding in json.loads(findings.read_text(encoding="utf-8")):
            rows[f"first steps: {finding['kind']}"] = finding["text"]
    rows |= _seconds_rows(lines)
    files = ("config.json", "metrics.jsonl", "last", "best", "rollouts", "tokens", "watch", "evals", "wandb")
    rows["files"] = ", ".join(name for name in files if (run / name).exists())
    rows["page"] = shlex.join(["python", "-m", "bnpo.report", str(run)])
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())


def _failures(lines: Sequence[dict]) -> dict[str, float]:
    """Return how many calls of rewards failed in all steps, by kind: `timeout` or the exception's name."""
    counts: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            kind = "timeout" if name == "reward/timeouts" else name.removeprefix("reward/errors/")
            if kind != name and value:
                counts[kind] = counts.get(kind, 0) + value
    return counts


def _seconds_rows(lines: Sequence[dict]) -> dict[str, str]:
    """Return the rows of the summary about time: the mean seconds of every phase, the longest phase first."""
    seconds: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("seconds/"):
                seconds.setdefault(name.removeprefix("seconds/"), []).append(value)
    means = {phase: fmean(values) for phase, values in seconds.items()}
    total = means.pop("total", None)
    if total is None:  # no training step yet
        return {}
    longest_first = sorted(means, key=means.get, reverse=True)
    parts = {phase: f"{phase} {means[phase]:.2g}" for phase in longest_first}
    # These are not part of a step's total.
    besides = [parts.pop(phase) for phase in ("watch", "evaluate") if phase in parts]
    rows = {"seconds": f"{total:.3g} per step: {', '.join(parts.values())}"}
    if besides:
        rows["not in steps"] = f"{', '.join(besides)} each time"
    return rows
