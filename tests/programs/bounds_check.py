"""One rank compares learner, sampler and the model's own code, without faults and with one fault
after the other.

Launched by tests/test_families.py with a model's folder, a number format and texts; prints one JSON
line.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch.distributed as dist
from transformers import AttentionInterface, AutoTokenizer

from bnpo.algorithm.batching import Sequences
from bnpo.batch import Answer, Batch
from bnpo.config import parse_train_config
from bnpo.files import InputError, RunError
from bnpo.policy.learner import Learner
from bnpo.policy.model import ATTENTION, attention
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.start_check import check_start
from bnpo.policy.weight_sync import WeightSync


@contextmanager
def attention_fault(**changes) -> Iterator[None]:
    """The learner's attention with other settings than the layers ask for."""

    def faulty(*tensors, scaling, sequences, sliding_window=None, **settings):
        scaling *= changes.get("scale", 1.0)
        sliding_window = None if changes.get("no_window") else sliding_window
        if changes.get("mixed"):
            sequences = see_all(sequences)
        settings |= {"sequences": sequences, "sliding_window": sliding_window}
        return attention(*tensors, scaling=scaling, **settings)

    AttentionInterface.register(ATTENTION, faulty)
    yield
    AttentionInterface.register(ATTENTION, attention)


def see_all(sequences):
    """Every token attends to all tokens before it in the row: the second answer sees the first."""
    tokens = int(sequences.starts[-1])
    return Sequences.of([np.arange(tokens)], [np.arange(tokens)], "cpu")


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
    sync, ids = WeightSync(learner, sampler, 384), [tokenizer(text)["input_ids"] for text in texts]

    def check(text: list[int]) -> dict:
        return vars(check_start(learner, sampler, sync, text, config))

    report: dict = {"checks": [check(text) for text in ids], "errors": {}}
    rotary = next(
        (module for module in learner.model.modules() if hasattr(module, "inv_freq")), None
    )
    head = learner.policy.head
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
                report["errors"][name] = f"passes: {check(ids[0])}"
            except (InputError, RunError) as error:
                report["errors"][name] = str(error)
    check(ids[0])  # the weights are right again
    prompt, noise = ids[0][:60], np.random.default_rng(0).integers(len(tokenizer), size=100)
    answers = [Answer(noise.tolist(), True, None)]
    for temperature in (0.6, 1.0, 2.0):  # at the last, answers are gibberish
        [group] = sampler.sample([prompt], [0], n=8, max_tokens=100, temperature=temperature)
        answers += group.answers
    sync.bound = 10.0
    batches = [Batch.of([prompt], [[answer]]) for answer in answers]
    report["gaps"] = [sync.measure_difference(1, batch) for batch in batches]
    report["bound"] = min(healthy["sync_bound"] for healthy in report["checks"])
    print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
