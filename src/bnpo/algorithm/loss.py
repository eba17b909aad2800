"""The objective: token log-probabilities in bounded memory, the clipped surrogate (Eq. 8), and
the tokens' weights.
"""

from collections.abc import Callable

import numpy as np
import torch

# Scales or caps the output of a head, [tokens, head rows]
LogitTransform = Callable[[torch.Tensor], torch.Tensor]
LOGIT_CHUNK = {"cpu": 2**26, "cuda": 2**28}
"""Number of logits in memory at once, by type of device: 256 MB and 1 GB in fp32, or 440 and 1,766
tokens with a vocabulary of 152k. Chunks are larger on GPUs, because each chunk reads and writes
the gradient of the whole head."""


class LogprobHead(torch.nn.Module):
    """The head of a language model with the log-probabilities, as one module that owns weight and
    bias.

    Under ZeRO-3 every call of a module gathers its weights, so all ranks must make equally many.
    Chunks of logits are no such calls, because their number depends on a rank's answers.
    """

    def __init__(
        self,
        weight: torch.Tensor,  # [head rows, hidden size]
        bias: torch.Tensor | None,  # [head rows]
        vocab_size: int,
        transform: LogitTransform | None = None,
    ):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.vocab_size, self.transform = vocab_size, transform

    def forward(
        self,
        hidden: torch.Tensor,  # [tokens, hidden size]
        targets: torch.Tensor,  # [tokens]
        temperature: float,
        top_k: int | None = None,
        chunk: int | None = None,
    ) -> torch.Tensor:
        """Return log pi(target) [tokens] in fp32 at `temperature`.

        The logits are hidden weight^T + bias, passed through `transform`. Ids from `vocab_size` on
        are padding rows of the embedding: they have probability 0, as in the sampler. With `top_k`,
        so have all but the `top_k` most likely tokens and the target. At most `chunk` logits exist
        at a time (default: LOGIT_CHUNK), in the backward pass too.
        """
        chunk = chunk or LOGIT_CHUNK[hidden.device.type]
        if self.transform:  # its backward pass needs logits and gradients before and after it
            chunk //= 4
        rows = max(1, chunk // len(self.weight))
        parts = [slice(begin, begin + rows) for begin in range(0, len(targets), rows)]
        return _TokenLogprobs.apply(
            hidden,
            self.weight,
            self.bias,
            targets,
            self.vocab_size,
            temperature,
            top_k,
            self.transform,
            parts,
        )


class _TokenLogprobs(torch.autograd.Function):
    """Log-probabilities whose backward pass computes the logits again, unless one chunk holds all
    tokens and there is no transform.

    With d = onehot(target) - pi, passed back through the transform, the gradients are d W and d^T
    hidden. This is our own code because torch's chunked `linear_cross_entropy` rounds the
    log-probabilities of a bf16 model to bf16.
    """

    @staticmethod
    def forward(
        ctx, hidden, weight, bias, targets, vocab_size, temperature, top_k, transform, parts
    ):
        ctx.sampling = vocab_size, temperature, top_k
        ctx.transform, ctx.parts = transform, parts
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)  # [tokens]
        normalizers = torch.empty_like(logprobs)  # [tokens], log of the sum of exp(logits)
        only_chunk = None  # probabilities [tokens, head rows], kept for the backward pass
        for part in parts:
            logits = linear(hidden[part], weight, bias)  # [chunk tokens, head rows]
            if transform:
                logits = transform(logits)
            logits = _sampling_logits(logits, targets[part], *ctx.sampling)
            # In parts, so that the copies that torch makes are small
            few_rows = logits.split(max(1, len(logits) // 16))
            normalizers[part] = torch.cat([rows.logsumexp(dim=1) for rows in few_rows])
            logprobs[part] = logits.gather(1, targets[part, None]).squeeze(1) - normalizers[part]
            if len(parts) == 1 and not transform:
                only_chunk = logits.sub_(normalizers[:, None]).exp_()
            # Otherwise these logits would be in memory beside those of the next chunk
            del logits, few_rows
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers, only_chunk)
        return logprobs

    @staticmethod
    def backward(ctx, upstream):
        hidden, weight, bias, *_ = ctx.saved_tensors
        hidden_gradient = torch.empty_like(hidden)  # [tokens, hidden size]
        needs_weight_gradient = ctx.needs_input_grad[1]  # not with LoRA, which freezes the head
        weight_gradient = None  # [head rows, hidden size]
        bias_gradient = torch.zeros(len(weight), device=weight.device)  # [head rows]
        for part in ctx.parts:
            d = _gradient_of_logits(ctx, upstream, part)  # [chunk tokens, head rows]
            if bias is not None:
                bias_gradient += d.sum(dim=0)
            d = d.to(hidden.dtype)
            hidden_gradient[part] = d @ weight
            if needs_weight_gradient and len(ctx.parts) == 1:
                weight_gradient = d.t() @ hidden  # summed up in fp32, and rounded once
            elif needs_weight_gradient:
                # In fp32: in bf16 the sum over many chunks would lose what the later chunks add.
                product = linear(d.t(), hidden[part].t())
                weight_gradient = (
                    product if weight_gradient is None else weight_gradient.add_(product)
                )
                del product  # otherwise it would be in memory beside the next chunk, as would d
            del d
        of_weight = None if weight_gradient is None else weight_gradient.to(weight.dtype)
        of_bias = None if bias is None else bias_gradient.to(bias.dtype)
        return hidden_gradient, of_weight, of_bias, *[None] * 6


def _gradient_of_logits(ctx, upstream: torch.Tensor, part: slice) -> torch.Tensor:
    """Return the gradient of the head's output for the tokens in `part`, [chunk tokens, head rows]
    in fp32.

    This is a function so that all else that a chunk needs is freed before the next step.
    """
    hidden, weight, bias, targets, normalizers, only_chunk = ctx.saved_tensors
    _, temperature, _ = ctx.sampling
    scale = upstream[part, None] / temperature  # [chunk tokens, 1]
    probabilities = only_chunk  # [chunk tokens, head rows]
    if probabilities is None:
        logits = output = linear(hidden[part], weight, bias)  # [chunk tokens, head rows]
        if ctx.transform:
            with torch.enable_grad():
                transformed = ctx.transform(output.requires_grad_())
            logits = transformed.detach().clone()
        logits = _sampling_logits(logits, targets[part], *ctx.sampling)
        probabilities = logits.sub_(normalizers[part, None]).exp_()
    # One at the target, less pi, times scale: written over pi to save memory.
    d = probabilities.mul_(-scale).scatter_add_(1, targets[part, None], scale)
    if ctx.transform:
        [d] = torch.autograd.grad(transformed, output, d)
    return d


def _sampling_logits(
    logits: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    temperature: float,
    top_k: int | None,
) -> torch.Tensor:
    """Divide `logits` [chunk tokens, head rows] by the temperature and set those never drawn to
    -inf, in place.
    """
    logits.div_(temperature)
    logits[:, vocab_size:] = -torch.inf
    if top_k is not None:
        # [chunk tokens, head rows]
        likely = logits >= logits.topk(min(top_k, vocab_size), dim=1).values[:, -1:]
        # The target was drawn. Rounding in the sampler may have put another token before the last
        # of these.
        likely.scatter_(1, targets[:, None], True)
        logits.masked_fill_(~likely, -torch.inf)
    return logits


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x weight^T + bias in fp32, from matrices in any format. The output of a head is
    linear(hidden, weight, bias), [tokens, head rows].
    """
    # All rows of a head: without the padding their number may be odd, which is slow on GPUs.
    if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
        # As fast as a product with a bf16 result
        output = torch.mm(x, weight.t(), out_dtype=torch.float32)
    else:
        on_cpu = torch.backends.mkldnn.matmul
        before = on_cpu.fp32_precision
        if x.dtype == torch.bfloat16:
            # The faster units of processors with AMX take such numbers, and sum up in fp32. Other
            # processors compute the same as without it.
            on_cpu.fp32_precision = "bf16"
        try:
            output = x.float() @ weight.t().float()
        finally:
            on_cpu.fp32_precision = before
    return output if bias is None else output.add_(bias)


def clipped_surrogate(
    logprobs: torch.Tensor,  # [tokens], like the next three
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the negated clipped objective (Eq. 8), summed over tokens with `weights`.

    Also the number of tokens whose gradient the lower bound of the clip removed (A < 0), and the
    upper one (A > 0).
    """
    ratio = torch.exp(logprobs - old_logprobs)  # [tokens]
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)  # [tokens]
    objective = torch.minimum(ratio * advantages, clipped * advantages)  # [tokens]
    with torch.no_grad():
        low = ((ratio < 1 - clip_low) & (advantages < 0)).sum()
        high = ((ratio > 1 + clip_high) & (advantages > 0)).sum()
    return -(weights * objective).sum(), low, high


