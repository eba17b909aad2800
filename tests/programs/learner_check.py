"""Updates of the real learner on fixed answers, in several settings, and its buffers in bf16.

Launched by tests/test_learner.py, which computes the same in plain PyTorch, with the folders of two
models; prints one JSON line from rank 0.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

SETTINGS = {
    "one update": "",
    "two iterations": "--ppo-iterations 2",
    "mini-batches": (
        "--ppo-iterations 2 --mini-batches 3 --aggregation token-mean --offload-optimizer"
    ),
    "importance": "--importance-cap 1.5 --aggregation seq-mean-token-mean --temperature 0.7",
    # One of three updates per pass must be skipped: its fp32 gradient is not finite, or its loss
    # alone.
    "infinite gradient": "--ppo-iterations 2 --mini-batches 3",
    "infinite loss": "--ppo-iterations 2 --mini-batches 3",  # at a temperature that no flag allows
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
COMMON = "--preset tiny --micro-batch-tokens 60 --clip-low 0.05 --clip-high 0.1 "
COMMON += "--max-grad-norm 0.5 --weight-decay 0.01 --samples-per-question 3 "
VOCABULARY = (262, 151665)
"""Tokens of the tiny model's tokenizer, and of the wide one's."""


def config_of(setting: str, wide: str, layers: str, *more: str):
    from bnpo.config import parse_train_config

    flags = (COMMON + SETTINGS[setting]).replace("WIDE", wide).replace("LAYERS", layers)
    config, _ = parse_train_config([*flags.split(), *more], has_cuda=False)
    if setting == "infinite loss":
        config = replace(config, sampling=replace(config.sampling, temperature=1e25))
    return config


def fixed_batch(setting: str = "one update"):
    """Three answers of uneven length to each of four questions, and advantages [4, 3], which are 0
    for the last question.
    """
    import numpy as np

    from bnpo.batch import Answer, Batch

    rng = np.random.default_rng(0)
    longest = 150 if setting == "wide head" else 20
    ids = [rng.integers(20, 110, rng.integers(1, longest)).tolist() for _ in range(12)]
    answers = [Answer(tokens, True, rng.normal(-4, 1, len(tokens))) for tokens in ids]
    advantages = np.concatenate([rng.normal(size=9), np.zeros(3)])
    if setting.startswith("infinite gradient"):
        advantages[5] = np.inf
    if setting == "overflow in fp16":
        advantages[5] = 1e5
    if setting == "infinite loss":
        # Their sum is too large for fp32; at that temperature gradients are tiny
        advantages[4:8] = 3e38
    prompts = [[1, 30 + i, 40, 2] for i in range(4)]
    return Batch.of(prompts, [answers[i : i + 3] for i in range(0, 12, 3)]), advantages.reshape(
        4, 3
    )


def pairs(batch) -> list[tuple[list[int], object]]:
    """The prompt of each answer, and the answer."""
    return [(group.prompt, answer) for group in batch.groups for answer in group.answers]


def scores(learner, batch) -> list[list[float]]:
    return [learner.score(prompt, answer.token_ids).tolist() for prompt, answer in pairs(batch)]


def buffers_in_bf16(model: str) -> list[dict]:
    """Types and values of the buffers of a bf16 learner, as loaded and after resuming."""
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner

    flags = ["--preset", "tiny", "--dtype", "bfloat16", "--model", model]
    config, _ = parse_train_config(flags, has_cuda=False)
    folder, found = Path(model) / f"resume-{dist.get_world_size()}", []
    for resumes in (False, True):
        learner = Learner(model, VOCABULARY[0], config)
        if resumes:
            learner.load(folder)
        buffers = learner.model.named_buffers()
        found.append({name: [str(buffer.dtype), buffer.tolist()] for name, buffer in buffers})
        learner.save(folder)
    return found


def main() -> None:
    import torch.distributed as dist

    from bnpo.policy.learner import Learner
    from bnpo.ranks import gather, trains_in_float16

    dist.init_process_group("gloo")
    report = {}
    for name, flags in SETTINGS.items():
        if "float16" in flags.split() and not trains_in_float16():
            continue
        config = config_of(name, *sys.argv[1:])
        learner = Learner(config.data.model, VOCABULARY[name == "wide head"], config)
        batch, advantages = fixed_batch(name)
        states = learner._engine.optimizer.optimizer.state.values()
        case = {"before": scores(learner, batch)}
        case["moments"] = sum(s["exp_avg"].numel() + s["exp_avg_sq"].numel() for s in states)
        updates = [learner.update(batch, advantages, lr=1e-4) for _ in range(2)]
        case["metrics"] = [update.metrics for update in updates]
        of_ranks = gather(updates[0].old_logprobs)
        case["old"] = {i: values.tolist() for own in of_ranks for i, values in own.items()}
        report[name] = case | {"scores": scores(learner, batch)}
    report["buffers"] = buffers_in_bf16(sys.argv[2])
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
