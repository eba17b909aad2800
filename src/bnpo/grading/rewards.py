"""Rewards of answers: accuracy, format, and functions of the user's, graded where they cannot hang or hurt."""

import importlib.util
import inspect
import math
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np

from bnpo.files import InputError
from bnpo.grading.workers import Failure, Workers
from mathequal.equality import final_answer, quick_verdict

TIME_LIMIT = 5.0
"""Seconds for one verdict in a worker or one call of a user's function."""
MAX_WORKERS = 16

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FORMATS = {
    "default": re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL),
    "reference": re.compile(r"<think>.*</think><answer>.*</answer>", re.DOTALL),
}
GRADERS = tuple(_FORMATS)
"""`default`, or `reference`: the rules of the authors' released code, for those who compare with the paper."""


def format_reward(text: str, grader: str = "default") -> bool:
    """Whether `text` is `<think>...</think><answer>...</answer>` with each tag once (Table 2).

    The released code also wants no white space around or between the two.

    >>> format_reward("<think>hm</think> <answer>4</answer>"), format_reward("<think>hm</think> 4")
    (True, False)
    """
    return all(text.count(tag) == 1 for tag in _TAGS) and _FORMATS[grader].fullmatch(text) is not None


class Grader:
    """Grades answers in a pool of worker processes that lives as long as the grader; share one, from any thread.

    A user's reward is `function(text: str, reference: str) -> float`: `text` is the decoded answer, `reference` the
    problem's `answer` field, the value lies in `users_range`. Raises InputError when it cannot be loaded or called so.
    `ranges` [K] has the lowest and the highest value of each reward.

    What takes longer than `time_limit` seconds, exhausts a worker's memory, kills it or raises scores the lowest value
    and is counted by kind (`take_failures`).
    """

    def __init__(
        self,
        rewards: Sequence[str] = ("accuracy",),
        *,
        grader: str = "default",
        users_range: tuple[float, float] = (0.0, 1.0),
        workers: int | None = None,
        time_limit: float = TIME_LIMIT,
    ):
        self.rewards, self.grader = tuple(rewards), grader
        self.ranges = [(0.0, 1.0) if reward in REWARDS else users_range for reward in rewards]
        self._failures: Counter[str] = Counter()
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        if workers is None:
            ranks_here = int(os.environ.get("LOCAL_SIZE", "1"))  # set by the DeepSpeed launcher
            workers = min(MAX_WORKERS, max(1, len(os.sched_getaffinity(0)) // ranks_here))
        self._workers = Workers(workers, time_limit, preload="mathequal.warm")
        if os.environ.get("RANK", "0") == "0":  # so that what all ranks would report is reported once
            users = [reward for reward in rewards if reward not in REWARDS]
            checks = [self._workers.submit(f"{__name__}:check_users_reward", reward) for reward in users]
            for reward, check in zip(users, checks, strict=True):
                if isinstance(problem := check.result(), Failure):
                    self.close()
                    raise InputError(
                        f"--rewards: {reward}: {problem.kind}: {problem.message}; it must be function(text: str, "
                        f"reference: str), in a file that is imported within {time_limit:g} s"
                    )

    def __call__(self, texts: Sequence[str], references: Sequence[str], tags: bool = False) -> np.ndarray:
        """Rewards [answers, K] of `texts` against `references`, one each; `tags` as in `judge`."""
        return self.finish(self.start(texts, references, tags))

    def start(self, texts: Sequence[str], references: Sequence[str], tags: bool) -> list[list]:
        """Begin to grade; `finish` turns what this returns into the rewards. Most verdicts are immediate."""
        columns = []
        for reward in self.rewards:
            if reward in REWARDS:
                columns.append(REWARDS[reward](self, texts, references, tags))
            else:
                call = partial(self._workers.submit, f"{__name__}:users_reward", reward)
                columns.append(_each(call, texts, references))
        return columns

    def finish(self, columns: list[list]) -> np.ndarray:
        """Rewards [answers, K], when all are there; failures count here, once for each different call."""
        return np.array([self._values(*column) for column in zip(self.rewards, self.ranges, columns, strict=True)]).T

    def judge(self, texts: Sequence[str], references: Sequence[str], tags: bool) -> list[Future]:
        """Futures of whether the final answer of each text is its reference; with `tags`, that inside the answer tags.

        Their results are True, False, or the Failure where there is no verdict.
        """
        if self.grader == "reference":
            released = partial(self._workers.submit, "mathequal.symbolic:released_verdict")
            return _each(released, references, texts)
        return _each(self._verdict, references, [final_answer(text, tags) or "" for text in texts])

    def _verdict(self, reference: str, answer: str) -> Future:
        verdict = quick_verdict(reference, answer)
        if verdict is None:
            return self._workers.submit("mathequal.symbolic:slow_verdict", reference, answer)
        known: Future = Future()
        known.set_result(verdict)
        return known

    def failed(self, columns: list[list]) -> np.ndarray:
        """Which of the answers [answers] that `finish` has graded one reward or several could not grade."""
        outcomes = [
            [isinstance(_outcome(item, reward, limits), Failure) for item in column]
            for reward, limits, column in zip(self.rewards, self.ranges, columns, strict=True)
        ]
        return np.any(outcomes, axis=0)

    def _values(self, reward: str, limits: tuple[float, float], column: list) -> list[float]:
        values = {}
        for item in dict.fromkeys(column):
            value = _outcome(item, reward, limits)
            if isinstance(value, Failure):
                self._count(value)
                value = limits[0]
            values[item] = float(value)
        return [values[item] for item in column]

    def _count(self, failure: Failure) -> None:
        with self._lock:
            self._failures[failure.kind] += 1
            new = failure.kind not in self._reported
            self._reported.add(failure.kind)
        if new:
            print(
                f"grading: {failure.kind}: {failure.message} (scored lowest, and counted)", file=sys.stderr, flush=True
            )

    def take_failures(self) -> Counter[str]:
        """How many calls failed since this was last asked, by kind: `timeout`, `death`, or an exception's name."""
        with self._lock:
            failures, self._failures = self._failures, Counter()
        return failures

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()


def _outcome(item: Future | float, reward: str, limits: tuple[float, float]) -> float | Failure:
    """The value that `reward` gave, or why it counts for none."""
    value = item.result() if isinstance(item, Future) else item
    low, high = limits
    if not isinstance(value, Failure) and not low <= value <= high:
        return Failure("OutOfRange", f"{reward} gave {value:g}, not in {low:g} to {high:g}")
    return value


def _each(function: Callable, *columns: Sequence[str]) -> list:
    """`function` of every row of `columns`; calls that are alike are one."""
    once = cache(function)
    return [once(*row) for row in zip(*columns, strict=True)]


REWARDS: dict[str, Callable[[Grader, Sequence[str], Sequence[str], bool], list]] = {
    "accuracy": Grader.judge,
    "format": lambda grader, texts, *_: [format_reward(text, grader.grader) for text in texts],
}
"""The built-in rewards: functions of a grader, texts, references and `tags` as in `judge`. They give a value in [0, 1],
or the future of one, for every text."""


def reward_name(reward: str) -> str:
    """`accuracy`, `format`, or the function's name of a user's `path/to/file.py:function`."""
    return reward.rpartition(":")[2]


def check_rewards(rewards: Sequence[str], users_range: tuple[float, float]) -> None:
    """Raise InputError for an unknown, missing or repeated reward; runs none of the user's code."""
    known = f"known: {', '.join(REWARDS)}, path/to/file.py:function"
    users = [reward for reward in rewards if reward not in REWARDS]
    for reward in users:
        file, _, function = reward.rpartition(":")
        if not (file.endswith(".py") and function.isidentifier()):
            raise InputError(f"--rewards: unknown reward '{reward}'; {known}")
        if not Path(file).is_file():
            raise InputError(f"--rewards: no file {file}; write path/to/file.py:function")
    names = [reward_name(reward) for reward in rewards]
    if len(set(names)) < len(names):
        raise InputError(f"--rewards: {', '.join(names)}: names repeat; metrics need different ones")
    if taken := {"mean", "se", "timeouts", "errors"}.intersection(names):
        raise InputError(f"--rewards: reward/{taken.pop()} is a metric of every run; give the function another name")
    low, high = users_range
    if not -math.inf < low < high < math.inf:
        raise InputError(f"--reward-range: {low:g} {high:g}: must be two finite numbers, the lower one first")
    if (low, high) != (0, 1) and not users:
        raise InputError(
            "--reward-range: is the range of your own rewards, and --rewards has none; leave it out, or add "
            "path/to/file.py:function"
        )


def check_users_reward(reward: str) -> None:
    """Raise what keeps a user's reward from being called; runs in a worker."""
    inspect.signature(_load(reward)).bind("text", "reference")


def users_reward(reward: str, text: str, reference: str) -> float:
    """A user's reward of one answer; runs in a worker."""
    return float(_load(reward)(text, reference))


@lru_cache
def _load(reward: str) -> Callable[[str, str], float]:
    file, _, name = reward.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
