r"""Make the second tiny model, for the small version of Table 2. It sometimes writes think and
answer tags.

    python dev/make_tags_model.py --output-dir data/tags-model      # seed 0: the committed weights

The tiny model of data/tiny-model is trained further, with the prompt that asks for tags. A third of
the answers have no tags, a third have all tags, and a third lack one tag. So both rewards of Table
2, accuracy and format, can be learned, and one does not imply the other. The system prompt and each
tag are single tokens, because their 300 characters would cost more time than the questions.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch
import tyro
from make_tiny_model import batches, fit, write_answer
from tokenizers import AddedToken
from transformers import AutoTokenizer, Qwen2ForCausalLM

from bnpo.config import TINY_MODEL
from bnpo.prompts import THINK_PROMPT

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass
class Args:
    output_dir: Path
    """Folder to write the Hugging Face model and tokenizer to."""
    seed: int = 0
    """Seed of the texts."""
    steps: int = 600
    """Optimizer steps."""
    batch_size: int = 64
    """Texts per step."""
    lr: float = 5e-4
    """Peak learning rate of AdamW, after a warm-up of 100 steps. Then it falls linearly to zero."""


def write_tagged(question: str, rng: np.random.Generator) -> str:
    r"""Return an answer of the tiny model with no tags, with all tags, or with all tags but one.

    The text before the box is the thought: `<think>3+4=7</think><answer>\boxed{7}</answer>`.
    """
    plain = write_answer(question, rng, guess=True)
    kind = rng.integers(3)
    if kind == 0:
        return plain
    thought, _, box = plain.rpartition(" ")
    tags = list(TAGS)
    if kind == 2:
        tags[rng.integers(4)] = ""
    return f"{tags[0]}{thought}{tags[1]}{tags[2]}{box}{tags[3]}"


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (THINK_PROMPT, *TAGS)])
    model = Qwen2ForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    assert len(tokenizer) <= model.config.vocab_size  # the new tokens take rows that were padding
    started = time.perf_counter()
    texts = batches(
        tokenizer, rng, args.batch_size, "think", lambda question, _: write_tagged(question, rng)
    )
    fit(model, texts, args.steps, args.lr)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{time.perf_counter() - started:.0f} s, written to {args.output_dir}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
