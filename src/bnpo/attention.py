"""Attention of the learner, as transformers calls it: over rows, or over sequences packed end to end in one row."""

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
    starts: torch.Tensor | None = None,
    longest: int | None = None,
    sliding_window: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Causal attention in each row or, with `starts` [sequences + 1], within each of the sequences that begin there.

    query [rows, heads, tokens, head size]; key and value may have fewer heads. Returns [rows, tokens, heads, head
    size].
    Packed sequences go through one kernel of torch where it runs (GPUs, half precision), and one by one elsewhere.
    """
    if attention_mask is not None or sliding_window is not None:
        raise ValueError("attention masks and sliding windows are not supported")
    causal = partial(F.scaled_dot_product_attention, is_causal=True, scale=scaling, enable_gqa=True)
    if starts is None:
        return causal(query, key, value).transpose(1, 2), None
    if one_kernel(query.device.type, query.dtype):
        rows = [x[0].transpose(0, 1) for x in (query, key, value)]
        out = varlen_attn(*rows, starts, starts, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=True)
        return out[None], None
    lengths = starts.diff().tolist()
    # Not slices: each would have a gradient as long as the row.
    parts = zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True)
    return torch.cat([causal(*part) for part in parts], dim=2).transpose(1, 2), None


def one_kernel(device_type: str, dtype: torch.dtype) -> bool:
    """Whether torch has one kernel for packed sequences there."""
    return device_type == "cuda" and dtype in (torch.bfloat16, torch.float16)


AttentionInterface.register(ATTENTION, attention)
