"""The batch of one step: which questions it has, and every rank's samples and grades of its share
of them, gathered.
"""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bnpo.config import TrainConfig
from bnpo.grading.grader import Grader, Grades
from bnpo.prompts import decode_answers
from bnpo.tasks import Problem

if TYPE_CHECKING:  # torch takes seconds to import, and the main process of an evaluation needs none
    from transformers import PreTrainedTokenizerBase

    from bnpo.policy.sampler import Sampler


@dataclass(frozen=True)
class Task:
    """What a run trains on. `prompts` are the problems' token ids, encoded by `tokenizer`."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: "PreTrainedTokenizerBase"
    grader: Grader
    # Whether prompts ask for answer tags, so that the final answer stands between them
    answer_tags: bool

    def start_grading(self, question: int, answers: Sequence["Answer"]) -> list[list[Future]]:
        """Return the futures of the rewards of `answers` to one question, [K][answers]."""
        token_ids = [answer.token_ids for answer in answers]
        texts = decode_answers(self.tokenizer, token_ids)
        problem = self.problems[question]
        references = [problem.answer] * len(texts)
        return self.grader.submit(texts, references, self.answer_tags, fields=problem.fields)


@dataclass(frozen=True)
class Answer:
    """One sampled answer."""

    token_ids: list[int]  # with the stop token, if it came
    finished: bool  # it ended by itself; False: it was cut off at the length limit
    # [tokens], under the sampler at the sampling temperature, if asked for
    logprobs: np.ndarray | None


class SampledGroup(NamedTuple):
    """All answers to one prompt. A greedy answer comes in a group of its own."""

    prompt_index: int
    greedy: bool
    answers: list[Answer]


class GreedyAnswer(NamedTuple):
    """The most likely answer to a question."""

    answer: Answer
    grades: Grades  # rewards [1, K]


@dataclass(frozen=True)
class Group:
    """The m answers to one question, with K rewards each."""

    question: int  # index of the task's problems
    prompt: list[int]
    answers: list[Answer]  # [m]
    grades: Grades  # rewards [m, K]
    # [m], answers that advantages and the gradient leave out: a reward could not be computed
    # or, with ReMax, that of the greedy answer, so that the group has no baseline
    failed: np.ndarray
    greedy: GreedyAnswer | None = None  # for ReMax


@dataclass(frozen=True)
class Batch:
    """Answers to q questions, m to each. The same on all ranks, but for `seconds`.

    q is n (--questions-per-step), or a multiple of n with --resample-rounds.
    """

    groups: list[Group]  # [q]
    rewards: np.ndarray  # [q, m, K], a placeholder where a reward could not be computed
    failed: np.ndarray  # [q, m], answers that are left out
    lengths: np.ndarray  # [q, m], tokens of every answer
    greedy_rewards: np.ndarray | None  # [q, K] for ReMax
    trained_groups: np.ndarray  # [n], indices of the groups that are trained on
    place: int  # behind the last question, in the order of `questions_at`
    seconds: dict[str, float]  # of this rank: generate, reward, and gather (waiting for others)
    sampling_seconds: np.ndarray  # [ranks], how long each rank sampled

    @classmethod
    def of(cls, prompts: Sequence[list[int]], answers: Sequence[list[Answer]]) -> "Batch":
        """Return a batch of given `answers` [n][m] to `prompts` [n], with rewards of 0: for checks
        and benchmarks of what follows the sampling.
        """
        n, m = len(answers), len(answers[0])
        rewards, failed = np.zeros((n, m, 1)), np.zeros((n, m), dtype=bool)
        grades = Grades(rewards[0], failed[0], Counter())
        return cls(
            groups=[Group(i, prompts[i], answers[i], grades, failed[0]) for i in range(n)],
            rewards=rewards,
            failed=failed,
            lengths=np.array([[len(answer.token_ids) for answer in group] for group in answers]),
            greedy_rewards=None,
            trained_groups=np.arange(n),
            place=n,
            seconds={},
            sampling_seconds=np.zeros(1),
        )

    @property
    def trained_answers(self) -> list[tuple[list[int], Answer]]:
        """Prompt and answer of the N = n m answers that are trained on, group after group. Indices
        of answers, as in `Update.old_logprobs`, are in this order.
        """
        groups = [self.groups[i] for i in self.trained_groups]
        return [(group.prompt, answer) for group in groups for answer in group.answers]

    @property
    def finished(self) -> np.ndarray:
        """Whether every answer ended by itself [q, m]. False: it was cut off."""
        return np.array([[answer.finished for answer in group.answers] for group in self.groups])

    @property
    def failures(self) -> Counter[str]:
        """Rewards that could not be computed, by kind, those of greedy answers included."""
        grades = [group.grades for group in self.groups]
        grades += [group.greedy.grades for group in self.groups if group.greedy]
        return sum((of_group.failures for of_group in grades), Counter())


def sample_batch(
    task: Task, place: int, steps_done: int, sampler: "Sampler", config: TrainConfig
) -> Batch:
    """Sample and grade m answers to each of the n questions from `place` on, an index into the
    seeded order of the questions over all epochs (`questions_at`). A collective.

    While fewer than n questions have a signal, n more are drawn, up to --resample-rounds times.
    Raises InputError if a reward fails for most answers, see `Grader.check_grades`.
    """
    from bnpo.ranks import gather

    n, seed = config.batch.questions_per_step, config.sampling.seed
    groups: list[Group] = []  # [q]
    seconds = Counter[str]()
    for draw in range(1 + config.batch.resample_rounds):
        questions, place = questions_at(len(task.problems), n, place, seed)
        seeds = sampling_seeds(seed, steps_done, questions, draw)
        new_groups, phase_seconds = sample_groups(task, questions, seeds, sampler, config)
        greedy_grades = [group.greedy.grades for group in new_groups if group.greedy]
        task.grader.check_grades([*(group.grades for group in new_groups), *greedy_grades])
        groups += new_groups
        seconds.update(phase_seconds)  # adds
        rewards = np.stack([group.grades.rewards for group in groups])  # [q, m, K]
        failed = np.stack([group.failed for group in groups])  # [q, m]
        signals = has_signal(rewards[:, :, config.signal_rewards], failed)  # [q]
        if signals.sum() >= n:
            break
    first = config.signal_rewards[0]
    right = right_reward(rewards[:, :, first], failed, task.grader.ranges[first][1])
    all_wrong = are_all_wrong(rewards[:, :, first], failed, right)  # [q]
    # Those with a signal first, and all wrong ones last: they may have advantages of side rewards
    by_use = np.lexsort((all_wrong, ~signals))
    greedy = [group.greedy.grades.rewards for group in groups if group.greedy]  # [q][1, K]
    return Batch(
        groups=groups,
        rewards=rewards,
        failed=failed,
        lengths=np.array([[len(answer.token_ids) for answer in g.answers] for g in groups]),
        greedy_rewards=np.concatenate(greedy) if greedy else None,
        trained_groups=np.sort(by_use[:n]),  # in their order
        place=place,
        seconds=dict(seconds),
        sampling_seconds=np.array(gather(seconds["generate"])),
    )


def sample_groups(
    task: Task,
    questions: np.ndarray,
    seeds: Sequence[int],
    sampler: "Sampler",
    config: TrainConfig,
) -> tuple[list[Group], dict[str, float]]:
    """Return the groups of all `questions`, of which every rank samples and grades its share, and
    this rank's seconds by phase: grading while others are sampled is `generate`. A collective.
    """
    import torch.distributed as dist

    from bnpo.ranks import gather

    share = np.array_split(np.arange(len(questions)), dist.get_world_size())[dist.get_rank()]
    own = [int(questions[i]) for i in share]  # may be empty
    sampled = sampler.sample(
        [task.prompts[question] for question in own],
        [seeds[i] for i in share],
        n=config.batch.samples_per_question,
        max_tokens=config.sampling.max_answer_tokens,
        temperature=config.sampling.temperature,
        top_k=config.sampling.top_k,
        logprobs=True,
        greedy_too="greedy_rewards" in config.method.estimator.needs,
    )
    started = time.perf_counter()
    # (index in `own`, whether it is greedy) -> answers, and the futures of their rewards
    # [K][answers]. A dictionary, because vLLM finishes prompts in any order
    pending: dict[tuple[int, bool], tuple[list[Answer], list[list[Future]]]] = {}
    for group in sampled:
        # Grading starts while other answers are sampled; slow comparisons run in worker processes
        rewards = task.start_grading(own[group.prompt_index], group.answers)
        pending[group.prompt_index, group.greedy] = group.answers, rewards
    sampled_at = time.perf_counter()
    own_groups = []
    for i, question in enumerate(own):
        answers, rewards = pending[i, False]
        grades = task.grader.collect(rewards)
        failed = grades.failed  # [m]
        greedy = None
        if (i, True) in pending:
            [greedy_answer], greedy_rewards = pending[i, True]
            greedy = GreedyAnswer(greedy_answer, task.grader.collect(greedy_rewards))
            failed = failed | greedy.grades.failed  # [m] | [1]
        own_groups.append(Group(question, task.prompts[question], answers, grades, failed, greedy))
    graded_at = time.perf_counter()
    groups = list(chain.from_iterable(gather(own_groups)))
    seconds = {
        "generate": sampled_at - started,
        "reward": graded_at - sampled_at,  # waits for the last rewards
        "gather": time.perf_counter() - graded_at,  # waits for the slowest rank
    }
    return groups, seconds


def has_signal(
    rewards: np.ndarray,  # [q, m, K], such as those of `TrainConfig.signal_rewards`
    failed: np.ndarray,  # [q, m]
) -> np.ndarray:
    """Return whether the answers to each question that have not failed differ in one of these
    rewards, [q].
    """
    return np.array(
        [
            len(np.unique(question_rewards[~lost], axis=0)) > 1
            for question_rewards, lost in zip(rewards, failed, strict=True)
        ],
        dtype=bool,
    )


def right_reward(
    rewards: np.ndarray,  # [q, m], the reward that decides what is right
    failed: np.ndarray,  # [q, m]
    highest: float,  # value of that reward, which may be infinite
) -> float:
    """Return the reward of a right answer: the largest one of the batch, which may never reach
    `highest`. If all answers have the same one, it is `highest`, or nan if that is infinite.
    """
    seen = np.unique(rewards[~failed])
    if len(seen) > 1:
        return float(seen[-1])
    return highest if np.isfinite(highest) else np.nan


def are_all_wrong(
    rewards: np.ndarray,  # [q, m], the reward that decides what is right
    failed: np.ndarray,  # [q, m]
    right: float,  # value of that reward
) -> np.ndarray:
    """Return whether the answers to each question are all wrong, and none is better than another,
    [q]. Answers that have failed do not count.
    """
    all_below = ((rewards < right) | failed).all(axis=1)  # [q]
    return all_below & ~has_signal(rewards[:, :, None], failed)


def all_wrong_energy(
    advantages: np.ndarray,  # [q, m]
    rewards: np.ndarray,  # [q, m], the reward that decides what is right
    failed: np.ndarray,  # [q, m]
    right: float,  # value of that reward
) -> float:
    """Return the share of the sum of squared advantages that lies in groups without a right answer,
    and comes from other rewards. nan if all advantages are 0, or `right` is nan.

    A side reward (length, format) differs between wrong answers, too. An estimator that divides by
    the deviation of a group, as GRPO does, gives such a group the size of any other.
    """
    total = (advantages**2).sum()
    if not total or np.isnan(right):
        return np.nan
    all_wrong = are_all_wrong(rewards, failed, right)  # [q]
    own, counted = advantages[all_wrong], ~failed[all_wrong]  # [groups, m]
    # The mean of a group may come from the baseline, as that of ReMax and REINFORCE++ does
    means = own.sum(axis=1) / np.maximum(counted.sum(axis=1), 1)  # [groups]
    return float((((own - means[:, None]) * counted) ** 2).sum() / total)


def questions_at(count: int, questions: int, cursor: int, seed: int) -> tuple[np.ndarray, int]:
    """Return the indices of the next problems [questions], and the cursor behind them.

    Epoch e of `count` problems begins at the cursor e * count, and its order depends on (seed, e)
    only. Its last problems are left out if they do not fill a step.
    """
    epoch, start = divmod(cursor, count)
    if count - start < questions:  # what is left of this epoch does not fill a step
        epoch, start = epoch + 1, 0
    order = np.random.default_rng([seed, epoch]).permutation(count)  # [count]
    end = start + questions
    return order[start:end], epoch * count + end


WATCHED = 2**32 - 1  # the stream of the watched questions, and the seed of their choice


def watched_questions(count: int, number: int) -> np.ndarray:
    """Return the indices of `number` of `count` problems, or of all if there are fewer."""
    # Independent of the run's seed, so that runs can be compared.
    return np.sort(np.random.default_rng(WATCHED).choice(count, min(number, count), replace=False))


def sampling_seeds(seed: int, stream: int, questions: Sequence[int], draw: int = 0) -> list[int]:
    """Return a 32-bit seed per question, to which answer j adds j.

    It depends on the arguments only, so a resumed run and another number of ranks sample the same
    answers. `stream` is a step, WATCHED, or a number of an evaluated data set. `draw` counts the
    draws of a step (--resample-rounds), two of which can have the same question.
    """
    later_draw = [draw] if draw else []
    return [
        int(np.random.SeedSequence([seed, stream, int(q), *later_draw]).generate_state(1)[0])
        for q in questions
    ]
