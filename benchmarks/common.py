"""Shared by the benchmarks: start training runs, read their metrics, print rows of results."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bnpo.config import PRESETS

ROOT = Path(__file__).parents[1]
PHASES = ("generate", "reward", "gather", "update", "sync")
"""Phases of a step, as in the metrics `seconds/<phase>`."""


@dataclass(frozen=True)
class Case:
    """What is trained in a benchmark."""

    flags: tuple[str, ...]
    """Flags of train.py that choose the model and the settings."""
    ranks: int
    steps: int
    """Measured steps per run."""
    warm_up: int
    """First steps, which are not measured, because they compile and fill caches."""


def read_case(parser: argparse.ArgumentParser) -> tuple[Case, argparse.Namespace]:
    """Add --model, --ranks and --steps to the flags of a benchmark. Return the case that they
    choose, and all flags.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--model", help="preset, or a model folder to train like the preset smollm2 (default: tiny)"
    )
    parser.add_argument(
        "--ranks", type=int, help="ranks of train.py (default: one per core, with --model one)"
    )
    parser.add_argument(
        "--steps", type=int, help="measured steps per run (default: 10, with --model 4)"
    )
    args = parser.parse_args()
    if args.model in (None, "tiny"):
        case = Case(("--preset", "tiny"), len(os.sched_getaffinity(0)), 10, 3)
    else:
        preset = args.model if args.model in PRESETS else "smollm2"
        # The whole path, since another checkout has its own folder for models.
        model = (
            PRESETS[preset].data.model if args.model in PRESETS else str(Path(args.model).resolve())
        )
        case = Case(("--preset", preset, "--model", model), 1, 4, 1)
    return Case(case.flags, args.ranks or case.ranks, args.steps or case.steps, case.warm_up), args


def row(name: str, value: float) -> None:
    """Print one result."""
    print(f"{name}: {value:.4g}", flush=True)


def launch(ranks: int, *command: str | Path, root: str | Path = ROOT) -> str:
    """Run a program of the checkout `root` on ranks. Return its standard output, or print its
    errors and exit.
    """
    launcher = [sys.executable, "scripts/launch.py", "--num_gpus", str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(Path(root, "src"))}
    result = subprocess.run(
        [*launcher, *map(str, command)], cwd=root, env=environment, capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(
            f"{' '.join(map(str, command))} "
            f"failed:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
        )
    return result.stdout


def training_steps(case: Case, *flags: str | Path, root: str | Path = ROOT) -> list[dict]:
    """Train for the steps of `case` after its warm-up, without evaluations. Return the metrics
    of each step.
    """
    with tempfile.TemporaryDirectory() as folder:
        quiet = ("--eval-every", "0", "--rollouts-every", "0", "--output-dir", folder)
        steps = ("--steps", str(case.warm_up + case.steps))
        flags = (*case.flags, *quiet, *steps, *flags)
        launch(case.ranks, "train.py", "--algo", "bnpo", *flags, root=root)
        rows = [
            json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()
        ]
    return rows[case.warm_up :]


def median(rows: list[dict], name: str) -> float:
    """Return the median of one metric over steps."""
    return statistics.median(row[name] for row in rows)
