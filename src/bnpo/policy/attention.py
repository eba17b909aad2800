"""Attention of the learner, as transformers calls it: over prompts and answers packed end to end in one row."""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from bnpo.algorithm.batching import Sequences

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
    sequences: Sequences,
    sliding_window: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Causal attention of each of the sequences to its keys, whose last belongs to the sequence's last token.

    query [1, heads, tokens, head size]; key and value may have fewer heads. Returns [1, tokens, heads, head size].
    The sequences go through one kernel of torch where it runs (GPUs, half precision); elsewhere one after the other,
    neighbours of the same shape together.
    """
    if attention_mask is not None or sliding_window is not None:
        raise ValueError("attention masks and sliding windows are not supported")
    query = query[0].transpose(0, 1)
    key, value = (_rows(x[0].transpose(0, 1), sequences.keys) for x in (key, value))
    if query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16):
        bounds = sequences.starts, sequences.key_starts, sequences.longest, sequences.longest_keys
        out = varlen_attn(query, key, value, *bounds, scale=scaling, window_size=(-1, 0), enable_gqa=True)
        return out[None], None
    shapes = torch.stack([sequences.starts.diff(), sequences.key_starts.diff()])
    shapes, counts = shapes.unique_consecutive(return_counts=True, dim=1)
    # Not slices: each would have a gradient as long as the row.
    tokens, keys = (shapes * counts).tolist()
    runs = zip(query.split(tokens), key.split(keys), value.split(keys), counts.tolist(), strict=True)
    parts = [_same_shape(*run, scaling) for run in runs]
    return torch.cat(parts)[None], None


def _rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[index] for x [tokens, heads, head size]: as a lookup, whose gradient GPUs add up in fp32 and a fixed order."""
    return F.embedding(index, x.flatten(1)).unflatten(1, x.shape[1:])


def _same_shape(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, count: int, scaling: float
) -> torch.Tensor:
    """`count` sequences of one shape, end to end: query [tokens, heads, head size], key and value [keys, ...]."""
    query, key, value = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (query, key, value))
    mask = causal_lower_right(query.shape[2], key.shape[2])
    out = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(ATTENTION, attention)
