"""How much of the learner's batch is padding, and how evenly it is shared out, on lengths as real answers have them.

    python benchmarks/batching.py

512 sequences of log-normal length, 100 to 3,072 tokens, on 8 ranks with the default micro-batch. Rows: padding_waste
(share of the tokens in the tensors that are padding, in rows of about equal length as CPUs have them),
padding_waste_packed (the same as GPUs have them), rank_imbalance (most tokens of a rank over the mean, minus 1).
"""

import numpy as np
from runs import row

from bnpo.batching import collate, plan
from bnpo.config import TrainConfig


def main() -> None:
    budget = TrainConfig().micro_batch_tokens
    lengths = np.random.default_rng(0).lognormal(6.2, 0.7, 512).clip(100, 3072).astype(int)
    print(f"lengths: median {np.median(lengths):.0f}, mean {lengths.mean():.0f}, longest {lengths.max()}")
    prompts, answers = [[0]] * len(lengths), [[1] * (length - 1) for length in lengths]
    for name, packed in (("padding_waste", False), ("padding_waste_packed", True)):
        plans = plan(lengths, 8, budget, packed=packed)
        parts = [part for micro_batches in plans for part in micro_batches]
        tensors = sum(collate(prompts, answers, part, "cpu", packed=packed).input_ids.numel() for part in parts)
        row(name, 1 - lengths.sum() / tensors)
    loads = [sum(lengths[part].sum() for part in micro_batches) for micro_batches in plans]
    row("rank_imbalance", max(loads) / np.mean(loads) - 1)


if __name__ == "__main__":
    main()
