"""The evaluation protocol: a suite of data sets, n sampled runs of each, pass@1 with its standard error."""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from bnpo.arithmetic import open_problems
from bnpo.config import ROOT
from bnpo.problems import InputError, Problem, encode_prompt
from bnpo.rewards import Grader
from bnpo.sampler import Sampler, sampling_seeds

SUITES = ROOT / "evals"


@dataclass(frozen=True)
class Dataset:
    """One data set of a suite: a JSON-lines file or `arithmetic`, answered `runs` times. `problems`: only for
    arithmetic, how many of its test split."""

    data: str
    runs: int
    problems: int = 500


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


def load_suite(name: str) -> Suite:
    """Read evals/<name>.json. Raises InputError listing the known suites, or naming what is wrong in the file."""
    path = SUITES / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.json")))
        raise InputError(f"--suite: no suite '{name}' in {SUITES}; known: {known}")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        datasets = {key: Dataset(**value) for key, value in fields.pop("datasets").items()}
        return Suite(name=name, datasets=datasets, **fields)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a suite ({error}); evals/arithmetic.json shows the fields") from error


def encode_prompts(problems: list[Problem], suite: Suite, tokenizer) -> list[list[int]]:
    """Prompts of all problems. Raises InputError where one is longer than the suite allows: leaving problems out would
    change the score."""
    prompts = [encode_prompt(tokenizer, problem.problem, suite.template) for problem in problems]
    for problem, prompt in zip(problems, prompts, strict=True):
        if len(prompt) > suite.max_prompt_tokens:
            raise InputError(
                f"suite {suite.name}: the prompt of problem {problem.id} has {len(prompt)} tokens, max_prompt_tokens "
                f"is {suite.max_prompt_tokens}; raise it in evals/{suite.name}.json"
            )
    return prompts


def run_dataset(
    problems: list[Problem],
    prompts: list[list[int]],
    runs: int,
    suite: Suite,
    sampler: Sampler,
    tokenizer,
    grader: Grader,
    seed: int,
) -> np.ndarray:
    """Sample `runs` answers to every prompt and grade them: correct [problems, runs] in {0, 1}."""
    answers, _ = sampler.sample(
        prompts,
        sampling_seeds(seed, 0, range(len(problems))),
        n=runs,
        max_tokens=suite.max_answer_tokens,
        temperature=suite.temperature,
        top_p=suite.top_p,
        progress=True,
    )
    texts = tokenizer.batch_decode([a.token_ids for a in chain.from_iterable(answers)], skip_special_tokens=True)
    references = [problem.answer for problem in problems for _ in range(runs)]
    return grader(texts, references)[:, 0].reshape(len(problems), runs)


def pass_at_1(correct: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of pass@1 from correct [problems, runs].

    The problems are the independent draws, not the answers: the error is that of the mean of the problems' means
    (clustered by problem; Miller 2024, "Adding Error Bars to Evals").

    >>> score, error = pass_at_1(np.array([[1, 1], [0, 0], [1, 0], [1, 0]]))
    >>> score, round(error, 4)
    (0.5, 0.2041)
    """
    means = correct.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))


def dataset_problems(dataset: Dataset) -> list[Problem]:
    """The problems of a data set; a relative path starts at the repository's root. Raises InputError."""
    data = dataset.data if dataset.data == "arithmetic" else str(ROOT / Path(dataset.data))
    return open_problems(data, "test", dataset.problems)
