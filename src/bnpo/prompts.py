"""Prompts: the chat template that renders a problem, and the token ids."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

from bnpo.files import InputError, line_of, read_text
from bnpo.grading.rewards import TAGS
from bnpo.tasks import Messages, Problem

# The prompt of DeepSeek-R1 as the released code of the paper has it (`r1_prompt` of its
# data_prepare.py), letter by letter
THINK_PROMPT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
    "it. The assistant first thinks about the reasoning process in the mind and then provides the "
    "user with the answer. The reasoning process and answer are enclosed within <think> </think> "
    "and <answer> </answer> tags, respectively, i.e., <think> reasoning process here "
    "</think><answer> answer here </answer>."
)
# Today's date would change the prompts every day, and --resume refuses changed prompts. Llama's
# templates take this date where they cannot ask for today's.
FIXED_DATE = (
    "{%- macro strftime_now(format) -%}{{ {'%d %B %Y': '26 July 2024', '%Y-%m-%d': '2024-07-26', "
    "'%Y': '2024'}.get(format, '26 Jul 2024') }}{%- endmacro -%}"
)
# None: the system prompt of the chat template, as in the paper
SYSTEM_PROMPTS = {"chat": None, "think": THINK_PROMPT}


def chat_template(
    tokenizer, template: str, system_prompt: str | None = None, thinking: str | None = None
) -> str:
    """Return the Jinja template for --template, --system-prompt and --thinking.

    The settings become statements in front of the template, so a checkpoint with this template
    renders the same prompts without them.
    """
    text = _template_text(tokenizer, template)
    system = SYSTEM_PROMPTS.get(template) if system_prompt is None else system_prompt
    if system is not None and _refuses_system(tokenizer, text):
        if system:
            flag = "--system-prompt" if system_prompt else f"--template {template}"
            owner = "its file" if template not in SYSTEM_PROMPTS else tokenizer.name_or_path
            raise InputError(
                f"{flag}: the chat template of {owner} takes no system message; leave the flag out "
                "(in a suite: the field), and put the text into the problems or another template"
            )
        system = None
    settings = FIXED_DATE if "strftime_now" in text else ""
    if system is not None:  # an empty one keeps the template from adding its own
        settings += "{%- set messages = (messages if messages[0]['role'] == 'system' else "
        settings += f"[{{'role': 'system', 'content': {system!r}}}] + messages) -%}}"
    if thinking:
        if "enable_thinking" not in text:
            raise InputError(
                f"--thinking: {tokenizer.name_or_path} has a chat template without enable_thinking"
            )
        settings += f"{{%- set enable_thinking = {str(thinking == 'on').lower()} -%}}"
    if not text.startswith(settings):  # a checkpoint of the same settings has them already
        if thinking:  # that of a checkpoint, behind this one, would win
            text = re.sub(r"\{%- set enable_thinking = (true|false) -%\}", "", text)
        text = settings + text
    prompt = render_prompt(tokenizer, "1+2=?", text)
    for part, flag in ((system, "--system-prompt"), ("1+2=?", "--template")):
        if part and part.strip() not in prompt:
            raise InputError(
                f"{flag}: the chat template leaves out {part[:60]!r}, and renders 1+2=? as "
                f"{prompt!r}"
            )
    return text


def _refuses_system(tokenizer, template: str) -> bool:
    """Return whether a template fails only for chats with a system message, as Gemma's does."""
    user = {"role": "user", "content": "1+2=?"}
    with_system = [{"role": "system", "content": "Be brief."}, user]
    return _renders(tokenizer, [user], template) and not _renders(tokenizer, with_system, template)


def _renders(tokenizer, messages: Messages, template: str) -> bool:
    try:
        render_prompt(tokenizer, messages, template)
    except InputError:
        return False
    return True


def _template_text(tokenizer, template: str) -> str:
    """Return the tokenizer's template, or the one in the file `template`."""
    if template not in SYSTEM_PROMPTS:
        return read_text(template)
    known = tokenizer.chat_template
    if known and not (isinstance(known, dict) and "default" not in known):
        return tokenizer.get_chat_template()
    fault, cure = "no chat template", "set one"
    if known:
        fault = f"several chat templates ({', '.join(sorted(known))}), but no default"
        cure = "choose one"
    raise InputError(
        f"{tokenizer.name_or_path}: its tokenizer has {fault}; {cure} with --template FILE"
    )


def render_prompt(tokenizer, problem: str | Messages, template: str | None = None) -> str:
    """Return the prompt, rendered by the Jinja text `template` or the tokenizer's own."""
    messages = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
    options = {"chat_template": template, "add_generation_prompt": True, "tokenize": False}
    try:
        return tokenizer.apply_chat_template(messages, **options)
    except Exception as error:  # a template is a program, and may raise anything
        raise InputError(
            f"the chat template fails for the problem {str(problem)[:60]!r} ({line_of(error)}); "
            "correct it"
        ) from error


