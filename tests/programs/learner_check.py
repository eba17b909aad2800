"""Updates of the real learner on fixed answers, in several settings, and what it makes of a long
answer in bf16.

Launched by tests/test_learner.py, which computes the same in plain PyTorch, with three models'
folders; prints one JSON line from rank 0.
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
    # One of three updates a pass must be skipped: its fp32 gradient is not finite, or its loss
    # alone.
    "infinite gradient": "--ppo-iterations 2 --mini-batches 3",
    "infinite loss": "--ppo-iterations 2 --mini-batches 3",  # at a temperature that no flag allows
    "infinite gradient in bf16": "--dtype bfloat16 --offload-optimizer",
    # Without a second pass, in which rounding would move some tokens over the bounds of the clip.
    "fp16": "--dtype float16 --mini-batches 3",
    # The gradient is finite, but not in fp16.
    "overflow in fp16": "--dtype float16",
    # More answer tokens than fit one chunk of logits, in numbers that differ between the ranks;
    # partitioned weights.
    "wide head": "--model WIDE --gradient-checkpointing --micro-batch-tokens 2000",
    # Matrices of layers that are partitioned, too.
    "wide layers": "--model LAYERS --gradient-checkpointing",
}
SETTINGS = {name: flags.split() for name, flags in SETTINGS.items()}
"""Flags of each setting; WIDE and LAYERS stand for models whose folders are the program's
arguments."""
COMMON = [
    "--preset",
    "tiny",
    "--micro-batch-tokens",
    "60",
    "--clip-low",
    "0.05",
    "--clip-high",
    "0.1",
]
COMMON += ["--max-grad-norm", "0.5", "--weight-decay", "0.01"]
COMMON += ["--samples-per-question", "3"]


VOCABULARY = (262, 151665)
"""Tokens of the tiny model's tokenizer, and of the wide one's."""


def fixed_experience(setting: str):
    """12 answers of uneven length; the fourth question's three have advantage 0."""
    import numpy as np

    from bnpo.policy.learner import Experience

    rng = np.random.default_rng(0)
    longest = 150 if setting == "wide head" else 20
    answers = [rng.integers(20, 110, rng.integers(1, longest)).tolist() for _ in range(12)]
    experience = Experience(
        prompts=[[1, 30 + i // 3, 40, 2] for i in range(12)],
        answers=answers,
        sampler_logprobs=[rng.normal(-4, 1, len(answer)) for answer in answers],
        advantages=np.concatenate([rng.normal(size=9), np.zeros(3)]),
    )
    if setting.startswith("infinite gradient"):
        experience.advantages[5] = np.inf
    if setting == "overflow in fp16":
        experience.advantages[5] = 1e5
    if setting == "infinite loss":
        # Their sum is too large for fp32; at that temperature gradients are tiny
        experience.advantages[4:8] = 3e38
    return experience


def scores(learner, experience) -> list[list[float]]:
    return [
        learner.score(p, a).tolist()
        for p, a in zip(experience.prompts, experience.answers, strict=True)
    ]


def long_answer() -> list[int]:
    """3,000 tokens, so that most are far from the first."""
    import numpy as np

    return np.random.default_rng(1).integers(20, 110, 3000).tolist()


def long_scores(model: str) -> dict:
    """Computed buffers and log-probabilities of a bf16 learner, as loaded and after resuming."""
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner

    config, _ = parse_train_config(
        ["--preset", "tiny", "--dtype", "bfloat16", "--model", model], has_cuda=False
    )
    folder = Path(model) / f"resume-{dist.get_world_size()}"
    report = {}
    for when in ("loaded", "resumed"):
        learner = Learner(model, VOCABULARY[0], config)
        if when == "resumed":
            learner.load(folder)
        buffers = learner.model.named_buffers()
        report[when] = {
            "buffers": {name: [str(buffer.dtype), buffer.tolist()] for name, buffer in buffers},
            "scores": learner.score([1], long_answer()).tolist(),
        }
        learner.save(folder)
    return report


def main() -> None:
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.ranks import trains_in_float16

    dist.init_process_group("gloo")
    report = {}
    for name, flags in SETTINGS.items():
        if "float16" in flags and not trains_in_float16():
            continue
        flags = [{"WIDE": sys.argv[-2], "LAYERS": sys.argv[-1]}.get(flag, flag) for flag in flags]
        config, _ = parse_train_config([*COMMON, *flags], has_cuda=False)
        if name == "infinite loss":
            config = replace(config, sampling=replace(config.sampling, temperature=1e25))
        learner = Learner(config.data.model, VOCABULARY[name == "wide head"], config)
        experience = fixed_experience(name)
        states = learner._engine.optimizer.optimizer.state.values()
        moments = sum(state["exp_avg"].numel() + state["exp_avg_sq"].numel() for state in states)
        before = scores(learner, experience)
        metrics = [learner.update(experience, lr=1e-4)[0] for _ in range(2)]
        report[name] = {
            "metrics": metrics,
            "before": before,
            "scores": scores(learner, experience),
            "moments": moments,
        }
    report["long"] = long_scores(sys.argv[-3])
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
