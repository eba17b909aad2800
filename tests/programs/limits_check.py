"""The learner beyond the limits at which ZeRO-3 releases and prefetches weights, with small models.

DeepSpeed keeps up to 10^9 gathered weights and gathers 5 * 10^7 ahead. Whether a pass releases a
layer, and what it leaves behind, depends on the size of a model relative to these limits. So this
program divides the limits by what divides the model. It calls the learner's methods in all orders
of two, and after each call looks for weights that are still gathered or in flight.

Launched by tests/test_limits.py with the folder of a model, one for checkpoints, the number that
multiplies the limits, and flags; prints the reports of all ranks as one JSON line.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

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


def scale_limits(scale: float) -> None:
    """Multiply the limits of ZeRO-3 in learners made from now on."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    from bnpo.policy import learner

    default, own_settings = DeepSpeedZeroConfig(stage=3), learner.deepspeed_settings

    def settings(config) -> dict:
        scaled = own_settings(config)
        scaled["zero_optimization"] |= {
            "stage3_max_live_parameters": int(scale * default.max_live_parameters),
            "stage3_max_reuse_distance": int(scale * default.max_reuse_distance),
            "stage3_param_persistence_threshold": int(scale * default.param_persistence_threshold),
            "reduce_bucket_size": int(scale * learner.REDUCE_BUCKET),
        }
        return scaled

    def zero_config(stage: int) -> DeepSpeedZeroConfig:
        prefetched = int(scale * default.prefetch_bucket_size)
        return DeepSpeedZeroConfig(stage=stage, stage3_prefetch_bucket_size=prefetched)

    learner.deepspeed_settings, learner.DeepSpeedZeroConfig = settings, zero_config


def left_behind(learner) -> list[str]:
    """The weights that are not partitioned, without the small ones that ZeRO-3 never releases."""
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    return [
        f"{name} is {parameter.ds_status.name}"
        for name, parameter in learner.policy.named_parameters()
        if parameter.ds_status != ZeroParamStatus.NOT_AVAILABLE and not parameter.ds_persist
    ]


def calls_of(learner, folder: Path) -> dict[str, Callable[[], object]]:
    import numpy as np
    import torch.distributed as dist

    from bnpo.batch import Answer, Batch
    from bnpo.policy.start_check import own_score
    from bnpo.policy.weight_sync import whole_layers
    from bnpo.runs.checkpoint import save_weights

    rng = np.random.default_rng(0)
    ids = [rng.integers(20, 110, rng.integers(4, 30)).tolist() for _ in range(8)]
    answers = [Answer(tokens, True, rng.normal(-4, 1, len(tokens))) for tokens in ids]
    prompts = [[1, 30 + i, 40, 2] for i in range(4)]
    batch = Batch.of(prompts, [answers[i : i + 2] for i in range(0, 8, 2)])
    advantages = rng.normal(size=(4, 2))
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
        lambda: learner.update(batch, advantages, lr=1e-4),
        lambda: learner.update(batch, 0 * advantages, lr=1e-4),
        lambda: list(whole_layers(learner.model, tied_too=True)),
        save,
        lambda: learner.load(folder),
    )
    return dict(zip(CALLS, calls, strict=True))


def walk(learner, folder: Path) -> dict:
    """Make all calls. Return the first that fails or leaves weights behind, and the weights."""
    from bnpo.policy.weight_sync import whole_layers

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
    hashed = hashlib.sha256()
    for _, tensors in whole_layers(learner.model, tied_too=True):
        for name, tensor in tensors.items():
            hashed.update(name.encode() + tensor.float().numpy().tobytes())
    return {"weights": hashed.hexdigest()}


def main() -> None:
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.ranks import gather

    model, folder, scale, *flags = sys.argv[1:]
    dist.init_process_group("gloo")
    flags = ["--model", model, "--samples-per-question", "2", "--micro-batch-tokens", "64", *flags]
    config, _ = parse_train_config(["--preset", "tiny", *flags], has_cuda=False)
    within = walk(Learner(model, 110, config), Path(folder))
    scale_limits(float(scale))
    beyond = walk(Learner(model, 110, config), Path(folder))
    of_ranks = gather({"beyond": beyond, "within": within})
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(of_ranks), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
