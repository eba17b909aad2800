"""Compare the time per step with TRL's GRPOTrainer, with the same model, questions, group size, lengths and optimizer.

    python benchmarks/rivals.py [--steps 10] [--long-steps 10]

TRL runs on one process and on one process per core, with the micro-batches that were the fastest of those tried
(docs/performance.md). Both are tried for a few steps. The faster one is measured between two runs of train.py. Rows for
the tiny model and, ending in _long, for the model of long_model.py, whose answers are long and differ in length:

- trl_trial_seconds_<n>_processes: TRL's trials
- our_step_seconds, trl_step_seconds: median seconds per step
- trl_processes: the processes of the faster trial
- trl_ratio: TRL's seconds over ours
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import long_model
from common import ROOT, median, row, training_steps

TRL_SETTINGS = {
    "": {1: ("--micro-batch", "32", "--generate", "32"), 2: ("--micro-batch", "16", "--generate", "32")},
    "_long": {1: ("--micro-batch", "16", "--generate", "16"), 2: ("--micro-batch", "8", "--generate", "16")},
}
"""The fastest micro-batch and number of answers sampled at once, by model and number of processes."""
TRIAL = 2
"""Steps per trial."""
REWARD = Path(long_model.__file__).relative_to(ROOT)


def trl_step_seconds(processes: int, steps: int, *flags: str) -> float:
    """Run benchmarks/trl_step.py. Return its median seconds of `steps` steps."""
    python = Path(sys.executable)
    start = [python, "benchmarks/trl_step.py"]
    if processes > 1:
        start = [python.with_name("torchrun"), "--nproc-per-node", str(processes), "benchmarks/trl_step.py"]
    threads = len(os.sched_getaffinity(0)) // processes
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".venv" / "trl"), "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(
        [*start, "--steps", str(steps), *flags], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(f"TRL failed:\n{result.stdout[-1000:]}\n{result.stderr[-4000:]}")
    last = result.stdout.splitlines()[-1]
    return float(last.removeprefix("trl_step_seconds: "))


def compare(case: str, steps: int, our_flags: tuple[str, ...], trl_flags: tuple[str, ...]) -> None:
    """Measure both on one model and print the rows."""
    cores = len(os.sched_getaffinity(0))
    settings = {processes: (*flags, *trl_flags) for processes, flags in TRL_SETTINGS[case].items()}
    trials = {processes: trl_step_seconds(processes, TRIAL, *flags) for processes, flags in settings.items()}
    for processes, seconds in trials.items():
        row(f"trl_trial_seconds_{processes}_processes{case}", seconds)
    fastest = min(trials, key=trials.get)
    ours = training_steps(cores, steps, "--lr", "1e-6", *our_flags)
    theirs = trl_step_seconds(fastest, steps, *settings[fastest])
    ours += training_steps(cores, steps, "--lr", "1e-6", *our_flags)
    seconds = median(ours, "seconds/total")
    row(f"our_step_seconds{case}", seconds)
    row(f"trl_processes{case}", fastest)
    row(f"trl_step_seconds{case}", theirs)
    row(f"trl_ratio{case}", theirs / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="measured steps with the tiny model")
    parser.add_argument(
        "--long-steps", type=int, default=10, help="measured steps with long answers. TRL needs minutes for each"
    )
    arguments = parser.parse_args()
    compare("", arguments.steps, (), ())
    with tempfile.TemporaryDirectory() as folder:
        long_model.write(Path(folder))
        common = ("--model", folder, "--max-answer-tokens", "512")
        compare(
            "_long",
            arguments.long_steps,
            (*common, "--rewards", f"{REWARD}:even_length"),
            (*common, "--reward", "even_length"),
        )


if __name__ == "__main__":
    main()
