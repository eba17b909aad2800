"""Summary of a run in a few lines, made from the files of a finished, running or killed run."""

import json
import shlex
from pathlib import Path
from statistics import fmean

from bnpo.files import InputError, whole_json_lines

NO_END = "still running or killed"
"""Stands for the reason of the end where a run has no end.json."""


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
    values: dict[str, list[float]] = {}  # of every metric, without those of steps that did not log it
    for line in lines:
        for name, value in line.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    rows = {"run": f"{run}: {why_ended(run)} after step {lines[-1]['step']}"}
    metrics = {"reward": "reward/mean", "pass@1": "eval/average", "answer tokens": "answers/mean_tokens"}
    for name, metric in metrics.items():
        if metric in values:
            rows[name] = f"{values[metric][0]:.4g} -> {values[metric][-1]:.4g}"
    failures = []
    for name, counts in values.items():
        kind = "timeout" if name == "reward/timeouts" else name.removeprefix("reward/errors/")
        if kind != name and any(counts):
            failures.append(f"{kind} {sum(counts):.0f} times")
    if failures:
        rows["failed rewards"] = ", ".join(failures)
    findings = run / "findings.json"
    if findings.exists():
        for finding in json.loads(findings.read_text(encoding="utf-8")):
            rows[f"first steps: {finding['kind']}"] = finding["text"]
    prefix = "seconds/"
    means = {name.removeprefix(prefix): fmean(values[name]) for name in values if name.startswith(prefix)}
    parts = {phase: f"{phase} {means[phase]:.2g}" for phase in sorted(means, key=means.get, reverse=True)}
    # These are not part of a step's total.
    besides = [parts.pop(phase) for phase in ("watch", "evaluate") if phase in parts]
    if parts.pop("total", None):
        rows["seconds"] = f"{means['total']:.3g} per step: {', '.join(parts.values())}"
    if besides:
        rows["not in steps"] = f"{', '.join(besides)} each time"
    files = ("config.json", "metrics.jsonl", "last", "best", "rollouts", "tokens", "watch", "evals", "wandb")
    rows["files"] = ", ".join(name for name in files if (run / name).exists())
    rows["page"] = shlex.join(["python", "-m", "bnpo.report", str(run)])
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
