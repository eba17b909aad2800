"""Every patch of a library and every use of its private names in the policy: what, why, and when it can go."""

import torch
import torch.nn.functional as F

from bnpo.algorithm.loss import products_in_bf16


def hold_wide_head(model: torch.nn.Module) -> None:
    """Let vLLM's `model` keep the weight of its head in fp32 from one token to the next, on CPUs.

    vLLM 0.32 computes logits in fp32 (`head_dtype`), and on CPUs it converts the weight for every token: a third of the
    time of sampling with SmolLM2-135M. `model.forget_wide_head()` must follow every change of weights.
    Remove it when torch has products of bf16 matrices with fp32 results on CPUs, or vLLM keeps the weight.
    """
    processor, held = model.logits_processor, {}
    own = processor._apply_head

    def apply_head(head: torch.nn.Module, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if hidden.dtype != torch.bfloat16 or bias is not None or hidden.is_cuda:
            return own(head, hidden, bias)
        if not held:
            held["weight"] = head.weight.float()
        with products_in_bf16():
            return F.linear(hidden.float(), held["weight"])  # [tokens, head rows], exact products, summed up in fp32

    processor._apply_head = apply_head
    model.forget_wide_head = held.clear


def leave_out_ranks(worker) -> None:
    """Let vLLM's sampler in `worker` return log-probabilities of drawn tokens without their ranks, on CPUs.

    vLLM 0.32 compares every logit with that of the drawn token: 6 % of sampling with SmolLM2-135M. Nothing here reads
    the ranks. Remove it when vLLM can be told so.
    """
    from vllm.v1.outputs import LogprobsTensors

    sampler = worker.model_runner.sampler
    own = sampler.gather_logprobs

    def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        if num_logprobs:
            return own(logprobs, num_logprobs, token_ids)
        token_ids = token_ids[:, None]  # [answers, 1]
        ranks = torch.zeros(len(token_ids), dtype=torch.int64)
        return LogprobsTensors(token_ids.to(torch.int32), logprobs.gather(1, token_ids), ranks)

    sampler.gather_logprobs = gather_logprobs
