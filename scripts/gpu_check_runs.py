"""The checks of gpu_check.py that start train.py and eval.py. `args` are the arguments of that script."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bnpo.environment import launcher_flags
from gpu_check_parts import TOLERANCE, Rows, require

ROOT = Path(__file__).resolve().parents[1]
# Largest difference of pass@1 between two evaluations of one checkpoint with 400 answers each. The standard deviation
# with independent answers is at most sqrt(2 / 400) / 2 = 0.035, so a correct program stays within four of them.
SCORE_TOLERANCE = 0.15


def train(
    args,
    gpus: int,
    rows: Rows,
    *,
    name: str,
    dtype: str = "bfloat16",
    eager: bool = False,
    short: bool = False,
    sampler_ranks: int = 1,
) -> None:
    """Train for --steps steps and, unless it is `short`, resume for as many and evaluate the checkpoint by eval.py."""
    run, log = args.output_dir / name, args.output_dir / f"{name}.log"
    graphs = ["--enforce-eager"] if eager else []
    flags = ["--preset", "tiny", "--questions-per-step", 8 * gpus, "--dtype", dtype, *graphs]
    flags += ["--eval-every", args.steps, "--eval-suite", "arithmetic-quick", "--output-dir", run, "--resume"]
    flags += ["--sampler-ranks", sampler_ranks]
    launcher = [Path(sys.executable).with_name("deepspeed"), *launcher_flags(gpus)]
    starts = 1 if short else 2
    for start in range(1, starts + 1):
        program(log, *launcher, "train.py", *flags, "--steps", start * args.steps)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    verify_metrics(steps, args.steps, starts, TOLERANCE[dtype], rows)
    if not short:
        score = evaluate(log, run, run / "eval", "--dtype", dtype, "--data-parallel", gpus, *graphs)
        verify_scores("the sampler in training and eval.py", steps[-1]["eval/average"], score)


def sampler_ranks(args, _gpus: int, rows: Rows) -> None:
    """Make the check `train` with two ranks whose GPUs share one sampler."""
    train(args, 2, rows, name="sampler-ranks", sampler_ranks=2)


def verify_metrics(logged: list[dict], steps: int, starts: int, tolerance: float, rows: Rows) -> None:
    """Add measurements to `rows` from the lines of metrics.jsonl of a run of `starts` starts with `steps` steps each.

    Raises CheckError if a step is missing or went wrong.
    """
    numbers, last = [line["step"] for line in logged], starts * steps
    require(numbers == list(range(last + 1)), f"metrics.jsonl has steps {numbers}, not 0 to {last}")
    evaluated = [line["step"] for line in logged if "eval/average" in line]
    due = list(range(0, last + 1, steps))
    require(evaluated == due, f"evaluations after steps {evaluated}, not {due}")
    trained = logged[1:]  # the first line is the evaluation before training
    for line in trained:
        require(line["updates/skipped"] == 0, f"step {line['step']}: the update was skipped")
        require(line["tokens/trained"] > 0, f"step {line['step']}: no token had a gradient")
    for name in ("sync/difference", "sampler_learner_gap_mean"):
        rows[name] = float(np.max([line[name] for line in trained]))  # nan if one is, which Python's max may skip
    for name in ("seconds/total", "tokens/per_second", "mfu"):  # no MFU for GPUs whose peak is unknown
        if name in trained[-1]:
            rows[name] = trained[-1][name]
    for name in ("sync/difference", "sampler_learner_gap_mean"):
        require(rows[name] <= tolerance, f"{name} is up to {rows[name]:.2g}, more than {tolerance:g}")


def tensor_parallel(args, _gpus: int, rows: Rows) -> None:
    """Evaluate the tiny model on one GPU, and split over two."""
    log, tiny = args.output_dir / "tensor-parallel.log", ROOT / "data" / "tiny-model"
    flags = ("--dtype", "float32", "--data-parallel", 1, "--tensor-parallel")
    rows["pass1_one_gpu"] = evaluate(log, tiny, args.output_dir / "tensor-parallel-1", *flags, 1)
    rows["pass1_two_gpus"] = evaluate(log, tiny, args.output_dir / "tensor-parallel-2", *flags, 2)
    verify_scores("one GPU and two", rows["pass1_one_gpu"], rows["pass1_two_gpus"])


def evaluate(log: Path, model: Path, folder: Path, *flags: object) -> float:
    """Return the pass@1 that eval.py measures."""
    flags += ("--ckpt", model, "--suite", "arithmetic-quick", "--output-dir", folder)
    program(log, sys.executable, "eval.py", *flags)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["average"]["pass1"]


def verify_scores(evaluators: str, one: float, other: float) -> None:
    require(abs(one - other) <= SCORE_TOLERANCE, f"{evaluators} differ: pass@1 {one:.3f} and {other:.3f}")


def program(log: Path, *command: object) -> None:
    """Run a program of the repository with its output in `log`. Raises CheckError with the end of it if it fails."""
    command = [str(part) for part in command]
    with log.open("a", encoding="utf-8") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        status = subprocess.run(command, cwd=ROOT, check=False, **streams).returncode
    end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-30:])
    require(status == 0, f"{' '.join(command)} ended with status {status}; the end of {log}:\n{end}")
