"""What a run reads, counted without a network: problems, prompts and the shape of the model."""

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig
from bnpo.evaluation.suites import Suite, dataset_problems, encode_prompts, load_suite
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import ModelShape, read_shape
from bnpo.policy.folder import check_context, load_tokenizer, local_folder
from bnpo.policy.model_check import check_model
from bnpo.problems import Problem
from bnpo.sources import load_sources
from bnpo.task import encode_problems, longest_sequence

# Mean tokens of a MATH prompt by template, with Qwen2.5-Math's tokenizer. Assumed where no tokenizer is at hand.
PROMPT_TOKENS = defaultdict(lambda: 103.0, think=150.0)


@dataclass(frozen=True)
class LocalModel:
    """What this machine has of a model, without its weights."""

    name: str
    folder: Path  # of its config.json
    shape: ModelShape
    tokenizer: PreTrainedTokenizerBase | None  # None: not on this machine
    longest: int  # tokens of the longest prompt plus answer that it gets
    lines: list[str]  # what is missing, to be printed


@dataclass(frozen=True)
class PlanInputs:
    """What a run reads."""

    model: LocalModel
    problems: int  # to train on; 0 for an evaluation
    prompt: float  # mean tokens of a prompt
    eval_problems: dict[str, int]  # of one evaluation, by data set
    eval_answers: int  # to all of them
    lines: list[str]  # all this, to be printed


@cache
def find_model(name: str, longest: int) -> LocalModel:
    """Return what this machine has of model `name`: from a folder, the Hugging Face cache or data/models.

    Raises InputError if it is in none of them, or if its context is shorter than `longest` tokens.
    """
    folder = local_folder(name)
    if folder is None:
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError:
            folder = ROOT / "data" / "models" / Path(name).name
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{name}: no config.json in a folder of this name, in the Hugging Face cache or in data/models. A dry run "
            "downloads nothing: download the model first, or give the path of a copy"
        )
    check_context(folder, longest)
    tokenizer, lines = None, [f"{name}: its tokenizer is not on this machine, so prompts are not counted in tokens"]
    if any(folder.glob("tokenizer*")):
        tokenizer, lines = load_tokenizer(folder, longest), []
    return LocalModel(name, folder, read_shape(folder), tokenizer, longest, lines)


def training_inputs(config: TrainConfig) -> PlanInputs:
    """Return what a training run and its evaluations read. Raises InputError for wrong files.

    A missing file of the paper's data is assumed to be as data/manifest.json says.
    """
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    model = find_model(config.data.model, longest_sequence(config, suite))
    check_model(model.folder, model.longest)
    problems, prompt, line = _count_training(config, model.tokenizer)
    counts, answers, lines = _count_suite(suite, model) if suite else ({}, 0, ["no evaluation during training"])
    return PlanInputs(model, problems, prompt, counts, answers, [*model.lines, line, *lines])


def evaluation_inputs(name: str, suite: Suite) -> PlanInputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    model = find_model(name, suite.max_prompt_tokens + suite.max_answer_tokens)
    counts, answers, lines = _count_suite(suite, model)
    return PlanInputs(model, 0, PROMPT_TOKENS[suite.template], counts, answers, [*model.lines, *lines])


def _count_training(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, float, str]:
    """Return the number of problems to train on, the mean tokens of a prompt, and a line about both."""
    sources, usual_prompt = config.data.train_data, PROMPT_TOKENS[config.data.template]
    try:
        problems, _ = load_sources(sources, config.columns)
    except InputError as error:
        count = _expected_problems(sources[0], error)
        return count, usual_prompt, f"missing: {error}; the plan assumes its {count:,} problems"
    line = f"{' '.join(sources)}: {len(problems):,} problems, "
    if tokenizer is None:
        return len(problems), usual_prompt, line + _longest_problem(problems, None)
    trained, prompts = encode_problems(config, problems, tokenizer)
    line += _longest_problem(trained, prompts)
    trained_set = set(trained)
    too_long = [problem.id for problem in problems if problem not in trained_set]
    if too_long:
        limit = config.sampling.max_prompt_tokens
        line += f"; {len(too_long)} left out, over {limit} tokens: {', '.join(too_long[:5])}"
    for problem, prompt in list(zip(trained, prompts, strict=True))[:2]:
        line += f"\nprompt of problem {problem.id}:\n{tokenizer.decode(prompt)}\nanswer: {problem.answer}"
    mean_prompt = round(sum(len(prompt) for prompt in prompts) / len(prompts))
    return len(trained), float(mean_prompt), line


def _count_suite(suite: Suite, model: LocalModel) -> tuple[dict[str, int], int, list[str]]:
    """Return the problems by data set and the answers of an evaluation by `suite`, and a line about every data set."""
    counts, answers, lines = {}, 0, []
    for name, dataset in suite.datasets.items():
        try:
            problems = dataset_problems(dataset)
        except InputError as error:
            expected = _expected_problems(dataset.data, error)
            count, text = min(expected, dataset.problems or expected), f"missing: {error}"
        else:
            prompts = encode_prompts(problems, suite, model.tokenizer) if model.tokenizer else None
            count, text = len(problems), _longest_problem(problems, prompts)
        counts[name] = count
        answers += count * dataset.runs
        lines.append(f"{suite.name}: {name}: {count} problems x {dataset.runs} repetitions, {text}")
    return counts, answers, lines


def _expected_problems(data: str, error: InputError) -> int:
    """Return how many problems a missing file of the paper has. Raises `error` for a file that exists or is unknown."""
    manifest = json.loads((ROOT / "data" / "manifest.json").read_text(encoding="utf-8"))
    name = Path(data).stem
    if name not in manifest["sets"] or Path(data).exists() or (ROOT / data).exists():
        raise error
    return manifest["sets"][name]["rows"]


def _longest_problem(problems: list[Problem], prompts: list[list[int]] | None) -> str:
    """Name the problem with the longest prompt or, without prompts, with the longest text."""
    texts = prompts if prompts else [problem.problem for problem in problems]
    size, name = max((len(text), problem.id) for text, problem in zip(texts, problems, strict=True))
    return f"the longest {name}, {size:,} {'tokens' if prompts else 'characters'}"
