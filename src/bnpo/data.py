"""The problems of a run: where they come from, their prompts, and their order in an epoch."""

import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnpo import word_problems
from bnpo.files import (
    InputError,
    data_name,
    line_of,
    read_bytes,
    read_json_lines,
    read_text,
    unwritable,
)
from mathequal import final_answer

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset, DatasetDict

# Groups are arguments of `datasets.load_dataset`. A split has no default: a test set must not be
# `train` by mistake.
HUB = re.compile(
    r"hub:(?P<path>[\w.-]+/[\w.-]+)(:(?P<name>[^@#]+))?(@(?P<revision>[^#]+))?#(?P<split>.+)"
)
HUB_FORM = "hub:OWNER/NAME:CONFIG@REVISION#SPLIT, where :CONFIG and @REVISION can be left out"
LAST_BOX = "last_box"  # a value of --answer-pattern: the function of this name
# A chat, as chat templates take it: dicts with `role` and `content`
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Problem:
    """A problem with its reference answer. `id` is unique within its data set."""

    id: str
    problem: str | Messages  # a question, or the whole chat up to the answer
    answer: str

    @property
    def text(self) -> str:
        """All that the prompt takes from the data set, as one text."""
        if isinstance(self.problem, str):
            return self.problem
        return "\n".join(message["content"] for message in self.problem)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a data set has its problems and answers."""

    problem_field: str = "problem"
    """Field or column with the question, as text or as chat messages. `a.b` is field b inside
    field a."""
    answer_field: str = "answer"
    """Field or column with the reference answer, such as `reward_model.ground_truth`."""
    answer_pattern: str | None = None
    r"""Part of the field that is the reference answer: `last_box` for the last \boxed{...}, or a
    regular expression with one group, such as '####\s*(.*)' for GSM8K."""

    def check(self) -> None:
        """Raise InputError for a pattern that is no regular expression with one group."""
        if self.answer_pattern in (None, LAST_BOX):
            return
        try:
            if re.compile(self.answer_pattern).groups != 1:
                raise re.error(r"it needs one group, around the answer, as in '####\s*(.*)'")
        except re.error as error:
            raise InputError(f"--answer-pattern {self.answer_pattern!r}: {error}") from error


def load_sources(names: Sequence[str], columns: Columns) -> tuple[list[Problem], dict[str, dict]]:
    """Return the problems of --train-data, and what config.json says of each source. Raises
    InputError.

    With several sources, the ids of the problems begin with the name of their source. Ids that are
    not unique are replaced by the position in the list.
    """
    problems, facts = [], {}
    for name in names:
        found, revision = _load(name, columns)
        facts[name] = {"problems": len(found), "sha256": content_hash(found), "revision": revision}
        prefix = f"{Path(name).name}:" if len(names) > 1 else ""
        problems += [replace(problem, id=prefix + problem.id) for problem in found]
    if len({problem.id for problem in problems}) < len(problems):
        problems = [
            replace(problem, id=str(position)) for position, problem in enumerate(problems, 1)
        ]
    return problems, facts


def load_problems(source: str | Path, columns: Columns = Columns()) -> list[Problem]:
    """Return the problems of one source. Raises InputError."""
    return _load(str(source), columns)[0]


def content_hash(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of ids, texts and answers, so that results identify the problems they
    were measured on.
    """
    rows = [[problem.id, problem.problem, problem.answer] for problem in problems]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _load(name: str, columns: Columns) -> tuple[list[Problem], str | None]:
    """Return the problems of a source, and the commit of a data set of the hub."""
    if problems := built_in_problems(name, "train", TRAINING_PROBLEMS):
        return problems, None
    on_hub, in_folder = name.startswith("hub:"), _folder_and_config(name) is not None
    # Unlike Path.is_file, False for names that are too long
    exists = in_folder or os.path.isfile(name)
    if "," in name and not exists and (not on_hub or ",hub:" in name):
        raise InputError(
            f"{name}: no such data file; several sources are separated by blanks: "
            f"--train-data {name.replace(',', ' ')}"
        )
    if not (on_hub or exists):
        advice = (
            f"`python scripts/prepare_data.py --only {Path(name).stem}` downloads the sets of "
            "data/README.md"
        )
        raise InputError(
            f"{name}: no such data file; {advice}. Data sets of the hub are {HUB_FORM}"
        )
    file = data_name(name)
    if not (on_hub or in_folder or file.endswith((".csv", ".parquet"))):
        return [_problem(place, row, columns) for place, row in read_json_lines(name)], None
    revision = None
    try:
        if on_hub or in_folder:
            table, revision = _table(name)
            rows = _rows(table, columns)
        elif file.endswith(".parquet"):
            import pyarrow
            from pyarrow import parquet

            rows = _rows(parquet.read_table(pyarrow.BufferReader(read_bytes(name))), columns)
        else:
            csv.field_size_limit(sys.maxsize)
            # All texts: 007 is not the number 7
            rows = list(csv.DictReader(io.StringIO(read_text(name)), strict=True))
            if longer := [number for number, row in enumerate(rows, 1) if None in row]:
                raise ValueError(
                    f"row {longer[0]} has more cells than there are columns; quote cells that have "
                    "commas"
                )
    except InputError:
        raise
    except Exception as error:  # a dozen kinds, of four libraries
        path = unwritable(error)
        if path and not Path(path).is_relative_to(name.partition("#")[0]):
            raise InputError(
                f"{name}: the cache of data sets cannot be written ({path}: {line_of(error)}); set "
                "HF_HOME to a folder that can"
            ) from error
        login = "the name, the network, and for a gated data set your login (hf auth login)"
        advice = login if on_hub else "the folder" if in_folder else "the file"
        raise InputError(f"{name}: cannot be read ({line_of(error)}); check {advice}") from error
    if not rows:
        raise InputError(f"{name}: is empty; it needs a problem and an answer in each row")
    return [
        _problem(f"{name}:{number}", row, columns) for number, row in enumerate(rows, 1)
    ], revision


