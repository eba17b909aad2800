"""Refuse models that the learner cannot train before weights are loaded, by a forward pass without weights."""

from pathlib import Path

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface

from bnpo.files import InputError, line_of
from bnpo.policy.folder import model_config
from bnpo.policy.model import logit_steps
from bnpo.policy.patches import has_causal_model

PROBE = "bnpo-probe"
COMPUTED = {"scaling", "sliding_window", "sequences"}
"""What the learner's attention computes of the settings that a layer hands to it."""
WITHOUT_EFFECT = {"dropout", "position_ids", "use_cache", "output_attentions"}
"""Settings that the learner's attention may ignore. The sampler drops nothing, either."""
MEANING = {"s_aux": "attention sinks", "softcap": "capped attention logits"}


def check_model(folder: Path, longest: int) -> None:
    """Raise InputError if the learner cannot train the model in `folder` on texts of up to `longest` tokens.

    Only config.json is read. `prove_start` later finds what this does not see.
    """
    config = model_config(folder)
    if reason := _of_config(config, longest) or _of_layers(config):
        raise InputError(f"{folder}: cannot be trained: {reason}; use another model")


def _of_config(config: PretrainedConfig, longest: int) -> str | None:
    """Return what in config.json keeps the model from being trained, or None."""
    if getattr(config, "quantization_config", None):
        return "its weights are quantised"
    if config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if config.get_text_config() is not config:
        return "it has parts for images or sound"
    if not has_causal_model(config):
        return f"transformers has no causal language model of the type {config.model_type}"
    if others := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        return f"it has layers of {' and '.join(sorted(others))}"
    rope = getattr(config, "rope_parameters", None) or {}
    short = rope.get("original_max_position_embeddings", longest)
    if rope.get("rope_type") == "longrope" and longest > short:
        return f"its longrope has other frequencies for texts over {short} tokens, and prompt plus answer has {longest}"
    return None


def _of_layers(config: PretrainedConfig) -> str | None:
    """Return what in the layers keeps the model from being trained, or None.

    Two tokens without values pass through all layers. The attention below sees how each layer calls it.
    """
    reasons: list[str] = []
    layers_with_attention = set()

    def attention(module, query, key, value, attention_mask, **settings):
        layers_with_attention.add(module)
        given = {name for name, setting in settings.items() if setting is not None}
        if "sequences" not in given:
            reasons.append("its attention layers do not pass keyword arguments on")
        for name in sorted(given - COMPUTED - WITHOUT_EFFECT):
            reasons.append(f"the learner's attention has no {MEANING.get(name, name)}")
        if value.shape[-1] != query.shape[-1]:
            reasons.append("keys and values of its attention differ in size")
        if attention_mask is not None:  # made by `mask` below: which keys the last token attends to
            keys = attention_mask.numel()
            first_key = keys - (settings.get("sliding_window") or keys)
            if not torch.equal(attention_mask, torch.arange(keys) >= first_key):
                reasons.append("its attention masks other keys than a sliding window does")
        return query.new_empty(*query.transpose(1, 2).shape[:3], value.shape[-1]), None

    def mask(*, mask_function, local_size=None, **_):
        last = 3 * (local_size or 8) // 2  # far enough to see the start of a window or a chunk
        return mask_function(0, 0, torch.tensor(last), torch.arange(last + 1))  # [keys]

    AttentionInterface.register(PROBE, attention)
    AttentionMaskInterface.register(PROBE, mask)
    ExpertsInterface.register(PROBE, lambda _module, hidden, *_: hidden)
    try:
        with torch.device("meta"):  # shapes without memory
            model = AutoModelForCausalLM.from_config(config, attn_implementation=PROBE, experts_implementation=PROBE)
            ids = torch.zeros(1, 2, dtype=torch.long)
        for module in model.modules():
            if isinstance(module, torch.nn.Conv1d):
                return "it has convolutions over tokens, as in state-space models and linear attention"
            if getattr(module, "rope_type", None) in ("dynamic", "longrope"):
                module.rope_type = "default"  # the others compare positions, which have no values here
        model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, sequences=True)
        logit_steps(model)
    except Exception as error:  # any kind: this is the code of all families
        return f"its code does not run with the learner's attention ({line_of(error)})"
    if not reasons and len(layers_with_attention) < config.num_hidden_layers:
        reasons.append(f"{len(layers_with_attention)} of its {config.num_hidden_layers} layers call the attention")
    return reasons[0] if reasons else None
