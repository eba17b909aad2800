"""One rank compares learner, sampler and the model's own code, without faults and with one fault
after the other.

Launched by tests/test_bounds.py with a model's folder, a number format and texts; prints one JSON
line.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch
import torch.distributed as dist
from transformers import AttentionInterface, AutoTokenizer

from bnpo.config import parse_train_config
from bnpo.files import InputError, RunError
from bnpo.policy.learner import Experience, Learner
from bnpo.policy.model import ATTENTION, attention
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.weight_sync import measure_sync, prove_start


@contextmanager
def attention_fault(**changes) -> Iterator[None]:
    """The learner's attention with other settings than the layers ask for."""

    def faulty(*tensors, scaling, sequences, sliding_window=None, **settings):
        scaling *= changes.get("scale", 1.0)
        sliding_window = None if changes.get("no_window") else sliding_window
        if changes.get("mixed"):
            sequences = see_all(sequences)
        return attention(
            *tensors,
            scaling=scaling,
            sequences=sequences,
            sliding_window=sliding_window,
            **settings,
        )

    AttentionInterface.register(ATTENTION, faulty)
    yield
    AttentionInterface.register(ATTENTION, attention)


def see_all(sequences):
    """Every token attends to all tokens before it in the row: the second answer sees the first."""
    tokens = int(sequences.starts[-1])
    ends = torch.tensor([0, tokens], dtype=torch.int32)
    return replace(
        sequences,
        starts=ends,
        keys=torch.arange(tokens),
        key_starts=ends,
        longest=tokens,
        longest_keys=tokens,
    )


@contextmanager
def learner_fault(owner: object, name: str, value: object) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, old)


@contextmanager
def sampler_fault(sampler: Sampler, change) -> Iterator[None]:
    """The sampler gets changed weights."""
    load = sampler.load_weights
    sampler.load_weights = lambda weights: load(iter(change(dict(weights)).items()))
    yield
    del sampler.load_weights


def layer_of_another(weights: dict) -> dict:
    first, second = ".0.", ".1."
    return weights | {
        name: weights[name.replace(first, second, 1)] for name in weights if first in name
    }


def main() -> None:
    dist.init_process_group("gloo")
    folder, dtype, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
    flags = ["--preset", "tiny", "--model", folder, "--dtype", dtype, "--max-prompt-tokens", "256"]
    config, _ = parse_train_config(flags, has_cuda=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    learner = Learner(folder, len(tokenizer), config)
    sampler = Sampler(folder, tokenizer, EngineSettings(max_tokens=384, dtype=dtype))
    ids = [tokenizer(text)["input_ids"] for text in texts]
    report: dict = {"checks": [], "errors": {}, "gaps": []}
    for text in ids:
        check = prove_start(learner, sampler, text)
        report["checks"].append(vars(check))
    rotary = next(
        (module for module in learner.model.modules() if hasattr(module, "inv_freq")), None
    )
    head = learner._engine.module.head
    cases = {
        "attention scale": attention_fault(scale=1.25),
        "packed answers mix": attention_fault(mixed=True),
        "layer of another": sampler_fault(sampler, layer_of_another),
    }
    if rotary:  # as with another base
        cases["rotary base"] = learner_fault(rotary, "inv_freq", rotary.inv_freq**1.14)
    if getattr(learner.model.config, "sliding_window", None):
        cases["window ignored"] = attention_fault(no_window=True)
    if head.steps:
        cases["logits not scaled or capped"] = learner_fault(head, "steps", None)
    for name, fault in cases.items():
        with fault:
            try:
                report["errors"][name] = f"passes: {prove_start(learner, sampler, ids[0])}"
            except (InputError, RunError) as error:
                report["errors"][name] = str(error)
    prove_start(learner, sampler, ids[0])  # the weights are right again
    rng = np.random.default_rng(0)
    bound = min(check["sync_bound"] for check in report["checks"])
    for temperature in (0.6, 1.0, 2.0):  # at the last, answers are gibberish
        [(_, _, group)] = sampler.sample(
            [ids[0][:60]], [0], n=8, max_tokens=100, temperature=temperature
        )
        for answer in group:
            experience = Experience(
                [ids[0][:60]], [answer.token_ids], [np.zeros(len(answer.token_ids))], np.ones(1)
            )
            report["gaps"].append(measure_sync(learner, sampler, experience, 1, bound=10.0))
    noise = rng.integers(len(tokenizer), size=100).tolist()
    experience = Experience([ids[0][:60]], [noise], [np.zeros(100)], np.ones(1))
    report["gaps"].append(measure_sync(learner, sampler, experience, 1, bound=10.0))
    report["bound"] = bound
    print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
