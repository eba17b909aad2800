"""Micro-batches: which rank trains on which answers, how many at a time, and their tensors.

Answers to the same prompt share it: its tokens pass the model once for all of them that are in a micro-batch. Only
attention takes its keys and values again for each answer (bnpo.policy.attention).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

REPEATED_KEY = 1 / 8
"""Cost of a prompt token for every answer but the first to it, beside a token that passes the model: its key and value
are held again. An eighth is about their share of a layer's memory where there are as many key heads as query heads."""


def groups_of(prompts: Sequence[list[int]]) -> np.ndarray:
    """The group of each answer: those with the same prompt have the same number, from 0 in the order they come.

    >>> groups_of([[1, 2], [1, 2], [3]]).tolist()
    [0, 0, 1]
    """
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts], dtype=np.int64)


def share_out(sizes: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Share things of `sizes` out over `ranks`: largest first, each to the rank that has least.

    Returns the indices of each rank, largest first. Ties go to the rank with fewer of them, then to the lower rank, so
    that every rank computes the same plan.

    >>> [part.tolist() for part in share_out(np.array([5, 1, 4, 2]), 2)]
    [[0, 1], [2, 3]]
    """
    loads = [(0.0, 0, rank) for rank in range(ranks)]
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for index in np.argsort(-sizes, kind="stable"):
        size, count, rank = min(loads)
        loads[rank] = (size + float(sizes[index]), count + 1, rank)
        parts[rank].append(int(index))
    return [np.array(part, dtype=np.int64) for part in parts]


def pack(sizes: np.ndarray, room: float) -> list[np.ndarray]:
    """Put things of `sizes` into bins of `room`: largest first, each where it fits first.

    Returns the indices of each bin. What is larger than a bin has one for itself.

    >>> [part.tolist() for part in pack(np.array([9, 4, 2, 5, 2]), 8)]
    [[0], [3, 2], [1, 4]]
    """
    bins: list[list[int]] = []
    free: list[float] = []
    for index in np.argsort(-sizes, kind="stable"):
        size = float(sizes[index])
        number = next((number for number, left in enumerate(free) if size <= left), len(bins))
        if number == len(bins):
            bins.append([])
            free.append(room)
        bins[number].append(int(index))
        free[number] -= size
    return [np.array(part, dtype=np.int64) for part in bins]


@dataclass(frozen=True)
class Lengths:
    """Tokens of the prompt and the answer, and the group, of each answer of a batch: arrays [answers]."""

    prompts: np.ndarray
    answers: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> "Lengths":
        """Those of prompts and answers given as token ids, a prompt for each answer."""
        return cls(_lengths(prompts), _lengths(answers), groups_of(prompts))

    def cost(self, part: np.ndarray) -> float:
        """Tokens that the answers in `part`, of one group, are worth in a micro-batch: their prompt passes once."""
        repeated = REPEATED_KEY * self.prompts[part[1:]].sum()
        return float(self.prompts[part[0]] + self.answers[part].sum() + repeated)

    def pieces(self, limit: float) -> list[np.ndarray]:
        """The groups, each cut into pieces that cost at most `limit` where that is possible: a prompt for each."""
        order = np.argsort(self.groups, kind="stable")
        starts = np.diff(self.groups[order], prepend=-1).nonzero()[0][1:]
        found = []
        for group in np.split(order, starts) if len(order) else []:
            prompt = self.prompts[group[0]]
            costs = self.answers[group] + REPEATED_KEY * prompt
            found += [group[part] for part in pack(costs, limit - (1 - REPEATED_KEY) * prompt)]
        return found


def _lengths(sequences: Sequence[list[int]]) -> np.ndarray:
    return np.array([len(ids) for ids in sequences], dtype=np.int64)


def plan(lengths: Lengths, ranks: int, budget: int) -> list[list[np.ndarray]]:
    """Micro-batches of answer indices for every rank, of at most `budget` tokens each or with one answer; all ranks
    have the same number, at least one.

    Groups stay together unless one is larger than the budget, or the rank with most tokens gets fewer where they are
    cut. Under ZeRO-3 every forward pass is a collective, so a rank with fewer micro-batches would hang the others: it
    gets empty ones, which `collate` fills with one token of zero weight.
    """
    # Whole groups first, then ever smaller pieces, which are easier to balance and repeat more prompts.
    share = sum(map(lengths.cost, lengths.pieces(np.inf))) / ranks
    divisions = [_divide(lengths, ranks, min(budget, share / parts)) for parts in (1, 2, 4, 8, 16)]
    pieces_of = min(divisions, key=lambda division: max(sum(map(lengths.cost, mine)) for mine in division))
    plans = []
    for pieces in pieces_of:
        bins = pack(np.array([lengths.cost(piece) for piece in pieces]), budget)
        parts = [np.concatenate([pieces[i] for i in part]) for part in bins]
        # Answers of equal shape lie side by side: attention takes them at once.
        plans.append([part[np.lexsort((lengths.prompts[part], lengths.answers[part]))] for part in parts])
    count = max(1, *map(len, plans))
    empty = np.empty(0, dtype=np.int64)
    return [[*micro, *[empty] * (count - len(micro))] for micro in plans]


def _divide(lengths: Lengths, ranks: int, limit: float) -> list[list[np.ndarray]]:
    """The pieces of every rank, of at most `limit` each where that is possible."""
    pieces = lengths.pieces(limit)
    shares = share_out(np.array([lengths.cost(piece) for piece in pieces]), ranks)
    return [[pieces[i] for i in share] for share in shares]


@dataclass(frozen=True)
class Sequences:
    """Which tokens of a packed row attend to which. Sequences are the shared prompts, then what passes of the answers,
    with its prompt if that is not shared.

    starts [sequences + 1] int32, where each begins and the last one ends; keys, the tokens that each attends to, end to
    end: its own, before them those of a shared prompt; key_starts [sequences + 1] int32, where those
    of each begin; longest and longest_keys, the most tokens and keys of a sequence. The last of a sequence's tokens
    attends to all its keys, every one before to one key less.
    """

    starts: torch.Tensor
    keys: torch.Tensor
    key_starts: torch.Tensor
    longest: int
    longest_keys: int


@dataclass(frozen=True)
class MicroBatch:
    """Answers, and each prompt to which there are some once, in one row without padding. The last token of an answer
    predicts nothing and does not pass.

    input_ids, position_ids [tokens]; targets [answer tokens], end to end, and the token in the row that predicts each,
    predicting [answer tokens]; lengths [answers], answer tokens; indices [answers], their places in the batch (empty: a
    filler of zero weight).
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    sequences: Sequences
    targets: torch.Tensor
    predicting: torch.Tensor
    lengths: np.ndarray
    indices: np.ndarray

    def flat(
        self,
        per_answer: Mapping[int, np.ndarray] | Sequence[np.ndarray] | np.ndarray,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Values of the batch [answer tokens]: those of each answer's tokens, or one value an answer, repeated."""
        if len(self.indices) == 0:
            values = np.zeros(self.lengths.sum())
        elif isinstance(per_answer, np.ndarray):
            values = np.repeat(per_answer[self.indices], self.lengths)
        else:
            values = np.concatenate([per_answer[i] for i in self.indices])
        return torch.from_numpy(values).to(self.input_ids.device, dtype)


def collate(
    prompts: Sequence[list[int]], answers: Sequence[list[int]], indices: np.ndarray, device: torch.device | str
) -> MicroBatch:
    """Tensors of the answers at `indices`; `prompts` and `answers` are token ids of the whole batch, one per answer."""
    pairs = [(tuple(prompts[i]), answers[i]) for i in indices] or [((0,), [0])]
    answers_to = Counter(prompt for prompt, _ in pairs)
    row: list[int] = []  # token ids: first the prompts that are shared
    places: dict[tuple[int, ...], np.ndarray] = {}  # of their tokens in the row
    for prompt in sorted((prompt for prompt, count in answers_to.items() if count > 1), key=len):
        places[prompt] = len(row) + np.arange(len(prompt))
        row += prompt
    positions, keys, predicting = [np.arange(len(prompt)) for prompt in places], list(places.values()), []
    for prompt, answer in pairs:
        shared = places.get(prompt, np.empty(0, dtype=np.int64))
        passing = (*prompt, *answer[:-1])[len(shared) :]
        own = len(row) + np.arange(len(passing))
        row += passing
        sequence = np.concatenate([shared, own])
        predicting.append(sequence[len(prompt) - 1 :])
        if len(own):
            positions.append(len(shared) + np.arange(len(own)))
            keys.append(sequence)

    def tensor(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    def starts(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.tensor([0, *np.cumsum([len(part) for part in parts])], dtype=torch.int32, device=device)

    return MicroBatch(
        torch.tensor(row, device=device),
        tensor(positions),
        Sequences(starts(positions), tensor(keys), starts(keys), max(map(len, positions)), max(map(len, keys))),
        torch.tensor([token for _, answer in pairs for token in answer], device=device),
        tensor(predicting),
        np.array([len(answer) for _, answer in pairs]),
        indices,
    )
