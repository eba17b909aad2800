"""Micro-batches: which rank trains on which texts, how many at a time, and their tensors.

A text is a prompt with an answer without its last token, which predicts nothing. The texts of a
micro-batch are a trie: tokens with which several texts begin pass through the model once. Only
attention copies their keys and values for each text (bnpo.policy.model). For example:

    texts     [1 2 4]  [7]  [1 2 3]
    row       7 | 3 | 1 2 4           three sequences, of the tokens that no text before has
    places    [2 3 4]  [0]  [2 3 1]   of the texts' tokens in the row, which are also their keys
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil

import numpy as np
import torch

REPEATED_KEY = 1 / 8
"""Cost of a token that a text shares with the one before it, if 1 is that of passing it through the
model: key and value, about an eighth of a layer's memory in models with as many key heads as
query heads, are stored again."""


def training_text(prompt: list[int], answer: list[int]) -> list[int]:
    """Return the tokens that pass through the model: an answer's last token predicts nothing."""
    return [*prompt, *answer[:-1]]


def sort_texts(texts: Sequence[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the order [texts] in which texts that begin alike are neighbours, and the number of
    first tokens that each shares with the text before it, [texts] in this order.

    >>> sort_texts([[1, 2], [4], [1, 2, 3]])
    (array([1, 2, 0]), array([0, 0, 2]))
    """
    # In the order of a dictionary, no earlier text shares more than the one before. Backwards, so
    # that the beginning of another text comes after it, and has no tokens of its own.
    order = sorted(range(len(texts)), key=lambda i: texts[i], reverse=True)
    shared = []
    for before, text in pairwise([[], *(texts[i] for i in order)]):
        pairs = enumerate(zip(before, text, strict=False))
        differing = (place for place, (a, b) in pairs if a != b)
        shared.append(next(differing, min(len(before), len(text))))
    return np.array(order, dtype=np.int64), np.array(shared, dtype=np.int64)


def cut(lengths: np.ndarray, shared: np.ndarray, limit: float) -> tuple[list[int], list[float]]:
    """Return the first text and the cost of each run, if sorted texts are cut into as few runs as
    possible that cost at most `limit` tokens or have one text.

    >>> cut(np.array([9, 6, 5, 4, 5]), np.array([0, 0, 4, 4, 0]), 8)
    ([0, 1, 4], [9.0, 7.5, 5.0])
    """
    firsts: list[int] = []
    costs: list[float] = []
    own = lengths - shared
    # Cost of each text after the one before. One that is the beginning of that one has no keys.
    added = own + REPEATED_KEY * np.where(own > 0, shared, 0)  # [texts]
    for i, cost in enumerate(added.tolist()):
        if costs and costs[-1] + cost <= limit:
            costs[-1] += cost
        else:
            firsts.append(i)
            costs.append(float(lengths[i]))
    return firsts, costs


def plan_micro_batches(
    texts: Sequence[list[int]], ranks: int, budget: int
) -> list[list[np.ndarray]]:
    """Return the micro-batches of every rank, each as an array of text indices.

    A micro-batch costs at most `budget` tokens or has one text. Its texts are neighbours in the
    order of `sort_texts`. All ranks have equally many, as few as possible but at least one. They
    cost about the same; some may be empty.
    """
    order, shared = sort_texts(texts)
    lengths = np.array([len(texts[i]) for i in order], dtype=np.int64)

    def runs_needed(limit: int) -> int:
        return len(cut(lengths, shared, limit)[0])

    per_rank = max(1, ceil(runs_needed(budget) / ranks))  # micro-batches
    count = per_rank * ranks
    # The lowest limit with which `count` runs suffice makes them equal. It is found by bisection:
    # a higher limit never needs more runs.
    limit = bisect_left(range(budget), True, key=lambda limit: runs_needed(limit) <= count)
    firsts, costs = cut(lengths, shared, limit)
    runs = np.split(order, firsts[1:])
    # Under ZeRO-3 every forward pass is a collective, so a rank with fewer micro-batches would make
    # the others hang. It gets empty ones, which `collate` fills with one token of zero weight.
    runs += [np.empty(0, dtype=np.int64)] * (count - len(runs))
    costs += [0.0] * (count - len(costs))
    # Dealt like cards, the most costly first, so that all ranks compute micro-batches of similar
    # cost at the same time. The direction alternates: they take turns with the more costly ones.
    by_cost = sorted(range(count), key=lambda run: -costs[run])
    plan: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for deal in range(per_rank):
        dealt = by_cost[deal * ranks : (deal + 1) * ranks]
        if deal % 2:
            dealt.reverse()
        for micro_batches, run in zip(plan, dealt, strict=True):
            micro_batches.append(runs[run])
    return plan


@dataclass(frozen=True)
class Sequences:
    """Which tokens of a packed row attend to which tokens.

    A sequence has the tokens of a text that no text before it has. Its keys are all tokens of the
    text. Its last token attends to all keys, the token before to one less, and so on.
    """

    # [sequences + 1] int32, places in the row where the sequences begin, and the row's length
    starts: torch.Tensor
    keys: torch.Tensor  # [keys], places of the keys in the row, sequence after sequence
    # [sequences + 1] int32, where the keys of each sequence begin, and the number of keys
    key_starts: torch.Tensor
    longest: int  # most tokens of a sequence
    longest_keys: int  # most keys of a sequence

    @classmethod
    def of(
        cls, tokens: list[list[int]], keys: list[np.ndarray], device: torch.device | str
    ) -> "Sequences":
        """Return the sequences with these tokens [tokens] and keys [keys] of each."""
        lengths, key_counts = [len(own) for own in tokens], [len(places) for places in keys]

        def begins(sizes: list[int]) -> torch.Tensor:
            return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)

        return cls(
            starts=begins(lengths),
            keys=torch.from_numpy(np.concatenate(keys)).to(device),
            key_starts=begins(key_counts),
            longest=max(lengths),
            longest_keys=max(key_counts),
        )


@dataclass
class MicroBatch:
    """Texts in one row without padding, where each distinct beginning stands once, and their
    predictions. A prediction is a place in the row with the token that follows there.
    """

    input_ids: torch.Tensor  # [tokens]
    position_ids: torch.Tensor  # [tokens]
    sequences: Sequences
    targets: torch.Tensor  # [predictions], the tokens that follow
    predicting: torch.Tensor  # [predictions], the places
    # [answer tokens], the prediction of each, answer after answer. Answers that begin alike share
    # predictions, but not what follows.
    predictions: torch.Tensor
    lengths: np.ndarray  # [answers], tokens per answer
    # [answers], places of the answers in the batch; empty in a filler of zero weight
    indices: np.ndarray
    # What the loss needs in training, [answer tokens] each
    advantages: torch.Tensor | None = None
    weights: torch.Tensor | None = None  # see `token_weights`
    sampler_logprobs: torch.Tensor | None = None
    old_logprobs: torch.Tensor | None = None  # before the step's first update

    def per_token(self, values: Sequence) -> torch.Tensor:
        """Return the values [answer tokens] of this micro-batch in fp32, from those of the batch:
        [tokens] or one per answer.
        """
        parts = [
            np.broadcast_to(values[i], length)
            for i, length in zip(self.indices, self.lengths, strict=False)
        ]
        flat = np.concatenate(parts or [np.zeros(1)])  # the filler has one token, of zero weight
        return torch.from_numpy(flat).to(self.input_ids.device, torch.float32)


@dataclass(frozen=True)
class Row:
    """Texts in one row, where each distinct beginning stands once. Its sequences are in the order
    of the row, its texts in the order given.
    """

    token_ids: list[list[int]]  # [sequences] x [own tokens]
    positions: list[np.ndarray]  # [sequences] x [own tokens], in their text
    keys: list[np.ndarray]  # [sequences] x [keys], places in the row
    places: list[np.ndarray]  # [texts] x [tokens], where each token of a text stands in the row


def lay_out(texts: Sequence[list[int]]) -> Row:
    """Return the row of `texts`.

    >>> row = lay_out([[1, 2, 4], [7], [1, 2, 3]])
    >>> row.token_ids, [places.tolist() for places in row.places]
    ([[7], [3], [1, 2, 4]], [[2, 3, 4], [0], [2, 3, 1]])
    """
    order, shared = sort_texts(texts)
    lengths = np.array([len(texts[i]) for i in order])
    own = lengths - shared  # tokens of each sequence; none if the text before begins with this one
    # By number of own tokens, then of all tokens: attention computes neighbours of equal shape in
    # one call. k is a place in `order`.
    by_shape = [k for k in np.lexsort((lengths, own)) if own[k] > 0]
    starts = np.zeros_like(own)  # where each sequence begins in the row
    row_length = 0
    for k in by_shape:
        starts[k] = row_length
        row_length += own[k]
    places: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(texts)
    places_before = np.empty(0, dtype=np.int64)  # those of the text before in `order`
    for k, i in enumerate(order):
        own_places = np.arange(starts[k], starts[k] + own[k])
        places[i] = np.concatenate([places_before[: shared[k]], own_places])
        places_before = places[i]
    return Row(
        token_ids=[texts[order[k]][shared[k] :] for k in by_shape],
        positions=[np.arange(shared[k], lengths[k]) for k in by_shape],
        keys=[places[order[k]] for k in by_shape],
        places=places,
    )


def collate(
    prompts: Sequence[list[int]],  # token ids, one prompt per answer
    answers: Sequence[list[int]],  # token ids
    indices: np.ndarray,
    device: torch.device | str,
) -> MicroBatch:
    """Return the tensors of the answers at `indices` of the batch, or of a filler if there are
    none.
    """
    if not len(indices):  # one prompt token and one answer token
        filler = collate([[0]], [[0]], np.zeros(1, dtype=np.int64), device)
        return replace(filler, indices=indices)
    pairs = [(prompts[i], answers[i]) for i in indices]
    row = lay_out([training_text(prompt, answer) for prompt, answer in pairs])
    # The last token of a prompt predicts the first of the answer
    predicting = np.concatenate(
        [places[len(prompt) - 1 :] for (prompt, _), places in zip(pairs, row.places, strict=True)]
    )
    targets = np.concatenate([answer for _, answer in pairs])
    # Equal predictions are computed once
    (predicting, targets), predictions = np.unique(
        np.stack([predicting, targets]), axis=1, return_inverse=True
    )

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    return MicroBatch(
        input_ids=tensor(np.concatenate(row.token_ids)),
        position_ids=tensor(np.concatenate(row.positions)),
        sequences=Sequences.of(row.token_ids, row.keys, device),
        targets=tensor(targets),
        predicting=tensor(predicting),
        predictions=tensor(predictions.ravel()),
        lengths=np.array([len(answer) for _, answer in pairs]),
        indices=indices,
    )
