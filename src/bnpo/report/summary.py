"""Summary of a run in a few lines, made from the files of a finished, running or killed run."""

import json
import shlex
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from bnpo.files import InputError, whole_json_lines


def why_ended(run: Path) -> str:
    """Return the reason in the run's end.json."""
    end = run / "end.json"
    return json.loads(end.read_text(encoding="utf-8"))["why"] if end.exists() else "still running or killed"


def summary(run: Path) -> str:
    """Return a run's last step, why it ended, its first and last scores, what failed, and its seconds per phase.

    Raises InputError for a folder without metrics.
    """
    lines = whole_json_lines(run / "metrics.jsonl")
    if not lines:
        raise InputError(f"{run}: has no metrics.jsonl with a step in it. Name the folder of a run that has started")
    values: dict[str, list[float]] = defaultdict(list)  # of every metric, without those of steps that did not log it
    for line in lines:
        for name, value in line.items():
            if value is not None:
                values[name].append(value)
    rows = {"run": f"{run}: {why_ended(run)} after step {lines[-1]['step']}"}
    metrics = {"reward": "reward/mean", "pass@1": "eval/average", "answer tokens": "answers/mean_tokens"}
    for name, metric in metrics.items():
        if metric in values:
            rows[name] = f"{values[metric][0]:.4g} -> {values[metric][-1]:.4g}"
    kinds = [name for name in values if name == "reward/timeouts" or name.startswith("reward/errors/")]
    failures = [f"{name.rpartition('/')[2]} {sum(values[name]):.0f}" for name in kinds if any(values[name])]
    if failures:
        rows["failed rewards"] = ", ".join(failures)
    findings = run / "findings.json"
    if findings.exists():
        for finding in json.loads(findings.read_text(encoding="utf-8")):
            rows[f"first steps: {finding['kind']}"] = finding["text"]
    # `total` is that of a step, in which neither evaluations nor watched questions count.
    seconds = {name.removeprefix("seconds/"): fmean(values[name]) for name in values if name.startswith("seconds/")}
    phases = sorted(seconds, key=seconds.get, reverse=True)
    rows["mean seconds"] = ", ".join(f"{phase} {seconds[phase]:.3g}" for phase in phases)
    rows["page"] = shlex.join(["python", "-m", "bnpo.report", str(run)])
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
