"""The settings of DeepSpeed's ZeRO-3."""

import torch
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from bnpo.config import TrainConfig

REDUCE_BUCKET = 50_000_000
"""Elements of gradients that are reduced together. DeepSpeed allocates them in fp32, and its default takes 2 GB."""


def prefetch_bucket(layer: int) -> int:
    """Return how many elements ZeRO-3 prefetches: one layer of `layer` elements, or DeepSpeed's default if larger.

    If it were less than a layer, every layer would wait until the rest of its weights is fetched.
    """
    return max(layer, DeepSpeedZeroConfig(stage=3).prefetch_bucket_size)


def create_moments(zero: DeepSpeedZeroOptimizer_Stage3) -> None:
    """Create the state of AdamW as its first update would, so that the memory left for the sampler can be measured."""
    adamw = zero.optimizer
    for weights in zero.fp32_partitioned_groups_flat:
        adamw.state[weights] = {
            "step": torch.tensor(0.0, device=weights.device),  # where a fused AdamW counts
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }


def deepspeed_settings(config: TrainConfig) -> dict:
    """Return DeepSpeed's configuration of ZeRO-3 with AdamW."""
    # Two limits of how many weights ZeRO-3 keeps gathered, stage3_max_live_parameters and stage3_max_reuse_distance,
    # must stay equal, as they are by default. Otherwise a forward pass without a backward pass, as in `score`, can
    # leave prefetched weights gathered, and the weight sync fails.
    zero: dict[str, object] = {"stage": 3, "reduce_bucket_size": REDUCE_BUCKET}
    if config.hardware.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.hardware.offload_weights:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}  # copied in every pass, twice as fast if pinned
    fp16 = {"enabled": True, "loss_scale": config.hardware.loss_scale} if config.hardware.dtype == "float16" else {}
    return {
        # Micro-batches differ in size and number: the learner itself says which one is the last of an update.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        # Use torch's AdamW even if the optimizer is offloaded, so that results do not depend on where it runs.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.hardware.dtype == "bfloat16"},
        "fp16": fp16,
        # Accumulate and reduce gradients in fp32. In bf16 every partial sum would be rounded, and small contributions
        # would be lost.
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "gradient_clipping": config.update.max_grad_norm,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.update.lr,
                "betas": list(config.update.betas),
                "weight_decay": config.update.weight_decay,
                "torch_adam": True,
                "fused": True,  # one pass over the memory of a weight, its gradient and its moments, instead of ten
            },
        },
        "steps_per_print": 10**9,
    }
