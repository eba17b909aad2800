"""Measure what shared prompts save: updates of the learner with and without them, on two ranks with
one thread each.

    python benchmarks/sharing.py

Without shared prompts each answer has its own copy of the prompt. The same code packs, splits and
attends to these sequences. Updates of both kinds take turns. Rows for each case:

- prompt_sharing_ratio_*: median seconds without over with shared prompts
- sharing_gradient_difference_*: largest relative difference of the gradient norms
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from common import launch, row

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch
import torch.distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM

from bnpo.algorithm.batching import Lengths, MicroBatch, Sequences
from bnpo.batch import Answer, Batch
from bnpo.config import TINY_MODEL, parse_train_config
from bnpo.policy import learner as module

ROUNDS = 3  # measured updates of each kind, after one that warms up
CASES = {
    "tiny": ("2048", (32, 16, 45, 40)),
    "300_150": ("4096", (8, 16, 300, 150)),
    "130_600": ("16384", (2, 16, 130, 600)),
    "130_600_cut": ("4096", (2, 16, 130, 600)),
    "60_uneven": ("4096", (8, 16, 60, None)),
    "one_answer_each": ("4096", (128, 1, 60, 100)),
}
"""Budget, then questions, answers to each, tokens of a prompt and of an answer (None: 10 to 900,
log-uniform). `tiny` is the tiny model with the lengths of its preset. All others are for a model
of hidden size 256."""


def write_model(folder: str) -> None:
    """Write a random Qwen2 with 3.3M parameters and a context of 1,024 tokens."""
    shape = {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "vocab_size": 262}
    Qwen2ForCausalLM(Qwen2Config(**shape)).save_pretrained(folder)


def whole_sequences(prompts, answers, _groups, indices, device):
    """Do the same as `collate`, but with a copy of the prompt for each answer."""
    pairs = [(prompts[i], answers[i]) for i in indices] or [([0], [0])]
    lengths = np.array([len(prompt) + len(answer) for prompt, answer in pairs])
    ids = torch.tensor([token for prompt, answer in pairs for token in (*prompt, *answer)])
    mask = np.concatenate(
        [np.repeat([False, True], [len(prompt), len(answer)]) for prompt, answer in pairs]
    )
    predicted = torch.from_numpy(mask.nonzero()[0])
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    longest = int(lengths.max())
    return MicroBatch(
        ids,
        torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        Sequences(starts, torch.arange(len(ids)), starts, longest, longest),
        ids[predicted],
        predicted - 1,
        np.array([len(answer) for _, answer in pairs]),
        indices,
    )


@contextmanager
def packing(shared: bool) -> Iterator[None]:
    """Let the learner pack with shared prompts, or without."""
    if shared:
        yield
        return

    def lengths(prompts: np.ndarray, answers: np.ndarray, _groups: np.ndarray) -> Lengths:
        return Lengths(prompts, answers, np.arange(len(prompts)))

    with mock.patch.multiple(module, collate=whole_sequences, Lengths=lengths):
        yield


def random_batch(
    questions: int, samples: int, prompt: int, answer: int | None
) -> tuple[Batch, np.ndarray]:
    """Return a batch of random tokens, and advantages [questions, samples]."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(20, 110, prompt).tolist() for _ in range(questions)]
    uneven = np.exp(rng.uniform(np.log(10), np.log(900), (questions, samples))).astype(int)
    lengths = uneven if answer is None else np.full_like(uneven, answer)
    answers = [
        [Answer(rng.integers(20, 110, n).tolist(), True, np.full(n, -3.0)) for n in group]
        for group in lengths
    ]
    return Batch.of(prompts, answers), rng.normal(size=(questions, samples))


def measure(model: str, budget: str, batch: Batch, advantages: np.ndarray) -> dict[str, float]:
    """Return the rows of one case. Runs on every rank."""
    flags = ["--preset", "tiny", "--model", model, "--micro-batch-tokens", budget]
    learner = module.Learner(model, 262, parse_train_config(flags, has_cuda=False)[0])
    found: dict[bool, list] = {True: [], False: []}
    for round_ in range(1 + ROUNDS):
        for shared, updates in found.items():
            with packing(shared):
                dist.barrier()
                started = time.perf_counter()
                # The weights stay as they are
                norm = learner.update(batch, advantages, lr=0.0).metrics["grad_norm"]
                dist.barrier()
                if round_:
                    updates.append((time.perf_counter() - started, norm))
    shared, whole = (np.array(found[shared]) for shared in (True, False))  # [rounds, 2]
    return {
        "prompt_sharing_ratio": np.median(whole[:, 0]) / np.median(shared[:, 0]),
        "sharing_gradient_difference": np.abs(shared[:, 1] / whole[:, 1] - 1).max(),
    }


def main() -> None:
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            write_model(folder)
            output = launch(2, "benchmarks/sharing.py", folder)
        rows = json.loads(
            next(line for line in output.splitlines() if line.startswith("ROWS "))[len("ROWS ") :]
        )
        for name, value in rows.items():
            row(name, value)
        return
    dist.init_process_group("gloo")
    rows = {}
    for name, (budget, shape) in CASES.items():
        model = str(TINY_MODEL) if name == "tiny" else sys.argv[-1]
        for kind, value in measure(model, budget, *random_batch(*shape)).items():
            rows[f"{kind}_{name}"] = value
    if dist.get_rank() == 0:
        print("ROWS " + json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