def _folder_and_config(name: str) -> tuple[str, str | None] | None:
    """Return the folder and the configuration that FOLDER#SPLIT or FOLDER:CONFIG#SPLIT names, or
    None if there is no such folder.
    """
    path = name.partition("#")[0]
    if os.path.isdir(path):
        return path, None
    folder, _, config = path.rpartition(":")
    return (folder, config) if os.path.isdir(folder) else None


def _table(name: str) -> tuple["pyarrow.Table", str | None]:
    """Return a data set of the hub and its commit, or that of a folder: from `save_to_disk`, or
    files as on the hub.
    """
    import datasets  # takes a second

    path, _, split = name.partition("#")
    folder, config = _folder_and_config(name) or (path, None)
    commit = None
    if name.startswith("hub:"):
        match = HUB.fullmatch(name)
        if match is None:
            raise ValueError(f"a data set of the hub is {HUB_FORM}")
        asked = match.groupdict()
        # hf:// is the hub, even if a local folder has the same name.
        dataset = _load_dataset(**asked | {"path": f"hf://datasets/{asked['path']}"})
        # Without a network `datasets` takes its newest copy, whatever the revision. Its folder is
        # named by the commit.
        commit = Path(dataset.cache_files[0]["filename"]).parent.name
        if len(asked["revision"] or "") == len(commit) and asked["revision"] != commit:
            raise ConnectionError(
                f"the hub cannot be reached, and the local copy is of revision {commit}"
            )
    elif any((Path(folder) / file).is_file() for file in ("state.json", "dataset_dict.json")):
        if config:
            raise ValueError(f"save_to_disk writes no configurations; leave out :{config}")
        dataset = datasets.load_from_disk(folder)
    else:
        dataset = _load_dataset(folder, config)
    if isinstance(dataset, dict):
        if split not in dataset and (split or len(dataset) > 1):
            raise ValueError(
                f"name one of its splits, {', '.join(dataset)}, as in {path}#{min(dataset)}"
            )
        dataset = dataset[split or min(dataset)]
    return dataset.with_format("arrow")[:], commit


