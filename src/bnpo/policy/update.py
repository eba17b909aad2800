"""What goes into an update of the policy and what comes out of it."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from bnpo.algorithm.loss import Surrogate


@dataclass(frozen=True)
class Experience:
    """The answers of one step from all ranks, question by question. N = questions x answers per question."""

    prompts: list[list[int]]  # N lists of token ids
    answers: list[list[int]]  # N lists of token ids
    sampler_logprobs: list[np.ndarray]  # N arrays [tokens of the answer]
    advantages: np.ndarray  # [N]


@dataclass(frozen=True)
class TokenMeans:
    """Means over the trained tokens of all ranks. `entropy` is None unless it was asked for."""

    clipped_low: float  # share of tokens whose gradient the lower clip removed
    clipped_high: float
    gap_mean: float  # |learner's - sampler's log-probability|
    gap_max: float
    entropy: float | None


@dataclass(frozen=True)
class Update:
    """The result of one call of `Learner.update`, equal on all ranks but for `old_logprobs`."""

    loss: float  # mean over the optimizer updates
    trained_tokens: float
    means: TokenMeans | None  # None: no answer had an advantage other than 0
    grad_norm: float  # before clipping, mean over the updates that were applied (nan: none was)
    lr: float
    skipped: int  # optimizer updates left out because loss or gradient norm was not finite
    tflop: float  # 10^12 operations of the forward and backward passes
    old_logprobs: dict[int, np.ndarray]
    """Log-probabilities [tokens] before the update of the answers that this rank passed, by index in the experience."""

    def metrics(self) -> dict[str, float]:
        """Return the values as metrics.jsonl names them."""
        metrics = {"loss": self.loss, "tokens/trained": self.trained_tokens}
        if self.means:
            metrics["clipped_low"] = self.means.clipped_low
            metrics["clipped_high"] = self.means.clipped_high
            metrics["sampler_learner_gap_mean"] = self.means.gap_mean
            metrics["sampler_learner_gap_max"] = self.means.gap_max
            if self.means.entropy is not None:
                metrics["entropy_trained"] = self.means.entropy
        metrics["grad_norm"] = self.grad_norm
        metrics["lr"] = self.lr
        metrics["updates/skipped"] = self.skipped
        metrics["update/tflop"] = self.tflop
        return metrics


class TokenSums:
    """Sums over the tokens of an update. They stay on the device until the end: one transfer, two collectives."""

    def __init__(self, device: torch.device):
        # tokens, loss, clipped low, clipped high, gap, entropy
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)  # [6]
        self._largest_gap = torch.zeros((), dtype=torch.float64, device=device)

    def add(
        self,
        surrogate: Surrogate,
        entropy: torch.Tensor | None,  # [tokens]
        old_logprobs: torch.Tensor,  # [tokens]
        sampler_logprobs: torch.Tensor,  # [tokens]
    ) -> None:
        """Add the tokens of one micro-batch."""
        gap = (old_logprobs - sampler_logprobs).abs()  # [tokens]
        tokens = torch.tensor(float(len(gap)), device=gap.device, dtype=torch.float64)
        entropy_sum = torch.zeros_like(tokens) if entropy is None else entropy.double().sum()
        self._sums += torch.stack(
            [
                tokens,
                surrogate.loss.detach().double(),
                surrogate.clipped_low.double(),
                surrogate.clipped_high.double(),
                gap.double().sum(),
                entropy_sum,
            ]
        )
        self._largest_gap = torch.maximum(self._largest_gap, gap.max().double())

    def reduce(self, *, with_entropy: bool) -> tuple[float, float, TokenMeans | None]:
        """Return the sum of the loss, the number of tokens and the means over all ranks. A collective."""
        dist.all_reduce(self._sums)
        dist.all_reduce(self._largest_gap, op=dist.ReduceOp.MAX)
        tokens, loss, low, high, gap, entropy = self._sums.tolist()
        if not tokens:
            return loss, tokens, None
        mean_entropy = entropy / tokens if with_entropy else None
        return (
            loss,
            tokens,
            TokenMeans(low / tokens, high / tokens, gap / tokens, float(self._largest_gap), mean_entropy),
        )
