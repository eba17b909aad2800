"""Evaluation suites: what is evaluated and how. A suite is a small JSON file, in evals/ or anywhere."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bnpo.arithmetic import arithmetic_problems
from bnpo.files import ROOT, InputError
from bnpo.problems import SYSTEM_PROMPTS, TEMPERATURES, Problem, encode_prompt, load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUITES = ROOT / "evals"


@dataclass(frozen=True)
class Dataset:
    """One data set of a suite: a JSON-lines file or `arithmetic`, answered `runs` times. `problems`: the first so many,
    None for all (of `arithmetic`, which has no end, 500)."""

    data: str
    runs: int
    problems: int | None = None


@dataclass(frozen=True)
class Suite:
    """What is evaluated and how; lengths are in tokens."""

    name: str
    datasets: dict[str, Dataset]
    temperature: float
    top_p: float
    template: str
    max_prompt_tokens: int
    max_answer_tokens: int


class Request(NamedTuple):
    """One answer to be sampled: problem `index` of `dataset`, `run` of its runs. The key of its record."""

    dataset: str
    index: int  # type: ignore[assignment]  # in place of tuple.index, which nobody calls
    run: int

    @classmethod
    def of(cls, record: Mapping) -> "Request":
        """What `record` answers."""
        return cls(record["dataset"], record["index"], record["run"])


def load_suite(name: str) -> Suite:
    """Read evals/<name>.json, or the file `name` itself if it ends in .json.

    Raises InputError listing the known suites, or naming what is wrong in the file.
    """
    path = Path(name) if name.endswith(".json") else SUITES / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.json")))
        raise InputError(f"no evaluation suite '{name}'; known: {known}, or a path that ends in .json")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        datasets = {key: Dataset(**value) for key, value in fields.pop("datasets").items()}
        suite = Suite(name=path.stem, datasets=datasets, **fields)
        least = {"max_prompt_tokens": (suite.max_prompt_tokens, 1), "max_answer_tokens": (suite.max_answer_tokens, 1)}
        for key, dataset in datasets.items():
            if not isinstance(dataset.data, str):
                raise ValueError(f"data of {key} is {dataset.data!r}, must be a path or arithmetic")
            least[f"runs of {key}"] = (dataset.runs, 1)
            if dataset.problems is not None:
                least[f"problems of {key}"] = (dataset.problems, 2)
        for field, (value, minimum) in least.items():
            if not (isinstance(value, int) and value >= minimum):
                raise ValueError(f"{field} is {value!r}, must be a number of at least {minimum}")
        if suite.template not in SYSTEM_PROMPTS:
            raise ValueError(f"template is {suite.template!r}, known: {', '.join(SYSTEM_PROMPTS)}")
        lowest, highest = TEMPERATURES
        if not (suite.temperature == 0 or lowest <= suite.temperature <= highest):
            raise ValueError(f"temperature is {suite.temperature}, must be 0 or from {lowest} to {highest}")
        if not datasets or not 0 < suite.top_p <= 1:
            raise ValueError("datasets must not be empty, top_p above 0 and at most 1")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a suite ({error}); evals/paper.json shows the fields") from error
    return suite


def override(suite: Suite, runs: Sequence[str], limit: int | None) -> Suite:
    """`suite` with other numbers of runs, each given as `NAME=N` or `N` for all data sets, and at most `limit`
    problems of each data set. Raises InputError."""
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
        datasets = {key: replace(d, problems=min(limit, d.problems or limit)) for key, d in datasets.items()}
    return replace(suite, datasets=datasets)


def dataset_problems(dataset: Dataset) -> list[Problem]:
    """The problems of a data set; a relative path starts at the repository's root. Raises InputError."""
    if dataset.data == "arithmetic":
        return arithmetic_problems("test", dataset.problems or 500)
    path = ROOT / dataset.data
    if not path.is_file():
        raise InputError(f"{path}: no such data file; `python scripts/prepare_data.py` downloads the paper's data sets")
    problems = load_problems(path)[: dataset.problems]
    if len(problems) < 2:
        raise InputError(f"{path}: has one problem; the standard error needs at least two")
    if repeated := [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]:
        raise InputError(f"{path}: the ids {', '.join(repeated[:5])} occur more than once; make them unique")
    return problems


def content_hash(problems: Sequence[Problem]) -> str:
    """SHA-256 over ids, texts and answers, so that results say which problems they are about."""
    rows = [[problem.id, problem.problem, problem.answer] for problem in problems]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def encode_prompts(problems: list[Problem], suite: Suite, tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Prompts of all problems. Raises InputError where one is longer than the suite allows: leaving problems out would
    change the score."""
    prompts = [encode_prompt(tokenizer, problem.problem, suite.template) for problem in problems]
    for problem, prompt in zip(problems, prompts, strict=True):
        if len(prompt) > suite.max_prompt_tokens:
            raise InputError(
                f"suite {suite.name}: the prompt of problem {problem.id} has {len(prompt)} tokens, max_prompt_tokens "
                f"is {suite.max_prompt_tokens}; raise it in the suite's file"
            )
    return prompts
