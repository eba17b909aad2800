"""What a run came to, in a few lines for a terminal: from its files alone, whether it has ended or not."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bnpo.files import InputError, whole_json_lines


def ends(lines: Sequence[dict], metric: str) -> tuple[float, float] | None:
    """The first and the last value of a metric in the lines of metrics.jsonl; None where it was never logged."""
    values = [line[metric] for line in lines if line.get(metric) is not None]
    return (values[0], values[-1]) if values else None


def why_ended(run: Path) -> str:
    """Why the run in the folder `run` ended, as far as it did."""
    end = run / "end.json"
    return json.loads(end.read_text(encoding="utf-8"))["why"] if end.exists() else "goes on, or was killed"


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
    phases = sorted({name for line in lines for name in line if name.startswith("seconds/")} - {"seconds/total"})
    seconds = {phase: fmean(line[phase] for line in lines if phase in line) for phase in phases}
    total = [line["seconds/total"] for line in lines if "seconds/total" in line]
    if total:
        parts = ", ".join(f"{phase.removeprefix('seconds/')} {value:.2g}" for phase, value in seconds.items())
        rows["seconds"] = f"{fmean(total):.3g} a step: {parts}"
    places = [name for name in ("last", "best", "rollouts", "watch", "evals", "wandb") if (run / name).exists()]
    rows["in it"] = ", ".join(["config.json", "metrics.jsonl", *places])
    rows["see it"] = f"python -m bnpo.report {run}"
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
