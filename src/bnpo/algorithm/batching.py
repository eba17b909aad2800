"""Micro-batches: which rank trains on which answers, how many at a time, and their tensors.

The answers to one prompt share it: the tokens of a prompt pass through the model once per
micro-batch. Only attention copies their keys and values for each answer (bnpo.policy.model).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """Token counts of the answers of a batch and of their prompts, one entry per answer."""

    prompt_tokens: np.ndarray  # [answers]
    answer_tokens: np.ndarray  # [answers]
    groups: np.ndarray  # [answers], group numbers from 0

    @classmethod
    def of(cls, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> "Lengths":
        """Return the lengths of prompts and answers, token ids, one prompt per answer. Equal
        prompts are one group.
        """
        # Numbers of the groups by prompt; a new prompt gets the next number
        numbers: dict[tuple[int, ...], int] = {}
        groups = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
        of_prompts, of_answers = (
            np.array([len(ids) for ids in each], dtype=np.int64) for each in (prompts, answers)
        )
        return cls(of_prompts, of_answers, np.array(groups, dtype=np.int64))

    def cost(self, part: np.ndarray) -> float:
        """Return the cost in tokens of the answers with indices `part`, all of one group, in a
        micro-batch.
        """
        repeated = REPEATED_KEY * self.prompt_tokens[part[1:]].sum()
        return float(self.prompt_tokens[part[0]] + self.answer_tokens[part].sum() + repeated)

    def pieces(self, limit: float) -> list[np.ndarray]:
        """Return the answer indices of each group, cut into pieces that cost at most `limit` or
        have one answer.
        """
        pieces = []
        for number in np.unique(self.groups):
            group = np.flatnonzero(self.groups == number)  # answer indices
            prompt = self.prompt_tokens[group[0]]
            costs = self.answer_tokens[group] + REPEATED_KEY * prompt  # [answers of the group]
            # The first answer of a piece has the whole prompt instead, so the difference is
            # subtracted from the limit.
            pieces += [group[items] for items in pack(costs, limit - (1 - REPEATED_KEY) * prompt)]
        return pieces


def plan_micro_batches(lengths: Lengths, ranks: int, budget: int) -> list[list[np.ndarray]]:
    """Return the micro-batches of every rank, each as an array of answer indices.

    A micro-batch costs at most `budget` tokens or has one answer. A group is cut only if it costs
    more than the budget or if a cut lowers the highest load of a rank. All ranks have equally many,
    at least one; some may be empty.
    """

    def divide(limit: float) -> list[list[np.ndarray]]:
        pieces = lengths.pieces(limit)
        shares = share_out(np.array([lengths.cost(piece) for piece in pieces]), ranks)
        return [[pieces[i] for i in share] for share in shares]

    def highest_load(pieces_per_rank: list[list[np.ndarray]]) -> float:
        return max(sum(map(lengths.cost, pieces)) for pieces in pieces_per_rank)

    # Try smaller and smaller pieces, from a rank's share of the batch to a 16th of it. Small pieces
    # are easier to balance, but repeat more prompts. Of equally good divisions `min` takes the
    # first, with the largest pieces.
    share = sum(map(lengths.cost, lengths.pieces(np.inf))) / ranks
    plans = []
    for pieces in min(
        (divide(min(budget, share / parts)) for parts in (1, 2, 4, 8, 16)), key=highest_load
    ):
        costs = np.array([lengths.cost(piece) for piece in pieces])  # [pieces]
        micro_batches = []
        for items in pack(costs, budget):
            part = np.concatenate([pieces[i] for i in items])  # [answers of the micro-batch]
            # Answers of equal shape become neighbours, because attention computes such neighbours
            # in one call.
            micro_batches.append(
                part[np.lexsort((lengths.prompt_tokens[part], lengths.answer_tokens[part]))]
            )
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


@dataclass(frozen=True)
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

    def flat(
        self, per_answer: Mapping | Sequence | np.ndarray, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Return the values [answer tokens] of this micro-batch from those of the batch,
        [tokens] or one per answer.
        """
        values = [
            np.broadcast_to(per_answer[i], n)
            for i, n in zip(self.indices, self.lengths, strict=False)
        ]
        flat = np.concatenate(values or [np.zeros(1)])  # the filler has one token, of zero weight
        return torch.from_numpy(flat).to(self.input_ids.device, dtype)  # [answer tokens]

    def by_answer(self, values: torch.Tensor) -> dict[int, np.ndarray]:
        """Return `values` [answer tokens] as arrays [tokens] by the answers' indices in the
        batch. {} for a filler.
        """
        parts = np.split(values.cpu().numpy(), self.lengths.cumsum()[:-1])
        return {int(index): part for index, part in zip(self.indices, parts, strict=False)}


