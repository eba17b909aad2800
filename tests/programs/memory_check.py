"""The memory that updates of the real learner take in several settings, beside its account; prints one JSON line.

Launched by tests/test_memory.py with the folder of a model. Each rank's own figures: the largest counts.
"""

import ctypes
import gc
import json
import os
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

SETTINGS = {
    "weights": ["--dtype", "float32", "--micro-batch-tokens", "256"],
    "weights, offloaded": ["--dtype", "float32", "--micro-batch-tokens", "256", "--offload-optimizer"],
    "weights in bf16": ["--dtype", "bfloat16", "--micro-batch-tokens", "256"],
    "activations": ["--dtype", "float32", "--micro-batch-tokens", "2048"],
    "one layer's activations": ["--dtype", "float32", "--micro-batch-tokens", "4096", "--gradient-checkpointing"],
    "logits in two chunks": ["--dtype", "bfloat16", "--micro-batch-tokens", "2560", "--gradient-checkpointing"],
}
"""Flags of each setting, by what takes most in it."""
COMMON = ["--preset", "tiny", "--max-prompt-tokens", "4", "--max-answer-tokens", "252", "--samples-per-question", "2"]
M_MMAP_THRESHOLD = -3  # malloc.h


def status(field: str) -> int:
    """Bytes of this process by /proc's name."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024


def experience(answers: int):
    import numpy as np

    from bnpo.policy.update import Experience

    tokens = np.random.default_rng(0).integers(20, 110, (answers, 252))
    return Experience(
        prompts=[[1, 30, 40, 2]] * answers,
        answers=tokens.tolist(),
        sampler_logprobs=[np.full(252, -5.0)] * answers,
        advantages=np.resize([1.0, -1.0], answers),
    )


def measure(config, model: str, vocabulary: int, ranks: int) -> int:
    """Bytes by which this process grows at most from before there is a learner to its third update."""
    from bnpo.policy.learner import Learner

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    learner = Learner(model, vocabulary, config)
    for _ in range(2):  # the optimizer has a state from the first update on, DeepSpeed knows what to prefetch
        learner.update(experience(ranks), lr=1e-4)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    learner.update(experience(ranks * config.hardware.micro_batch_tokens // 256), lr=1e-4)  # a full micro-batch a rank
    return status("VmHWM") - before


def kept_layers(model: str, shape, ranks: int) -> tuple[float, int]:
    """Layers whose matrices stay whole after a forward pass that none follows, where DeepSpeed keeps what is needed
    within one and a half layers and the head; and how many the account takes for that."""
    from bnpo.config import parse_train_config
    from bnpo.policy import learner, memory

    settings, distance = learner.deepspeed_settings, int(shape.head + 1.5 * shape.layer)
    near = {"stage3_max_reuse_distance": distance, "stage3_max_live_parameters": distance}

    def with_distance(config) -> dict:
        found = settings(config)
        return found | {"zero_optimization": found["zero_optimization"] | near}

    learner.deepspeed_settings = memory.deepspeed_settings = with_distance
    config, _ = parse_train_config([*COMMON, "--model", model, "--micro-batch-tokens", "256"], has_cuda=False)
    policy = learner.Learner(model, shape.vocabulary, config)
    for _ in range(2):  # what follows what is known from the second on
        policy.update(experience(ranks), lr=1e-4)
    policy.score([1, 30, 40, 2], [30, 31])
    whole = 0.0
    for layer in policy.model.model.layers:
        matrices = [p for p in layer.parameters() if p.ds_numel > 200_000]
        whole += sum(p.ds_status.name == "AVAILABLE" for p in matrices) / len(matrices)
    return whole, memory._Rank(shape, config, ranks, "cpu").kept_layers()


def main() -> None:
    # From the start on, what is freed goes back at once: holes in the heap would count as held.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.planning.memory import account, read_shape
    from bnpo.ranks import gather

    dist.init_process_group("gloo")
    model, ranks = sys.argv[-1], dist.get_world_size()
    shape, report = read_shape(Path(model)), {}
    for name, flags in SETTINGS.items():
        config, _ = parse_train_config([*COMMON, "--model", model, *flags], has_cuda=False)
        taken = max(gather(measure(config, model, shape.vocabulary, ranks)))
        expected = account(shape, config, ranks, device="cpu")
        report[name] = {"measured": taken, "moment": expected.peak, "account": expected.update_peak}
    report["kept layers"] = kept_layers(model, shape, ranks)
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    dist.barrier()
    os._exit(0)  # the threads of so many engines once ended in the wrong order, and the process with SIGABRT


if __name__ == "__main__":
    main()
