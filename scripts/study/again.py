"""Train a recorded run of the study again, and compare it with its row."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bnpo.files import ROOT
from study.design import command
from study.registry import method_flags
from study.rows import result_of


def train_again(row: Mapping, folder: Path, steps: int | None = None) -> dict:
    """Train the run of a row in `folder`, or its first `steps` only, and return its `result_of`."""
    launcher = [sys.executable, "scripts/launch.py", "--num_gpus", "1", "train.py"]
    flags = command(row, method_flags(row["part"], row["method"]), steps)
    # One thread, as in the study: the number of threads changes the last bits.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *flags, "--output-dir", str(folder)], cwd=ROOT, env=environment, check=False)
    return result_of(folder)


def compare_with(row: Mapping, result: Mapping) -> str:
    """Return a line that says how far a run that was trained again is what its row says."""
    same = [name for name, values in row["curves"].items() if result["curves"].get(name) == values]
    (step, recorded), found = list(row["evals"].items())[-1], result["evals"]
    return (
        f"{row['name']}: {result['ended']} (recorded: {row['ended']}), {len(same)} of {len(row['curves'])} curves are "
        f"equal, pass@1 after step {step} is {found.get(step, float('nan')):g} (recorded: {recorded:g})"
    )