def _load_dataset(
    path: str, name: str | None = None, **options: str | None
) -> "Dataset | DatasetDict":
    """Return what `datasets.load_dataset` does. Raises ValueError with the configurations if one
    must be named, and its other errors.
    """
    import datasets

    try:
        return datasets.load_dataset(path, name, **options)
    except ValueError as error:
        revision = options.get("revision")
        configs = datasets.get_dataset_config_names(path, revision=revision)
        if name is not None or len(configs) < 2:
            raise
        example = f"{path.removeprefix('hf://datasets/')}:{configs[0]}#..."
        raise ValueError(
            f"name one of its configurations, {', '.join(configs)}, as in {example}"
        ) from error


def _rows(table: "pyarrow.Table", columns: Columns) -> list[dict]:
    """Return the rows of a table with the columns that are needed. Without one of them, a row
    for the error message.
    """
    names, fields = set(table.column_names), (columns.problem_field, columns.answer_field)
    needed = {field if field in names else field.partition(".")[0] for field in fields}
    if not needed <= names:
        return table[:1].to_pylist()
    return table.select(sorted(needed | names & {"id"})).to_pylist()


def _problem(place: str, row: dict, columns: Columns) -> Problem:
    """Return the problem in a row. `place` ends with the number of the line or row, which is
    also the default id.
    """
    question = _question(place, _field(place, row, "problem", columns), columns.problem_field)
    answer = _answer(place, _field(place, row, "answer", columns), columns)
    name = place.rpartition(":")[2] if row.get("id") is None else str(row["id"])
    problem = Problem(name, question, answer)
    try:
        "".join((problem.id, problem.text, problem.answer)).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: half of a surrogate pair, which is no text ({error.reason}); correct it"
        ) from error
    return problem


# How a chat begins that a table holds as text: as JSON, or as Python writes it
CHAT_AS_TEXT = re.compile(r"\s*\[?\s*\{\s*(['\"])(role|content|messages)\1\s*:")


def _question(place: str, value: object, field: str) -> str | Messages:
    """Return the question in the field `field`: a text, or a chat, which may be JSON text."""
    needed = "messages with role and content, the last of them the user's"
    if isinstance(value, str) and (start := CHAT_AS_TEXT.match(value)):
        try:
            value = json.loads(value)
        except ValueError as error:
            # Python's way to write a list. Other text may be a question about messages.
            if start[1] == "'" and str(value).rstrip().endswith(("}", "]")):
                raise InputError(
                    f"{place}: field '{field}' is a chat as Python writes it; save it as JSON, or "
                    f"as a list of {needed}"
                ) from error
    if not isinstance(value, list):
        return _text(place, value, field, "a text or a list of messages")
    are_messages = all(
        isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in value
    )
    if not value or not are_messages or value[-1]["role"] != "user":
        raise InputError(f"{place}: field '{field}' is a list; its items must be {needed}")
    return value


def _answer(place: str, value: object, columns: Columns) -> str:
    """Return the reference answer in the field --answer-field, extracted by --answer-pattern."""
    needed, pattern = "a text or a number", columns.answer_pattern
    if isinstance(value, list):
        if len(value) > 1:
            needed += ". Join the items with commas if an answer must have all of them; if one is "
            needed += "enough, write them as one text for a reward of your own"
        else:  # as in OlympiadBench
            value = value[0] if value else None
    answer = _text(place, value, columns.answer_field, needed)
    if pattern is None:
        return answer
    found = None
    if pattern == LAST_BOX:
        with suppress(ValueError):
            found = last_box(answer).strip()  # two of MATH are empty
    elif match := re.search(pattern, answer):
        found = (match[1] or "").strip() or None
    if found is None:
        raise InputError(
            f"{place}: --answer-pattern {pattern!r} finds nothing in the answer {answer[:200]!r}"
        )
    return found


