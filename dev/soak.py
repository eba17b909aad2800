"""Kill training runs with SIGKILL at random moments, resume them, and compare each with an
uninterrupted run.

    python dev/soak.py --runs 25

Each run is killed at a random moment of one phase: sampling, update, weight sync or saving, in
turn. Launcher and ranks are killed together. A run passes if its metrics, without timings, and its
final weights equal those of the reference bit for bit.
"""

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnpo.environment import setup_environment

ROOT = Path(__file__).resolve().parents[1]
PHASES = ("sample", "update", "sync", "save")
KILL = "BNPO_SOAK_KILL"
"""Environment variable that tells rank 0 when to kill the run: phase, call (from 1), and share
of the phase."""
SUITE = {
    "datasets": {"arithmetic": {"data": "arithmetic", "problems": 8, "repetitions": 2}},
    **{
        "temperature": 0.6,
        "top_p": 1.0,
        "template": "chat",
        "max_prompt_tokens": 64,
        "max_answer_tokens": 32,
    },
}
FLAGS = (
    "--preset",
    "tiny",
    "--questions-per-step",
    "8",
    "--samples-per-question",
    "8",
    "--max-answer-tokens",
    "64",
)
FLAGS += (
    "--steps",
    "10",
    "--save-every",
    "2",
    "--eval-every",
    "3",
    "--rollouts-every",
    "1",
    "--watch-questions",
    "2",
)


@dataclass
class Args:
    runs: int = 25
    """Number of runs to kill."""
    start: int = 0
    """Index of the first run. The moment of a kill depends on the run's index and --seed."""
    seed: int = 0
    """Seed of the moments."""
    ranks: int = 2
    """Number of ranks of each run."""
    output_dir: Path = ROOT / "runs" / "soak"
    """Folder for the reference, the runs and results.jsonl. An existing reference is used again."""
    flags: str = ""
    """More flags of train.py, as in --flags="--lora-rank 8". Each set of flags needs an
    --output-dir of its own."""


def main() -> None:
    import tyro

    args = tyro.cli(Args)
    args.output_dir.mkdir(parents=True, exist_ok=True)

    def train_with_flags(run: Path, ranks: int, kill: tuple[str, int, float] | None) -> None:
        train(run, ranks, kill, *shlex.split(args.flags))

    reference = args.output_dir / "reference"
    if not (reference / "last").exists():
        train_with_flags(reference, args.ranks, None)
    results = []
    for index in range(args.start, args.start + args.runs):
        rng = random.Random(f"{args.seed} {index}")
        run, kill = (
            args.output_dir / f"run-{index}",
            (PHASES[index % 4], rng.choice((2, 3, 4)), rng.random()),
        )
        shutil.rmtree(run, ignore_errors=True)
        resumed = survive(run, args.ranks, [kill], train_with_flags)
        results.append(
            {
                "run": index,
                "kill": kill,
                "resumed": resumed,
                "exact": outcome(run) == outcome(reference),
            }
        )
        with (args.output_dir / "results.jsonl").open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")
        print(f"soak: {results[-1]}", flush=True)
    print(f"exact: {sum(result['exact'] for result in results)} of {len(results)}")


def train(run: Path, ranks: int, kill: tuple[str, int, float] | None, *flags: str) -> None:
    """Start or resume `run`, with its output in <run>.log. Raises AssertionError if it does not
    end as `kill` says.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    run.parent.mkdir(parents=True, exist_ok=True)
    suite = run.parent / "suite.json"
    suite.write_text(json.dumps(SUITE))
    command = [
        Path(sys.executable).with_name("deepspeed"),
        "--num_gpus",
        ranks,
        "--master_port",
        port,
        __file__,
    ]
    command += [*FLAGS, "--eval-suite", suite, "--resume", "--output-dir", run, *flags]
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE", KILL)
    }
    environment |= {KILL: json.dumps(kill)}
    log = run.with_suffix(".log")
    with log.open("a") as file:
        done = subprocess.run(
            [str(part) for part in command],
            **{"cwd": ROOT, "env": environment, "stdout": file, "stderr": file},
            start_new_session=True,  # the ranks kill their process group
        )
    expected = -signal.SIGKILL if kill else 0
    assert done.returncode == expected, (
        f"{kill}: exit status {done.returncode}, see {log}:\n{log.read_text()[-3000:]}"
    )


def survive(
    run: Path, ranks: int, kills: Sequence[tuple[str, int, float]], train: Callable = train
) -> list[int]:
    """Train with each of `kills`, then to the end. Return the steps after which the run was
    resumed.
    """
    for kill in [*kills, None]:
        train(run, ranks, kill)
    lines = run.with_suffix(".log").read_text().splitlines()
    return [int(line.split()[-1]) for line in lines if "continuing after" in line]


def outcome(run: Path) -> tuple[list[dict], str]:
    """Return the metrics of a run without timings, and a hash of its final weights, or of its
    adapter's.
    """
    from bnpo.policy.speed import TIMINGS

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith(TIMINGS)} for row in rows]
    [weights] = (run / "last").glob("*model.safetensors")
    return rows, hashlib.sha256(weights.read_bytes()).hexdigest()


def rank() -> None:
    """Run train.py in a rank. Rank 0 kills all ranks at the moment that the environment variable
    KILL says.
    """
    sys.path.insert(0, str(ROOT))
    import train as program

    if os.environ["RANK"] == "0" and (kill := json.loads(os.environ[KILL])):
        from bnpo import loop
        from bnpo.policy.learner import Learner
        from bnpo.policy.weight_sync import WeightSync
        from bnpo.runs.run import Run

        phase, call, share = kill
        owners = {
            "sample": (loop, "sample_batch"),
            "update": (Learner, "update"),
            "sync": (WeightSync, "refresh"),
        }
        owner, name = (owners | {"save": (Run, "_save")})[phase]
        setattr(owner, name, killed_in(getattr(owner, name), call, share))
    program.main()


def killed_in(function, call: int, share: float):
    """Wrap `function`: call number `call` is killed after a share of the seconds that the
    previous call took.
    """
    seconds: list[float] = []

    def wrapped(*args, **kwargs):
        nonlocal share
        timer = None
        if len(seconds) + 1 >= call:
            timer = threading.Timer(share * seconds[-1], os.killpg, (0, signal.SIGKILL))
            timer.start()
        began = time.perf_counter()
        result = function(*args, **kwargs)
        seconds.append(time.perf_counter() - began)
        if timer:  # this call ended before the kill: try the next call, earlier
            timer.cancel()
            share *= 0.7
        return result

    return wrapped


if __name__ == "__main__":
    setup_environment()
    rank() if "RANK" in os.environ else main()
