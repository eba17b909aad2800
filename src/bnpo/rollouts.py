"""The rollouts of one step: every rank samples and grades answers to its share of the questions; all are gathered."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig
from bnpo.data import Problem, next_place, questions_at, sampling_seeds, watched_questions
from bnpo.grading.grader import Grader, Grades, Outcomes
from bnpo.policy.learner import Experience
from bnpo.policy.sampling import Answer, SampledGroup
from bnpo.policy.speed import Stopwatch
from bnpo.ranks import gather

if TYPE_CHECKING:  # imports vLLM
    from bnpo.policy.sampler import Sampler


@dataclass(frozen=True)
class Task:
    """What a run trains on. `prompts` are the problems' token ids, encoded by `tokenizer`."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: PreTrainedTokenizerBase
    grader: Grader
    answer_tags: bool  # whether prompts ask for answer tags, so that the final answer stands between them


@dataclass(frozen=True)
class Rollouts:
    """n questions with m answers and K rewards each, the same on all ranks. With resampling, n counts all drawn."""

    questions: np.ndarray  # [n], indices of the task's problems
    trained: np.ndarray  # indices of the questions that the learner takes, all but with resampling
    answers: list[list[Answer]]  # [n][m]
    rewards: np.ndarray  # [n, m, K]
    failed: np.ndarray  # [n, m], True where a reward could not be computed
    greedy_answers: list[Answer]  # [n] for ReMax, else []
    greedy_rewards: np.ndarray | None  # [n, K] for ReMax, else None
    failures: Counter[str]  # failed grader calls by kind; identical answers to a question share a call
    sampling_seconds: np.ndarray  # [ranks], how long each rank sampled

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every answer [n, m]."""
        return np.array([[len(answer.token_ids) for answer in group] for group in self.answers])


GradedGroup = tuple[list[Answer], Grades]
"""Answers to one question, m of them or one greedy answer, with their grades."""


@dataclass(frozen=True)
class RankRollouts:
    """The rollouts of one rank for its q questions, in order. Ranks exchange objects of this class."""

    groups: list[GradedGroup]  # [q]
    greedy_groups: list[GradedGroup]  # [q] or []
    sampling_seconds: float


def collect(
    task: Task, questions: np.ndarray, step: int | None, sampler: "Sampler", config: TrainConfig, stopwatch: Stopwatch
) -> Rollouts:
    """Sample answers to `questions` [n] with the seeds of `step`, grade them, and return them from all ranks.

    If `step` is None, the seeds are those of the watched questions. All ranks must call it together.
    """
    return _concatenate(questions, _collect(task, questions, step, sampler, config, stopwatch), config)


def _collect(
    task: Task, questions: np.ndarray, step: int | None, sampler: "Sampler", config: TrainConfig, stopwatch: Stopwatch
) -> list[RankRollouts]:
    """Return the rollouts of `collect` by rank."""
    own_questions = np.array_split(questions, dist.get_world_size())[dist.get_rank()]  # [q], q may be 0
    sampled: list[tuple[SampledGroup, Outcomes]] = []
    groups = sampler.sample(
        [task.prompts[question] for question in own_questions],
        sampling_seeds(config.sampling.seed, step, own_questions),
        n=config.batch.samples_per_question,
        max_tokens=config.sampling.max_answer_tokens,
        temperature=config.sampling.temperature,
        top_k=config.sampling.top_k,
        logprobs=True,
        greedy_too=config.method.algo == "remax",  # one greedy answer per question, as a group of its own
    )
    while True:
        with stopwatch("generate"):
            group = next(groups, None)
        if group is None:
            break
        with stopwatch("reward"):
            # Grading starts while other answers are still sampled. Slow comparisons run in worker processes.
            reference = task.problems[own_questions[group.prompt_index]].answer
            token_ids = [answer.token_ids for answer in group.answers]
            texts = task.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
            sampled.append((group, task.grader.start(texts, [reference] * len(texts), task.answer_tags)))
    own_rollouts = RankRollouts([], [], stopwatch.seconds["generate"])
    with stopwatch("reward"):
        for group, outcomes in sorted(sampled, key=lambda item: item[0].prompt_index):  # vLLM finishes in any order
            own_groups = own_rollouts.greedy_groups if group.greedy else own_rollouts.groups
            own_groups.append((group.answers, task.grader.grades(outcomes)))
    with stopwatch("gather"):  # waits for the slowest rank
        return gather(own_rollouts)


def collect_batch(
    task: Task, place: int, step: int, sampler: "Sampler", config: TrainConfig, stopwatch: Stopwatch
) -> tuple[Rollouts, int]:
    """Draw questions from `place` on in their seeded order. Return their rollouts and the place behind the last one.

    After the first n questions, while fewer than n have answers of different rewards, n more are drawn, at most
    --resample-rounds times.
    """
    count, n = len(task.problems), config.batch.questions_per_step
    questions, all_ranks = np.array([], dtype=int), []
    for _ in range(1 + config.batch.resample_rounds):
        drawn = questions_at(count, n, place, config.sampling.seed)  # [n]
        place = next_place(count, n, place) + n
        questions = np.concatenate([questions, drawn])
        all_ranks += _collect(task, drawn, step, sampler, config, stopwatch)
        rollouts = _concatenate(questions, all_ranks, config)
        if has_signal(rollouts.rewards, config.method.reward_weights).sum() >= n:
            break
    return rollouts, place


def has_signal(rewards: np.ndarray, weights: Sequence[float] | None = None) -> np.ndarray:
    """Return for each of n questions whether its answers differ in a reward, [n], from rewards [n, m, K].

    Rewards with weight 0 in --reward-weights are only recorded, so they do not count.
    """
    counted = rewards if weights is None else rewards[:, :, np.array(weights) != 0]
    return (counted != counted[:, :1]).any(axis=(1, 2))


def trained_groups(rewards: np.ndarray, n: int, weights: Sequence[float] | None = None) -> np.ndarray:
    """Return which n of the drawn questions are trained on, as sorted indices [n], from rewards [questions, m, K].

    Those whose answers differ in a reward are taken first, and others fill the batch.
    """
    return np.sort(np.argsort(~has_signal(rewards, weights), kind="stable")[:n])


@dataclass(frozen=True)
class WatchedAnswers:
    """Rollouts of the watched questions: a few training questions, always the same, answered beside the batch."""

    rollouts: Rollouts
    seconds: float


def collect_watched(task: Task, sampler: "Sampler", config: TrainConfig) -> WatchedAnswers:
    """Return answers to the watched questions (--watch-questions). All ranks must call it together.

    These answers have seeds of their own, so the rest of the run is the same with and without them.
    """
    stopwatch = Stopwatch()
    with stopwatch("total"):
        questions = watched_questions(len(task.problems), config.logging.watch_questions)  # [watched]
        rollouts = collect(task, questions, None, sampler, config, stopwatch)
    return WatchedAnswers(rollouts, stopwatch.seconds["total"])


def _concatenate(questions: np.ndarray, all_ranks: list[RankRollouts], config: TrainConfig) -> Rollouts:
    """Return the rollouts of all ranks, of one draw or several, as one batch in the order of `questions` [n]."""
    groups = [group for rank in all_ranks for group in rank.groups]  # [n]
    greedy_groups = [group for rank in all_ranks for group in rank.greedy_groups]  # [n] or []
    failures: Counter[str] = Counter()
    for _, grades in groups + greedy_groups:
        failures += grades.failures
    greedy_rewards = None
    if config.method.algo == "remax":
        greedy_rewards = np.concatenate([grades.rewards for _, grades in greedy_groups])  # [n, K]
    rewards = np.stack([grades.rewards for _, grades in groups])  # [n, m, K]
    return Rollouts(
        questions=questions,
        trained=trained_groups(rewards, config.batch.questions_per_step, config.method.reward_weights),
        answers=[answers for answers, _ in groups],
        rewards=rewards,
        failed=np.stack([grades.failed for _, grades in groups]),
        greedy_answers=[answers[0] for answers, _ in greedy_groups],
        greedy_rewards=greedy_rewards,
        failures=failures,
        # Those of the last draw: the stopwatch adds up over the draws.
        sampling_seconds=np.array([rank.sampling_seconds for rank in all_ranks[-dist.get_world_size() :]]),
    )


def make_experience(task: Task, rollouts: Rollouts, advantages: np.ndarray) -> Experience:
    """Return the learner's input: the N answers to `rollouts.trained`, from advantages [questions drawn, m]."""
    prompts, answers, sampler_logprobs = [], [], []
    for group in rollouts.trained:
        for answer in rollouts.answers[group]:
            prompts.append(task.prompts[rollouts.questions[group]])
            answers.append(answer.token_ids)
            sampler_logprobs.append(answer.logprobs)
    return Experience(prompts, answers, sampler_logprobs, advantages[rollouts.trained].ravel())
