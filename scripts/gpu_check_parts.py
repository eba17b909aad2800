"""The checks of gpu_check.py but the first, one function each: of packed attention, and of train.py
and eval.py.

gpu_check.py runs every check in its own process. A check takes the script's arguments, the number
of GPUs and a dict, puts its measurements into the dict as soon as it has them, and raises
CheckError if it fails.
"""

import json
import subprocess
import sys
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np

from bnpo.files import ROOT, whole_json_lines
from launch import launcher_flags

# Largest difference of pass@1 between two evaluations of one checkpoint with 400 answers each. The
# standard deviation with independent answers is at most sqrt(2 / 400) / 2 = 0.035, so a correct
# program stays within four of them.
SCORE_TOLERANCE = 0.15
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.25}
"""Largest mean difference of log-probabilities between sampler and learner, after a weight sync and
per step. bfloat16 rounds, more so for larger models, and wrong weights give more than 1."""
Rows = MutableMapping[str, float]


class CheckError(Exception):
    """Why a check failed, in one line."""


def require(condition: bool, fault: str) -> None:
    """Raise CheckError if `condition` does not hold."""
    if not condition:
        raise CheckError(fault)


def require_within(rows: Rows, limits: dict[str, float]) -> None:
    """Raise CheckError with every row that is above its limit or not a number."""
    faults = [
        f"{name} {rows[name]:.3g} is more than {limit:.3g}"
        for name, limit in limits.items()
        if not rows[name] <= limit
    ]
    require(not faults, ", ".join(faults))


def attention(_args, _gpus: int, rows: Rows, device: str = "cuda") -> None:
    """Compare the learner's packed attention in bf16, and its gradients, with attention over one
    sequence at a time.

    The reference is the latter in fp32. The learner's error may be twice that of one sequence at a
    time in bf16.
    """
    import torch

    from bnpo.algorithm.batching import collate
    from bnpo.policy.model import attention as packed

    # Five prompts with three answers each, of one token to 3,000. Two of the three begin alike.
    prompts = [
        [token] * length for token, length in enumerate((1, 64, 300, 7, 64)) for _ in range(3)
    ]
    lengths = (1, 2, 3000, 1, 64, 65, 300, 301, 2, 8, 7, 700, 64, 1, 1)
    answers = [[10 + i % 3 // 2] * length for i, length in enumerate(lengths)]
    micro = collate(prompts, answers, np.arange(len(answers)), device)
    heads, kv_heads, size = 12, 2, 128  # Qwen2.5-Math-1.5B's
    torch.manual_seed(0)
    tokens = len(micro.input_ids)
    shapes = [(1, count, tokens, size) for count in (heads, kv_heads, kv_heads)]
    inputs = [torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    upstream = torch.randn(1, tokens, heads, size, device=device)

    def learner_attention(query, key, value):
        return packed(None, query, key, value, None, scaling=size**-0.5, sequences=micro.sequences)[
            0
        ]

    def results(compute, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        out = compute(*leaves)
        (out.float() * upstream).sum().backward()
        return [x.detach().float() for x in (out, *(leaf.grad for leaf in leaves))]

    plainly = partial(plain_attention, micro.sequences)
    exact, plain = results(plainly, torch.float32), results(plainly, torch.bfloat16)
    learner = results(learner_attention, torch.bfloat16)
    limits = {}
    for index, name in enumerate(("output", "dq", "dk", "dv")):
        rows[f"{name}_error"] = (
            (learner[index] - exact[index]).norm() / exact[index].norm()
        ).item()
        rows[f"{name}_error_plain"] = (
            (plain[index] - exact[index]).norm() / exact[index].norm()
        ).item()
        limits[f"{name}_error"] = 2 * rows[f"{name}_error_plain"]
    require_within(rows, limits)


def plain_attention(layout, query, key, value):
    """Return the causal attention [1, tokens, heads, head size] of the sequences of a micro-batch,
    one at a time. The arguments are [1, heads, tokens, head size].
    """
    import torch
    import torch.nn.functional as F

    outs = []
    rows_per_sequence = layout.keys.split(layout.key_starts.diff().tolist())
    for length, rows in zip(layout.starts.diff().tolist(), rows_per_sequence, strict=True):
        # [1, heads, sequence, head size]
        q, k, v = query[:, :, rows], key[:, :, rows], value[:, :, rows]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        outs.append(out[:, :, -length:])
    return torch.cat(outs, dim=2).transpose(1, 2)


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
    """Train for --steps steps and, unless it is `short`, resume for as many and evaluate the
    checkpoint by eval.py.
    """
    run, log = args.output_dir / name, args.output_dir / f"{name}.log"
    graphs = ["--enforce-eager"] if eager else []
    flags = ["--preset", "tiny", "--questions-per-step", 8 * gpus, "--dtype", dtype, *graphs]
    flags += [
        "--eval-every",
        args.steps,
        "--eval-suite",
        "arithmetic-quick",
        "--output-dir",
        run,
        "--resume",
    ]
    flags += ["--sampler-ranks", sampler_ranks]
    launcher = [Path(sys.executable).with_name("deepspeed"), *launcher_flags(gpus)]
    starts = 1 if short else 2
    for start in range(1, starts + 1):
        program(log, *launcher, "train.py", *flags, "--steps", start * args.steps)
    steps = whole_json_lines(run / "metrics.jsonl")
    verify_metrics(steps, args.steps, starts, TOLERANCE[dtype], rows)
    if not short:
        score = evaluate(log, run, run / "eval", "--dtype", dtype, "--data-parallel", gpus, *graphs)
        verify_scores("the sampler in training and eval.py", steps[-1]["eval/average"], score)


def sampler_ranks(args, _gpus: int, rows: Rows) -> None:
    """Make the check `train` with two ranks whose GPUs share one sampler."""
    train(args, 2, rows, name="sampler-ranks", sampler_ranks=2)


def verify_metrics(
    logged: list[dict], steps: int, starts: int, tolerance: float, rows: Rows
) -> None:
    """Add measurements to `rows` from the lines of metrics.jsonl of a run of `starts` starts with
    `steps` steps each.

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
    # No MFU for GPUs whose peak is unknown
    for name in ("seconds/total", "tokens/per_second", "mfu"):
        if name in trained[-1]:
            rows[name] = trained[-1][name]
    for name in ("sync/difference", "sampler_learner_gap_mean"):
        # Nan if one is, which Python's max may skip
        rows[name] = float(np.max([line[name] for line in trained]))
        require(
            rows[name] <= tolerance, f"{name} is up to {rows[name]:.2g}, more than {tolerance:g}"
        )


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
    require(
        abs(one - other) <= SCORE_TOLERANCE,
        f"{evaluators} differ: pass@1 {one:.3f} and {other:.3f}",
    )


def program(log: Path, *command: object) -> None:
    """Run a program of the repository with its output in `log`. Raises CheckError with the end
    of it if it fails.
    """
    command = [str(part) for part in command]
    with log.open("a", encoding="utf-8") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        status = subprocess.run(command, cwd=ROOT, check=False, **streams).returncode
    end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-30:])
    require(
        status == 0, f"{' '.join(command)} ended with status {status}; the end of {log}:\n{end}"
    )
