"""Write an untrained model whose answers are long and differ in length, as in real runs. Also a reward for it.

    python benchmarks/long_model.py FOLDER

FOLDER becomes a Hugging Face model with the tiny model's tokenizer. An answer ends at each position with probability
END, in any context. So lengths are geometric, with mean 1 / END = 96 before the limit, and a few percent above 300.
"""

import sys
from math import log, sqrt
from pathlib import Path

END = 1 / 96


def even_length(text: str, reference: str) -> float:
    """Return 1 for a text of even length, else 0. About half of the answers score: none of this model is ever right."""
    return float(len(text) % 2 == 0)


def write(folder: Path) -> None:
    """Write a Qwen2 with hidden size 256, 4 layers, 3.3M parameters and a context of 1,024 tokens."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from bnpo.config import TINY_MODEL
    from bnpo.data import stop_token_ids

    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    ends = stop_token_ids(tokenizer)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        # Coordinate 0 of the hidden state is the same large number everywhere: no layer adds to it, and it dominates
        # the norm. After the last norm it is sqrt(hidden size), in effect a bias of the head. Only the tokens that end
        # an answer use it. All other logits are near 0.
        model.model.embed_tokens.weight[:, 0] = 10.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[ends] = 0.0
        others = config.vocab_size - len(ends)
        model.lm_head.weight[ends, 0] = log(END / (1 - END) * others / len(ends)) / sqrt(config.hidden_size)
    model.save_pretrained(folder)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    from bnpo.environment import setup_environment

    setup_environment()
    write(Path(sys.argv[1]))
