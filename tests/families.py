"""Tiny random models of many families, with the tiny model's tokenizer."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 512}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
GRANITE = {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22}
TRAINED = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 16},
    "gemma": {"head_dim": 32},
    "gemma3_text": GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {},
    "olmo2": {},
    "smollm3": {},
    "granite": GRANITE | {"attention_multiplier": 0.0156},
    "qwen3_moe": EXPERTS | {"head_dim": 32},
    "mixtral": {"num_local_experts": 4},
}
"""What a configuration of the family has beside SHAPE."""


def make_family(folder: Path, family: str, **settings) -> None:
    """Write a random model of `family` to `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data" / "tiny-model")
    tokens = {"vocab_size": 320, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    tokens["pad_token_id"] = tokenizer.pad_token_id
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPE | tokens | settings)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
