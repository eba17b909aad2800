"""The learner beyond the limits at which ZeRO-3 releases and prefetches weights, with small models.

DeepSpeed keeps up to 10^9 gathered weights and gathers 5 * 10^7 ahead. Whether a pass releases a
layer, and what it leaves behind, depends on the size of a model relative to these limits. So this
program divides the limits by what divides the model. It calls the learner's methods in all orders
of two, and after each call looks for weights that are still gathered or in flight.

Launched by tests/test_limits.py with the folder of a model, one for checkpoints, the number that
multiplies the limits, and flags. Reports what each rank has found.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from shared import batch_of, config_of, report  # isort: skip
import numpy as np
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

from bnpo.policy import learner as module
from bnpo.policy.learner import Learner
from bnpo.policy.start_check import own_score
from bnpo.policy.weight_sync import whole_layers
from bnpo.ranks import gather
from bnpo.runs.checkpoint import save_weights

CALLS = ("own score", "score", "update", "update without gradient", "sync", "save", "load")
PROMPT, ANSWER = [1, 30, 40, 2], list(range(40, 60))


def all_pairs() -> list[str]:
    """Return calls in an order in which each follows each, itself included."""
    walk = []
    for i, a in enumerate(CALLS):
        walk.append(a)
        for b in CALLS[i + 1 :]:
            walk += [a, b]
    return [*walk, CALLS[0]]


def limits(scale: float):
    """Return a context in which learners are made with limits that are multiplied by `scale`."""
    default, own_settings = DeepSpeedZeroConfig(stage=3), module.deepspeed_settings

    def settings(config) -> dict:
        scaled = own_settings(config)
        for name in ("max_live_parameters", "max_reuse_distance", "param_persistence_threshold"):
            scaled["zero_optimization"][f"stage3_{name}"] = int(scale * getattr(default, name))
        scaled["zero_optimization"]["reduce_bucket_size"] = int(scale * module.REDUCE_BUCKET)
        return scaled

    def zero_config(stage: int) -> DeepSpeedZeroConfig:
        prefetched = int(scale * default.prefetch_bucket_size)
        return DeepSpeedZeroConfig(stage=stage, stage3_prefetch_bucket_size=prefetched)

    return patch.multiple(module, deepspeed_settings=settings, DeepSpeedZeroConfig=zero_config)


def left_behind(learner: Learner) -> list[str]:
    """Return the weights that are not partitioned, but for the small ones that ZeRO-3 never
    releases.
    """
    return [
        f"{name} is {parameter.ds_status.name}"
        for name, parameter in learner.policy.named_parameters()
        if parameter.ds_status != ZeroParamStatus.NOT_AVAILABLE and not parameter.ds_persist
    ]


def calls_of(learner: Learner, folder: Path) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    ids = [rng.integers(20, 110, rng.integers(4, 30)).tolist() for _ in range(8)]
    batch = batch_of(ids, [rng.normal(-4, 1, len(tokens)) for tokens in ids], questions=4)
    advantages = rng.normal(size=(4, 2))

    def save() -> None:
        dist.barrier()  # another rank may still be loading
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "weights").mkdir(parents=True)
        dist.barrier()
        save_weights(learner.model, folder / "weights")
        learner.save(folder)
        dist.barrier()

    calls = (
        lambda: own_score(learner, PROMPT, ANSWER, ANSWER[::-1]),
        lambda: learner.score(PROMPT, ANSWER),
        lambda: learner.update(batch, advantages, lr=1e-4),
        lambda: learner.update(batch, 0 * advantages, lr=1e-4),
        lambda: list(whole_layers(learner.model, tied_too=True)),
        save,
        lambda: learner.load(folder),
    )
    return dict(zip(CALLS, calls, strict=True))


def walk(learner: Learner, folder: Path) -> str:
    """Make all calls. Return the first that fails or leaves weights behind, or a hash of the
    weights.
    """
    calls, before = calls_of(learner, folder), "start"
    calls["save"]()
    for call in all_pairs():
        try:
            calls[call]()
        except Exception as error:
            return f"{call} after {before}: {type(error).__name__}: {str(error)[:300]}"
        if left := left_behind(learner):
            return f"{call} after {before}: {len(left)} weights, such as {left[0]}"
        before = call
    hashed = hashlib.sha256()
    for _, tensors in whole_layers(learner.model, tied_too=True):
        for name, tensor in tensors.items():
            hashed.update(name.encode() + tensor.float().numpy().tobytes())
    return f"weights {hashed.hexdigest()}"


def check(model: str, folder: str, scale: str, *flags: str) -> list[tuple[str, str]]:
    sizes = "--samples-per-question 2 --micro-batch-tokens 64 --model"
    config = config_of(sizes, model, *flags)
    within = walk(Learner(model, 110, config), Path(folder))
    with limits(float(scale)):
        beyond = walk(Learner(model, 110, config), Path(folder))
    return gather((within, beyond))


if __name__ == "__main__":
    report(check)
