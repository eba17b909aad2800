"""Updates of the real learner on fixed answers, in several settings; prints one JSON line from rank 0.

Launched by tests/test_learner.py, which computes the same updates in plain PyTorch.
"""

import json
import sys

from bnpo import runtime  # noqa: F401

SETTINGS = {
    "one update": [],
    "two iterations": ["--ppo-iterations", "2"],
    "mini-batches": [
        "--ppo-iterations",
        "2",
        "--mini-batches",
        "3",
        "--aggregation",
        "token-mean",
        "--offload-optimizer",
    ],
    "importance": [
        "--importance-cap",
        "1.5",
        "--aggregation",
        "seq-mean-token-mean",
        "--temperature",
        "0.7",
        "--exact-entropy",
    ],
    # More answer tokens than fit one chunk of logits, in numbers that differ between the ranks; partitioned weights.
    "wide head": ["--model", "WIDE", "--gradient-checkpointing", "--micro-batch-tokens", "2000"],
}
"""Flags of each setting; WIDE stands for a model with a large vocabulary, whose folder is the program's argument."""
COMMON = ["--preset", "tiny", "--micro-batch-tokens", "60", "--clip-low", "0.05", "--clip-high", "0.1"]
COMMON += ["--max-grad-norm", "0.5", "--weight-decay", "0.01"]
COMMON += ["--samples-per-question", "3"]


VOCABULARY = (262, 151665)
"""Tokens of the tiny model's tokenizer, and of the wide one's."""


def fixed_experience(longest: int = 20):
    """12 answers of uneven length, below `longest`; the fourth question's three have advantage 0."""
    import numpy as np

    from bnpo.learner import Experience

    rng = np.random.default_rng(0)
    answers = [rng.integers(20, 110, rng.integers(1, longest)).tolist() for _ in range(12)]
    return Experience(
        prompts=[[1, 30 + i // 3, 40, 2] for i in range(12)],
        answers=answers,
        sampler_logprobs=[rng.normal(-4, 1, len(answer)) for answer in answers],
        advantages=np.concatenate([rng.normal(size=9), np.zeros(3)]),
    )


def main() -> None:
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.learner import Learner

    dist.init_process_group("gloo")
    report = {}
    for name, flags in SETTINGS.items():
        flags = [sys.argv[-1] if flag == "WIDE" else flag for flag in flags]
        config, _ = parse_train_config([*COMMON, *flags], has_cuda=False)
        learner = Learner(config.model, VOCABULARY[name == "wide head"], config)
        experience = fixed_experience(150 if name == "wide head" else 20)
        metrics = [learner.update(experience, lr=1e-4) for _ in range(2)]
        scores = [learner.score(p, a).tolist() for p, a in zip(experience.prompts, experience.answers, strict=True)]
        report[name] = {"metrics": metrics, "scores": scores}
    try:
        learner._accumulate(experience, experience.advantages.nonzero()[0], {}, None, updated=True)
    except ValueError as error:
        report["lost"] = str(error)
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
