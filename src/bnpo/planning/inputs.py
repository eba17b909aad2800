"""What a run reads, counted without a network: problems, prompts and the shape of the model."""

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig
from bnpo.data import chat_template, check_enough, encode_problems, load_sources
from bnpo.evaluation.suites import Suite, dataset_problems, encode_prompts, load_suite, longest_sequence
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import ModelShape, read_shape
from bnpo.policy.folder import check_context, load_tokenizer, local_folder
from bnpo.policy.model_check import check_model

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
        cached = try_to_load_from_cache(name, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else ROOT / "data" / "models" / Path(name).name
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{name}: no config.json in a folder of this name, in the Hugging Face cache or in data/models. A dry run "
            "downloads nothing: download the model first, or give the path of a copy"
        )
    check_context(folder, longest)
    tokenizer = load_tokenizer(folder, longest) if any(folder.glob("tokenizer*")) else None
    return LocalModel(name, folder, read_shape(folder), tokenizer, longest)


def training_inputs(config: TrainConfig) -> PlanInputs:
    """Return what a training run and its evaluations read. Raises InputError for wrong files.

    A missing file of the paper's data is assumed to be as data/manifest.json says.
    """
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    model = find_model(config.data.model, longest_sequence(config, suite))
    check_model(model.folder, model.longest)
    problems, prompt, line = _count_training(config, model.tokenizer)
    counts, answers, lines = _count_suite(suite, model) if suite else ({}, 0, ["no evaluation during training"])
    return PlanInputs(model, problems, prompt, counts, answers, [line, *lines])


def evaluation_inputs(name: str, suite: Suite) -> PlanInputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    model = find_model(name, suite.max_prompt_tokens + suite.max_answer_tokens)
    return PlanInputs(model, 0, PROMPT_TOKENS[suite.template], *_count_suite(suite, model))


def _count_training(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, float, str]:
    """Return the number of problems to train on, the mean tokens of a prompt, and lines about both."""
    sources, usual_prompt = config.data.train_data, PROMPT_TOKENS[config.data.template]
    missing = _missing_problems(sources[0])
    if missing is not None:
        return missing, usual_prompt, f"{sources[0]}: missing, so the plan assumes its {missing:,} problems"
    problems, _ = load_sources(sources, config.columns)
    line = f"{' '.join(sources)}: {len(problems):,} problems"
    if tokenizer is None:
        return len(problems), usual_prompt, f"{line}, not counted in tokens: the tokenizer is not on this machine"
    data = config.data
    tokenizer.chat_template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
    kept, prompts = encode_problems(problems, tokenizer, config.sampling.max_prompt_tokens)
    check_enough(kept, config.batch.questions_per_step, sources)
    lengths = [len(prompt) for prompt in prompts]
    line += f", {len(problems) - len(kept)} of them left out: prompt over {config.sampling.max_prompt_tokens} tokens"
    line += f"\nthe longest of the other prompts has {max(lengths)} tokens"
    for problem, prompt in zip(kept[:2], prompts[:2], strict=True):
        line += f"\nprompt of problem {problem.id}:\n{tokenizer.decode(prompt)}\nanswer: {problem.answer}"
    return len(kept), float(round(fmean(lengths))), line


def _count_suite(suite: Suite, model: LocalModel) -> tuple[dict[str, int], int, list[str]]:
    """Return the problems by data set and the answers of an evaluation by `suite`, and a line about every data set."""
    counts, answers, lines = {}, 0, []
    for name, dataset in suite.datasets.items():
        count, note = _missing_problems(dataset.data), ""
        if count is not None:
            count, note = min(count, dataset.problems or count), f" ({dataset.data} is missing)"
        else:
            problems = dataset_problems(dataset)
            count = len(problems)
            if model.tokenizer:
                encode_prompts(problems, suite, model.tokenizer)  # refuses prompts that are too long
        counts[name] = count
        answers += count * dataset.repetitions
        lines.append(f"{suite.name}: {name}: {count} problems x {dataset.repetitions} repetitions{note}")
    return counts, answers, lines


def _missing_problems(data: str) -> int | None:
    """Return how many problems a missing file of the paper has. None: it is not missing, or not one of the paper's."""
    path = Path(data)
    if path.suffix != ".jsonl" or path.exists() or (ROOT / path).exists():
        return None
    manifest = json.loads((ROOT / "data" / "manifest.json").read_text(encoding="utf-8"))
    return manifest["sets"].get(path.stem, {}).get("rows")
