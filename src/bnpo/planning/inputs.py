"""What a run reads, counted without a network: problems, prompts and the shape of the model."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import PreTrainedTokenizerBase

from bnpo.arithmetic import training_problems
from bnpo.config import TrainConfig
from bnpo.evaluation.suites import Dataset, Suite, dataset_problems, encode_prompts, load_suite
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import Shape, read_shape
from bnpo.policy.folder import check_attention, check_context, load_tokenizer, local_folder
from bnpo.problems import Problem
from bnpo.task import encode_problems, longest_sequence

PROMPT_TOKENS = {"chat": 103.0, "think": 150.0}
"""Tokens of a prompt of MATH on average, by template, with Qwen2.5-Math's tokenizer: where none is at hand."""


@dataclass(frozen=True)
class Model:
    """A model without its weights: its name, the folder of its config.json, its shape and tokenizer (None: not on this
    machine), the longest prompt plus answer that it will take."""

    name: str
    folder: Path
    shape: Shape
    tokenizer: PreTrainedTokenizerBase | None
    longest: int


@dataclass(frozen=True)
class Inputs:
    """What is read: problems to train on (0: an evaluation), tokens of a prompt on average, answers of an evaluation,
    and lines that say so."""

    model: Model
    problems: int
    prompt: float
    evaluated: int
    lines: list[str]


@cache
def find_model(name: str, longest: int) -> Model:
    """What this machine has of model `name`: a folder, the hub's cache, else a shape in data/models. Raises InputError
    where it has no shape, or prompts and answers of `longest` tokens do not fit its context."""
    folder = local_folder(name)
    if folder is None:
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except LocalEntryNotFoundError:
            folder = ROOT / "data" / "models" / Path(name).name
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{name}: neither a folder with a config.json, nor in the hub's cache, nor of a shape in data/models; a "
            "dry run downloads nothing: download the model, or give the path of a copy"
        )
    check_context(folder, longest)
    tokenizer = load_tokenizer(folder, longest) if any(folder.glob("tokenizer*")) else None
    return Model(name, folder, read_shape(folder), tokenizer, longest)


def training_inputs(config: TrainConfig) -> Inputs:
    """What a training run reads, evaluations on the way included. Raises InputError for files that are wrong; those
    that are missing are told, and the plan takes what data/manifest.json expects of them."""
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    model = find_model(config.data.model, longest_sequence(config, suite))
    check_attention(model.folder)
    problems, prompt, line = _count_training(config, model.tokenizer)
    answers, lines = count_suite(suite, model.tokenizer) if suite else (0, ["no evaluation on the way"])
    return Inputs(model, problems, prompt, answers, [*_tokenizer_line(model), line, *lines])


def evaluation_inputs(model: str, suite: Suite) -> Inputs:
    """What an evaluation of `model` reads; raises InputError as `training_inputs`."""
    found = find_model(model, suite.max_prompt_tokens + suite.max_answer_tokens)
    answers, lines = count_suite(suite, found.tokenizer)
    return Inputs(found, 0, PROMPT_TOKENS[suite.template], answers, [*_tokenizer_line(found), *lines])


def _tokenizer_line(model: Model) -> list[str]:
    if model.tokenizer is not None:
        return []
    return [f"the tokenizer of {model.name} is not on this machine: prompts are not counted in tokens"]


def _count_training(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, float, str]:
    """Problems whose prompts are not too long, mean tokens of a prompt, and a line."""
    usual = PROMPT_TOKENS[config.data.template]
    try:
        problems = training_problems(config.data.train_data)
    except InputError as error:
        count = _expected(config.data.train_data, error)
        return count, usual, f"missing: {error}; planned with the {count:,} problems that it must have"
    kept, prompts = encode_problems(config, problems, tokenizer) if tokenizer else (problems, None)
    prompt = float(round(sum(map(len, prompts)) / len(prompts))) if prompts else usual
    line = f"{config.data.train_data}: {len(problems):,} problems, {_longest(kept, prompts)}"
    remaining = set(kept)
    if left_out := [problem.id for problem in problems if problem not in remaining]:
        line += (
            f"; {len(left_out)} left out, over {config.sampling.max_prompt_tokens} tokens: {', '.join(left_out[:5])}"
        )
    return len(kept), prompt, line


def count_suite(suite: Suite, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, list[str]]:
    """Answers of an evaluation by `suite`, and a line a data set. Raises InputError as `training_inputs`."""
    answers, lines = 0, []
    for name, dataset in suite.datasets.items():
        count, what = _count_dataset(dataset, suite, tokenizer)
        answers += count * dataset.runs
        lines.append(f"{suite.name}: {name}: {count} problems x {dataset.runs} runs, {what}")
    return answers, lines


def _count_dataset(dataset: Dataset, suite: Suite, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, str]:
    try:
        problems = dataset_problems(dataset)
    except InputError as error:
        count = min(_expected(dataset.data, error), dataset.problems or 10**9)
        return count, f"missing: {error}"
    prompts = encode_prompts(problems, suite, tokenizer) if tokenizer else None
    return len(problems), _longest(problems, prompts)


def _expected(data: str, error: InputError) -> int:
    """The problems that a missing file of the paper's must have; raises `error` where a file is there, or unknown."""
    sets = json.loads((ROOT / "data" / "manifest.json").read_text(encoding="utf-8"))["sets"]
    if Path(data).stem not in sets or Path(data).exists() or (ROOT / data).exists():
        raise error
    return sets[Path(data).stem]["rows"]


def _longest(problems: list[Problem], prompts: list[list[int]] | None) -> str:
    """The longest prompt, in tokens or, without a tokenizer, in characters of its problem."""
    sizes = [len(prompt) for prompt in prompts] if prompts else [len(problem.problem) for problem in problems]
    size, longest = max(zip(sizes, (problem.id for problem in problems), strict=True))
    return f"the longest {longest}, {size:,} {'tokens' if prompts else 'characters'}"
