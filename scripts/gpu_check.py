"""Checks that need an NVIDIA GPU, with a verdict each: single parts, and whole runs of the program.

    python scripts/gpu_check.py --list                  # the checks and what they verify; needs no GPU
    python scripts/gpu_check.py                         # all that need no files but the repository's
    python scripts/gpu_check.py --tokenizer-dir DIR --config data/models/Qwen2.5-Math-1.5B/config.json
    python scripts/gpu_check.py --only attention sleep

DIR holds the tokenizer's files of Qwen2.5-Math; the large model has the shape of --config and random weights, so
nothing is downloaded. What the programs printed is in <output_dir>/<check>.log. Ends with 1 if a check fails.
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

from gpu_parts import CheckError, attention, long_answer, memory, require, sleep

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}
"""Largest mean difference of log-probabilities between sampler and learner, after a sync and over a step's tokens."""
SCORE_TOLERANCE = 0.15
"""Largest difference of pass@1 between two evaluations of one checkpoint with 400 answers each: over four times its
standard deviation if all answers were drawn anew, which is sqrt(2 / 400) / 2 at most."""


@dataclass
class Args:
    list: bool = False
    """Print the checks and what they verify, and end."""
    only: tuple[str, ...] = ()
    """Names of the checks to run; all, unless given."""
    tokenizer_dir: Path | None = None
    """Folder with tokenizer.json and tokenizer_config.json of Qwen2.5-Math, for the large model."""
    config: Path | None = None
    """config.json of the model whose shape the large model takes."""
    output_dir: Path = ROOT / "runs" / "gpu-check"
    """Folder for logs, runs and the large model; deleted first."""
    steps: int = 4
    """Training steps of each run before it is resumed, and after."""


@dataclass(frozen=True)
class Check:
    """One check; `run` takes the arguments and the number of GPUs, and is as gpu_parts.py says."""

    name: str
    verifies: str
    run: Callable[[Args, int], str]
    all_gpus: bool = False
    """Takes all GPUs, at least two, instead of one."""
    large: bool = False
    """Needs --tokenizer-dir and --config."""


def train(args: Args, gpus: int, *, name: str, dtype: str, eager: bool, large: bool = False) -> str:
    """Train for --steps steps, resume for as many, and evaluate the checkpoint with eval.py."""
    run, log = args.output_dir / name, args.output_dir / f"{name}.log"
    graphs = ["--enforce-eager"] if eager else []
    flags = ["--questions-per-step", 8 * gpus, "--dtype", dtype, "--sync-tolerance", TOLERANCE[dtype], *graphs]
    flags += ["--eval-every", args.steps, "--eval-suite", "arithmetic-quick", "--output-dir", run, "--resume"]
    if large:
        flags += ["--preset", "paper-1.5b", "--model", large_model(args), "--train-data", "arithmetic"]
        flags += ["--max-answer-tokens", 512, "--rewards", "scripts/gpu_parts.py:even_length"]
    else:
        flags += ["--preset", "tiny"]
    launcher = Path(sys.executable).with_name("deepspeed")
    for steps in (args.steps, 2 * args.steps):
        program(log, launcher, "--num_gpus", gpus, "train.py", *flags, "--steps", steps)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    told = verify_metrics(rows, args.steps, TOLERANCE[dtype])
    score = evaluate(log, run, run / "eval", "--dtype", dtype, "--data-parallel", gpus, *graphs)
    verify_scores("the sampler in training and eval.py", rows[-1]["eval/average"], score)
    return told


def verify_metrics(rows: list[dict], steps: int, tolerance: float) -> str:
    """Raise CheckError unless the lines of metrics.jsonl are those of `steps` steps, resumed for as many, that all went
    as they should."""
    found = [row["step"] for row in rows]
    require(found == list(range(2 * steps + 1)), f"metrics.jsonl has steps {found}, not 0 to {2 * steps}")
    evaluated = [row["step"] for row in rows if "eval/average" in row]
    require(evaluated == [0, steps, 2 * steps], f"evaluations after steps {evaluated}, not 0, {steps} and {2 * steps}")
    trained = rows[1:]
    for row in trained:
        require(row["updates/skipped"] == 0, f"step {row['step']}: the update was skipped")
        require(row["tokens/trained"] > 0, f"step {row['step']}: no token had a gradient")
    largest = {name: max(row[name] for row in trained) for name in ("sync/difference", "sampler_learner_gap_mean")}
    for name, value in largest.items():
        require(value <= tolerance, f"{name} is up to {value:.2g}, more than {tolerance:g}")
    rates = ", ".join(f"{name} {trained[-1][name]:.3g}" for name in ("tokens/per_second", "mfu") if name in trained[-1])
    return ", ".join(f"{name} up to {value:.2g}" for name, value in largest.items()) + f", {rates}"


