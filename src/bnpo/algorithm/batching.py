"""Micro-batches: which rank trains on which answers, how many at a time, and their tensors."""

from dataclasses import dataclass

import numpy as np
import torch


def share_out(lengths: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Share answers of `lengths` tokens out over `ranks`: longest first, each to the rank with the fewest tokens.

    Returns the indices of each rank, longest answer first. Ties go to the rank with fewer answers, then to the lower
    rank, so that every rank computes the same plan.

    >>> [list(map(int, part)) for part in share_out(np.array([5, 1, 4, 2]), 2)]
    [[0, 1], [2, 3]]
    """
    loads = [(0, 0, rank) for rank in range(ranks)]
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for index in np.argsort(-lengths, kind="stable"):
        tokens, count, rank = min(loads)
        loads[rank] = (tokens + int(lengths[index]), count + 1, rank)
        parts[rank].append(int(index))
    return [np.array(part, dtype=np.int64) for part in parts]


def cut(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Cut answers, given longest first, into micro-batches of at most `budget` tokens.

    Returns positions in `lengths`. An answer longer than the budget gets a micro-batch of its own.

    >>> [list(map(int, part)) for part in cut(np.array([9, 4, 2, 2, 2]), 8)]
    [[0], [1, 2, 3], [4]]
    """
    parts, start = [], 0
    while start < len(lengths):
        size = max(1, int(np.searchsorted(lengths[start:].cumsum(), budget, side="right")))
        parts.append(np.arange(start, start + size))
        start += size
    return parts


def plan(lengths: np.ndarray, ranks: int, budget: int) -> list[list[np.ndarray]]:
    """Micro-batches of answer indices for every rank; all ranks have the same number, at least one.

    Under ZeRO-3 every forward pass is a collective, so a rank with fewer micro-batches would hang the others: it
    gets empty ones, which `collate` fills with one token of zero weight.
    """
    shares = share_out(lengths, ranks)
    plans = [[share[part] for part in cut(lengths[share], budget)] for share in shares]
    count = max(1, *map(len, plans))
    empty = np.empty(0, dtype=np.int64)
    return [[*micro, *[empty] * (count - len(micro))] for micro in plans]


@dataclass(frozen=True)
class MicroBatch:
    """Prompts with answers, packed end to end without padding; values of their answer tokens lie flat in the same
    order.

    input_ids, position_ids [tokens]; answer_mask [tokens], True on answer tokens; starts [sequences + 1] int32, where
    each sequence begins and the last one ends; longest, tokens of the longest sequence; lengths [answers], answer
    tokens; indices [answers], their places in the batch (empty: a filler of zero weight).
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    answer_mask: torch.Tensor
    starts: torch.Tensor
    longest: int
    lengths: np.ndarray
    indices: np.ndarray

    def flat(self, per_answer: list[np.ndarray] | np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Values of the batch [answer tokens]: those of each answer's tokens, or one value an answer, repeated."""
        if len(self.indices) == 0:
            values = np.zeros(self.lengths.sum())
        elif isinstance(per_answer, np.ndarray):
            values = np.repeat(per_answer[self.indices], self.lengths)
        else:
            values = np.concatenate([per_answer[i] for i in self.indices])
        return torch.from_numpy(values).to(self.input_ids.device, dtype)


def collate(
    prompts: list[list[int]], answers: list[list[int]], indices: np.ndarray, device: torch.device | str
) -> MicroBatch:
    """Tensors of the answers at `indices`; `prompts` and `answers` are token ids of the whole batch, one per answer."""
    pairs = [(prompts[i], answers[i]) for i in indices] or [([0], [0])]
    lengths = [len(prompt) + len(answer) for prompt, answer in pairs]
    ids = [token for pair in pairs for part in pair for token in part]
    mask = np.concatenate([np.repeat([False, True], [len(prompt), len(answer)]) for prompt, answer in pairs])
    return MicroBatch(
        torch.tensor(ids, device=device),
        torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device),
        torch.from_numpy(mask).to(device),
        torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device),
        max(lengths),
        np.array([len(answer) for _, answer in pairs]),
        indices,
    )
