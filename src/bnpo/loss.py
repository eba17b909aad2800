"""The objective: token log-probabilities in bounded memory, the clipped surrogate (Eq. 7), its aggregation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

LOGIT_CHUNK = 2**25
"""Logits held at once, in elements (128 MB in fp32): 220 positions of a 152k vocabulary."""

AGGREGATIONS = ("seq-mean-token-sum", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_weights(lengths: np.ndarray, aggregation: str, norm_length: int) -> np.ndarray:
    """The weight [answers] that every token of an answer has in the loss of the whole batch.

    `lengths` [answers] are the answer tokens of the global batch. Each aggregation is linear in the tokens with one
    weight an answer, fixed before the batch is cut up: so neither micro-batches nor ranks can change the gradient.
    `norm_length` is the constant divisor of `seq-mean-token-sum-norm` (Dr. GRPO).

    >>> token_weights(np.array([1, 3]), "seq-mean-token-sum", 4)
    array([0.5, 0.5])
    >>> token_weights(np.array([1, 3]), "token-mean", 4)
    array([0.25, 0.25])
    >>> token_weights(np.array([1, 3]), "seq-mean-token-mean", 4)
    array([0.5       , 0.16666667])
    >>> token_weights(np.array([1, 3]), "seq-mean-token-sum-norm", 4)
    array([0.125, 0.125])
    """
    answers = len(lengths)
    if aggregation == "seq-mean-token-sum":
        return np.full(answers, 1 / answers)
    if aggregation == "token-mean":
        return np.full(answers, 1 / lengths.sum())
    if aggregation == "seq-mean-token-mean":
        return 1 / (answers * lengths)
    if aggregation == "seq-mean-token-sum-norm":
        return np.full(answers, 1 / (answers * norm_length))
    raise ValueError(f"unknown aggregation '{aggregation}'; known: {', '.join(AGGREGATIONS)}")


def token_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    temperature: float,
    chunk: int = LOGIT_CHUNK,
) -> torch.Tensor:
    """log pi(target) [tokens] in fp32 at `temperature`, from hidden states [tokens, hidden] and targets [tokens].

    `head` maps hidden states to logits. Ids from `vocab_size` on (padding rows of the embedding) are not in the
    policy: the sampler never draws them, so they get no probability here either. At most `chunk` logits exist at a
    time, in the backward pass too, which computes them again.
    """

    def chunk_logprobs(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)[:, :vocab_size].float() / temperature
        return logits.gather(1, targets[:, None]).squeeze(1) - logits.logsumexp(dim=1)

    rows = max(1, chunk // vocab_size)
    if len(targets) <= rows:
        return chunk_logprobs(hidden, targets)
    parts = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.cat([checkpoint(chunk_logprobs, *part, use_reentrant=False) for part in parts])


@dataclass(frozen=True)
class Surrogate:
    """The loss of some tokens and, detached, what is worth knowing about its ratios: sums over these tokens."""

    loss: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


def clipped_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """The negated clipped objective (Eq. 7) summed over tokens with `weights`; all arguments are [tokens].

    A token counts as clipped where the clip takes its gradient away: below where A < 0, above where A > 0.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    with torch.no_grad():
        low = ((ratio < 1 - clip_low) & (advantages < 0)).sum()
        high = ((ratio > 1 + clip_high) & (advantages > 0)).sum()
    return Surrogate(-(weights * objective).sum(), low, high)


def importance_weights(old_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, cap: float) -> torch.Tensor:
    """Truncated importance weights min(pi_old / pi_sampler, cap) [tokens], without gradient.

    They correct for the sampler's arithmetic differing from the learner's (Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training").
    """
    return torch.exp(old_logprobs - sampler_logprobs).clamp(max=cap).detach()
