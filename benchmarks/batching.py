"""How many tokens pass the learner more than once, and how evenly they are shared out, on lengths as real answers have.

    python benchmarks/batching.py

32 questions x 16 answers of log-normal length, 100 to 3,072 tokens, prompts of 60 to 300, on 8 ranks with the default
micro-batch. Rows: repeated_prompts, the share of tokens that pass again, since a group was cut; rank_imbalance, the
most tokens of a rank over the mean, less 1.
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