def collate(
    prompts: Sequence[list[int]],
    answers: Sequence[list[int]],
    indices: np.ndarray,
    device: torch.device | str,
) -> MicroBatch:
    """Return the tensors of the answers at `indices` of the batch, or of a filler if there are
    none.
    """
    # The filler is one prompt token and one answer token, of zero weight (`MicroBatch.flat`).
    pairs = [(tuple(prompts[i]), answers[i]) for i in indices] or [((0,), [0])]
    row: list[int] = []  # token ids [tokens]
    positions: list[np.ndarray] = []  # per sequence: [tokens]
    keys: list[np.ndarray] = []  # per sequence: [keys], places in the row
    predicting: list[np.ndarray] = []  # per answer: [answer tokens], places in the row

    answer_counts = Counter(prompt for prompt, _ in pairs)
    shared_prompts = [prompt for prompt, count in answer_counts.items() if count > 1]
    nothing = np.empty(0, dtype=np.int64)
    # The places of each shared prompt in the row, [prompt tokens]
    places_of_prompt: dict[tuple[int, ...], np.ndarray] = {}

    def append(ids: tuple[int, ...], shared: np.ndarray) -> np.ndarray:
        """Append the tokens `ids` that follow those at the places `shared`, and return the
        places of all.
        """
        places = np.concatenate([shared, len(row) + np.arange(len(ids))])
        # An answer of one token to a shared prompt has no tokens of its own: the prompt's last
        # token predicts it.
        if ids:
            positions.append(np.arange(len(shared), len(places)))
            keys.append(places)
        row.extend(ids)
        return places

    # Sorted, so that prompts of equal length become neighbours, which attention computes in one
    # call.
    for prompt in sorted(shared_prompts, key=len):
        places_of_prompt[prompt] = append(prompt, nothing)
    for prompt, answer in pairs:
        shared = places_of_prompt.get(prompt, nothing)
        places = append((*prompt, *answer[:-1])[len(shared) :], shared)
        # The prompt's last token predicts the answer's first
        predicting.append(places[len(prompt) - 1 :])

    return MicroBatch(
        input_ids=torch.tensor(row, device=device),
        position_ids=_joined(positions, device),
        sequences=_sequences(positions, keys, device),
        targets=torch.tensor([token for _, answer in pairs for token in answer], device=device),
        predicting=_joined(predicting, device),
        lengths=np.array([len(answer) for _, answer in pairs]),
        indices=indices,
    )


def _sequences(
    positions: list[np.ndarray], keys: list[np.ndarray], device: torch.device | str
) -> Sequences:
    """Return the sequences with these positions [tokens] and keys [keys] of each."""
    return Sequences(
        _starts(positions, device),
        _joined(keys, device),
        _starts(keys, device),
        max(map(len, positions)),
        max(map(len, keys)),
    )


def _joined(parts: list[np.ndarray], device: torch.device | str) -> torch.Tensor:
    """Return the arrays one behind the other."""
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _starts(parts: list[np.ndarray], device: torch.device | str) -> torch.Tensor:
    """Return where each array begins if they are joined, and where the last one ends."""
    return torch.tensor([0, *accumulate(map(len, parts))], dtype=torch.int32, device=device)
