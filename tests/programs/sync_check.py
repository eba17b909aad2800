"""Two ranks update a model and sync it: what the checks say after real syncs, a forgotten one, and
a lost head.

Launched by tests/test_weight_sync.py with a model's folder and flags; prints one JSON line from
rank 0.
"""

import json
import sys
from collections.abc import Callable

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch.distributed as dist
from transformers import AutoTokenizer

from bnpo.config import parse_train_config
from bnpo.files import RunError
from bnpo.policy.learner import Experience, Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.weight_sync import (
    check_equal,
    layer_number,
    measure_sync,
    refresh_sampler,
    whole_weights,
)
from bnpo.prompts import encode_prompt
from bnpo.ranks import gather


def error_of(check: Callable[[], object]) -> str | None:
    try:
        check()
    except RunError as error:
        return str(error)


class Pair:
    """This rank's learner and sampler of one model."""

    def __init__(self, model: str, *flags: str):
        self.config, _ = parse_train_config(
            ["--preset", "tiny", "--model", model, *flags], has_cuda=False
        )
        tokenizer = AutoTokenizer.from_pretrained(model)
        self.vocabulary = len(tokenizer)
        self.learner = Learner(model, self.vocabulary, self.config)
        sampler_ranks = self.config.hardware.sampler_ranks
        engine = EngineSettings(max_tokens=192, dtype="float32", tensor_parallel=sampler_ranks)
        self.sampler = Sampler(model, tokenizer, engine)
        self.sync_bound = 1e-4  # rounding in fp32
        self.names = list(self.compared())
        self.prompt = encode_prompt(tokenizer, f"1{dist.get_rank()}+2=?")

    def update(self) -> tuple[Experience, float]:
        """Of all ranks' answers; they, and the largest gap between the log-probabilities of
        sampler and learner.
        """
        sampling = {"n": 8, "max_tokens": 64, "temperature": 1.0, "logprobs": True}
        [(_, _, group)] = self.sampler.sample([self.prompt], [dist.get_rank()], **sampling)
        everyone = [answer for answers in gather(group) for answer in answers]
        experience = Experience(
            prompts=[prompt for prompt in gather(self.prompt) for _ in range(8)],
            answers=[answer.token_ids for answer in everyone],
            sampler_logprobs=[answer.logprobs for answer in everyone],
            advantages=np.where(np.arange(16) % 2, 1.0, -1.0),
        )
        return experience, self.learner.update(experience, lr=1e-3)[0]["sampler_learner_gap_max"]

    def compared(self) -> dict:
        """The learner's weights that `refresh_sampler` compares."""
        model = self.learner.model
        parts = (None, (model.config.num_hidden_layers - 1) // 2)
        return {
            name: whole
            for name, whole in whole_weights(model, tied_too=True)
            if layer_number(name) in parts
        }

    def errors(self, experience: Experience) -> list[str | None]:
        """Of the two checks: by log-probabilities, and by bits."""
        return [
            error_of(
                lambda: measure_sync(self.learner, self.sampler, experience, 4, self.sync_bound)
            ),
            self.bits(self.sampler.parameters(self.names)),
        ]

    def bits(self, held: dict) -> str | None:
        return error_of(lambda: check_equal(self.compared(), held, 4, self.sampler.place))


def main() -> None:
    dist.init_process_group("gloo")
    pair = Pair(*sys.argv[1:])
    learner, sampler = pair.learner, pair.sampler
    report: dict = {
        "differences": [],
        "errors": {},
        "compared": sorted(sampler.parameters(pair.names)),
    }
    for step in (1, 2, 3):
        experience, _ = pair.update()
        refresh_sampler(learner, sampler, step)
        report["differences"].append(
            measure_sync(learner, sampler, experience, step, pair.sync_bound)
        )
        report["ids_ok"] = max(map(max, experience.answers)) < pair.vocabulary

    experience, report["gap_max"] = pair.update()
    for case, load in (
        ("skipped", lambda: None),
        (
            "head left out",
            lambda: sampler.load_weights(whole_weights(learner.model, tied_too=False)),
        ),
        ("whole", lambda: refresh_sampler(learner, sampler, 4)),
    ):
        load()
        report["errors"][case] = pair.errors(experience)
    held = {name: tensor.clone() for name, tensor in sampler.parameters(pair.names).items()}
    held[pair.names[0]].view(-1)[0] += dist.get_rank()
    report["errors"]["one value of rank 1"] = [None, pair.bits(held)]
    learner.update(experience, lr=1e-6)
    pair.sync_bound = 0.05  # as in bf16
    report["errors"]["lost"] = pair.errors(experience)
    held = sampler.parameters(pair.names)
    del held[pair.names[0]]
    report["errors"]["no embedding"] = [None, pair.bits(held)]
    if pair.config.hardware.sampler_ranks > 1:  # of one token, no draw waits for other ranks
        prompts, settings = (
            [pair.prompt] * 32,
            {"max_tokens": 1, "temperature": 0.1 + dist.get_rank()},
        )
        report["errors"]["drawn apart"] = error_of(
            lambda: list(sampler.sample(prompts, range(32), **settings))
        )
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    sampler.close()


if __name__ == "__main__":
    main()
