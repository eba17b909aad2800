"""Updates of the real learner on fixed answers, in several settings, and its buffers in bf16.

Launched by tests/test_learner.py, which computes the same in plain PyTorch, with the folders of two
models.
"""

from pathlib import Path

from shared import batch_of, config_of, report, scores  # isort: skip
import numpy as np
import torch.distributed as dist

from bnpo.batch import Batch
from bnpo.policy.learner import Learner
from bnpo.ranks import gather, trains_in_float16

PASSES = "--ppo-iterations 2 --mini-batches 3"
SETTINGS = {
    "one update": "",
    "two iterations": "--ppo-iterations 2",
    "mini-batches": f"{PASSES} --aggregation token-mean --offload-optimizer",
    "importance": "--importance-cap 1.5 --aggregation seq-mean-token-mean --temperature 0.7",
    "fixed length": "--aggregation seq-mean-token-sum-norm",
    # One of three updates per pass must be skipped: its fp32 gradient is not finite, or its loss
    # alone.
    "infinite gradient": PASSES,
    "infinite loss": PASSES,  # at a temperature that no flag allows
    "infinite gradient in bf16": "--dtype bfloat16 --offload-optimizer",
    # Without a second pass, in which rounding would move some tokens over the bounds of the clip
    "fp16": "--dtype float16 --mini-batches 3",
    "overflow in fp16": "--dtype float16",  # the gradient is finite, but not in fp16
    # More answer tokens than fit one chunk of logits, in numbers that differ between the ranks
    "wide head": "--model WIDE --gradient-checkpointing --micro-batch-tokens 2000",
    # Matrices of layers that are partitioned, too
    "wide layers": "--model LAYERS --gradient-checkpointing",
}
"""Flags of each setting; WIDE and LAYERS stand for the folders of the models."""
COMMON = "--micro-batch-tokens 60 --clip-low 0.05 --clip-high 0.1 "
COMMON += "--max-grad-norm 0.5 --weight-decay 0.01 --samples-per-question 3"
VOCABULARY = (262, 151665)
"""Tokens of the tiny model's tokenizer, and of the wide one's."""


def learner_config(setting: str, wide: str, layers: str, *flags: str):
    own = SETTINGS[setting].replace("WIDE", wide).replace("LAYERS", layers)
    config = config_of(COMMON, own, *flags)
    if setting == "infinite loss":
        object.__setattr__(config.sampling, "temperature", 1e25)  # which no setting may be
        return config
    return config


def fixed_batch(setting: str = "one update") -> tuple[Batch, np.ndarray]:
    """Return three answers of uneven length to each of four questions, and advantages [4, 3], which
    are 0 for the last question. Two answers to each question begin alike.
    """
    rng = np.random.default_rng(0)
    longest = 150 if setting == "wide head" else 20
    ids = [rng.integers(20, 110, rng.integers(1, longest)).tolist() for _ in range(12)]
    for i in range(0, 12, 3):
        common = min(len(ids[i]), len(ids[i + 1])) // 2 + 1
        ids[i + 1][:common] = ids[i][:common]
    batch = batch_of(ids, [rng.normal(-4.8, 0.3, len(tokens)) for tokens in ids], questions=4)
    advantages = np.concatenate([rng.normal(size=9), np.zeros(3)])
    if setting.startswith("infinite gradient"):
        advantages[5] = np.inf
    if setting == "overflow in fp16":
        advantages[5] = 1e5
    if setting == "infinite loss":
        # Their sum is too large for fp32; at that temperature gradients are tiny
        advantages[4:8] = 3e38
    return batch, advantages.reshape(4, 3)


def buffers_in_bf16(model: str) -> list[dict]:
    """Return types and values of the buffers of a bf16 learner, as loaded and after resuming."""
    config, found = config_of("--dtype bfloat16 --model", model), []
    folder = Path(model, f"resume-{dist.get_world_size()}")
    for resumes in (False, True):
        learner = Learner(model, VOCABULARY[0], config)
        if resumes:
            learner.load(folder)
        buffers = learner.model.named_buffers()
        found.append({name: [str(buffer.dtype), buffer.tolist()] for name, buffer in buffers})
        learner.save(folder)
    return found


def check(wide: str, layers: str) -> dict:
    found: dict = {"ranks": dist.get_world_size()}
    for name in SETTINGS:
        config = learner_config(name, wide, layers)
        if config.hardware.dtype == "float16" and not trains_in_float16():
            continue
        learner = Learner(config.data.model, VOCABULARY[name == "wide head"], config)
        batch, advantages = fixed_batch(name)
        states = learner._engine.optimizer.optimizer.state.values()
        case = {"before": scores(learner, batch)}
        types = ("gradient_accumulation_dtype", "communication_data_type")
        case["types"] = [str(getattr(learner._engine.optimizer, name)) for name in types]
        case["moments"] = sum(s["exp_avg"].numel() + s["exp_avg_sq"].numel() for s in states)
        updates = [learner.update(batch, advantages, lr=1e-4) for _ in range(2)]
        case["metrics"] = [update.metrics for update in updates]
        of_ranks = gather(updates[0].old_logprobs)
        case["old"] = {i: values.tolist() for own in of_ranks for i, values in own.items()}
        found[name] = case | {"scores": scores(learner, batch)}
    return found | {"buffers": buffers_in_bf16(layers)}


if __name__ == "__main__":
    report(check)
