"""Problems with a checkable answer: their prompts, and their order in an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnpo.files import InputError, line_of, read_text

THINK_PROMPT = (
    "You are a helpful assistant. Think about the question first, then answer it. Put the reasoning inside "
    "<think> </think> and the answer inside <answer> </answer>: <think> reasoning </think> <answer> answer "
    "</answer>. Write the final result inside the answer tags as \\boxed{}."
)
SYSTEM_PROMPTS = {"chat": None, "think": THINK_PROMPT}
"""System prompts by name of the template. `chat` keeps the default of the tokenizer's chat template, as the paper does
for Qwen2.5-Math. `think` asks for the tags that the format reward looks for (Table 2). Other templates are files."""
TEMPERATURES = (0.01, 2.0)
"""Lowest and highest temperature of vLLM, which uses the lowest for values below it. Evaluations may also use 0."""


def chat_template(tokenizer, template: str, system_prompt: str | None = None, thinking: str | None = None) -> str:
    """Return the Jinja template that renders prompts as --template, --system-prompt and --thinking say.

    Settings become statements in front of the template. A checkpoint with this template renders the same prompts
    without the settings. Raises InputError, also if the template leaves out the system prompt or the problem.
    """
    if template not in SYSTEM_PROMPTS:
        text = read_text(template)
    elif tokenizer.chat_template:
        text = tokenizer.get_chat_template()
    else:
        raise InputError(f"{tokenizer.name_or_path}: its tokenizer has no chat template; set one with --template FILE")
    system, settings = SYSTEM_PROMPTS.get(template) if system_prompt is None else system_prompt, ""
    if system is not None:  # an empty one keeps the template from adding its own
        settings += "{%- set messages = (messages if messages[0]['role'] == 'system' else "
        settings += f"[{{'role': 'system', 'content': {system!r}}}] + messages) -%}}"
    if thinking:
        if "enable_thinking" not in text:
            raise InputError(f"--thinking: {tokenizer.name_or_path} has a chat template without enable_thinking")
        settings += f"{{%- set enable_thinking = {str(thinking == 'on').lower()} -%}}"
    if not text.startswith(settings):  # a checkpoint of the same settings has them already
        text = settings + text
    prompt = render_prompt(tokenizer, "1+2=?", text)
    for part, flag in ((system, "--system-prompt"), ("1+2=?", "--template")):
        if part and part.strip() not in prompt:
            raise InputError(f"{flag}: the chat template leaves out {part[:60]!r}, and renders 1+2=? as {prompt!r}")
    return text


def render_prompt(tokenizer, problem: str, template: str | None = None) -> str:
    """Return the prompt for `problem`, up to and including the assistant's header. Raises InputError.

    `template` is Jinja text, by default that of the tokenizer.
    """
    messages = [{"role": "user", "content": problem}]
    options = {"chat_template": template, "add_generation_prompt": True, "tokenize": False}
    try:
        return tokenizer.apply_chat_template(messages, **options)
    except Exception as error:  # a template is a program, and may raise anything
        reason = line_of(error)
        raise InputError(f"the chat template fails for the problem {problem[:60]!r} ({reason}); correct it") from error


def asks_for_tags(tokenizer, template: str | None = None) -> bool:
    """Return whether prompts ask for answer tags. Then the final answer is the text between the tags."""
    return "<answer>" in render_prompt(tokenizer, "", template)


@dataclass(frozen=True)
class Problem:
    """A problem with its reference answer. `id` is unique within its data set."""

    id: str
    problem: str
    answer: str


def encode_prompt(tokenizer, problem: str, template: str | None = None) -> list[int]:
    """Return the token ids of `render_prompt`. Raises InputError, also if there are none."""
    ids = tokenizer.encode(render_prompt(tokenizer, problem, template), add_special_tokens=False)
    if not ids:
        raise InputError(
            f"the prompt of the problem {problem[:60]!r} is empty; correct the problem, or the chat template"
        )
    return ids


def stop_token_ids(tokenizer) -> list[int]:
    """Return the token ids that end an answer: the tokenizer's end of text and the chat template's end of turn."""
    # Qwen2.5-Math's tokenizer names only <|endoftext|>, but its chat template ends turns with <|im_end|>. A sampler
    # that waits only for the first token continues to the length limit.
    vocabulary = tokenizer.get_vocab()
    names = {tokenizer.eos_token, "<|endoftext|>", "<|im_end|>", _end_of_turn(tokenizer)}
    return sorted(vocabulary[name] for name in names if name in vocabulary)


def _end_of_turn(tokenizer) -> str | None:
    """Return the special token that the chat template writes behind an answer, or None."""
    answer = "1+2=3"
    messages = [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # no template, or one for prompts only
        return None
    ids = tokenizer.encode(text.rpartition(answer)[2].lstrip(), add_special_tokens=False) if answer in text else []
    token = tokenizer.added_tokens_decoder.get(ids[0]) if ids else None
    return token.content if token and token.special else None


def check_enough(problems: Sequence[Problem], questions_per_step: int, sources: Sequence[str]) -> None:
    """Raise InputError if there are fewer `problems` than a step has questions."""
    if len(problems) < questions_per_step:
        raise InputError(
            f"--questions-per-step: {questions_per_step} different questions are needed, {' '.join(sources)} has "
            f"{len(problems)}; lower it"
        )


def questions_of_step(count: int, questions_per_step: int, step: int, seed: int) -> np.ndarray:
    """Return the indices of the problems of `step` (from 0) [questions_per_step].

    Every epoch is a permutation of all `count` problems that depends on (seed, epoch) only. It has
    floor(count / questions_per_step) steps. The last few problems of the permutation are left out.
    """
    steps_per_epoch = count // questions_per_step
    epoch, position = divmod(step, steps_per_epoch)
    start = position * questions_per_step
    order = np.random.default_rng([seed, epoch]).permutation(count)  # [count]
    return order[start : start + questions_per_step]


WATCHED = 2**32 - 1
"""Stands for the step in seeds of the watched questions, which are equal at every step. No real step is as large."""


def watched_questions(count: int, number: int) -> np.ndarray:
    """Return the indices of `number` of `count` problems, or of all if there are fewer."""
    # Independent of the run's seed, so that runs can be compared.
    return np.sort(np.random.default_rng(WATCHED).choice(count, min(number, count), replace=False))


def sampling_seeds(seed: int, step: int, questions: Sequence[int]) -> list[int]:
    """Return a 32-bit seed per question, which depends on (seed, step, question) only. Answer j adds j to it."""
    # Not on the rank or on earlier steps, so a resumed run and another number of ranks sample the same answers.
    return [int(np.random.SeedSequence([seed, step, int(q)]).generate_state(1)[0]) for q in questions]
