"""The answers of one step: sampled and graded by every rank for its share of the questions, then gathered."""

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist

from bnpo.config import TrainConfig
from bnpo.policy.learner import Experience
from bnpo.problems import asks_for_tags, sampling_seeds
from bnpo.ranks import gather
from bnpo.speed import Stopwatch
from bnpo.task import Task

if TYPE_CHECKING:  # vLLM is imported where it runs
    from bnpo.policy.sampler import Answer, Sampler


@dataclass(frozen=True)
class Rollouts:
    """n questions with m answers and K rewards each, the same on all ranks.

    questions [n] indexes the training problems; answers [n][m]; rewards [n, m, K]; failed [n, m], where a reward could
    not be told; greedy [n] and greedy_rewards [n, K] belong to ReMax (else [] and None); failures counts, by kind,
    the calls of the grader that failed, equal ones once; sampling_seconds [ranks] is how long each rank sampled.
    """

    questions: np.ndarray
    answers: list[list["Answer"]]
    rewards: np.ndarray
    failed: np.ndarray
    greedy: list["Answer"]
    greedy_rewards: np.ndarray | None
    failures: Counter[str]
    sampling_seconds: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every answer [n, m]."""
        return np.array([[len(answer.token_ids) for answer in group] for group in self.answers])


def collect(
    task: Task,
    questions: np.ndarray,
    step: int,
    sampler: "Sampler",
    config: TrainConfig,
    watch: Stopwatch,
    *,
    then_sleep: bool = True,
) -> Rollouts:
    """Sample and grade answers to `questions` [n], indices of the task's problems, with the seeds of `step`; a
    collective on all ranks. The sampler sleeps afterwards, unless it is to go on."""
    mine = np.array_split(questions, dist.get_world_size())[dist.get_rank()]
    groups: dict[int, list[Answer]] = {}
    grading, tags = {}, asks_for_tags(config.data.template)
    with watch("generate"):
        for number, answers in sampler.sample(
            [task.prompts[q] for q in mine],
            sampling_seeds(config.sampling.seed, step, mine),
            n=config.batch.samples_per_question,
            max_tokens=config.sampling.max_answer_tokens,
            temperature=config.sampling.temperature,
            logprobs=True,
            greedy_too=config.method.algo == "remax",
        ):
            # Graded while the others are still sampled; what takes math-verify long does so in other processes.
            texts = task.tokenizer.batch_decode([answer.token_ids for answer in answers], skip_special_tokens=True)
            reference = task.problems[mine[number % len(mine)]].answer
            groups[number], grading[number] = answers, task.grader.start(texts, [reference] * len(texts), tags)
        if then_sleep:
            sampler.sleep()
    with watch("reward"):
        graded = [task.grader.finish(grading[number]) for number in range(len(grading))]
        n, m, k = (
            len(mine),
            config.batch.samples_per_question,
            len(config.data.rewards),
        )  # n is 0 where ranks outnumber questions
        rewards = np.reshape(graded[:n], (n, m, k))
        greedy_rewards = np.reshape(graded[n:], (len(graded) - n, 1, k))
        failed = np.reshape([task.grader.failed(grading[number]) for number in range(n)], (n, m))
        sampled = [groups[number] for number in range(len(mine))]
        greedy = [groups[number][0] for number in range(len(mine), len(groups))]
    with watch("gather"):  # and wait for the slowest rank
        failures, seconds = task.grader.take_failures(), watch.seconds["generate"]
        parts = gather((sampled, rewards, failed, greedy, greedy_rewards, failures, seconds))
    samples, rewards, failed, greedies, greedy_rewards, failures, seconds = zip(*parts, strict=True)
    return Rollouts(
        questions=questions,
        answers=list(chain.from_iterable(samples)),
        rewards=np.concatenate(rewards),
        failed=np.concatenate(failed).astype(bool),
        greedy=list(chain.from_iterable(greedies)),
        greedy_rewards=np.concatenate(greedy_rewards)[:, 0] if config.method.algo == "remax" else None,
        failures=sum(failures, Counter()),
        sampling_seconds=np.array(seconds),
    )


def make_experience(task: Task, rollouts: Rollouts, advantages: np.ndarray) -> Experience:
    """What the learner trains on, from advantages [n, m]: the answers of all questions in one row, N = n m."""
    answers = list(chain.from_iterable(rollouts.answers))
    return Experience(
        prompts=[task.prompts[q] for q in rollouts.questions for _ in rollouts.answers[0]],
        answers=[answer.token_ids for answer in answers],
        sampler_logprobs=[answer.logprobs for answer in answers],
        advantages=advantages.ravel(),
    )
