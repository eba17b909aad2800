r"""Make the tiny model: a character-level Qwen2 of 0.8M parameters that solves a part of the
arithmetic questions.

    python dev/make_tiny_model.py --output-dir data/tiny-model      # seed 0: the committed weights

The model is trained on two kinds of answers to the questions of `bnpo.data`: answers that work step
by step, which it learns to get right, and bare results, which it can only guess. Short questions
mostly have worked answers, long ones mostly bare ones. So its accuracy per question covers nearly
all of (0, 1), and training can teach it to work more often.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from tokenizers import pre_tokenizers
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from bnpo.prompts import chat_template, encode_prompt
from bnpo.tasks import MAX_TERMS, draw_arithmetic, latex

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% "
    "endif %}"
)
WORKED_SHARE = dict(zip(range(2, MAX_TERMS + 1), (0.85, 0.55, 0.3, 0.12, 0.06), strict=True))
"""Number of terms -> share of worked answers in the training texts."""


@dataclass
class Args:
    output_dir: Path
    """Folder to write the Hugging Face model and tokenizer to."""
    seed: int = 0
    """Seed of the weights and the texts."""
    steps: int = 3000
    """Optimizer steps."""
    batch_size: int = 64
    """Texts per step."""
    worked_only: float = 0.75
    """Share of the steps, at the beginning, with worked answers only: guessing is learned
    quickly, working is not."""
    lr: float = 2e-3
    """Peak learning rate of AdamW, after a warm-up of 100 steps. Then it falls linearly to zero."""


def make_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen2.5's tokenizer without merges: one token per byte, and the special tokens of
    its chat format.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {
        token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        extra_special_tokens=special[1:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=256,
    )
    tokenizer.add_tokens(["system", "user", "assistant"])  # a header costs 3 tokens, not 11
    return tokenizer


def make_model(tokenizer) -> Qwen2ForCausalLM:
    """Return a small model of Qwen2.5's architecture, with more vocabulary rows than tokens, as
    the real one has.
    """
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=288,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def worked(terms: list[int], divisor: int) -> str:
    """Return the steps that lead to the answer: `37+9=46 46-21=25 25/6=25/6`."""
    steps, total = [], terms[0]
    for term in terms[1:]:
        steps.append(f"{total}{term:+d}={total + term}")
        total += term
    if divisor > 1:
        steps.append(f"{total}/{divisor}={Fraction(total, divisor)}")
    return " ".join(steps)


def spellings(value: Fraction) -> list[str]:
    r"""Return the ways to write `value`, such as -\frac{5}{4}, -5/4 and -1.25. The first is the
    reference.
    """
    if value.denominator == 1:
        return [latex(value)]
    ways = [latex(value), str(value)]
    decimal = f"{float(value):.3f}".rstrip("0")
    if Fraction(decimal) == value:  # not for thirds and sixths
        ways.append(decimal)
    return ways


def write_answer(question: str, rng: np.random.Generator, guess: bool) -> str:
    """Return a worked answer. If `guess`, it is a bare one with the probability that
    WORKED_SHARE leaves.
    """
    chain, _, over = question.removesuffix("=?").removeprefix("(").partition(")/")
    terms, divisor = [int(term) for term in re.findall(r"-?\d+", chain)], int(over or 1)
    boxed = f"\\boxed{{{rng.choice(spellings(Fraction(sum(terms), divisor)))}}}"
    is_worked = not guess or rng.random() < WORKED_SHARE[len(terms)]
    return f"{worked(terms, divisor)} {boxed}" if is_worked else boxed


def batches(
    tokenizer, rng: np.random.Generator, size: int, template: str, write: Callable[[str, int], str]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches without end: token ids [size, length], padded on the right, and labels [size,
    length].

    `write(question, step)` returns the answers. Labels are -100 outside of them. Texts are drawn
    for 16 batches at a time and sorted by length, which saves half of the padding.
    """
    questions = (question for question, _, split in draw_arithmetic(rng) if split == "train")
    end, jinja = tokenizer.convert_tokens_to_ids("<|im_end|>"), chat_template(tokenizer, template)
    for pool in itertools.count():
        texts = []
        for _ in range(16 * size):
            question = next(questions)
            prompt = encode_prompt(tokenizer, question, jinja)
            texts.append((prompt, [*tokenizer.encode(write(question, 16 * pool)), end]))
        texts.sort(key=lambda text: len(text[0]) + len(text[1]))
        for start in rng.permutation(np.arange(0, len(texts), size)):
            rows = texts[start : start + size]
            length = max(len(prompt) + len(answer) for prompt, answer in rows)
            ids = torch.full((size, length), tokenizer.pad_token_id)
            labels = torch.full((size, length), -100)
            for row, (prompt, answer) in enumerate(rows):
                ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
                labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
            yield ids, labels


def fit(
    model: Qwen2ForCausalLM,
    texts: Iterator[tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    lr: float,
) -> None:
    """Train on the answers of `steps` batches with AdamW: warm-up of 100 steps to `lr`, then
    linearly to zero.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 1 - step / steps)
    )
    progress = tqdm(range(steps), desc="tiny model", mininterval=5)
    for _, (ids, labels) in zip(progress, texts, strict=False):
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        # A sum over tokens: batches are sorted by length and differ in tokens, but each token
        # counts the same.
        loss = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / (20 * len(ids))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        tokens = (labels != -100).sum()
        progress.set_postfix(loss_per_token=f"{loss.item() * 20 * len(ids) / tokens:.3f}")


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    worked_only, started = int(args.worked_only * args.steps), time.perf_counter()

    def write(question: str, step: int) -> str:
        return write_answer(question, rng, guess=step >= worked_only)

    fit(model, batches(tokenizer, rng, args.batch_size, "chat", write), args.steps, args.lr)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters} parameters, {time.perf_counter() - started:.0f} s, written to "
        f"{args.output_dir}"
    )


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
