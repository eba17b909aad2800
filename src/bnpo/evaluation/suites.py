"""Evaluation suites: data sets, prompts and sampling settings, in a small JSON file."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from bnpo.config import (
    TEMPERATURES,
    Positive,
    Share,
    TrainConfig,
    check_template,
    read_prompt,
    validate,
)
from bnpo.data import Columns, content_hash, folder_and_config, load_problems
from bnpo.errors import is_first_rank
from bnpo.files import ROOT, InputError, read_json, read_text
from bnpo.grading.rewards import BOTH_RULES, GRADERS, check_function, reference_number
from bnpo.prompts import SYSTEM_PROMPTS, chat_template, encode_prompt, render_prompt
from bnpo.tasks import Problem, built_in_problems, is_built_in

SUITES = ROOT / "evals"


@dataclass(frozen=True)
class Dataset(Columns):
    """One data set of a suite."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    data: str  # a source, as in --train-data
    repetitions: Positive[int]  # answers to each problem
    # Number of problems, from the start of the source. The standard error needs two.
    problems: Annotated[int, Field(ge=2)] | None = None
    # Other reference answers than the source's, by id, such as 4.2 \pm 0.1
    references: dict[str, str] | None = None
    sha256: str | None = None  # of the problems, as `content_hash` returns it; None: any problems


@dataclass(frozen=True)
class Suite:
    """The fields of a suite's JSON file; docs/evaluation.md explains them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    datasets: Annotated[dict[str, Dataset], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=TEMPERATURES[1])]
    top_p: Share
    template: str
    max_prompt_tokens: Positive[int]
    max_answer_tokens: Positive[int]
    system_prompt: str | None = None
    thinking: Literal["on", "off"] | None = None
    grader: str = "default"  # rule of the scores: a name in GRADERS, or path/to/file.py:function
    both_rules: bool = False  # grade every answer by BOTH_RULES, too

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that grade every answer. The first one is the rule of the scores."""
        return tuple(dict.fromkeys((self.grader, *(BOTH_RULES if self.both_rules else ()))))

    @property
    def longest(self) -> int:
        """The most tokens of prompt plus answer."""
        return self.max_prompt_tokens + self.max_answer_tokens

    def without_rules(self) -> dict:
        """Return the fields that samples depend on, with the text of a template's file."""
        fields = asdict(self)
        del fields["grader"], fields["both_rules"]
        if self.template not in SYSTEM_PROMPTS:
            fields["template"] = read_text(self.template)
        return fields


def load_suite(name: str) -> Suite:
    """Read evals/<name>.json, or the file `name` itself if it ends in .json."""
    path = Path(name) if name.endswith(".json") else SUITES / f"{name}.json"
    if not os.path.isfile(path):  # unlike Path.is_file, False for names that are too long
        known = ", ".join(sorted(file.stem for file in SUITES.glob("*.json")))
        raise InputError(
            f"no evaluation suite '{name}'; known: {known}, or a path that ends in .json"
        )
    advice = "evals/paper.json shows the fields"
    fields = read_json(path, advice)
    prompt, template = fields.get("system_prompt"), fields.get("template")
    try:
        if isinstance(prompt, str):
            fields["system_prompt"] = read_prompt(prompt, [ROOT, Path()])
        if isinstance(template, str) and os.path.isfile(ROOT / template):
            fields["template"] = str(ROOT / template)
        suite = validate(Suite, {"name": path.stem, **fields})
        check_template(suite.template, suite.system_prompt)
        check_function("grader", suite.grader, GRADERS)
    except InputError as error:
        fault = str(error).removeprefix("--")
        raise InputError(f"{path}: not a suite ({fault}); {advice}") from error
    return suite


def override(
    suite: Suite, repetitions: Sequence[str], limit: int | None, grader: str | None = None
) -> Suite:
    """Return `suite` with --repetitions, --limit and --grader, and 1 repetition if it is greedy."""
    datasets = dict(suite.datasets)
    for entry in repetitions:
        name, _, count = entry.rpartition("=")
        if (name and name not in datasets) or not count.isdecimal() or int(count) < 1:
            names = ", ".join(datasets)
            raise InputError(
                f"--repetitions: '{entry}' is not N above 0, or NAME=N with NAME one of {names}"
            )
        for key in [name] if name else datasets:
            datasets[key] = replace(datasets[key], repetitions=int(count))
    if limit is not None:
        for key, dataset in datasets.items():
            problems = min(limit, dataset.problems or limit)
            datasets[key] = replace(dataset, problems=problems, sha256=None)
    repeated = {name: data for name, data in datasets.items() if data.repetitions > 1}
    if repeated and suite.temperature == 0:
        datasets |= {name: replace(data, repetitions=1) for name, data in repeated.items()}
        if is_first_rank():
            counts = ", ".join(f"{name} {data.repetitions}" for name, data in repeated.items())
            print(
                f"suite {suite.name}: at temperature 0 all answers to a problem are equal, so each "
                f"problem is answered once (repetitions asked for: {counts})",
                flush=True,
            )
    return replace(suite, datasets=datasets, grader=grader or suite.grader)


def suite_problems(suite: Suite) -> dict[str, list[Problem]]:
    """Return the problems of every data set. If files are missing, the error names them all."""
    missing = []
    for dataset in suite.datasets.values():
        source = _source(dataset)
        is_local = not (is_built_in(source) or source.startswith("hub:"))
        if is_local and not (os.path.isfile(source) or folder_and_config(source)):
            missing.append(source)
    if len(missing) > 1:  # a single one is refused below
        sets = " ".join(Path(source).stem for source in missing)
        raise InputError(
            f"{', '.join(missing)}: no such data files; `python scripts/prepare_data.py --only "
            f"{sets}` downloads the sets of data/README.md"
        )
    return {name: dataset_problems(dataset) for name, dataset in suite.datasets.items()}