def last_box(solution: str) -> str:
    r"""Return the content of the last \boxed or \fbox of a solution. Two of MATH have no braces:
    `\boxed 2`. Raises ValueError if there is none.
    """
    boxes = re.split(r"\\(?:boxed|fbox) *", solution)[1:]
    if not boxes:
        raise ValueError(f"no box in the solution '{solution[:60]}'")
    if not boxes[-1].startswith("{"):
        return re.split(r"[\s$]", boxes[-1])[0].rstrip(".,")
    answer = final_answer(r"\boxed" + boxes[-1])
    if answer is None:
        raise ValueError(f"a box without end in the solution '{solution[:60]}'")
    return answer


def _field(place: str, row: dict, name: str, columns: Columns) -> object:
    """Return the value of --problem-field or --answer-field. A dotted name reaches into a field
    with fields.
    """
    path: str = getattr(columns, f"{name}_field")
    if path in row:
        return row[path]
    value: object = row
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            known = [
                f"{outer}.{inner}"
                for outer in row
                if isinstance(row[outer], dict)
                for inner in row[outer]
            ]
            advice = f"name it with --{name}-field, or in a suite with {name}_field"
            raise InputError(
                f"{place}: field '{path}' is missing; there are {', '.join([*row, *known])}; "
                f"{advice}"
            )
        value = value[part]
    return value


