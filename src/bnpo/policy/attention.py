"""Attention of the learner, as transformers calls it: over sequences packed end to end in one row."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

ATTENTION = "bnpo"
"""Name of `attention` among transformers' implementations (`attn_implementation`)."""


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    starts: torch.Tensor,
    longest: int,
    sliding_window: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of the sequences that begin at `starts` [sequences + 1] and end at the next.

    query [1, heads, tokens, head size]; key and value may have fewer heads. Returns [1, tokens, heads, head size].
    The sequences go through one kernel of torch where it runs (GPUs, half precision); elsewhere one after the other,
    neighbours of the same length together.
    """
    if attention_mask is not None or sliding_window is not None:
        raise ValueError("attention masks and sliding windows are not supported")
    if query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16):
        rows = [x[0].transpose(0, 1) for x in (query, key, value)]
        out = varlen_attn(*rows, starts, starts, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=True)
        return out[None], None
    causal = partial(F.scaled_dot_product_attention, is_causal=True, scale=scaling, enable_gqa=True)
    lengths, counts = starts.diff().unique_consecutive(return_counts=True)
    # Not slices: each would have a gradient as long as the row.
    runs = zip(*(x[0].split((lengths * counts).tolist(), dim=1) for x in (query, key, value)), strict=True)
    parts = [
        causal(*(x.unflatten(1, (count, -1)).transpose(0, 1) for x in run)).transpose(1, 2).flatten(0, 1)
        for run, count in zip(runs, counts.tolist(), strict=True)
    ]  # [tokens of a run, heads, head size] each
    return torch.cat(parts)[None], None


AttentionInterface.register(ATTENTION, attention)
