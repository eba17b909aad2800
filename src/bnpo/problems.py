"""Problems with a checkable answer: the JSON-lines file, the prompt, the order of an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnpo.files import InputError, read_json_lines

THINK_PROMPT = (
    "You are a helpful assistant. Think about the question first, then answer it. Put the reasoning inside "
    "<think> </think> and the answer inside <answer> </answer>: <think> reasoning </think> <answer> answer "
    "</answer>. Write the final result inside the answer tags as \\boxed{}."
)
SYSTEM_PROMPTS = {"chat": None, "think": THINK_PROMPT}
"""Prompt templates by name. `chat` is the tokenizer's own chat template with its default system prompt (the
paper's setting for Qwen2.5-Math); `think` asks for the tags that the format reward looks for (Table 2)."""

TEMPERATURES = (0.01, 2.0)
"""Lowest and highest that vLLM draws with; below the lowest it draws with the lowest. Evaluations may also have 0."""


def asks_for_tags(template: str) -> bool:
    """Whether the prompt asks for answer tags: then the final answer is what they hold, in training and evaluation."""
    return "<answer>" in (SYSTEM_PROMPTS[template] or "")


@dataclass(frozen=True)
class Problem:
    """One question with its reference answer; `id` is unique within its data set."""

    id: str
    problem: str
    answer: str


def load_problems(path: str | Path) -> list[Problem]:
    """Read problems from a UTF-8 JSON-lines file with the string fields `problem` and `answer`.

    `id` is optional and defaults to the line number. Other fields are ignored.
    Raises InputError naming file and line when the file is missing, empty or malformed.
    """
    problems = []
    for where, row in read_json_lines(path):
        for field in ("problem", "answer"):
            if not isinstance(row.get(field), str):
                found = "is missing" if field not in row else f"is a {type(row[field]).__name__}"
                raise InputError(f"{where}: field '{field}' {found}; it must be a string")
        problems.append(Problem(str(row.get("id", where.rpartition(":")[2])), row["problem"], row["answer"]))
    return problems


def encode_prompt(tokenizer, problem: str, template: str) -> list[int]:
    """Token ids of the chat prompt for `problem`, up to and including the assistant's header."""
    system = SYSTEM_PROMPTS[template]
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": problem})
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def stop_token_ids(tokenizer) -> list[int]:
    """Ids that end an answer: the tokenizer's end of text and the chat template's end of turn.

    Qwen2.5-Math's tokenizer names only `<|endoftext|>`, yet its chat template ends turns with `<|im_end|>`:
    a sampler that waits for the first alone runs on to the length limit.
    """
    vocabulary = tokenizer.get_vocab()
    names = {tokenizer.eos_token, "<|endoftext|>", "<|im_end|>"}
    return sorted(vocabulary[name] for name in names if name in vocabulary)


def question_order(count: int, epoch: int, seed: int) -> np.ndarray:
    """The order in which epoch `epoch` visits `count` problems: a permutation set by (seed, epoch) alone."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def questions_of_step(count: int, questions_per_step: int, step: int, seed: int) -> np.ndarray:
    """Indices [questions_per_step] of the problems of `step` (from 0), every epoch in its own order.

    An epoch is floor(count / questions_per_step) steps; the few problems left over wait for the next epoch's
    shuffle.
    """
    steps_per_epoch = count // questions_per_step
    epoch, position = divmod(step, steps_per_epoch)
    start = position * questions_per_step
    return question_order(count, epoch, seed)[start : start + questions_per_step]


WATCHED = 2**32 - 1
"""In the place of a step, which is never as large: seeds of the watched questions, the same at every step."""


def watched_questions(count: int, number: int) -> np.ndarray:
    """Indices of `number` of `count` problems (all, if there are fewer): the same for every seed of a run, so that runs
    can be compared."""
    return np.sort(np.random.default_rng(WATCHED).choice(count, min(number, count), replace=False))


def sampling_seeds(seed: int, step: int, questions: Sequence[int]) -> list[int]:
    """One 32-bit seed a question, a function of (seed, step, question) alone; answer j adds j to it."""
    return [int(np.random.SeedSequence([seed, step, int(q)]).generate_state(1)[0]) for q in questions]