def _text(place: str, value: object, field: str, needed: str) -> str:
    """Return a text, or a number as text: 7.0 is 7, since tables with empty cells have no whole
    numbers.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:  # nan stands for an empty cell
        raise InputError(f"{place}: field '{field}' is empty; it must be {needed}")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise InputError(
            f"{place}: field '{field}' has type {type(value).__name__}; it must be {needed}"
        )
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def built_in_problems(name: str, split: str, count: int, seed: int = 0) -> list[Problem]:
    """Return `count` different problems of a split of a built-in task, from the seed only. Of
    other sources, none.
    """
    rng = np.random.default_rng(seed)
    if name == "arithmetic":
        drawn: Iterator = draw_arithmetic(rng)
    elif name.partition(":")[0] == word_problems.NAME:
        drawn = word_problems.draw_word_problems(name, rng)
    else:
        return []
    answers: dict[str, str] = {}  # by text
    while len(answers) < count:
        text, answer, its_split = next(drawn)
        if its_split == split:
            answers[text] = answer
    return [
        Problem(f"{name}/{split}/{i}", text, answer)
        for i, (text, answer) in enumerate(answers.items())
    ]


# The built-in task: arithmetic that a tiny model can learn, so that everything runs without
# downloads. A question is a sum of integers. About a third of them are divided by a small number:
#     37+9-21-45=?            answer -20
#     (37+9-21)/6=?           answer \frac{25}{6}
# The hash of its text decides to which split a question belongs, so the splits never overlap,
# whatever the seed.

DIVISORS = (2, 3, 4, 5, 6, 8)
MAX_TERMS = 6
TRAINING_PROBLEMS = 7500  # the size of MATH's training set
# Hash buckets, of 100
SPLITS = {"test": range(0, 10), "validation": range(10, 20), "train": range(20, 100)}


def draw_arithmetic(rng: np.random.Generator) -> Iterator[tuple[str, str, str]]:
    """Yield text, answer and split of random questions without end: 2 to MAX_TERMS terms from
    -49 to 49.
    """
    while True:
        terms = rng.integers(1, 50, size=rng.integers(2, MAX_TERMS + 1))
        terms[1:] *= rng.choice([-1, 1], size=len(terms) - 1)
        divisor = int(rng.choice(DIVISORS)) if rng.random() < 1 / 3 else 1
        chain = f"{terms[0]}" + "".join(f"{term:+d}" for term in terms[1:])
        text = f"{chain}=?" if divisor == 1 else f"({chain})/{divisor}=?"
        bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % 100
        split = next(split for split, buckets in SPLITS.items() if bucket in buckets)
        yield text, latex(Fraction(int(terms.sum()), divisor)), split


def latex(value: Fraction) -> str:
    r"""Return `value` as references are written: -30, or -\frac{5}{4}."""
    return re.sub(r"(\d+)/(\d+)", r"\\frac{\1}{\2}", str(value))


# The prompt of DeepSeek-R1 as the released code of the paper has it (`r1_prompt` of its
# data_prepare.py), letter by letter
THINK_PROMPT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
    "it. The assistant first thinks about the reasoning process in the mind and then provides the "
    "user with the answer. The reasoning process and answer are enclosed within <think> </think> "
    "and <answer> </answer> tags, respectively, i.e., <think> reasoning process here "
    "</think><answer> answer here </answer>."
)
# None: that of the chat template, as in the paper
SYSTEM_PROMPTS = {"chat": None, "think": THINK_PROMPT}


def chat_template(
    tokenizer, template: str, system_prompt: str | None = None, thinking: str | None = None
) -> str:
    """Return the Jinja template that renders prompts as --template, --system-prompt and --thinking
    say.

    Settings become statements in front of the template. A checkpoint with this template renders the
    same prompts without the settings. Raises InputError, also if the template leaves out the system
    prompt or the problem.
    """
    if template not in SYSTEM_PROMPTS:
        text = read_text(template)
    elif isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
        names = ", ".join(sorted(tokenizer.chat_template))
        raise InputError(
            f"{tokenizer.name_or_path}: its tokenizer has several chat templates ({names}), but no "
            "default; choose one with --template FILE"
        )
    elif tokenizer.chat_template:
        text = tokenizer.get_chat_template()
    else:
        raise InputError(
            f"{tokenizer.name_or_path}: its tokenizer has no chat template; set one with "
            "--template FILE"
        )
    system, settings = SYSTEM_PROMPTS.get(template) if system_prompt is None else system_prompt, ""
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
        text = settings + text
    prompt = render_prompt(tokenizer, "1+2=?", text)
    for part, flag in ((system, "--system-prompt"), ("1+2=?", "--template")):
        if part and part.strip() not in prompt:
            raise InputError(
                f"{flag}: the chat template leaves out {part[:60]!r}, and renders 1+2=? as "
                f"{prompt!r}"
            )
    return text


def render_prompt(tokenizer, problem: str | Messages, template: str | None = None) -> str:
    """Return the prompt for `problem`, rendered by the Jinja text `template` or the tokenizer's.
    Raises InputError.
    """
    messages = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
    options = {"chat_template": template, "add_generation_prompt": True, "tokenize": False}
    try:
        return tokenizer.apply_chat_template(messages, **options)
    except Exception as error:  # a template is a program, and may raise anything
        failure = f"the chat template fails for the problem {str(problem)[:60]!r}"
        raise InputError(f"{failure} ({line_of(error)}); correct it") from error


def asks_for_tags(tokenizer, template: str | None = None, problems: Iterable[Problem] = ()) -> bool:
    """Return whether the template or a problem asks for answer tags. Then the final answer is
    the text between them.
    """
    # Answers without tags are read as ever, so one problem that asks for them changes nothing for
    # the others.
    return "<answer>" in render_prompt(tokenizer, "", template) or any(
        "<answer>" in p.text for p in problems
    )


def encode_prompt(tokenizer, problem: str | Messages, template: str | None = None) -> list[int]:
    """Return the token ids of `render_prompt`. Raises InputError, also if there are none."""
    ids = tokenizer.encode(render_prompt(tokenizer, problem, template), add_special_tokens=False)
    if not ids:
        raise InputError(
            f"the prompt of the problem {str(problem)[:60]!r} is empty; correct it, or the chat "
            "template"
        )
    return ids


def check_enough(
    problems: Sequence[Problem], questions_per_step: int, place: str, cure: str = "lower it"
) -> None:
    """Raise InputError if there are fewer `problems`, those of `place`, than a step has
    questions.
    """
    if len(problems) < questions_per_step:
        needed = f"--questions-per-step: {questions_per_step} different questions are needed"
        raise InputError(f"{needed}, {place} has {len(problems)}; {cure}")


def encode_problems(
    problems: Sequence[Problem], tokenizer, limit: int, questions_per_step: int = 1
) -> tuple[list[Problem], list[list[int]]]:
    """Return the problems with prompts of at most `limit` tokens, and the token ids of these.
    Raises InputError.
    """
    check_enough(problems, questions_per_step, "the data set")
    encoded = [(problem, encode_prompt(tokenizer, problem.problem)) for problem in problems]
    short = [(problem, prompt) for problem, prompt in encoded if len(prompt) <= limit]
    kept, prompts = [problem for problem, _ in short], [prompt for _, prompt in short]
    place, cure = (
        f"what --max-prompt-tokens {limit} leaves of the data",
        "raise that, or lower --questions-per-step",
    )
    check_enough(kept, questions_per_step, place, cure)
    return kept, prompts


def stop_token_ids(tokenizer) -> list[int]:
    """Return the token ids that end an answer: the tokenizer's end of text and the chat
    template's end of turn.
    """
    # Qwen2.5-Math's tokenizer names only <|endoftext|>, but its chat template ends turns with
    # <|im_end|>. A sampler that waits only for the first token continues to the length limit.
    vocabulary = tokenizer.get_vocab()
    names, answer = {tokenizer.eos_token, "<|endoftext|>", "<|im_end|>"}, "1+2=3"
    messages = [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": answer}]
    text = ""
    # There may be no template, or one for prompts only, and templates raise what they like
    with suppress(Exception):
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    _, found, end = text.rpartition(answer)
    ids = tokenizer.encode(end.lstrip(), add_special_tokens=False)[:1] if found else []
    names |= {
        token.content
        for i, token in tokenizer.added_tokens_decoder.items()
        if i in ids and token.special
    }
    return sorted(vocabulary[name] for name in names if name in vocabulary)


def questions_at(count: int, questions: int, place: int, seed: int) -> tuple[np.ndarray, int]:
    """Return the indices of the next problems [questions], and the place behind them.

    Epoch e of `count` problems has the places from e * count on. Every epoch is a permutation of
    all problems that depends on (seed, epoch) only. The last few of it are left out if they do not
    fill a step.
    """
    left = count - place % count
    epoch, start = divmod(place if left >= questions else place + left, count)
    order = np.random.default_rng([seed, epoch]).permutation(count)  # [count]
    return order[start : start + questions], epoch * count + start + questions


WATCHED = 2**32 - 1
"""Seed of the choice of the watched questions. For the seeds of their answers, it stands in
place of the step."""


def watched_questions(count: int, number: int) -> np.ndarray:
    """Return the indices of `number` of `count` problems, or of all if there are fewer."""
    # Independent of the run's seed, so that runs can be compared.
    return np.sort(np.random.default_rng(WATCHED).choice(count, min(number, count), replace=False))


def sampling_seeds(seed: int, step: int, questions: Sequence[int], draw: int = 0) -> list[int]:
    """Return a 32-bit seed per question, which depends on (seed, step, question, draw) only. Answer
    j adds j to it. `draw` counts the draws of a step from 0 (--resample-rounds).
    """
    # They do not depend on the rank or on earlier steps, so a resumed run and another number of
    # ranks sample the same answers. Two draws of a step can have the same question, if the data are
    # few or an epoch ends between them. Its answers must not be the same.
    later_draw = [draw] if draw else []
    return [
        int(np.random.SeedSequence([seed, step, int(q), *later_draw]).generate_state(1)[0])
        for q in questions
    ]
