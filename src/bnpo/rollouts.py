"""The rollouts of one step: every rank samples and grades answers to its share of the questions;
all are gathered.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.registry import find_estimator
from bnpo.config import TrainConfig
from bnpo.data import Problem, questions_at, sampling_seeds
from bnpo.grading.grader import Grader, Grades
from bnpo.policy.learner import Experience
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import Answer, SampledGroup
from bnpo.policy.speed import Stopwatch
from bnpo.ranks import gather


@dataclass(frozen=True)
class Task:
    """What a run trains on. `prompts` are the problems' token ids, encoded by `tokenizer`."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: PreTrainedTokenizerBase
    grader: Grader
    # Whether prompts ask for answer tags, so that the final answer stands between them
    answer_tags: bool


@dataclass(frozen=True)
class Rollouts:
    """Answers to q questions, m to each, with K rewards each. The same on all ranks.

    q is n (--questions-per-step), or a multiple of n with --resample-rounds. For watched questions,
    q is their number.
    """

    questions: np.ndarray  # [q], indices of the task's problems
    trained: np.ndarray  # [n], which of the q questions are trained on; not for watched questions
    answers: list[list[Answer]]  # [q][m]
    rewards: np.ndarray  # [q, m, K], a placeholder where a reward could not be computed
    failed: np.ndarray  # [q, m], which answers are left out, see `failed_answers`
    greedy_answers: list[Answer]  # [q] for ReMax, else []
    greedy_rewards: np.ndarray | None  # [q, K] for ReMax, else None
    failures: Counter[str]  # rewards of answers that could not be computed, by kind
    sampling_seconds: np.ndarray  # [ranks], how long each rank sampled

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every answer [q, m]."""
        return np.array([[len(answer.token_ids) for answer in group] for group in self.answers])

    @property
    def finished(self) -> np.ndarray:
        """Whether every answer ended by itself [q, m]. False: it was cut off."""
        return np.array([[answer.finished for answer in group] for group in self.answers])


def collect(
    task: Task,
    draws: list[np.ndarray],
    step: int,
    sampler: Sampler,
    config: TrainConfig,
    stopwatch: Stopwatch,
) -> Rollouts:
    """Sample and grade answers to this rank's share of the questions, and return the rollouts of
    all ranks. Raises InputError if most answers have a reward outside its range.

    `draws` are arrays of questions, as indices of the task's problems. They are asked in turn,
    until n of the questions asked so far have answers with unequal rewards, or no draw is left. The
    seeds depend on `step`. For the watched questions it is WATCHED: they have seeds of their own,
    and the rest of the run is the same without them. A collective.
    """
    n, reward_weights = config.batch.questions_per_step, config.method.reward_weights
    groups, greedy = [], []  # [q] each: answers and grades, the same for ReMax's greedy answers
    for draw, questions in enumerate(draws):
        # This rank's share, which may be empty
        own_questions = np.array_split(questions, dist.get_world_size())[dist.get_rank()]
        seeds = sampling_seeds(config.sampling.seed, step, own_questions, draw)
        own_groups = _sample_and_grade(task, own_questions, seeds, sampler, config, stopwatch)
        with stopwatch("gather"):  # waits for the slowest rank
            of_ranks = gather((own_groups, stopwatch.seconds["generate"]))
        for is_greedy, *graded in chain.from_iterable(rank_groups for rank_groups, _ in of_ranks):
            (greedy if is_greedy else groups).append(graded)
        task.grader.check_ranges([grades for _, grades in groups + greedy])
        rewards = np.stack([grades.rewards for _, grades in groups])  # [q, m, K]
        failed = failed_answers([grades for _, grades in groups], [grades for _, grades in greedy])
        if has_signal(rewards, reward_weights, failed).sum() >= n:
            break
    return Rollouts(
        questions=np.concatenate(draws)[: len(groups)],  # those that were asked
        trained=trained_groups(rewards, n, reward_weights, failed),
        answers=[answers for answers, _ in groups],
        rewards=rewards,
        failed=failed,
        greedy_answers=[answer for [answer], _ in greedy],
        greedy_rewards=np.concatenate([grades.rewards for _, grades in greedy]) if greedy else None,
        failures=sum((grades.failures for _, grades in groups + greedy), Counter()),
        sampling_seconds=np.array([seconds for _, seconds in of_ranks]),
    )


def _sample_and_grade(
    task: Task,
    questions: np.ndarray,
    seeds: list[int],
    sampler: Sampler,
    config: TrainConfig,
    stopwatch: Stopwatch,
) -> list[tuple[bool, list[Answer], Grades]]:
    """Return (is_greedy, answers, grades) of this rank's `questions`, in their order.

    That is one item with the m answers to each question and, for ReMax, another one with its greedy
    answer.
    """
    sampled: list[tuple[SampledGroup, list[list[Future]]]] = []
    groups = sampler.sample(
        [task.prompts[question] for question in questions],
        seeds,
        n=config.batch.samples_per_question,
        max_tokens=config.sampling.max_answer_tokens,
        temperature=config.sampling.temperature,
        top_k=config.sampling.top_k,
        logprobs=True,
        greedy_too="greedy_rewards" in find_estimator(config.method.algo).needs,
    )
    while True:
        with stopwatch("generate"):
            group = next(groups, None)
        if group is None:
            break
        with stopwatch("reward"):
            # Grading starts while other answers are still sampled. Slow comparisons run in worker
            # processes.
            reference = task.problems[questions[group.prompt_index]].answer
            token_ids = [answer.token_ids for answer in group.answers]
            texts = task.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
            sampled.append(
                (group, task.grader.start(texts, [reference] * len(texts), task.answer_tags))
            )
    with stopwatch("reward"):
        sampled.sort(key=lambda item: item[0].prompt_index)  # vLLM finishes in any order
        return [
            (group.greedy, group.answers, task.grader.grades(outcomes))
            for group, outcomes in sampled
        ]


def collect_batch(
    task: Task, place: int, step: int, sampler: Sampler, config: TrainConfig, stopwatch: Stopwatch
) -> tuple[Rollouts, int]:
    """Return rollouts of the n questions from `place` on, and the place of the next step. Raises
    InputError as `collect` does.

    A place is an index into the seeded order of the questions over all epochs (see `questions_at`).
    Up to --resample-rounds more draws of n questions are taken, see `collect`.
    """
    count, n = len(task.problems), config.batch.questions_per_step
    draws, places = [], []  # for each draw: its questions [n]; the place after it
    for _ in range(1 + config.batch.resample_rounds):
        questions, place = questions_at(count, n, place, config.sampling.seed)
        draws.append(questions)
        places.append(place)
    rollouts = collect(task, draws, step, sampler, config, stopwatch)
    return rollouts, places[len(rollouts.questions) // n - 1]


def failed_answers(grades: Sequence[Grades], greedy_grades: Sequence[Grades] = ()) -> np.ndarray:
    """Return which answers are left out of all statistics and of the gradient, [q, m].

    They are those of which a reward could not be computed. With ReMax (`greedy_grades` [q]), they
    are also all answers to a question whose greedy answer failed: they have no baseline.
    """
    failed = np.stack([of_group.failed for of_group in grades])  # [q, m]
    if greedy_grades:
        failed = failed | np.stack([of_answer.failed for of_answer in greedy_grades])  # | [q, 1]
    return failed


def has_signal(
    rewards: np.ndarray,
    weights: Sequence[float] | None = None,
    failed: np.ndarray | None = None,
) -> np.ndarray:
    """From rewards [q, m, K], return whether the answers to each question differ in a reward, [q].

    Rewards with weight 0 in --reward-weights are only recorded, so they do not count. Nor do the
    answers that have `failed` [q, m].
    """
    counted = rewards if weights is None else rewards[:, :, np.array(weights) != 0]
    if failed is None:
        failed = np.zeros(rewards.shape[:2], dtype=bool)
    # Rewards of each question's first answer that has not failed, [q, 1, K]
    first = counted[np.arange(len(counted)), failed.argmin(axis=1)][:, None]
    return ((counted != first) & ~failed[:, :, None]).any(axis=(1, 2))


def trained_groups(
    rewards: np.ndarray,
    n: int,
    weights: Sequence[float] | None = None,
    failed: np.ndarray | None = None,
) -> np.ndarray:
    """Return which n of the drawn questions are trained on, as sorted indices [n], from rewards [q,
    m, K].

    Those with a signal (`has_signal`) are taken first, and others fill the batch.
    """
    signals = has_signal(rewards, weights, failed)  # [q]
    return np.sort(np.argsort(~signals, kind="stable")[:n])


def make_experience(task: Task, rollouts: Rollouts, advantages: np.ndarray) -> Experience:
    """Return the learner's input: the N answers to the trained questions. `advantages` [q, m]
    are of all questions.

    Answers that have failed stay in it with the advantage 0. So they have no gradient, but count
    among the N answers of the loss's mean, as answers without a signal do: the size of an update
    does not depend on how many rewards failed.
    """
    trained = [
        (rollouts.questions[group], answer)
        for group in rollouts.trained
        for answer in rollouts.answers[group]
    ]
    return Experience(
        prompts=[task.prompts[question] for question, _ in trained],
        answers=[answer.token_ids for _, answer in trained],
        sampler_logprobs=[answer.logprobs for _, answer in trained],
        advantages=advantages[rollouts.trained].ravel(),
    )
