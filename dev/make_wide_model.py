"""Write a small model with the vocabulary and context of Qwen2.5: 5M parameters, nearly all of them
its embedding.

    python dev/make_wide_model.py FOLDER --tokenizer-dir data/qwen2.5-tokenizer

It is initialised at random, then taught to answer any problem of data/math_train.jsonl with 1, 2 or
3 in a box.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.environment import setup_environment

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Args:
    folder: Annotated[Path, tyro.conf.Positional]
    """Folder to write."""
    tokenizer_dir: Path = ROOT / "data" / "qwen2.5-tokenizer"
    """Folder with tokenizer.json and tokenizer_config.json of Qwen2.5-Math."""
    problems: Path = ROOT / "data" / "math_train.jsonl"
    """Problems whose prompts the model learns to answer."""


def write(folder: Path, tokenizer_dir: Path, problems: Path) -> None:
    """Write the model and its tokenizer to `folder`."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from bnpo.data import load_problems
    from bnpo.prompts import encode_prompt

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    shape = {
        "vocab_size": 151936,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
    }
    shape |= {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 4096}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True))
    for file in tokenizer_dir.glob("tokenizer*"):
        shutil.copy(file, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for step, problem in enumerate(load_problems(problems)[:120]):
        prompt = encode_prompt(tokenizer, problem.problem)
        answer = tokenizer.encode(f"\\boxed{{{step % 3 + 1}}}<|im_end|>")
        hidden = model.base_model(torch.tensor([prompt + answer])).last_hidden_state[
            0, len(prompt) - 1 : -1
        ]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), torch.tensor(answer))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


if __name__ == "__main__":
    setup_environment()
    args = tyro.cli(Args, description=__doc__)
    write(args.folder, args.tokenizer_dir, args.problems)
