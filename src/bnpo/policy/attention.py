"""The learner's attention, as transformers calls it: over prompts and answers packed end to end in one row."""

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
    query: torch.Tensor,  # [1, heads, tokens, head size]
    key: torch.Tensor,  # [1, key heads, tokens, head size]
    value: torch.Tensor,  # [1, key heads, tokens, head size]
    attention_mask: None,
    *,
    scaling: float,
    sequences: Sequences,
    sliding_window: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Return the causal attention of every sequence to its own keys, [1, tokens, heads, head size].

    The last key of a sequence belongs to its last token. An answer's keys are its prompt's and its own. A token attends
    to `sliding_window` keys, its own included (None: to all). One kernel of torch does all sequences where it runs
    (GPUs with half precision). Elsewhere neighbours of equal shape go together.
    """
    if attention_mask is not None:
        raise ValueError("attention masks are not supported")
    query = query[0].transpose(0, 1)  # [tokens, heads, head size]
    key = _select_rows(key[0].transpose(0, 1), sequences.keys)  # [keys, key heads, head size]
    value = _select_rows(value[0].transpose(0, 1), sequences.keys)  # [keys, key heads, head size]
    if query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16):
        bounds = sequences.starts, sequences.key_starts, sequences.longest, sequences.longest_keys
        window = (-1 if sliding_window is None else sliding_window - 1, 0)  # earlier keys, later keys; -1: all
        out = varlen_attn(query, key, value, *bounds, scale=scaling, window_size=window, enable_gqa=True)
        return out[None], None
    # On CPUs the backward pass of 16-bit attention is two to four times as slow as that in fp32.
    dtype, (query, key, value) = query.dtype, (x.float() for x in (query, key, value))
    shapes = torch.stack([sequences.starts.diff(), sequences.key_starts.diff()])  # [2, sequences]: tokens, keys
    shapes, counts = shapes.unique_consecutive(return_counts=True, dim=1)  # [2, runs], [runs]
    tokens_per_run, keys_per_run = (shapes * counts).tolist()
    # split, not slices: each slice would get a gradient as long as the whole row.
    queries = query.split(tokens_per_run)
    keys = key.split(keys_per_run)
    values = value.split(keys_per_run)
    runs = zip(queries, keys, values, counts.tolist(), strict=True)
    return torch.cat([_attend_equal_shapes(*run, scaling, sliding_window) for run in runs])[None].to(dtype), None


def _select_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x[index] for x [tokens, heads, head size].

    An embedding look-up, because GPUs add up its gradient in fp32 and in a fixed order.
    """
    return F.embedding(index, x.flatten(1)).unflatten(1, x.shape[1:])


def _attend_equal_shapes(
    query: torch.Tensor,  # [count * tokens, heads, head size]
    key: torch.Tensor,  # [count * keys, key heads, head size]
    value: torch.Tensor,  # [count * keys, key heads, head size]
    count: int,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Return the attention of `count` sequences of one shape, [count * tokens, heads, head size]."""
    query, key, value = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (query, key, value))
    tokens, keys = query.shape[2], key.shape[2]
    mask = causal_lower_right(tokens, keys)
    if window is not None and window < keys:
        own_key = keys - tokens  # place of the first token's own key
        mask = torch.ones(tokens, keys, dtype=torch.bool, device=query.device).tril(own_key).triu(own_key - window + 1)
    out = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(ATTENTION, attention)
