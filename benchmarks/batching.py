"""Measure how many tokens the learner computes twice, and how evenly ranks share the tokens.

    python benchmarks/batching.py

The batch has 32 questions with 16 answers each on 8 ranks, with the default micro-batch. The lengths of answers are
log-normal, 100 to 3,072 tokens, those of prompts 60 to 300. Rows:

- repeated_prompts: share of the tokens that are prompts computed again, because a group was split between micro-batches
- rank_imbalance: tokens of the rank that has most, over the mean, minus 1
"""

from common import row

from bnpo.environment import setup_environment

setup_environment()

import numpy as np

from bnpo.algorithm.batching import Lengths, collate, plan_micro_batches
from bnpo.config import TrainConfig


def main() -> None:
    rng = np.random.default_rng(0)
    answers = rng.lognormal(6.2, 0.7, 512).clip(100, 3072).astype(int)
    prompts = rng.integers(60, 300, 32).repeat(16)
    print(f"answers: median {np.median(answers):.0f}, mean {answers.mean():.0f}, longest {answers.max()}")
    ids = [[number // 16] * length for number, length in enumerate(prompts)], [[1] * length for length in answers]
    plans = plan_micro_batches(Lengths.of(*ids), 8, TrainConfig().hardware.micro_batch_tokens)
    loads = [sum(len(collate(*ids, part, "cpu").input_ids) for part in micro_batches) for micro_batches in plans]
    row("repeated_prompts", 1 - (prompts[::16].sum() + answers.sum() - len(answers)) / sum(loads))
    row("rank_imbalance", max(loads) / np.mean(loads) - 1)


if __name__ == "__main__":
    main()
