"""What the programs of this folder share. Importing it prepares the environment."""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import repeat

from bnpo.environment import setup_environment

setup_environment()

import torch.distributed as dist

from bnpo.batch import Answer, Batch
from bnpo.config import TrainConfig, parse_train_config


def config_of(*flags: object) -> TrainConfig:
    """Return the settings of the tiny preset with flags, each of them or several in a string."""
    argv = [word for flag in flags for word in str(flag).split()]
    # A number of questions that 2 and 3 mini-batches divide
    preset = ["--preset", "tiny", "--questions-per-step", "6"]
    return parse_train_config([*preset, *argv], has_cuda=False)[0]


def batch_of(ids: Sequence[list[int]], logprobs: Sequence, questions: int) -> Batch:
    """Return answers of these token ids to as many short prompts."""
    answers = [Answer(*answer) for answer in zip(ids, repeat(True), logprobs)]
    m = len(answers) // questions
    prompts = [[1, 30 + i, 40, 2] for i in range(questions)]
    return Batch.of(prompts, [answers[i * m : i * m + m] for i in range(questions)])


def pairs(batch: Batch) -> list[tuple[list[int], Answer]]:
    """Return the prompt of each answer, and the answer."""
    return [(group.prompt, answer) for group in batch.groups for answer in group.answers]


def scores(learner, batch: Batch) -> list[list[float]]:
    """Return the log-probabilities of all answers."""
    return [learner.score(prompt, answer.token_ids).tolist() for prompt, answer in pairs(batch)]


def report(check: Callable[..., object]) -> None:
    """Print as JSON, on rank 0, what `check` returns for the program's arguments."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = check(*sys.argv[1:])
    if rank == 0:
        print("REPORT " + json.dumps(found), flush=True)
    if dist.is_initialized():  # a sampler that is closed ends it
        dist.destroy_process_group()
    sys.stdout.flush()