def importance_weights(
    old_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, cap: float
) -> torch.Tensor:
    """Return truncated importance weights min(pi_old / pi_sampler, cap) [tokens], without gradient.

    The sampler and the learner round differently, so the answers come from a slightly different
    policy. The weights correct for this (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training").
    """
    return torch.exp(old_logprobs - sampler_logprobs).clamp(max=cap).detach()


def token_weights(lengths: np.ndarray, aggregation: str, norm_length: int) -> np.ndarray:
    """Return the weights [answers] that the tokens of each answer have in the loss of the batch of
    all ranks.

    `lengths` [answers] are their tokens, `norm_length` the constant divisor of
    `seq-mean-token-sum-norm` (Dr. GRPO).

    >>> token_weights(np.array([1, 3]), "seq-mean-token-mean", 4)
    array([0.5       , 0.16666667])
    """
    # Weights are fixed before the batch is split. The loss is then a plain sum over tokens, whose
    # gradient depends neither on the micro-batches nor on the number of ranks.
    answers = len(lengths)
    divisors = {
        "seq-mean-token-sum": answers,
        "token-mean": lengths.sum(),
        "seq-mean-token-mean": answers * lengths,
        "seq-mean-token-sum-norm": answers * norm_length,
    }
    return np.full(answers, 1 / divisors[aggregation])
