"""Micro-batches: which rank trains on which answers, how many at a time, and their tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence


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


def cut(lengths: np.ndarray, budget: int, *, packed: bool) -> list[np.ndarray]:
    """Cut answers, given longest first, into micro-batches of at most `budget` tokens, with padding unless `packed`.

    Returns positions in `lengths`. An answer longer than the budget gets a micro-batch of its own.

    >>> [list(map(int, part)) for part in cut(np.array([4, 3, 2, 2]), 8, packed=False)]
    [[0, 1], [2, 3]]
    >>> [list(map(int, part)) for part in cut(np.array([4, 2, 2, 2]), 8, packed=True)]
    [[0, 1, 2], [3]]
    """
    parts, start = [], 0
    while start < len(lengths):
        rest = lengths[start:]
        filled = rest.cumsum() if packed else rest[0] * np.arange(1, len(rest) + 1)
        size = max(1, int(np.searchsorted(filled, budget, side="right")))
        parts.append(np.arange(start, start + size))
        start += size
    return parts


def plan(lengths: np.ndarray, ranks: int, budget: int, *, packed: bool) -> list[list[np.ndarray]]:
    """Micro-batches of answer indices for every rank; all ranks have the same number, at least one.

    Under ZeRO-3 every forward pass is a collective, so a rank with fewer micro-batches would hang the others: it
    gets empty ones, which `collate` fills with one token of zero weight.
    """
    shares = share_out(lengths, ranks)
    plans = [[share[part] for part in cut(lengths[share], budget, packed=packed)] for share in shares]
    count = max(1, *map(len, plans))
    empty = np.empty(0, dtype=np.int64)
    return [[*micro, *[empty] * (count - len(micro))] for micro in plans]


def padding(lengths: np.ndarray, micro_batches: list[np.ndarray]) -> float:
    """The share of padding in the tensors of `micro_batches`, indices of `lengths`, with a row for each sequence.

    >>> padding(np.array([4, 2, 2]), [np.array([0, 1]), np.array([], dtype=int)])
    0.25
    """
    tensors = sum(len(part) * int(lengths[part].max(initial=0)) for part in micro_batches)
    return 1 - sum(int(lengths[part].sum()) for part in micro_batches) / max(1, tensors)


@dataclass(frozen=True)
class MicroBatch:
    """Prompts with answers, one a row padded on the right or, packed, all in one row; their answer tokens lie flat in
    the order of `indices`.

    input_ids, position_ids [rows, length]; answer_mask [rows, length], True on answer tokens; starts [sequences + 1]
    int32, where each sequence of a packed row begins and the last one ends, longest, its longest sequence (None if not
    packed); lengths [answers], answer tokens; indices [answers], their places in the batch (empty: a filler of zero
    weight).
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    answer_mask: torch.Tensor
    starts: torch.Tensor | None
    longest: int | None
    lengths: np.ndarray
    indices: np.ndarray

    def flat(self, per_answer: list[np.ndarray] | np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Values of the batch [tokens]: those of each answer's tokens, or one value an answer, repeated."""
        if len(self.indices) == 0:
            values = np.zeros(self.lengths.sum())
        elif isinstance(per_answer, np.ndarray):
            values = np.repeat(per_answer[self.indices], self.lengths)
        else:
            values = np.concatenate([per_answer[i] for i in self.indices])
        return torch.from_numpy(values).to(self.input_ids.device, dtype)


def collate(
    prompts: list[list[int]], answers: list[list[int]], indices: np.ndarray, device, *, packed: bool
) -> MicroBatch:
    """Tensors of the answers at `indices`; `prompts` and `answers` are token ids of the whole batch, one per answer."""
    pairs = [(prompts[i], answers[i]) for i in indices] or [([0], [0])]
    rows = [np.array([*prompt, *answer]) for prompt, answer in pairs]
    masks = [np.repeat([False, True], [len(prompt), len(answer)]) for prompt, answer in pairs]
    positions = [np.arange(len(row)) for row in rows]
    lengths = [len(row) for row in rows]

    def tensor(parts: list[np.ndarray]) -> torch.Tensor:
        if packed:
            return torch.from_numpy(np.concatenate(parts))[None].to(device)
        # Padding is on the right and attention is causal, so no real token sees it: any id will do, without a mask.
        return pad_sequence([torch.from_numpy(part) for part in parts], batch_first=True).to(device)

    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device) if packed else None
    return MicroBatch(
        tensor(rows),
        tensor(positions),
        tensor(masks),
        starts,
        max(lengths) if packed else None,
        np.array([len(answer) for _, answer in pairs]),
        indices,
    )
