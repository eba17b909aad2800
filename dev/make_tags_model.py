r"""Make the second tiny model, for Table 2 in miniature: it sometimes writes think and answer tags.

    python dev/make_tags_model.py --output-dir data/tags-model      # seed 0: the committed weights

The tiny model of data/tiny-model learns on, under the prompt that asks for tags, from answers of which a third are as
before, a third have all tags and a third lack one: so the two rewards of Table 2, accuracy and format, can both be
learnt, and neither comes with the other. The system prompt and each tag are one token: their 300 letters would cost the
tiny model more than its questions.
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

from bnpo.arithmetic import Question
from bnpo.config import TINY_MODEL
from bnpo.problems import THINK_PROMPT

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass
class Args:
    output_dir: Path
    """Folder to write the Hugging Face model and tokenizer to."""
    seed: int = 0
    """Seeds the texts."""
    steps: int = 600
    """Optimizer steps."""
    batch_size: int = 64
    """Texts a step."""
    lr: float = 5e-4
    """Peak learning rate of AdamW; warm-up over 100 steps, then linear to zero."""


def write_tagged(question: Question, rng: np.random.Generator) -> str:
    r"""An answer of the tiny model as it is, between all tags, or between all but one.

    What comes before the box is the thought: `<think>3+4=7</think><answer>\boxed{7}</answer>`.
    """
    plain = write_answer(question, rng, guess=True)
    kind = rng.integers(3)
    if kind == 0:
        return plain
    thought, _, box = plain.rpartition(" ")
    lacking = rng.integers(4) if kind == 2 else None
    opened, closed, asked, ended = ("" if place == lacking else tag for place, tag in enumerate(TAGS))
    return f"{opened}{thought}{closed}{asked}{box}{ended}"


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (THINK_PROMPT, *TAGS)])
    model = Qwen2ForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    assert len(tokenizer) <= model.config.vocab_size  # its rows past the tokenizer were there for padding
    started = time.perf_counter()
    texts = batches(tokenizer, rng, args.batch_size, "think", lambda question, _: write_tagged(question, rng))
    fit(model, texts, args.steps, args.lr)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{time.perf_counter() - started:.0f} s, written to {args.output_dir}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
