"""Two ranks update a model and sync it: what the checks say after real syncs, a forgotten one, and
a lost head.

Launched by tests/test_weight_sync.py with a model's folder and flags.
"""

from collections.abc import Callable

from shared import config_of, report  # isort: skip
import numpy as np
import torch.distributed as dist
from transformers import AutoTokenizer

from bnpo.batch import Batch
from bnpo.files import RunError
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.weight_sync import WeightSync, check_equal, whole_layers
from bnpo.prompts import encode_prompt
from bnpo.ranks import gather
from bnpo.runs.checkpoint import whole_weights

ADVANTAGES = np.resize([-1.0, 1.0], (2, 8))


def error_of(check: Callable[[], object]) -> str | None:
    try:
        check()
    except RunError as error:
        return str(error)


class Pair:
    """This rank's learner and sampler of one model. `held` are the sampler's parameters."""

    def __init__(self, model: str, *flags: str):
        config = config_of("--model", model, *flags)
        tokenizer = AutoTokenizer.from_pretrained(model)
        self.vocabulary, self.sampler_ranks = len(tokenizer), config.hardware.sampler_ranks
        self.learner = Learner(model, self.vocabulary, config)
        engine = EngineSettings(192, dtype="float32", tensor_parallel=self.sampler_ranks)
        self.sampler = Sampler(model, tokenizer, engine)
        load, self.held = self.sampler.load_weights, {}
        self.sampler.load_weights = lambda weights: self.held.update(load(weights)) or self.held
        self.sync = WeightSync(self.learner, self.sampler, 192)
        self.sync.bound = 1e-4  # rounding in fp32
        self.prompt = encode_prompt(tokenizer, f"1{dist.get_rank()}+2=?")

    def sample(self) -> Batch:
        """Return 8 answers of each rank."""
        sampling = {"n": 8, "max_tokens": 64, "temperature": 1.0, "logprobs": True}
        [group] = self.sampler.sample([self.prompt], [dist.get_rank()], **sampling)
        return Batch.of(gather(self.prompt), gather(group.answers))

    def compared(self) -> dict:
        """Return the learner's weights that `refresh` compares."""
        model = self.learner.model
        numbers = (None, (model.config.num_hidden_layers - 1) // 2)
        parts = [part for number, part in whole_layers(model, tied_too=True) if number in numbers]
        return {name: tensor for part in parts for name, tensor in part.items()}

    def errors(self, batch: Batch) -> list[str | None]:
        """Return those of the two checks: by log-probabilities, and by bits."""
        return [error_of(lambda: self.sync.measure_difference(4, batch)), self.bits(self.held)]

    def bits(self, held: dict) -> str | None:
        return error_of(lambda: check_equal(self.compared(), held, 4, self.sampler.place))


def check(model: str, *flags: str) -> dict:
    pair = Pair(model, *flags)
    learner, sampler, sync = pair.learner, pair.sampler, pair.sync
    found: dict = {"differences": [], "errors": {}}
    for step in (1, 2, 3):
        batch = pair.sample()
        with sync.sampler_asleep(step, batch):
            learner.update(batch, ADVANTAGES, lr=1e-3)
        found["differences"].append(sync.difference)
        answers = [answer.token_ids for group in batch.groups for answer in group.answers]
        found["ids_ok"] = max(map(max, answers)) < pair.vocabulary
    found["compared"] = sorted(pair.held.keys() & pair.compared().keys())

    score, off = sampler.score, float(dist.get_rank())
    sampler.score = lambda *text: score(*text) + off  # as if rank 1 alone had lost weights
    found["rank 1 is off"] = error_of(lambda: sync.measure_difference(3, pair.sample()))
    sampler.score = score

    batch = pair.sample()
    update = learner.update(batch, ADVANTAGES, lr=1e-3)
    found["gap_max"] = update.metrics["sampler_learner_gap_max"]
    for case, load in (
        ("skipped", lambda: None),
        ("head left out", lambda: sampler.load_weights(whole_weights(learner.model))),
        ("whole", lambda: sync.refresh(4)),
    ):
        load()
        found["errors"][case] = pair.errors(batch)
    embedding = next(iter(pair.compared()))
    changed = pair.held[embedding].clone()
    changed.view(-1)[0] += dist.get_rank()
    found["errors"]["one value of rank 1"] = [None, pair.bits(pair.held | {embedding: changed})]
    learner.update(batch, ADVANTAGES, lr=1e-6)
    sync.bound = 0.05  # as in bf16
    found["errors"]["lost"] = pair.errors(batch)
    others = {name: tensor for name, tensor in pair.held.items() if name != embedding}
    found["errors"]["no embedding"] = [None, pair.bits(others)]
    if pair.sampler_ranks > 1:  # answers of one token, so that no draw waits for other ranks
        sampling = {"max_tokens": 1, "temperature": 0.1 + 1.9 * dist.get_rank()}
        prompts = [[token, token] for token in range(40, 72)]
        found["errors"]["drawn apart"] = error_of(
            lambda: list(sampler.sample(prompts, range(32), **sampling))
        )
    sampler.close()
    return found


if __name__ == "__main__":
    report(check)
