"""What a run trains on: the problems with their encoded prompts, the tokenizer and the grader."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig
from bnpo.evaluation.suites import Suite
from bnpo.files import InputError
from bnpo.grading.rewards import Grader
from bnpo.problems import Problem, encode_prompt


@dataclass(frozen=True)
class Task:
    """What is learned: the problems with their encoded prompts, the tokenizer that encoded them, and the grader."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: PreTrainedTokenizerBase
    grader: Grader


def longest_sequence(config: TrainConfig, suite: Suite | None) -> int:
    """Tokens of the longest prompt and answer of training and, if there is one, of the evaluation by `suite`."""
    longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
    return max(longest, suite.max_prompt_tokens + suite.max_answer_tokens) if suite else longest


def encode_problems(
    config: TrainConfig, problems: list[Problem], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Problem], list[list[int]]]:
    """The problems whose prompts are not too long, and the prompts' token ids. Raises InputError for too few."""
    kept, prompts = [], []
    for problem in problems:
        prompt = encode_prompt(tokenizer, problem.problem, config.data.template)
        if len(prompt) <= config.sampling.max_prompt_tokens:
            kept.append(problem)
            prompts.append(prompt)
    if not kept:
        raise InputError(
            f"{config.data.train_data}: every prompt is longer than --max-prompt-tokens "
            f"{config.sampling.max_prompt_tokens}"
        )
    if len(kept) < config.batch.questions_per_step:
        raise InputError(
            f"--questions-per-step: {config.batch.questions_per_step} different questions are needed, "
            f"{config.data.train_data} has {len(kept)}; lower it"
        )
    return kept, prompts