def asks_for_tags(tokenizer, template: str | None = None, problems: Iterable[Problem] = ()) -> bool:
    """Return whether a prompt asks for tags. Final answers are then also looked for in tags."""
    # Some templates refuse an empty problem
    return "<answer>" in render_prompt(tokenizer, "1+2=?", template) or any(
        "<answer>" in problem.text for problem in problems
    )


def encode_prompt(tokenizer, problem: str | Messages, template: str | None = None) -> list[int]:
    """Return the token ids of `render_prompt`."""
    ids = tokenizer.encode(render_prompt(tokenizer, problem, template), add_special_tokens=False)
    if not ids:
        raise InputError(
            f"the prompt of the problem {str(problem)[:60]!r} is empty; correct it, or the chat "
            "template"
        )
    return ids


def describe_problems(problems: Sequence[Problem], tokenizer, system: str | None) -> list[str]:
    """Return lines about problems whose prompts may not be what the user expects, where `system` is
    the system prompt of the settings.
    """
    lines = []
    own = sum(p.problem[0]["role"] == "system" for p in problems if not isinstance(p.problem, str))
    if own and system:
        lines.append(
            f"{own} of {len(problems)} problems have a system message of their own, so that "
            "--system-prompt or --template think does not reach them"
        )
    special = _special_tokens(tokenizer, len(tokenizer)).values()
    control = re.compile("|".join(map(re.escape, special)) or "(?!)")
    found = [(p.id, match[0]) for p in problems if (match := control.search(p.text))]
    if found:
        name, token = found[0]
        lines.append(
            f"{len(found)} of {len(problems)} problems contain special tokens such as {token} "
            f"(problem {name}), which the model reads as control tokens and not as text"
        )
    return lines


def encode_problems(
    problems: Sequence[Problem], tokenizer, limit: int, questions_per_step: int = 1
) -> tuple[list[Problem], list[list[int]]]:
    """Return the problems with prompts of at most `limit` tokens, and their token ids. Raises
    InputError if they are fewer than a step's questions.
    """
    kept, prompts = [], []
    for problem in problems:
        prompt = encode_prompt(tokenizer, problem.problem)
        if len(prompt) <= limit:
            kept.append(problem)
            prompts.append(prompt)
    if len(kept) < questions_per_step:
        raise InputError(
            f"--questions-per-step: {questions_per_step} different questions are needed, and of "
            f"the data's {len(problems)} only {len(kept)} have prompts of at most {limit} tokens; "
            "lower it, or raise --max-prompt-tokens"
        )
    return kept, prompts


def decode_answers(tokenizer, answers: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of the token ids `answers`, without special tokens other than answer tags:
    some models have these as special tokens.
    """
    special = _special_tokens(tokenizer, len(tokenizer))
    if not set(special.values()) & set(TAGS):
        return tokenizer.batch_decode(answers, skip_special_tokens=True)
    kept = [[i for i in ids if special.get(i, TAGS[0]) in TAGS] for ids in answers]
    return tokenizer.batch_decode(kept, skip_special_tokens=False)


@lru_cache
def _special_tokens(tokenizer, _tokens: int) -> dict[int, str]:
    """Return the special tokens of a tokenizer, which has this number of tokens, by id."""
    return {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}


def vocabulary_size(tokenizer) -> int:
    """Return the first id behind those of all tokens: later rows of an embedding are padding.

    `len(tokenizer)` counts the tokens, whose ids may have gaps.
    """
    return 1 + max(tokenizer.get_vocab().values())


def stop_token_ids(tokenizer, template: str | None = None) -> list[int]:
    """Return the ids that end an answer: the tokenizer's end of text, and that of a turn in the
    Jinja text `template` or the tokenizer's own.
    """
    # Qwen2.5-Math's tokenizer names only <|endoftext|>, but its chat template ends turns with
    # <|im_end|>. A sampler that waits only for the first token continues to the length limit.
    names = {tokenizer.eos_token, "<|endoftext|>", "<|im_end|>"}
    answer = "1+2=3"
    text = ""
    messages = [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": answer}]
    # There may be no template, or one for prompts only, and templates raise what they like
    with suppress(Exception):
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    _, found, end = text.rpartition(answer)
    for i in tokenizer.encode(end.lstrip(), add_special_tokens=False)[:1] if found else []:
        token = tokenizer.added_tokens_decoder.get(i)
        if token is not None and token.special:
            names.add(token.content)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary[name] for name in names if name in vocabulary)
