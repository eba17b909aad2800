"""Check on NVIDIA GPUs what CPUs cannot show: single parts, and whole runs of train.py and eval.py.

    python scripts/gpu_check.py --list                  # list the checks; needs no GPU
    python scripts/gpu_check.py                         # all checks that need no other files
    python scripts/gpu_check.py --tokenizer-dir DIR --config data/models/Qwen2.5-Math-1.5B/config.json
    python scripts/gpu_check.py --only attention sleep

DIR has the tokenizer files of Qwen2.5-Math. The large model has the shape of --config and random weights, so nothing is
downloaded. The output of the programs is in <output_dir>/<check>.log. The exit status is 1 if a check fails.
"""

import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import tyro

from gpu_check_parts import CheckError, attention, long_answer, memory, require, sleep

ROOT = Path(__file__).resolve().parents[1]
# Largest mean difference of log-probabilities between sampler and learner, after a weight sync and per step.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}
# Largest difference of pass@1 between two evaluations of one checkpoint with 400 answers each. The standard deviation
# with independent answers is at most sqrt(2 / 400) / 2 = 0.035, so a correct program stays within four of them.
SCORE_TOLERANCE = 0.15


@dataclass
class Args:
    list: bool = False
    """List the checks and exit."""
    only: tuple[str, ...] = ()
    """Names of the checks to run. The default is all."""
    tokenizer_dir: Path | None = None
    """Folder with tokenizer.json and tokenizer_config.json of Qwen2.5-Math for the large model."""
    config: Path | None = None
    """config.json with the shape of the large model."""
    output_dir: Path = ROOT / "runs" / "gpu-check"
    """Folder for logs, runs and the large model. It is deleted first."""
    steps: int = 4
    """Training steps of each run before it is resumed, and again after it."""


@dataclass(frozen=True)
class Check:
    """One check. `run` takes the arguments and the number of GPUs; gpu_check_parts.py says what it returns."""

    name: str
    verifies: str
    run: Callable[[Args, int], str]
    all_gpus: bool = False
    """Uses all GPUs, at least two, instead of one."""
    large: bool = False
    """Needs --tokenizer-dir and --config."""


def train(args: Args, gpus: int, *, name: str, dtype: str, eager: bool, large: bool = False) -> str:
    """Train for --steps steps, resume for as many, and evaluate the checkpoint with eval.py. Return measurements."""
    run, log = args.output_dir / name, args.output_dir / f"{name}.log"
    graphs = ["--enforce-eager"] if eager else []
    flags = ["--questions-per-step", 8 * gpus, "--dtype", dtype, "--sync-tolerance", TOLERANCE[dtype], *graphs]
    flags += ["--eval-every", args.steps, "--eval-suite", "arithmetic-quick", "--output-dir", run, "--resume"]
    if large:
        flags += ["--preset", "paper-1.5b", "--model", large_model(args), "--train-data", "arithmetic"]
        flags += ["--max-answer-tokens", 512, "--rewards", "scripts/gpu_check_parts.py:even_length"]
    else:
        flags += ["--preset", "tiny"]
    launcher = Path(sys.executable).with_name("deepspeed")
    for steps in (args.steps, 2 * args.steps):
        program(log, launcher, "--num_gpus", gpus, "train.py", *flags, "--steps", steps)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measurements = verify_metrics(rows, args.steps, TOLERANCE[dtype])
    score = evaluate(log, run, run / "eval", "--dtype", dtype, "--data-parallel", gpus, *graphs)
    verify_scores("the sampler in training and eval.py", rows[-1]["eval/average"], score)
    return measurements


def verify_metrics(rows: list[dict], steps: int, tolerance: float) -> str:
    """Return measurements from the lines of metrics.jsonl of `steps` steps that were resumed for as many.

    Raises CheckError if a step is missing or went wrong.
    """
    logged = [row["step"] for row in rows]
    require(logged == list(range(2 * steps + 1)), f"metrics.jsonl has steps {logged}, not 0 to {2 * steps}")
    evaluated = [row["step"] for row in rows if "eval/average" in row]
    require(evaluated == [0, steps, 2 * steps], f"evaluations after steps {evaluated}, not 0, {steps} and {2 * steps}")
    trained = rows[1:]  # the first line is the evaluation before training
    for row in trained:
        require(row["updates/skipped"] == 0, f"step {row['step']}: the update was skipped")
        require(row["tokens/trained"] > 0, f"step {row['step']}: no token had a gradient")
    measurements = []
    for name in ("sync/difference", "sampler_learner_gap_mean"):
        largest = max(row[name] for row in trained)
        require(largest <= tolerance, f"{name} is up to {largest:.2g}, more than {tolerance:g}")
        measurements.append(f"{name} up to {largest:.2g}")
    for name in ("tokens/per_second", "mfu"):  # no MFU for GPUs whose peak is unknown
        if name in trained[-1]:
            measurements.append(f"{name} {trained[-1][name]:.3g}")
    return ", ".join(measurements)


def tensor_parallel(args: Args, _gpus: int) -> str:
    """Evaluate the tiny model on one GPU, and split over two. Return both scores."""
    log, tiny = args.output_dir / "tensor-parallel.log", ROOT / "data" / "tiny-model"
    flags = ("--dtype", "float32", "--data-parallel", 1, "--tensor-parallel")
    one = evaluate(log, tiny, args.output_dir / "tensor-parallel-1", *flags, 1)
    two = evaluate(log, tiny, args.output_dir / "tensor-parallel-2", *flags, 2)
    verify_scores("one GPU and two", one, two)
    return f"pass@1 {one:.3f} on one GPU, {two:.3f} on two"


