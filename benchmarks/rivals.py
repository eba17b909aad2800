"""Compare the time per step with TRL's GRPOTrainer, with the same model, questions, group size,
lengths and optimizer.

    python benchmarks/rivals.py [--model smollm2] [--steps 10]

TRL runs on one process and on one process per core, with the micro-batches that were the fastest of
those tried (docs/performance.md). Both are tried for a few steps. The faster one is measured
between two runs of train.py. Rows:

- trl_trial_seconds_<n>_processes: TRL's trials
- our_step_seconds, trl_step_seconds: median seconds per step
- trl_processes: the processes of the faster trial
- trl_ratio: TRL's seconds over ours
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from common import ROOT, Case, median, read_case, row, training_steps

TRL_SETTINGS = {
    "tiny": {
        1: ("--micro-batch", "32", "--generate", "32"),
        2: ("--micro-batch", "16", "--generate", "32"),
    },
    "smollm2": {
        1: ("--micro-batch", "16", "--generate", "128"),
        2: ("--micro-batch", "16", "--generate", "128"),
    },
}
"""The fastest micro-batch and number of answers sampled at once, by number of processes."""
TRIAL = 2
"""Steps per trial."""
LR = ("--lr", "1e-6")


def trl_step_seconds(processes: int, case: Case, steps: int, flags: tuple[str, ...]) -> float:
    """Run benchmarks/trl_step.py. Return its median seconds of `steps` steps after one warm-up
    step.
    """
    python = Path(sys.executable)
    start = [python, "benchmarks/trl_step.py"]
    if processes > 1:
        start = [
            python.with_name("torchrun"),
            "--nproc-per-node",
            str(processes),
            "benchmarks/trl_step.py",
        ]
    threads = len(os.sched_getaffinity(0)) // processes
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / ".venv" / "trl")))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)}
    command = [*start, *case.flags, *LR, "--steps", str(1 + steps), *flags]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"TRL failed:\n{result.stdout[-1000:]}\n{result.stderr[-4000:]}")
    last = result.stdout.splitlines()[-1]
    return float(last.removeprefix("trl_step_seconds: "))


def main() -> None:
    case, _ = read_case(argparse.ArgumentParser(description=__doc__))
    settings = TRL_SETTINGS[case.flags[1]]
    trials = {
        processes: trl_step_seconds(processes, case, TRIAL, flags)
        for processes, flags in settings.items()
    }
    for processes, seconds in trials.items():
        row(f"trl_trial_seconds_{processes}_processes", seconds)
    fastest = min(trials, key=trials.get)
    ours = training_steps(case, *LR)
    theirs = trl_step_seconds(fastest, case, case.steps, settings[fastest])
    ours += training_steps(case, *LR)
    seconds = median(ours, "seconds/total")
    row("our_step_seconds", seconds)
    row("trl_processes", fastest)
    row("trl_step_seconds", theirs)
    row("trl_ratio", theirs / seconds)


if __name__ == "__main__":
    main()
