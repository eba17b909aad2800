"""The learner beyond the limits at which ZeRO-3 releases and prefetches weights, with small models.

DeepSpeed keeps up to 10^9 gathered weights and gathers 5 * 10^7 ahead. Whether a pass releases a
layer, and what it leaves behind, depends on the size of a model relative to these limits. So this
program divides the limits by what divides the model. It calls the learner's methods in all orders
of two, and after each call looks for weights that are still gathered or in flight.

Launched by tests/test_limits.py with the folders of the models and one for checkpoints; prints the
reports of all ranks as one JSON line.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()


LAYER = 49_000
"""Elements of a layer of the small models."""


@dataclass(frozen=True)
class Size:
    """A model of the paper's family, by what matters to the limits."""

    layer: float  # elements of a layer
    embedding: float  # elements of the embedding
    layers: int  # fewer than in the real 7B and 32B, which are far beyond the limits with these
    tied: bool


SIZES = {
    "0.5B": Size(14.9e6, 136e6, 24, tied=True),
    "1.5B": Size(46.8e6, 233e6, 28, tied=True),
    "7B": Size(233e6, 545e6, 10, tied=False),
    "32B": Size(487e6, 778e6, 10, tied=False),
}
SETTINGS = {
    "plain": "",
    "checkpointing": "--gradient-checkpointing",
    "mini-batches": "--mini-batches 2 --ppo-iterations 2",
    "offloaded": "--offload-optimizer --offload-weights",
    "LoRA": "--lora-rank 2",
}
CASES = {  # by number of ranks: size and setting
    1: [(size, "plain") for size in SIZES]
    + [("1.5B", name) for name in SETTINGS if name != "plain"],
    2: [("0.5B", "plain"), ("1.5B", "mini-batches"), ("7B", "LoRA")],
}
CALLS = ("own score", "score", "update", "update without gradient", "sync", "save", "load")


def all_pairs() -> list[str]:
    """Calls in an order in which each follows each, itself included (a walk along all edges)."""
    unused = {call: list(CALLS) for call in CALLS}
    walk, path = [CALLS[0]], []
    while walk:
        if unused[walk[-1]]:
            walk.append(unused[walk[-1]].pop())
        else:
            path.append(walk.pop())
    return path[::-1]


def scale_limits() -> dict[str, float]:
    """Return a dict whose "scale" multiplies the limits of ZeRO-3 in learners made from now on."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    from bnpo.policy import learner

    default, own_settings = DeepSpeedZeroConfig(stage=3), learner.deepspeed_settings
    limits = {"scale": 1.0}

    def settings(config) -> dict:
        scaled, scale = own_settings(config), limits["scale"]
        scaled["zero_optimization"] |= {
            "stage3_max_live_parameters": int(scale * default.max_live_parameters),
            "stage3_max_reuse_distance": int(scale * default.max_reuse_distance),
            "stage3_param_persistence_threshold": int(scale * default.param_persistence_threshold),
            "reduce_bucket_size": int(scale * learner.REDUCE_BUCKET),
        }
        return scaled

    def zero_config(stage: int) -> DeepSpeedZeroConfig:
        prefetched = int(limits["scale"] * default.prefetch_bucket_size)
        return DeepSpeedZeroConfig(stage=stage, stage3_prefetch_bucket_size=prefetched)

    learner.deepspeed_settings, learner.DeepSpeedZeroConfig = settings, zero_config
    return limits


def experience(*, gradient: bool):
    """8 answers to 4 questions."""
    import numpy as np

    from bnpo.policy.learner import Experience

    rng = np.random.default_rng(0)
    answers = [rng.integers(20, 110, rng.integers(4, 30)).tolist() for _ in range(8)]
    return Experience(
        prompts=[[1, 30 + i // 2, 40, 2] for i in range(8)],
        answers=answers,
        sampler_logprobs=[rng.normal(-4, 1, len(answer)) for answer in answers],
        advantages=rng.normal(size=8) * gradient,
    )


def left_behind(learner) -> list[str]:
    """The weights that are not partitioned, without the small ones that ZeRO-3 never releases."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    return [
        f"{name} is {parameter.ds_status.name}"
        for name, parameter in learner.policy.named_parameters()
        if parameter.ds_status != ZeroParamStatus.NOT_AVAILABLE and not parameter.ds_persist
    ]


def hash_of_weights(learner) -> str:
    from bnpo.policy.weight_sync import whole_weights

    hashed = hashlib.sha256()
    for name, tensor in whole_weights(learner.model, tied_too=True):
        hashed.update(name.encode() + tensor.float().numpy().tobytes())
    return hashed.hexdigest()


def calls_of(learner, folder: Path) -> dict[str, Callable[[], object]]:
    import torch.distributed as dist

    from bnpo.policy.weight_sync import own_score, whole_weights
    from bnpo.runs.checkpoint import save_weights

    prompt, answer = [1, 30, 40, 2], list(range(40, 60))

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
        lambda: own_score(learner, prompt, answer, answer[::-1]),
        lambda: learner.score(prompt, answer),
        lambda: learner.update(experience(gradient=True), lr=1e-4),
        lambda: learner.update(experience(gradient=False), lr=1e-4),
        lambda: list(whole_weights(learner.model, tied_too=True)),
        save,
        lambda: learner.load(folder),
    )
    return dict(zip(CALLS, calls, strict=True))


def walk(learner, folder: Path) -> dict:
    """Make all calls. Return the first that fails or leaves weights behind, and the weights."""
    calls, before = calls_of(learner, folder), "start"
    calls["save"]()
    for call in all_pairs():
        try:
            calls[call]()
        except Exception as error:
            return {"fault": f"{call} after {before}: {type(error).__name__}: {str(error)[:300]}"}
        if left := left_behind(learner):
            return {"fault": f"{call} after {before}: {len(left)} weights, such as {left[0]}"}
        before = call
    return {"weights": hash_of_weights(learner)}


def main() -> None:
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.ranks import gather

    models, scratch = dict(zip(SIZES, sys.argv[1:5], strict=True)), Path(sys.argv[5])
    dist.init_process_group("gloo")
    limits, report = scale_limits(), {}
    for size, setting in CASES[dist.get_world_size()]:
        argv = ["--preset", "tiny", "--model", models[size], "--samples-per-question", "2"]
        argv += ["--micro-batch-tokens", "64", *SETTINGS[setting].split()]
        config, _ = parse_train_config(argv, has_cuda=False)
        limits["scale"] = LAYER / SIZES[size].layer
        results = walk(Learner(models[size], 110, config), scratch)
        if size == "1.5B":  # the same within the limits
            limits["scale"] = 1.0
            results["within"] = walk(Learner(models[size], 110, config), scratch)
        report[f"{size} {setting}"] = results
    of_ranks = gather(report)
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(of_ranks), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
