"""Micro-batches: which rank trains on which answers, how many at a time, and their padded tensors."""

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
    """Cut answers, given longest first, into micro-batches of at most `budget` tokens with padding.

    Returns positions in `lengths`. An answer longer than the budget gets a micro-batch of its own.

    >>> [list(map(int, part)) for part in cut(np.array([4, 3, 2, 2]), 8)]
    [[0, 1], [2, 3]]
    """
    parts, start = [], 0
    while start < len(lengths):
        size = max(1, budget // int(lengths[start]))
        parts.append(np.arange(start, min(start + size, len(lengths))))
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
    """Answers, padded on the right, and their answer tokens laid flat in the order of `indices`.

    input_ids [answers, length]; answer_mask [answers, length], True on answer tokens; indices [answers], their
    places in the batch (empty: a filler of zero weight).
    """

    input_ids: torch.Tensor
    answer_mask: torch.Tensor
    indices: np.ndarray

    def flat(self, per_answer: list[np.ndarray] | np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Values of the batch [tokens]: those of each answer's tokens, or one value an answer, repeated."""
        lengths = self.answer_mask.sum(dim=1).cpu()
        if len(self.indices) == 0:
            return torch.zeros(int(lengths.sum()), dtype=dtype, device=self.input_ids.device)
        values = [torch.as_tensor(per_answer[i], dtype=dtype) for i in self.indices]
        flat = [value.expand(length) for value, length in zip(values, lengths, strict=True)]
        return torch.cat(flat).to(self.input_ids.device)


def collate(prompts: list[list[int]], answers: list[list[int]], indices: np.ndarray, device) -> MicroBatch:
    """Tensors of the answers at `indices`; `prompts` and `answers` are token ids of the whole batch, one per answer."""
    rows = [(prompts[i], answers[i]) for i in indices] or [([0], [0])]
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    # Padding is on the right and attention is causal, so no real token sees it: any id will do, and no mask is needed.
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=bool)
    for row, (prompt, answer) in enumerate(rows):
        ids[row, : len(prompt) + len(answer)] = [*prompt, *answer]
        mask[row, len(prompt) : len(prompt) + len(answer)] = True
    return MicroBatch(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device), indices)
