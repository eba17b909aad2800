"""Measure parts of a step that need no model: packing, log-probabilities, advantages and grading.

    BNPO_DATA=<folder with math_train.jsonl> python benchmarks/parts.py

Rows:

- repeated_prompts: share of the tokens that are prompts computed again, because a group was split
  between micro-batches
- rank_imbalance: tokens of the rank that has most, over the mean, minus 1
- naive_logits_bytes, chunked_logits_bytes: memory of the log-probabilities of 4,096 answer tokens
  with Qwen2.5's vocabulary, forward and backward, with all logits at once and in chunks
- logits_memory_ratio, logits_seconds_ratio: chunked over naive
- logits_gradient_error: the larger relative difference, by norm, of the two gradients
- advantages_ms_<algo>: milliseconds for 4,096 questions, 64 answers and 3 rewards, on one core
- grader_batch_seconds, grader_single_seconds: grading of 512 answers to problems of MATH and of
  one, by workers that have started, if the data are there
"""

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from common import row

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.batching import Lengths, collate, plan_micro_batches
from bnpo.algorithm.estimators import Method
from bnpo.algorithm.loss import token_logprobs
from bnpo.algorithm.registry import ESTIMATORS
from bnpo.config import TrainConfig
from bnpo.data import load_problems
from bnpo.files import ROOT
from bnpo.grading.grader import Grader

VOCABULARY, TOKENS, HIDDEN = 151936, 4096, 256
NEEDED = {"beta": {"beta_parameters": (1.5, 1.5)}, "weight": {"weight": "(1-p)**0.5"}}
"""Settings that an algorithm needs."""


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of `rounds` calls, after one that warms up."""
    seconds = []
    for _ in range(1 + rounds):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def batching() -> None:
    """A batch of 32 questions x 16 answers on 8 ranks: answers log-normal, 100 to 3,072 tokens,
    prompts 60 to 300.
    """
    rng = np.random.default_rng(0)
    answers = rng.lognormal(6.2, 0.7, 512).clip(100, 3072).astype(int)
    prompts, groups = rng.integers(60, 300, 32).repeat(16), np.arange(32).repeat(16)
    ids = [[0] * length for length in prompts], [[1] * length for length in answers]
    lengths = Lengths(prompts, answers, groups)
    plans = plan_micro_batches(lengths, 8, TrainConfig().hardware.micro_batch_tokens)
    loads = [
        sum(len(collate(*ids, groups, part, "cpu").input_ids) for part in micro_batches)
        for micro_batches in plans
    ]
    row("repeated_prompts", 1 - (prompts[::16].sum() + answers.sum() - len(answers)) / sum(loads))
    row("rank_imbalance", max(loads) / np.mean(loads) - 1)


def pass_logits(chunked: bool, results: multiprocessing.Queue) -> None:
    """Put bytes, seconds and the gradients of the hidden states and of the head into `results`."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weight = (torch.randn(VOCABULARY, HIDDEN) / HIDDEN**0.5).requires_grad_()
    targets, upstream = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    if chunked:
        logprobs = token_logprobs(hidden, weight, targets, VOCABULARY, 1.0)
    else:
        logprobs = torch.log_softmax(hidden @ weight.t(), -1).gather(1, targets[:, None]).squeeze(1)
    (logprobs * upstream).sum().backward()
    seconds = time.perf_counter() - started
    extra = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    results.put((extra, seconds, hidden.grad.numpy(), weight.grad.numpy()))


def logits() -> None:
    """Each way runs in a process of its own, whose memory is the peak minus that of the inputs."""
    context = multiprocessing.get_context("spawn")
    results, found = context.Queue(), []
    for chunked in (False, True):
        process = context.Process(target=pass_logits, args=(chunked, results))
        process.start()
        found.append(results.get())
        process.join()
    (naive, naive_seconds, *theirs), (ours, our_seconds, *gradients) = found
    row("naive_logits_bytes", naive)
    row("chunked_logits_bytes", ours)
    row("logits_memory_ratio", ours / naive)
    differences = [
        np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(gradients, theirs, strict=True)
    ]
    row("logits_gradient_error", max(differences))
    row("logits_seconds_ratio", our_seconds / naive_seconds)


def advantages() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, (4096, 64, 3)).astype(float)
    extra = {"lengths": rng.integers(1, 1000, (4096, 64))}
    extra["greedy_rewards"] = rng.integers(0, 2, (4096, 3)).astype(float)
    for algo in sorted(ESTIMATORS):
        method = Method(algo, **NEEDED.get(algo, {}))
        row(
            f"advantages_ms_{algo}",
            1000 * median_seconds(lambda m=method: compute_advantages(m, rewards, **extra), 10),
        )


def grading(data: Path) -> None:
    """A third of the answers each is right, wrong (the answer of another problem), and without a
    box.
    """
    references = [problem.answer for problem in load_problems(data) if problem.answer]
    rng, grader = np.random.default_rng(0), Grader()

    def batches(answers: int) -> Iterator[tuple[list[str], list[str]]]:
        while True:
            chosen, others = (
                [references[i] for i in rng.integers(len(references), size=answers)] for _ in "ab"
            )
            kinds = rng.integers(3, size=answers)
            forms = ("So it is $\\boxed{%s}$.", "So it is $\\boxed{%s}$.", "So it is %s.")
            right = [chosen[i] if kind != 1 else others[i] for i, kind in enumerate(kinds)]
            yield [forms[kind] % text for kind, text in zip(kinds, right, strict=True)], chosen

    for name, answers, rounds in (("batch", 512, 12), ("single", 1, 1000)):
        made = batches(answers)
        row(f"grader_{name}_seconds", median_seconds(lambda made=made: grader(*next(made)), rounds))
    grader.close()


def main() -> None:
    batching()
    logits()
    advantages()
    data = Path(os.environ.get("BNPO_DATA", ROOT / "data"), "math_train.jsonl")
    if data.exists():
        grading(data)


if __name__ == "__main__":
    main()
