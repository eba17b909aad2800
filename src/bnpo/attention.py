"""Attention over sequences packed end to end in one row, as transformers calls it."""

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

PACKED = "packed"
"""Name of `packed_attention` among transformers' implementations (`attn_implementation`)."""


def packed_attention(
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
    """Causal attention within each of the sequences that begin at `starts` [sequences + 1], the longest of `longest`.

    query [1, heads, tokens, head size]; key and value may have fewer heads. Returns [1, tokens, heads, head size]. On
    GPUs one kernel of torch takes them all; elsewhere they go one by one: right, but slow.
    """
    if attention_mask is not None or sliding_window is not None:
        raise ValueError("packed sequences are told apart by `starts`; masks and sliding windows are not supported")
    if query.is_cuda:
        rows = [x[0].transpose(0, 1) for x in (query, key, value)]
        out = varlen_attn(*rows, starts, starts, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=True)
        return out[None], None
    parts = [
        F.scaled_dot_product_attention(
            *(x[:, :, begin:end] for x in (query, key, value)), is_causal=True, scale=scaling, enable_gqa=True
        )
        for begin, end in starts.unfold(0, 2, 1).tolist()
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, packed_attention)