def _source(dataset: Dataset) -> str:
    """Return the source of a data set, whose relative path starts at the repository's root."""
    if is_built_in(dataset.data) or dataset.data.startswith("hub:"):
        return dataset.data
    return str(ROOT / os.path.expanduser(dataset.data))


def dataset_problems(dataset: Dataset) -> list[Problem]:
    source = _source(dataset)
    # Built-in tasks have no end of their own
    problems = built_in_problems(source, "test", dataset.problems or 500)
    problems = problems or load_problems(source, dataset)
    references = dict(dataset.references or {})
    problems = [
        replace(problem, answer=references.pop(problem.id, problem.answer)) for problem in problems
    ]
    if references:
        raise InputError(
            f"{source}: has no problem {', '.join(references)}; correct `references` in the "
            "suite's file"
        )
    problems = problems[: dataset.problems]
    if len(problems) < 2:
        raise InputError(f"{source}: has one problem; the standard error needs at least two")
    [(name, count)] = Counter(problem.id for problem in problems).most_common(1)
    if count > 1:
        raise InputError(f"{source}: the id {name} occurs more than once; make ids unique")
    if dataset.sha256 and content_hash(problems) != dataset.sha256:
        raise InputError(
            f"{source}: has other problems than before (their sha256 was {dataset.sha256}); "
            "restore it"
        )
    return problems


# A run is refused if no answer can match more of the references. MATH has 2 empty ones in 7,500.
BAD_REFERENCES = 0.01
LIST_OF_ONE = re.compile(r"\[\s*(['\"])[^'\"]*\1\s*\]")


def check_references(
    problems: Sequence[Problem], sources: Sequence[str], rewards: Sequence[str], rule: str
) -> None:
    """Raise InputError if no answer can match many of the references: rewards would stay 0."""
    if rule not in GRADERS or not {"accuracy", "last_number"}.intersection(rewards):
        return  # a function of the user's may need no reference
    checks = {"is empty": [p for p in problems if not p.answer.strip()]}
    # The reward last_number may be there beside accuracy by another rule
    if rule == "last_number" or "last_number" in rewards:
        fault = "is not one number, which --grader last_number and the reward last_number need"
        checks[fault] = _without_number(problems)
    else:
        lists = [p for p in problems if LIST_OF_ONE.fullmatch(p.answer.strip())]
        checks["is a whole solution"] = [p for p in problems if _is_solution(p.answer)]
        # No certain fault: answers of some tasks are lists
        checks["is a list"] = lists if len(lists) > len(problems) / 2 else []
    for fault, faulty in checks.items():
        if len(faulty) > BAD_REFERENCES * len(problems):
            first = f"the one of problem {faulty[0].id}, {faulty[0].answer[:60]!r}, {fault}"
            raise InputError(
                f"{' '.join(sources)}: no answer can match {len(faulty)} of {len(problems)} "
                f"references: {first}; correct them, or set --answer-field, or "
                "--answer-pattern: last_box, or '####\\s*(.*)' for GSM8K"
            )


def are_numbers(problems: Sequence[Problem]) -> bool:
    """Return whether the rule last_number can grade answers to `problems`."""
    return len(_without_number(problems)) <= BAD_REFERENCES * len(problems)


def _is_solution(reference: str) -> bool:
    """Return whether a reference ends as in GSM8K, or has a box after a sentence, as in MATH."""
    before, box, _ = reference.partition("\\boxed")
    return "####" in reference or (bool(box) and len(before.split()) > 5)


def _without_number(problems: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in problems if reference_number(problem.answer) is None]


def suite_template(suite: Suite, tokenizer) -> str:
    try:
        return chat_template(tokenizer, suite.template, suite.system_prompt, suite.thinking)
    except InputError as error:
        raise InputError(f"suite {suite.name}: {error}") from error


def own_settings(suite: Suite, grader: str, tokenizer) -> list[str]:
    """Return lines on what differs from training: the suite's prompt, and its rule, which is not
    used.
    """
    lines = []
    template = suite_template(suite, tokenizer)
    if render_prompt(tokenizer, "1+2=?", template) != render_prompt(tokenizer, "1+2=?"):
        lines.append(
            f"evaluations have the prompt of the suite {suite.name}, which differs from the prompt "
            "of the training"
        )
    if suite.grader != grader:
        lines.append(
            f"evaluations are graded by --grader {grader}, not by {suite.grader} as the suite "
            f"{suite.name} says for eval.py"
        )
    return lines


def encode_prompts(problems: list[Problem], suite: Suite, tokenizer) -> list[list[int]]:
    """Return the token ids of all prompts. Raises InputError if one is longer than allowed."""
    prompts = []
    template = suite_template(suite, tokenizer)
    for problem in problems:
        prompt = encode_prompt(tokenizer, problem.problem, template)
        if len(prompt) > suite.max_prompt_tokens:  # skipping the problem would change the score
            raise InputError(
                f"suite {suite.name}: the prompt of problem {problem.id} has {len(prompt)} tokens, "
                f"max_prompt_tokens is {suite.max_prompt_tokens}; raise it in the suite's file"
            )
        prompts.append(prompt)
    return prompts


def longest_sequence(config: TrainConfig, suite: Suite | None) -> int:
    """Return the most tokens of prompt plus answer, in training and in evaluations by `suite`."""
    longest = config.sampling.longest
    return max(longest, suite.longest if suite else 0)
