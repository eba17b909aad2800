"""Refuse models that the learner cannot train before weights are loaded."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from bnpo.files import InputError, line_of
from bnpo.policy.folder import model_config


def check_model(folder: Path, longest: int) -> None:
    """Raise InputError if the learner cannot train the model in `folder` on texts of up to `longest` tokens.

    Only config.json is read. `prove_start` later finds what this does not see.
    """
    config = model_config(folder)
    if reason := _of_config(config, longest) or _of_code(config):
        raise InputError(f"{folder}: cannot be trained: {reason}; use another model")


def _of_config(config: PretrainedConfig, longest: int) -> str | None:
    """Return what in config.json keeps the model from being trained, or None."""
    if getattr(config, "quantization_config", None):
        return "its weights are quantised"
    if config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if config.get_text_config() is not config:
        return "it has parts for images or sound"
    if others := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        return f"it has layers of {' and '.join(sorted(others))}"
    if getattr(config, "attn_logit_softcapping", None):
        return "the learner's attention has no capped attention logits"
    if getattr(config, "qk_head_dim", None) != getattr(config, "v_head_dim", None):
        return "keys and values of its attention differ in size"
    rope = getattr(config, "rope_parameters", None) or {}
    short = rope.get("original_max_position_embeddings", longest)
    if rope.get("rope_type") == "longrope" and longest > short:
        return f"its longrope has other frequencies for texts over {short} tokens, and prompt plus answer has {longest}"
    return None


def _of_code(config: PretrainedConfig) -> str | None:
    """Return what in the model's classes keeps it from being trained, or None."""
    try:
        with torch.device("meta"):  # without memory
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # of any kind: this is the code of all families
        return f"transformers cannot make it ({line_of(error)})"
    if not model.is_backend_compatible():
        return "its code does not run with the learner's attention"
    if any(isinstance(module, torch.nn.Conv1d) for module in model.modules()):
        return "it has convolutions over tokens, as in state-space models and linear attention"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        return "the learner's attention has no attention sinks"
    return None
