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
class Update:
    """The result of one call of `Learner.update`, equal on all ranks but for `old_logprobs`."""

    loss: float  # mean over the optimizer updates
    trained_tokens: float  # of all ranks; if there are none, the next five values are 0
    clipped_low: float  # share of trained tokens whose gradient the lower clip removed
    clipped_high: float
    gap_mean: float  # |learner's - sampler's log-probability| over the trained tokens
    gap_max: float
    entropy: float | None  # mean over the trained tokens, if it was asked for
    grad_norm: float  # before clipping, mean over the updates that were applied (nan: none was)
    lr: float
    skipped: int  # optimizer updates left out because loss or gradient norm was not finite
    tflop: float  # 10^12 operations of the forward and backward passes
    old_logprobs: dict[int, np.ndarray]
    """Log-probabilities [tokens] before the update of the answers that this rank passed, by index in the experience."""

    def metrics(self) -> dict[str, float]:
        """Return the values as metrics.jsonl names them."""
        metrics = {"loss": self.loss, "tokens/trained": self.trained_tokens}
        if self.trained_tokens:
            metrics["clipped_low"] = self.clipped_low
            metrics["clipped_high"] = self.clipped_high
            metrics["sampler_learner_gap_mean"] = self.gap_mean
            metrics["sampler_learner_gap_max"] = self.gap_max
            if self.entropy is not None:
                metrics["entropy_trained"] = self.entropy
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

    def reduce(self, *, updates: int, with_entropy: bool) -> dict[str, float | None]:
        """Return the fields of `Update` that are means over `updates` or over the tokens of all ranks. A collective."""
        dist.all_reduce(self._sums)
        dist.all_reduce(self._largest_gap, op=dist.ReduceOp.MAX)
        tokens, loss, low, high, gap, entropy = self._sums.tolist()
        count = tokens or 1
        return {
            "loss": loss / updates,
            "trained_tokens": tokens,
            "clipped_low": low / count,
            "clipped_high": high / count,
            "gap_mean": gap / count,
            "gap_max": float(self._largest_gap),
            "entropy": entropy / count if with_entropy else None,
        }