def evaluate(log: Path, model: Path, folder: Path, *flags: object) -> float:
    """Return the pass@1 that eval.py measures."""
    flags += ("--ckpt", model, "--suite", "arithmetic-quick", "--output-dir", folder)
    program(log, sys.executable, "eval.py", *flags)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["average"]["pass1"]


def verify_scores(evaluators: str, one: float, other: float) -> None:
    require(abs(one - other) <= SCORE_TOLERANCE, f"{evaluators} differ: pass@1 {one:.3f} and {other:.3f}")


def large_model(args: Args) -> Path:
    """Return the folder of a model with --config's shape, random weights and the real tokenizer, made once."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    folder = args.output_dir / "model"
    if not folder.exists():
        torch.manual_seed(0)
        config = Qwen2Config(**json.loads(args.config.read_text(encoding="utf-8")))
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        for file in args.tokenizer_dir.glob("tokenizer*"):
            shutil.copy(file, folder)
    return folder


def program(log: Path, *command: object) -> None:
    """Run a program of the repository with its output in `log`. Raises CheckError with the end of it if it fails."""
    command = [str(part) for part in command]
    with log.open("a", encoding="utf-8") as file:
        status = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-30:])
    require(status == 0, f"{' '.join(command)} ended with status {status}; the end of {log}:\n{end}")


def whole_run(name: str, dtype: str, *, eager: bool = False, all_gpus: bool = False, large: bool = False) -> Check:
    """Return the check that calls `train`."""
    model, graphs = "the large model" if large else "the tiny model", "without" if eager else "with"
    verifies = f"{model} in {dtype} {graphs} CUDA graphs trains, syncs, evaluates, resumes; eval.py scores it alike"
    return Check(name, verifies, partial(train, name=name, dtype=dtype, eager=eager, large=large), all_gpus, large)


CHECKS = (
    Check("attention", "packed attention in bfloat16 and its gradients equal those of plain attention", attention),
    Check("long-answer", "the learner in bfloat16 scores all of 3,000 tokens as transformers does", long_answer),
    Check("memory", "an update takes at most the memory that the plan counts", memory),
    Check("sleep", "a sleeping sampler frees its memory; awake with reloaded weights it answers as before", sleep),
    whole_run("fp32-eager", "float32", eager=True),
    whole_run("fp32-graphs", "float32"),
    whole_run("bf16-eager", "bfloat16", eager=True),
    whole_run("bf16-graphs", "bfloat16"),
    whole_run("fp32-eager-all", "float32", eager=True, all_gpus=True),
    whole_run("fp32-graphs-all", "float32", all_gpus=True),
    whole_run("bf16-eager-all", "bfloat16", eager=True, all_gpus=True),
    whole_run("bf16-graphs-all", "bfloat16", all_gpus=True),
    Check("tensor-parallel", "eval.py with the model on two GPUs scores as on one", tensor_parallel, all_gpus=True),
    whole_run("large", "bfloat16", large=True),
    whole_run("large-all", "bfloat16", all_gpus=True, large=True),
)


def obstacle(check: Check, args: Args, gpus: int) -> str:
    """Return why `check` cannot run with these arguments on `gpus` GPUs, or an empty string."""
    if check.all_gpus and gpus < 2:
        return "needs two GPUs"
    if check.large and not (args.tokenizer_dir and args.config):
        return "needs --tokenizer-dir and --config"
    return ""


def check_passes(check: Check, args: Args, gpus: int) -> bool:
    """Run `check`, print the result, and return whether it passed."""
    started = time.monotonic()
    passed = False
    try:
        # In its own process, which gives its GPU memory back when it ends.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            result = pool.submit(check.run, args, gpus if check.all_gpus else 1).result()
        passed = True
    except CheckError as error:
        result = str(error)
    except Exception as error:  # of any kind: the other checks still run
        traceback.print_exc()
        result = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    print(f"{'PASSED' if passed else 'FAILED'} {check.name} ({seconds:.0f} s): {result}", flush=True)
    return passed


def main(args: Args) -> None:
    if args.list:
        for check in CHECKS:
            gpus = "all GPUs" if check.all_gpus else "one GPU"
            print(f"{check.name}: {check.verifies} ({gpus})")
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device; these checks need an NVIDIA GPU (--list lists them)")
    names = [check.name for check in CHECKS]
    unknown = set(args.only) - set(names)
    if unknown:
        sys.exit(f"error: --only: unknown check {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    args.output_dir = args.output_dir.resolve()  # the programs run in the repository's folder
    shutil.rmtree(args.output_dir, ignore_errors=True)
    args.output_dir.mkdir(parents=True)
    gpus = torch.cuda.device_count()
    passed, failed, not_run = 0, 0, 0
    for check in CHECKS:
        if args.only and check.name not in args.only:
            continue
        reason = obstacle(check, args, gpus)
        if reason:
            print(f"NOT RUN {check.name}: {reason}", flush=True)
            not_run += 1
        elif check_passes(check, args, gpus):
            passed += 1
        else:
            failed += 1
    print(f"{passed} passed, {failed} failed, {not_run} not run")
    sys.exit(0 if passed and not failed else 1)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
