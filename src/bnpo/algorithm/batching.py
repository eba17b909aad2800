"""Micro-batches: which rank trains on which answers, how many at a time, and their tensors.

The answers to one prompt share it: the tokens of a prompt pass through the model once per
micro-batch. Only attention copies their keys and values for each answer (bnpo.policy.model).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

REPEATED_KEY = 1 / 8
"""Cost of a prompt token for each answer after the first, if 1 is that of passing it through the
model: key and value, about an eighth of a layer's memory in models with as many key heads as
query heads, are stored again."""


def share_out(sizes: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Return the indices of each rank's items: from the largest on, each goes to the rank with the
    lowest load.

    >>> [items.tolist() for items in share_out(np.array([5, 1, 4, 2]), 2)]
    [[0, 1], [2, 3]]
    """
    loads = [0.0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in np.argsort(-sizes, kind="stable"):
        # Every rank runs this and must find the same shares, so ties are broken by item count, then
        # by rank.
        _, _, rank = min(zip(loads, map(len, shares), range(ranks), strict=True))
        loads[rank] += float(sizes[index])
        shares[rank].append(index)
    return [np.array(share, dtype=np.int64) for share in shares]


def pack(sizes: np.ndarray, capacity: float) -> list[np.ndarray]:
    """Return the items of each bin: from the largest on, each goes to the first bin where it fits,
    or to its own.

    >>> [items.tolist() for items in pack(np.array([9, 4, 2, 5, 2]), 8)]
    [[0], [3, 2], [1, 4]]
    """
    bins: list[list[int]] = []
    free: list[float] = []  # space left in each bin
    for index in np.argsort(-sizes, kind="stable"):
        size = float(sizes[index])
        target = next((i for i, space in enumerate(free) if size <= space), len(bins))
        if target == len(bins):
            bins.append([])
            free.append(capacity)
        bins[target].append(index)
        free[target] -= size
    return [np.array(items, dtype=np.int64) for items in bins]


@dataclass(frozen=True)
class Lengths:
    """Token counts of answers and of their prompts, one entry per answer."""

    prompt_tokens: np.ndarray  # [answers]
    answer_tokens: np.ndarray  # [answers]
    groups: np.ndarray  # [answers], numbers: the answers of a group have one prompt

    def pieces(self, limit: float) -> list[tuple[np.ndarray, float]]:
        """Return the answer indices of each group, cut into pieces that cost at most `limit` or
        have one answer, and the cost of each piece in tokens.
        """
        pieces = []
        for number in np.unique(self.groups):
            group = np.flatnonzero(self.groups == number)  # answer indices
            prompt = self.prompt_tokens[group[0]]
            costs = self.answer_tokens[group] + REPEATED_KEY * prompt  # [answers of the group]
            # The first answer of a piece has the whole prompt instead of a repeated one
            first = (1 - REPEATED_KEY) * prompt
            for items in pack(costs, limit - first):
                pieces.append((group[items], float(first + costs[items].sum())))
        return pieces


def plan_micro_batches(lengths: Lengths, ranks: int, budget: int) -> list[list[np.ndarray]]:
    """Return the micro-batches of every rank, each as an array of answer indices.

    A micro-batch costs at most `budget` tokens or has one answer. A group is cut only if it costs
    more than the budget or if a cut lowers the highest load of a rank. All ranks have equally many,
    at least one; some may be empty.
    """
    # Try smaller and smaller pieces, from a rank's share of the batch to a 16th of it. Small pieces
    # are easier to balance, but repeat more prompts. Of equally good divisions the first is taken,
    # with the largest pieces.
    rank_share = sum(cost for _, cost in lengths.pieces(np.inf)) / ranks
    divisions = []
    for parts in (1, 2, 4, 8, 16):
        pieces = lengths.pieces(min(budget, rank_share / parts))
        shares = share_out(np.array([cost for _, cost in pieces]), ranks)  # [ranks][pieces]
        highest = max(sum(pieces[i][1] for i in share) for share in shares)
        divisions.append((highest, [[pieces[i] for i in share] for share in shares]))
    _, pieces_of_ranks = min(divisions, key=lambda division: division[0])
    plans = []
    for pieces in pieces_of_ranks:
        micro_batches = []
        for items in pack(np.array([cost for _, cost in pieces]), budget):
            part = np.concatenate([pieces[i][0] for i in items])  # [answers of the micro-batch]
            # Answers of equal shape become neighbours, because attention computes such neighbours
            # in one call.
            order = np.lexsort((lengths.prompt_tokens[part], lengths.answer_tokens[part]))
            micro_batches.append(part[order])
        plans.append(micro_batches)
    # Under ZeRO-3 every forward pass is a collective, so a rank with fewer micro-batches would make
    # the others hang. It gets empty ones, which `collate` fills with one token of zero weight.
    count = max(1, *map(len, plans))
    for micro_batches in plans:
        micro_batches += [np.empty(0, dtype=np.int64)] * (count - len(micro_batches))
    return plans


@dataclass(frozen=True)
class Sequences:
    """Which tokens of a packed row attend to which tokens.

    First comes one sequence per shared prompt, then one per answer: the answer without its last
    token, after its prompt if no other answer shares that. The keys of a sequence are the tokens of
    its shared prompt, if any, then its own. Its last token attends to all keys, the token before to
    one less, and so on.
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
        cls, tokens: list[np.ndarray], keys: list[np.ndarray], device: torch.device | str
    ) -> "Sequences":
        """Return the sequences with these tokens [tokens] and keys [keys] of each."""
        sizes = [list(map(len, parts)) for parts in (tokens, keys)]
        starts, key_starts = (
            torch.tensor([0, *accumulate(size)], dtype=torch.int32, device=device) for size in sizes
        )
        joined_keys = torch.from_numpy(np.concatenate(keys)).to(device)
        return cls(starts, joined_keys, key_starts, *map(max, sizes))


@dataclass
class MicroBatch:
    """Answers, without their last tokens, and their prompts in one row without padding: a shared
    prompt once.
    """

    input_ids: torch.Tensor  # [tokens]
    position_ids: torch.Tensor  # [tokens]
    sequences: Sequences
    targets: torch.Tensor  # [answer tokens], answer after answer
    # [answer tokens], place in the row of the token that predicts each target
    predicting: torch.Tensor
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


def collate(
    prompts: Sequence[list[int]],  # token ids, one prompt per answer
    answers: Sequence[list[int]],  # token ids
    groups: Sequence[int] | np.ndarray,  # [answers]
    indices: np.ndarray,
    device: torch.device | str,
) -> MicroBatch:
    """Return the tensors of the answers at `indices` of the batch, or of a filler if there are
    none. The answers of a group share their prompt.
    """
    if not len(indices):  # one prompt token and one answer token
        micro_batch = collate([[0]], [[0]], [0], np.zeros(1, dtype=np.int64), device)
        return replace(micro_batch, indices=indices)
    row: list[int] = []  # token ids [tokens]
    positions: list[np.ndarray] = []  # per sequence: [tokens]
    keys: list[np.ndarray] = []  # per sequence: [keys], places in the row
    predicting: list[np.ndarray] = []  # per answer: [answer tokens], places in the row

    # The places of each shared prompt in the row, [prompt tokens]
    shared_places: dict[int, np.ndarray] = {}
    prompt_of = {groups[i]: prompts[i] for i in indices}
    counts = Counter(groups[i] for i in indices)
    shared = [group for group, count in counts.items() if count > 1]
    # Sorted, so that prompts of equal length become neighbours, which attention computes in one
    # call.
    for group in sorted(shared, key=lambda group: len(prompt_of[group])):
        places = len(row) + np.arange(len(prompt_of[group]))
        shared_places[group] = places
        positions.append(np.arange(len(places)))
        keys.append(places)
        row += prompt_of[group]
    for i in indices:
        before = shared_places.get(groups[i], np.empty(0, dtype=np.int64))
        own = [*prompts[i], *answers[i][:-1]][len(before) :]
        places = np.concatenate([before, len(row) + np.arange(len(own))])
        # An answer of one token to a shared prompt has no tokens of its own: the prompt's last
        # token predicts it.
        if own:
            positions.append(np.arange(len(before), len(places)))
            keys.append(places)
        row += own
        # The prompt's last token predicts the answer's first
        predicting.append(places[len(prompts[i]) - 1 :])

    return MicroBatch(
        input_ids=torch.tensor(row, device=device),
        position_ids=torch.from_numpy(np.concatenate(positions)).to(device),
        sequences=Sequences.of(positions, keys, device),
        targets=torch.tensor([token for i in indices for token in answers[i]], device=device),
        predicting=torch.from_numpy(np.concatenate(predicting)).to(device),
        lengths=np.array([len(answers[i]) for i in indices]),
        indices=indices,
    )
