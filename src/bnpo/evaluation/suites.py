"""Evaluation suites: which data sets are evaluated, and how. A suite is a small JSON file, in evals/ or anywhere."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.config import TrainConfig
from bnpo.data import (
    SYSTEM_PROMPTS,
    TEMPERATURES,
    Columns,
    Problem,
    arithmetic_problems,
    chat_template,
    encode_prompt,
    load_problems,
)
from bnpo.files import ROOT, InputError
from bnpo.grading.rewards import GRADERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUITES = ROOT / "evals"


@dataclass(frozen=True)
class Dataset(Columns):
    """One data set of a suite."""

    data: str  # a source, as in --train-data
    runs: int  # repetitions per problem
    problems: int | None = None  # only so many from the beginning; None: all
    references: dict[str, str] | None = None  # other reference answers than the file's, by id, such as 4.2 \pm 0.1


@dataclass(frozen=True)
class Suite:
    """Data sets by name, sampling parameters, and the largest lengths in tokens. Mirrors the JSON file."""

    name: str
    datasets: dict[str, Dataset]
    temperature: float
    top_p: float
    template: str
    max_prompt_tokens: int
    max_answer_tokens: int
    grader: str = "default"  # rule of the scores: a name in GRADERS, or path/to/file.py:function by --grader


def load_suite(name: str) -> Suite:
    """Read evals/<name>.json, or the file `name` itself if it ends in .json. Raises InputError."""
    path = Path(name) if name.endswith(".json") else SUITES / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.json")))
        raise InputError(f"no evaluation suite '{name}'; known: {known}, or a path that ends in .json")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        datasets = {key: Dataset(**value) for key, value in fields.pop("datasets").items()}
        suite = Suite(name=path.stem, datasets=datasets, **fields)
        _check(suite)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a suite ({error}); evals/paper.json shows the fields") from error
    return suite


def _check(suite: Suite) -> None:
    """Raise ValueError for a value that is not allowed, TypeError for a type that cannot be compared."""
    _check_number("max_prompt_tokens", suite.max_prompt_tokens, 1)
    _check_number("max_answer_tokens", suite.max_answer_tokens, 1)
    for name, dataset in suite.datasets.items():
        if not isinstance(dataset.data, str):
            raise ValueError(f"data of {name} is {dataset.data!r}, must be a source as in --train-data")
        dataset.check()
        if not all(isinstance(answer, str) for answer in (dataset.references or {}).values()):
            raise ValueError(f"references of {name} is {dataset.references!r}, must have a text for each id")
        _check_number(f"runs of {name}", dataset.runs, 1)
        if dataset.problems is not None:
            _check_number(f"problems of {name}", dataset.problems, 2)  # the standard error needs two
    if suite.template not in SYSTEM_PROMPTS and not (ROOT / suite.template).is_file():
        raise ValueError(f"template is {suite.template!r}, known: {', '.join(SYSTEM_PROMPTS)}, or a Jinja file")
    lowest, highest = TEMPERATURES
    if not (suite.temperature == 0 or lowest <= suite.temperature <= highest):
        raise ValueError(f"temperature is {suite.temperature}, must be 0 or from {lowest} to {highest}")
    if not suite.datasets or not 0 < suite.top_p <= 1:
        raise ValueError("datasets must not be empty, top_p above 0 and at most 1")
    if suite.grader not in GRADERS:
        raise ValueError(f"grader is {suite.grader!r}, known: {', '.join(GRADERS)}")


def _check_number(field: str, value: object, minimum: int) -> None:
    if not (isinstance(value, int) and value >= minimum):
        raise ValueError(f"{field} is {value!r}, must be a whole number of at least {minimum}")


def override(suite: Suite, runs: Sequence[str], limit: int | None, grader: str | None = None) -> Suite:
    """Return `suite` with the repetitions of --runs, at most `limit` problems per data set, and the rule `grader`
    (None: its own). Raises InputError."""
    datasets = dict(suite.datasets)
    for entry in runs:
        name, _, count = entry.rpartition("=")
        if name and name not in datasets:
            raise InputError(f"--runs: no data set '{name}' in suite {suite.name}; it has {', '.join(datasets)}")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(f"--runs: '{entry}' is not NAME=N or N with N above 0")
        for key in [name] if name else datasets:
            datasets[key] = replace(datasets[key], runs=int(count))
    if limit is not None:
        if limit < 2:
            raise InputError(f"--limit: is {limit}, must be at least 2: the standard error needs two problems")
        for key, dataset in datasets.items():
            datasets[key] = replace(dataset, problems=min(limit, dataset.problems or limit))
    return replace(suite, datasets=datasets, grader=grader or suite.grader)


def dataset_problems(dataset: Dataset) -> list[Problem]:
    """Return the problems of a data set. A relative path starts at the repository's root. Raises InputError."""
    if dataset.data == "arithmetic":
        return arithmetic_problems("test", dataset.problems or 500)  # drawn, and therefore without an end of its own
    source = dataset.data if dataset.data.startswith("hub:") else str(ROOT / dataset.data)
    problems = load_problems(source, dataset)
    references = dataset.references or {}
    unknown = references.keys() - {problem.id for problem in problems}
    if unknown:
        raise InputError(f"{source}: has no problem {unknown.pop()}; remove it from `references` in the suite's file")
    problems = [replace(problem, answer=references.get(problem.id, problem.answer)) for problem in problems]
    problems = problems[: dataset.problems]
    if len(problems) < 2:
        raise InputError(f"{source}: has one problem; the standard error needs at least two")
    counts = Counter(problem.id for problem in problems)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise InputError(f"{source}: the ids {', '.join(repeated[:5])} occur more than once; make them unique")
    return problems


def suite_template(suite: Suite, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the Jinja template of the suite's prompts. Raises InputError."""
    return chat_template(tokenizer, suite.template if suite.template in SYSTEM_PROMPTS else str(ROOT / suite.template))


def encode_prompts(problems: list[Problem], suite: Suite, tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Return the prompts of all problems, as token ids. Raises InputError if one is longer than the suite allows."""
    prompts, template = [], suite_template(suite, tokenizer)
    for problem in problems:
        prompt = encode_prompt(tokenizer, problem.problem, template)
        if len(prompt) > suite.max_prompt_tokens:  # skipping the problem would change the score
            raise InputError(
                f"suite {suite.name}: the prompt of problem {problem.id} has {len(prompt)} tokens, max_prompt_tokens "
                f"is {suite.max_prompt_tokens}; raise it in the suite's file"
            )
        prompts.append(prompt)
    return prompts


def longest_sequence(config: TrainConfig, suite: Suite | None) -> int:
    """Return the most tokens of a prompt plus answer, in training and in the evaluation by `suite` if there is one."""
    longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
    if suite:
        longest = max(longest, suite.max_prompt_tokens + suite.max_answer_tokens)
    return longest