def tensor_parallel(args: Args, _gpus: int) -> str:
    """Evaluate the tiny model on one GPU, and on two that share it."""
    log, tiny = args.output_dir / "tensor-parallel.log", ROOT / "data" / "tiny-model"
    flags = ("--dtype", "float32", "--data-parallel", 1, "--tensor-parallel")
    one, two = (evaluate(log, tiny, args.output_dir / f"tensor-parallel-{n}", *flags, n) for n in (1, 2))
    verify_scores("one GPU and two", one, two)
    return f"pass@1 {one:.3f} on one GPU, {two:.3f} on two"


def evaluate(log: Path, model: Path, folder: Path, *flags: object) -> float:
    """The pass@1 that eval.py finds."""
    flags += ("--ckpt", model, "--suite", "arithmetic-quick", "--output-dir", folder)
    program(log, sys.executable, "eval.py", *flags)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["average"]["pass1"]


def verify_scores(what: str, one: float, other: float) -> None:
    require(abs(one - other) <= SCORE_TOLERANCE, f"{what} find pass@1 {one:.3f} and {other:.3f}")


def large_model(args: Args) -> Path:
    """A model of --config's shape with random weights and the real tokenizer, made once."""
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
    """Run a program of the repository, its output into `log`. Raises CheckError with the end of it."""
    command = [str(part) for part in command]
    with log.open("a", encoding="utf-8") as file:
        status = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-30:])
    require(status == 0, f"{' '.join(command)} ended with status {status}; the end of {log}:\n{end}")


def whole_run(name: str, dtype: str, *, eager: bool = False, all_gpus: bool = False, large: bool = False) -> Check:
    """The check that `train` is."""
    model, graphs = "the large model" if large else "the tiny model", "without" if eager else "with"
    verifies = f"{model} in {dtype}, {graphs} CUDA graphs: trains, syncs, evaluates, resumes; eval.py scores likewise"
    return Check(name, verifies, partial(train, name=name, dtype=dtype, eager=eager, large=large), all_gpus, large)


CHECKS = (
    Check("attention", "packed attention in bfloat16 and its gradients are those of plain attention", attention),
    Check("long-answer", "the learner in bfloat16 scores 3,000 tokens as transformers does, to the end", long_answer),
    Check("memory", "an update takes at most the memory that the account says", memory),
    Check("sleep", "the sampler gives its memory back; awake, with its weights again, it answers as before", sleep),
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
    """Why `check` cannot run with these arguments on so many GPUs; empty if it can."""
    if check.all_gpus and gpus < 2:
        return "needs two GPUs"
    if check.large and not (args.tokenizer_dir and args.config):
        return "needs --tokenizer-dir and --config"
    return ""


def verdict(check: Check, args: Args, gpus: int) -> bool:
    """Run `check` in a process of its own, which gives its GPU memory back, and print what it found; True: passed."""
    started = time.monotonic()
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            told = "PASSED", pool.submit(check.run, args, gpus if check.all_gpus else 1).result()
    except CheckError as fault:
        told = "FAILED", str(fault)
    except Exception as error:  # of whatever kind: the other checks still run
        traceback.print_exc()
        told = "FAILED", f"{type(error).__name__}: {error}"
    print(f"{told[0]} {check.name} ({time.monotonic() - started:.0f} s): {told[1]}", flush=True)
    return told[0] == "PASSED"


def main(args: Args) -> None:
    if args.list:
        for check in CHECKS:
            gpus = "all GPUs" if check.all_gpus else "one GPU"
            print(f"{check.name}: {check.verifies} ({gpus})")
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device; this script checks what only a GPU can show (--list: what that is)")
    names = [check.name for check in CHECKS]
    if unknown := set(args.only) - set(names):
        sys.exit(f"error: --only: no check {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    args.output_dir = args.output_dir.resolve()  # the programs run in the repository's folder
    shutil.rmtree(args.output_dir, ignore_errors=True)
    args.output_dir.mkdir(parents=True)
    gpus = torch.cuda.device_count()
    passed, left_out = [], 0
    for check in CHECKS:
        if args.only and check.name not in args.only:
            continue
        if reason := obstacle(check, args, gpus):
            print(f"NOT RUN {check.name}: {reason}", flush=True)
            left_out += 1
        else:
            passed.append(verdict(check, args, gpus))
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed, {left_out} not run")
    sys.exit(0 if passed and all(passed) else 1)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
