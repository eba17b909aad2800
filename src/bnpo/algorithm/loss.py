"""The objective: token log-probabilities in bounded memory, and the clipped surrogate (Eq. 8)."""

from dataclasses import dataclass

import torch

LOGIT_CHUNK = {"cpu": 2**25, "cuda": 2**28}
"""Logits held at once, in elements by kind of device: 220 and 1,766 positions of a 152k vocabulary, 128 MB and 1 GB in
fp32. On GPUs every chunk costs a pass over the head's gradient, so there are fewer."""


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    temperature: float,
    *,
    with_entropy: bool = False,
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log pi(target) [tokens] in fp32 at `temperature`, and on demand the entropy of pi [tokens], without gradient.

    hidden [tokens, hidden size], the head's weight [rows, hidden size], targets [tokens]. Ids from `vocab_size` on
    (padding rows of the embedding) are not in the policy: the sampler never draws them, so they get no probability
    here either. At most `chunk` logits exist at a time (default: LOGIT_CHUNK), in the backward pass too.
    """
    rows = max(1, (chunk or LOGIT_CHUNK[hidden.device.type]) // len(weight))
    logprobs, entropy = _TokenLogprobs.apply(hidden, weight, targets, vocab_size, temperature, with_entropy, rows)
    return logprobs, entropy if with_entropy else None


class _TokenLogprobs(torch.autograd.Function):
    """The backward pass computes the logits again: with d = onehot(target) - pi, the gradients are d W and d^T hidden.

    Own code, since torch's chunked `linear_cross_entropy` rounds the log-probabilities of a bf16 model to bf16.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, vocab_size, temperature, with_entropy, rows):
        ctx.vocab_size, ctx.temperature, ctx.rows = vocab_size, temperature, rows
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        normalizers, entropy = torch.empty_like(logprobs), torch.empty_like(logprobs if with_entropy else logprobs[:0])
        for part in _parts(len(targets), rows):
            logits = _logits(hidden[part], weight, vocab_size, temperature)
            normalizers[part] = logits.logsumexp(dim=1)
            logprobs[part] = logits.gather(1, targets[part, None]).squeeze(1) - normalizers[part]
            if with_entropy:
                logits = logits[:, :vocab_size]
                entropy[part] = normalizers[part] - (torch.softmax(logits, dim=1) * logits).sum(dim=1)
        ctx.save_for_backward(hidden, weight, targets, normalizers)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, upstream, _):
        hidden, weight, targets, normalizers = ctx.saved_tensors
        hidden_gradient = torch.empty_like(hidden)
        # In fp32, since in bf16 the sum over the chunks would lose what the later ones add.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for part in _parts(len(targets), ctx.rows):
            scale = upstream[part, None] / ctx.temperature
            logits = _logits(hidden[part], weight, ctx.vocab_size, ctx.temperature)
            d = logits.sub_(normalizers[part, None]).exp_().mul_(-scale)
            d = d.scatter_add_(1, targets[part, None], scale).to(hidden.dtype)
            hidden_gradient[part] = d @ weight
            weight_gradient += _product(d.t(), hidden[part])
        return hidden_gradient, weight_gradient.to(weight.dtype), None, None, None, None, None


def _parts(tokens: int, rows: int) -> list[slice]:
    return [slice(begin, begin + rows) for begin in range(0, tokens, rows)]


def _logits(hidden: torch.Tensor, weight: torch.Tensor, vocab_size: int, temperature: float) -> torch.Tensor:
    # All rows of the head, of which there is a round number: matrices with 151,665 columns are slow ones on GPUs.
    logits = _product(hidden, weight.t()).div_(temperature)
    logits[:, vocab_size:] = -torch.inf
    return logits


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The matrix product a b in fp32, as the sampler's head computes it: bf16 factors, sums that are never rounded to
    bf16. GPUs do so at the speed of bf16."""
    if a.dtype == torch.bfloat16 and a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    if a.dtype == torch.bfloat16:
        a, b = a.float(), b.float()
    return (a @ b).float()


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
    """The negated clipped objective (Eq. 8) summed over tokens with `weights`; all arguments are [tokens].

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
