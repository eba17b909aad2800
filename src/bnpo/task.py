"""The task of a run: its problems with their encoded prompts, the tokenizer and the grader."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig
from bnpo.data import Problem, chat_template, check_enough, encode_prompt
from bnpo.evaluation.suites import Suite
from bnpo.files import InputError
from bnpo.grading.grader import Grader
from bnpo.policy.folder import load_tokenizer
from bnpo.policy.model_check import check_model


@dataclass(frozen=True)
class Task:
    """What a run trains on. `prompts` are the problems' token ids, encoded by `tokenizer`."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: PreTrainedTokenizerBase
    grader: Grader


def longest_sequence(config: TrainConfig, suite: Suite | None) -> int:
    """Return the most tokens of a prompt plus answer, in training and in the evaluation by `suite` if there is one."""
    longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
    if suite:
        longest = max(longest, suite.max_prompt_tokens + suite.max_answer_tokens)
    return longest


def prepare_tokenizer(config: TrainConfig, model: Path, longest: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the folder `model`, with the template of the run.

    Raises InputError if a model of this kind cannot be trained on texts of up to `longest` tokens. Reads no weights.
    """
    check_model(model, longest)
    tokenizer, data = load_tokenizer(model, longest), config.data
    # Checkpoints get this template, so that an evaluation of them renders the same prompts.
    tokenizer.chat_template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
    return tokenizer


def encode_problems(
    config: TrainConfig, problems: list[Problem], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Problem], list[list[int]]]:
    """Return the problems whose prompts are not too long, and the token ids of these prompts.

    Raises InputError if fewer problems remain than a step needs.
    """
    data, longest = config.data, config.sampling.max_prompt_tokens
    template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
    short_problems, prompts = [], []
    for problem in problems:
        prompt = encode_prompt(tokenizer, problem.problem, template)
        if len(prompt) <= longest:
            short_problems.append(problem)
            prompts.append(prompt)
    if not short_problems:
        raise InputError(f"{' '.join(data.train_data)}: every prompt is longer than --max-prompt-tokens {longest}")
    check_enough(short_problems, config.batch.questions_per_step, data.train_data)
    return short_problems, prompts
