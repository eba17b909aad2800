"""Shared by the benchmarks: start training runs, read their metrics, print rows of results."""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WARM_UP = 3
"""Number of first steps that medians leave out, because they compile and fill caches."""
PHASES = ("generate", "reward", "gather", "update", "sync")
"""Phases of a step, as in the metrics `seconds/<phase>`."""


def row(name: str, value: float) -> None:
    """Print one result."""
    print(f"{name}: {value:.4g}", flush=True)


def launch(ranks: int, *command: str | Path, root: str | Path = ROOT) -> str:
    """Run a program of the checkout `root` on ranks. Return its standard output, or print its errors and exit."""
    launcher = [sys.executable, "scripts/launch.py", "--num_gpus", str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(Path(root, "src"))}
    result = subprocess.run([*launcher, *map(str, command)], cwd=root, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}")
    return result.stdout


def training_steps(ranks: int, steps: int, *flags: str | Path, root: str | Path = ROOT) -> list[dict]:
    """Train for `steps` steps after the warm-up, without evaluations. Return the metrics of each step.

    Steps that save a checkpoint, such as the last one, also have `seconds/save`. `seconds/total` does not include it.
    """
    with tempfile.TemporaryDirectory() as folder:
        quiet = ("--eval-every", "0", "--rollouts-every", "0", "--output-dir", folder, "--preset", "tiny")
        console = launch(
            ranks, "train.py", "--algo", "bnpo", *quiet, "--steps", str(WARM_UP + steps), *flags, root=root
        )
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    for step, seconds in re.findall(r"step (\d+): checkpoint saved in (\S+) s", console):
        rows[int(step) - 1]["seconds/save"] = float(seconds)
    return rows[WARM_UP:]


def median(rows: list[dict], name: str) -> float:
    """Return the median of one metric over steps."""
    return statistics.median(row[name] for row in rows)
