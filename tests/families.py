"""Tiny random models of many families, with the tiny model's tokenizer."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
GRANITE = {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22}
GRANITE |= {"attention_dropout": 0.1, "attention_multiplier": 0.0156}
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
    "granite": GRANITE,
    "qwen3_moe": EXPERTS | {"head_dim": 32},
    "mixtral": {"num_local_experts": 4},
}
"""What a configuration of the family has beside SHAPE."""

MIXED_LAYERS = {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]}
GROUPS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
PLAIN = "arcee cohere ernie4_5 gpt2 hyperclovax jais2 nanochat olmo opt phi"
ALSO_TRAINED = {family: {} for family in PLAIN.split()}
WITH_HEAD_SIZE = "glm glm4 helium hunyuan_v1_dense ministral3 seed_oss"
ALSO_TRAINED |= {family: {"head_dim": 32} for family in WITH_HEAD_SIZE.split()}
GEMMA4 = {"head_dim": 32, "global_head_dim": 32, "sliding_window": 16, "num_kv_shared_layers": 0}
GEMMA4 |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 320}
GRANITE_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
ALSO_TRAINED |= {
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "exaone4": MIXED_LAYERS,
    "exaone_moe": EXPERTS | {"sliding_window": 16},
    "gemma4_text": GEMMA4,
    "glm4_moe": EXPERTS | GROUPS | {"head_dim": 32},
    "granitemoe": GRANITE_MOE,
    "granitemoeshared": GRANITE_MOE | {"shared_intermediate_size": 64},
    "hunyuan_v1_moe": {"head_dim": 32, "num_experts": 4, "moe_topk": 2},
    "mellum": EXPERTS | {"head_dim": 32, "sliding_window": 16},
    "ministral": {"head_dim": 32, "sliding_window": 16},
    "olmo3": MIXED_LAYERS,
    "olmoe": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    "solar_open": EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1},
    "starcoder2": {"sliding_window": 16},
}
"""Families that are not in every test run."""
NOT_TRAINED = {
    "bloom": ({}, "its code does not run with the learner's attention"),
    "deepseek_v3": ({}, "keys and values of its attention differ in size"),
    "falcon_h1": ({}, "it has layers of the type hybrid"),
    "gemma2": ({"head_dim": 32}, "the learner's attention has no capped attention logits"),
    "gemma3": ({}, "it has parts for images or sound"),
    "gpt_oss": ({"head_dim": 32, "num_local_experts": 4}, "the learner's attention has no sinks"),
    "gptj": ({}, "its code does not run with the learner's attention"),
    "llama4_text": ({}, "it has layers of the type chunked_attention"),
    "mamba": ({}, "it has layers of the type linear_attention"),
    "qwen3_next": (EXPERTS | {"head_dim": 32}, "it has layers of the type linear_attention"),
    "recurrent_gemma": ({}, "it has convolutions over tokens"),
    "stablelm": ({}, "its code does not run with the learner's attention"),
    "t5": ({}, "it is an encoder-decoder"),
}
"""Settings beside SHAPE, and why the family is refused before a model is loaded."""

OTHERWISE = "vLLM computes this model otherwise than its own code in transformers"
REFUSED_LATER = {
    "cohere2": (MIXED_LAYERS, OTHERWISE),
    "diffllama": ({}, "vLLM cannot run this model"),
    "gpt_neox": ({}, "vLLM cannot run this model"),
    "persimmon": ({}, OTHERWISE),
}
"""As NOT_TRAINED. Only the proof before the first update sees the reason."""


def family_config(family: str, **settings):
    """Return a configuration of `family`, of the tiny model's vocabulary."""
    from transformers import AutoConfig

    tokens = {"vocab_size": 320, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    return AutoConfig.for_model(family, **SHAPE | tokens | settings)


def make_family(folder: Path, family: str, **settings) -> None:
    """Write a random model of `family` to `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(family_config(family, **settings), dtype=torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(ROOT / "data" / "tiny-model").save_pretrained(folder)


def make_sharp(folder: Path, entropy: float = 2.0) -> None:
    """Write a random model of 30 layers whose next token has an `entropy` of about 2, as a trained
    model's has.

    Models of two layers, whose predictions are nearly uniform, round too little to show whether a
    bound holds.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data" / "tiny-model")
    torch.manual_seed(0)
    shape = SHAPE | {"num_hidden_layers": 30, "intermediate_size": 256, "initializer_range": 0.08}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=320, tie_word_embeddings=False, sliding_window=None, **shape)
    )
    ids = torch.randint(len(tokenizer), (4, 64))
    with torch.no_grad():
        logits = model(ids).logits
        low, high = 0.0, 1e4  # a larger factor of the head gives a lower entropy
        for _ in range(60):
            factor = (low + high) / 2
            probabilities = (factor * logits).log_softmax(-1)
            mean = float(-(probabilities.exp() * probabilities).sum(-1).mean())
            low, high = (factor, high) if mean > entropy else (low, factor)
        model.lm_head.weight *= factor
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
