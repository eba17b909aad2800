"""One rank compares learner, sampler and the model's own code, without faults and with one fault
after the other.

Launched by tests/test_families.py with a model's folder, a number format and texts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from shared import config_of, report  # isort: skip
import numpy as np
from transformers import AttentionInterface, AutoTokenizer

from bnpo.algorithm.batching import Sequences
from bnpo.batch import Answer, Batch
from bnpo.files import InputError, RunError
from bnpo.policy.learner import Learner
from bnpo.policy.model import ATTENTION, attention
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.start_check import check_start
from bnpo.policy.weight_sync import WeightSync


@contextmanager
def attention_fault(scale: float = 1.0, *, windows=True, mixes=False) -> Iterator[None]:
    """The learner's attention with other settings than the layers ask for."""

    def faulty(*tensors, scaling, sequences, sliding_window=None, **settings):
        if mixes:  # all tokens attend to all before them: the second answer sees the first
            tokens = np.arange(int(sequences.starts[-1]))
            sequences = Sequences.of([tokens], [tokens], "cpu")
        settings["sliding_window"] = sliding_window if windows else None
        return attention(*tensors, scaling=scale * scaling, sequences=sequences, **settings)

    AttentionInterface.register(ATTENTION, faulty)
    yield
    AttentionInterface.register(ATTENTION, attention)


@contextmanager
def layer_of_another(sampler: Sampler) -> Iterator[None]:
    """The sampler gets the weights of the second layer for its first, too."""
    load, first, second = sampler.load_weights, ".0.", ".1."

    def load_changed(weights):
        weights = dict(weights)
        for name in weights:
            if first in name:
                weights[name] = weights[name.replace(first, second, 1)]
        return load(iter(weights.items()))

    with patch.object(sampler, "load_weights", load_changed):
        yield


def faults(learner: Learner, sampler: Sampler) -> dict:
    cases = {
        "attention scale": attention_fault(1.25),
        "packed answers mix": attention_fault(mixes=True),
        "layer of another": layer_of_another(sampler),
    }
    for module in learner.model.modules():
        if hasattr(module, "inv_freq"):  # as with another base
            cases["rotary base"] = patch.object(module, "inv_freq", module.inv_freq**1.14)
    if getattr(learner.model.config, "sliding_window", None):
        cases["window ignored"] = attention_fault(windows=False)
    if learner.policy.head.transform:
        cases["logits not scaled or capped"] = patch.object(learner.policy.head, "transform", None)
    return cases


def check(folder: str, dtype: str, *texts: str) -> dict:
    config = config_of(f"--dtype {dtype} --max-prompt-tokens 256 --model", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    learner = Learner(folder, len(tokenizer), config)
    sampler = Sampler(folder, tokenizer, EngineSettings(max_tokens=384, dtype=dtype))
    sync, ids = WeightSync(learner, sampler, 384), [tokenizer(text)["input_ids"] for text in texts]

    def start(text: list[int]) -> dict:
        return vars(check_start(learner, sampler, sync, text, config))

    found: dict = {"checks": [start(text) for text in ids], "errors": {}}
    found["bound"] = min(healthy["sync_bound"] for healthy in found["checks"])
    for name, fault in faults(learner, sampler).items():
        with fault:
            try:
                found["errors"][name] = f"passes: {start(ids[0])}"
            except (InputError, RunError) as error:
                found["errors"][name] = str(error)
    start(ids[0])  # the weights are right again
    text = Batch.of([ids[0][:60]], [[Answer(ids[0][60:], True, None)]])
    try:
        with layer_of_another(sampler):
            sync.refresh(1)
            found["lost later"] = f"passes: {sync.measure_difference(1, text)}"
    except RunError as error:
        found["lost later"] = str(error)
    start(ids[0])
    prompt, noise = ids[0][:60], np.random.default_rng(0).integers(len(tokenizer), size=100)
    answers = [Answer(noise.tolist(), True, None)]
    for temperature in (0.6, 1.0, 2.0):  # at the last, answers are gibberish
        [group] = sampler.sample([prompt], [0], n=8, max_tokens=100, temperature=temperature)
        answers += group.answers
    sync.bound = 10.0
    batches = [Batch.of([prompt], [[answer]]) for answer in answers]
    return found | {"gaps": [sync.measure_difference(1, batch) for batch in batches]}


if __name__ == "__main__":
    report(check)
