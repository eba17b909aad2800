"""How much of the learner's batch is padding, and how evenly it is shared out, on lengths as real answers have them.

    python benchmarks/batching.py

512 sequences of log-normal length, 100 to 3,072 tokens, on 8 ranks with the default micro-batch. Rows: padding_waste,
the share of padding in the tensors of the micro-batches, and rank_imbalance, the most tokens of a rank over the mean,
less 1.
"""

from itertools import chain

import numpy as np
from common import row

from bnpo.algorithm.batching import collate, plan
from bnpo.config import TrainConfig


def main() -> None:
    budget = TrainConfig().micro_batch_tokens
    lengths = np.random.default_rng(0).lognormal(6.2, 0.7, 512).clip(100, 3072).astype(int)
    print(f"lengths: median {np.median(lengths):.0f}, mean {lengths.mean():.0f}, longest {lengths.max()}")
    plans = plan(lengths, 8, budget)
    prompts, answers = [[0]] * len(lengths), [[1] * (length - 1) for length in lengths]
    tensors = sum(collate(prompts, answers, part, "cpu").input_ids.numel() for part in chain.from_iterable(plans))
    row("padding_waste", 1 - lengths.sum() / tensors)
    loads = [sum(lengths[part].sum() for part in micro_batches) for micro_batches in plans]
    row("rank_imbalance", max(loads) / np.mean(loads) - 1)


if __name__ == "__main__":
    main()
