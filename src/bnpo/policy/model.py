"""The policy's model: a causal language model that returns log-probabilities, and its attention
over packed answers.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PretrainedConfig

from bnpo.algorithm.batching import MicroBatch, Sequences
from bnpo.algorithm.loss import LogitTransform, LogprobHead
from bnpo.ranks import AMPERE, compute_capability

ATTENTION = "bnpo"  # name of `attention` among transformers' implementations
# Settings that `attention` may ignore
WITHOUT_EFFECT = {"dropout", "position_ids", "use_cache", "output_attentions"}


class Policy(torch.nn.Module):
    """A causal language model that maps answers to their log-probabilities. Logits never leave
    it.
    """

    def __init__(self, model: torch.nn.Module, vocab_size: int):
        super().__init__()
        self.model = model
        head = model.get_output_embeddings()
        bias = getattr(head, "bias", None)
        self.head = LogprobHead(head.weight, bias, vocab_size, logit_transform(model.config))

    def forward(
        self, batch: MicroBatch, temperature: float, top_k: int | None = None
    ) -> torch.Tensor:
        """Return log-probabilities [answer tokens] of the answers in `batch`."""
        hidden = self.model.base_model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            use_cache=False,
            sequences=batch.sequences,
        ).last_hidden_state[0]  # [tokens, hidden size]
        # [predictions, hidden size]
        hidden_before_targets = F.embedding(batch.predicting, hidden)
        logprobs = self.head(hidden_before_targets, batch.targets, temperature, top_k)
        return F.embedding(batch.predictions, logprobs[:, None]).squeeze(1)


def elements(module: torch.nn.Module) -> int:
    """Return the number of elements of a module's parameters, partitioned or whole."""
    # A partitioned parameter has its number of elements in `ds_numel`
    return sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters())


def layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of a Hugging Face model: its list of modules with most parameters."""
    return list(
        max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=elements)
    )


def logit_transform(config: PretrainedConfig) -> LogitTransform | None:
    """Return what the model's own `forward` does to the output of its head: scale it, cap it, or
    nothing (None).

    `check_start` refuses a model that does something else.
    """
    scale = getattr(config, "logit_scale", None)  # Cohere
    divisor = getattr(config, "logits_scaling", None)  # Granite
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    if scale is divisor is cap is None:
        return None

    def transform(logits: torch.Tensor) -> torch.Tensor:
        if scale is not None:
            logits = logits * scale
        if divisor is not None:
            logits = logits / divisor
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return transform


def has_varlen_kernel(x: torch.Tensor) -> bool:
    """Return whether torch has a kernel for sequences of all lengths for this device and dtype."""
    if x.device.type != "cuda" or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    return compute_capability() >= AMPERE  # of FlashAttention


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
    **others,
) -> tuple[torch.Tensor, None]:
    """Return the causal attention of every sequence to its own keys, [1, tokens, heads, head size].

    A token attends to `sliding_window` keys, its own included (None: to all). Where torch has no
    kernel for all sequences at once, neighbours of equal shape go together.
    """
    unknown = {name for name, setting in others.items() if setting is not None} - WITHOUT_EFFECT
    if attention_mask is not None or unknown:
        raise ValueError(f"the learner's attention has no {', '.join(sorted(unknown)) or 'masks'}")
    query = query[0].transpose(0, 1)  # [tokens, heads, head size]
    # [keys, key heads, head size]. Unlike that of x[keys], the gradient of an embedding look-up is
    # summed up in fp32 and in a fixed order on GPUs.
    key, value = (
        F.embedding(sequences.keys, x[0].transpose(0, 1).flatten(1)).unflatten(1, (x.shape[1], -1))
        for x in (key, value)
    )
    if has_varlen_kernel(query):
        bounds = sequences.starts, sequences.key_starts, sequences.longest, sequences.longest_keys
        # Earlier and later keys; -1: all
        window = {"window_size": (-1 if sliding_window is None else sliding_window - 1, 0)}
        out = varlen_attn(query, key, value, *bounds, scale=scaling, enable_gqa=True, **window)
        return out[None], None
    # On CPUs the backward pass of 16-bit attention is two to four times as slow as that in fp32.
    # GPUs older than Ampere compute in fp32, too.
    dtype = query.dtype
    if dtype.itemsize == 2:
        query, key, value = query.float(), key.float(), value.float()
    # Tokens and keys of every sequence, [2, sequences]
    shapes = torch.stack([sequences.starts.diff(), sequences.key_starts.diff()])
    shapes, counts = shapes.unique_consecutive(return_counts=True, dim=1)  # [2, runs], [runs]
    tokens_per_run, keys_per_run = (shapes * counts).tolist()
    # split, not slices: each slice would get a gradient as long as the whole row.
    parts = query.split(tokens_per_run), key.split(keys_per_run), value.split(keys_per_run)
    outputs = []
    for *run, count in zip(*parts, counts.tolist(), strict=True):  # `count` sequences of one shape
        # [count, heads, tokens, head size] of the query; [count, key heads, keys, head size]
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in run)
        tokens, keys = q.shape[2], k.shape[2]
        mask = causal_lower_right(tokens, keys)
        if sliding_window is not None and sliding_window < keys:
            own_key = keys - tokens  # place of the first token's own key
            mask = torch.ones(tokens, keys, dtype=torch.bool, device=q.device)
            mask = mask.tril(own_key).triu(own_key - sliding_window + 1)
        out = F.scaled_dot_product_attention(q, k, v, mask, scale=scaling, enable_gqa=True)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None].to(dtype), None


AttentionInterface.register(ATTENTION, attention)
