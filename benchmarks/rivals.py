"""Seconds a step of TRL's GRPOTrainer over ours: same model, questions, group size, lengths and optimizer.

    python benchmarks/rivals.py

TRL runs in the settings that were its fastest of those tried (docs/performance.md), in one process on all cores and in
one process a core; the faster counts. Programs take turns. Rows, for the tiny model and, ending in _long, for the one
of long_model.py, whose answers are long and uneven: step_seconds, trl_step_seconds_<n>_processes, trl_ratio.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import long_model
from runs import ROOT, median, row, training_steps

TRL_SETTINGS = {
    "": {1: ("--micro-batch", "64"), 2: ("--micro-batch", "32")},
    "_long": {1: ("--micro-batch", "16"), 2: ("--micro-batch", "16")},
}
"""The fastest micro-batches, by case and number of processes."""
STEPS = {"": 10, "_long": 10}
REWARD = Path(long_model.__file__).relative_to(ROOT)


def trl_step_seconds(processes: int, *flags: str) -> float:
    """The median that benchmarks/trl_step.py prints."""
    python = Path(sys.executable)
    start = [python, "benchmarks/trl_step.py"]
    if processes > 1:
        start = [python.with_name("torchrun"), "--nproc-per-node", str(processes), "benchmarks/trl_step.py"]
    threads = len(os.sched_getaffinity(0)) // processes
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".venv" / "trl"), "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run([*start, *flags], cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"TRL failed:\n{result.stdout[-1000:]}\n{result.stderr[-4000:]}")
    last = result.stdout.splitlines()[-1]
    return float(last.removeprefix("trl_step_seconds: "))


def compare(case: str, our_flags: tuple[str, ...], trl_flags: tuple[str, ...]) -> None:
    """Measure both on one model and print the rows."""
    steps = STEPS[case]
    ours = training_steps(len(os.sched_getaffinity(0)), steps, "--lr", "1e-6", *our_flags)
    theirs = {
        processes: trl_step_seconds(processes, "--steps", str(steps), *settings, *trl_flags)
        for processes, settings in TRL_SETTINGS[case].items()
    }
    ours += training_steps(len(os.sched_getaffinity(0)), steps, "--lr", "1e-6", *our_flags)
    seconds = median(ours, "seconds/total")
    row(f"step_seconds{case}", seconds)
    for processes, value in theirs.items():
        row(f"trl_step_seconds_{processes}_processes{case}", value)
    row(f"trl_ratio{case}", min(theirs.values()) / seconds)


def main() -> None:
    compare("", (), ())
    with tempfile.TemporaryDirectory() as folder:
        long_model.write(Path(folder))
        common = ("--model", folder, "--max-answer-tokens", "512")
        compare("_long", (*common, "--rewards", f"{REWARD}:even_length"), (*common, "--reward", "even_length"))


if __name__ == "__main__":
    main()
