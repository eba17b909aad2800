"""Measure the memory of the real learner's updates in several settings, and print it beside what is
counted, as JSON.

    memory_check.py [SETTING..] FOLDER_OF_THE_MODEL

Without names of settings it measures all. Those in bfloat16 are left out on a CPU where that would
take minutes. The rank that takes most counts.
"""

import ctypes
import gc
import json
import os
import sys
from pathlib import Path

from shared import batch_of, config_of  # isort: skip
import numpy as np
import torch.distributed as dist

from bnpo.policy.learner import Learner
from bnpo.policy.memory import ModelShape
from bnpo.ranks import gather
from planner.memory import CONTEXTS, learner_memory

CHECKPOINTING = "--micro-batch-tokens 4096 --gradient-checkpointing"
SETTINGS = {
    "weights": "--dtype float32 --micro-batch-tokens 256",
    "weights, offloaded": "--dtype float32 --micro-batch-tokens 256 --offload-optimizer",
    "weights in bf16": "--dtype bfloat16 --micro-batch-tokens 256",
    "activations": "--dtype float32 --micro-batch-tokens 2048",
    "one layer's activations": f"--dtype float32 {CHECKPOINTING}",
    "logits in two chunks": "--dtype bfloat16 --micro-batch-tokens 2560 --gradient-checkpointing",
    "activations with LoRA": "--lora-rank 32 --dtype bfloat16 --micro-batch-tokens 2048",
    "one layer's activations with LoRA": f"--lora-rank 64 --dtype float32 {CHECKPOINTING}",
}
"""Flags of each setting, by the part that takes most."""
# The questions are enough for a full micro-batch on each rank, which is what the plan counts.
COMMON = "--questions-per-step 32 --samples-per-question 2"
COMMON += " --max-prompt-tokens 4 --max-answer-tokens 252"
M_MMAP_THRESHOLD = -3  # malloc.h


def status(field: str) -> int:
    """Return bytes of this process by the name in /proc."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024


def update(learner: Learner, answers: int) -> None:
    tokens = np.random.default_rng(0).integers(20, 110, (answers, 252))
    batch = batch_of(tokens.tolist(), np.full((answers, 252), -5.0), questions=1)
    learner.update(batch, np.resize([1.0, -1.0], (1, answers)), lr=1e-4)


def measure(config, model: str, vocabulary: int, ranks: int) -> int:
    """Return the bytes by which this process grows at most from before it has a learner to its
    third update.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    learner = Learner(model, vocabulary, config)
    for _ in range(2):  # they create the optimizer's state and show DeepSpeed what to prefetch
        update(learner, ranks)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    # A full micro-batch per rank.
    update(learner, ranks * config.hardware.micro_batch_tokens // 256)
    return status("VmHWM") - before


def main() -> None:
    # Freed memory goes back to the system at once. Holes in the heap would be measured too.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    import peft  # noqa: F401 - the first learner with LoRA imports it, and its memory would be measured too

    dist.init_process_group("gloo")
    model, ranks = sys.argv[-1], dist.get_world_size()
    shape, report = ModelShape(Path(model)), {}
    has_bf16 = not {"avx512bw", "bf16"}.isdisjoint(Path("/proc/cpuinfo").read_text().split())
    for name in sys.argv[1:-1] or SETTINGS:
        config = config_of(COMMON, f"--model {model}", SETTINGS[name])
        if config.hardware.dtype == "bfloat16" and not has_bf16:
            continue
        taken = max(gather(measure(config, model, shape.vocabulary, ranks)))
        plan = learner_memory(shape, config, ranks, device="cpu")
        # All in the same memory, without CUDA
        counted = plan.phases["update"].total() + plan.offloaded - CONTEXTS
        report[name] = {"measured": taken, "counted": counted}
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    dist.barrier()
    # A normal exit can end in SIGABRT, because the threads of so many engines end in any order
    os._exit(0)


if __name__ == "__main__":
    main()
