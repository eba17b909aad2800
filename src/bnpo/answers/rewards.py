"""Rewards of answers: accuracy, format, and functions of the user's, graded where they cannot hang or hurt."""

import importlib.util
import inspect
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from bnpo.answers.equality import RELEASED_WINDOW, final_answer, quick_verdict, released_verdict, slow_verdict
from bnpo.answers.workers import Failure, Workers
from bnpo.files import InputError

TIME_LIMIT = 5.0
"""Seconds for one verdict of math-verify or one call of a user's function."""
MAX_WORKERS = 16

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FORMATS = {
    "default": re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL),
    "reference": re.compile(r"<think>.*</think><answer>.*</answer>", re.DOTALL),
}
GRADERS = tuple(_FORMATS)
"""`default`, or `reference`: the rules of the authors' released code, for those who compare with the paper."""
REWARDS = ("accuracy", "format")
"""Names of the built-in rewards; `accuracy` is 1 where the final answer equals the reference."""


def format_reward(text: str, grader: str = "default") -> bool:
    """Whether `text` is `<think>...</think><answer>...</answer>` with each tag once (Table 2).

    The released code also wants no white space around or between the two.

    >>> format_reward("<think>hm</think> <answer>4</answer>"), format_reward("<think>hm</think> 4")
    (True, False)
    """
    return all(text.count(tag) == 1 for tag in _TAGS) and _FORMATS[grader].fullmatch(text) is not None


def reward_name(reward: str) -> str:
    """`accuracy`, `format`, or the function's name of a user's `path/to/file.py:function`."""
    return reward.rpartition(":")[2]


def check_rewards(rewards: Sequence[str]) -> None:
    """Raise InputError for an unknown, missing or repeated reward; runs none of the user's code."""
    if not rewards:
        raise InputError(f"--rewards: at least one is needed of {', '.join(REWARDS)}, path/to/file.py:function")
    for reward in rewards:
        file, _, function = reward.rpartition(":")
        if reward not in REWARDS and not (file.endswith(".py") and function.isidentifier()):
            raise InputError(
                f"--rewards: unknown reward '{reward}'; known: {', '.join(REWARDS)}, path/to/file.py:function"
            )
        if reward not in REWARDS and not Path(file).is_file():
            raise InputError(f"--rewards: no file {file}; write path/to/file.py:function")
    names = [reward_name(reward) for reward in rewards]
    if len(set(names)) < len(names):
        raise InputError(f"--rewards: {', '.join(names)}: names repeat; metrics need different ones")


class Grader:
    """Grades answers in a pool of worker processes that lives as long as the grader; share one, from any thread.

    A user's reward is `function(text: str, reference: str) -> float`: `text` is the decoded answer, `reference` the
    problem's `answer` field, the value lies in `value_range`. Raises InputError when it cannot be loaded or called so.

    What takes longer than `time_limit` seconds, exhausts a worker's memory, kills it or raises scores the lowest value
    and is counted by kind (`take_failures`).
    """

    def __init__(
        self,
        rewards: Sequence[str] = ("accuracy",),
        *,
        grader: str = "default",
        value_range: tuple[float, float] = (0.0, 1.0),
        workers: int | None = None,
        time_limit: float = TIME_LIMIT,
    ):
        self._failures: Counter[str] = Counter()
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._rewards, self._grader, self._time_limit = tuple(rewards), grader, time_limit
        self._low, self._high = value_range
        if workers is None:
            ranks_here = int(os.environ.get("LOCAL_SIZE", "1"))  # set by the DeepSpeed launcher
            workers = min(MAX_WORKERS, max(1, len(os.sched_getaffinity(0)) // ranks_here))
        self._workers = Workers(workers, preload=("bnpo.answers.symbolic",))
        # On one rank, so that what all report is reported once.
        first = os.environ.get("RANK", "0") == "0"
        users = [reward for reward in rewards if reward not in REWARDS and first]
        problems = [self._workers.submit(user_reward_problem, (reward,), time_limit) for reward in users]
        for reward, future in zip(users, problems, strict=True):
            if (problem := future.result()) is not None:
                if isinstance(problem, Failure):
                    problem = f"its import failed ({problem.kind}: {problem.message}), which is part of a first call"
                self.close()
                raise InputError(f"--rewards: {reward}: {problem}; it must be function(text: str, reference: str)")

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Rewards [answers, K] of `texts` against `references`, one each."""
        return self.finish(self.start(texts, references))

    def start(self, texts: Sequence[str], references: Sequence[str]) -> list[list[Future]]:
        """Begin to grade; `finish` turns what this returns into the rewards. Most verdicts are immediate."""
        columns = []
        for reward in self._rewards:
            if reward == "accuracy":
                columns.append(self.judge(texts, references, tags="format" in self._rewards))
            elif reward == "format":
                columns.append([_known(format_reward(text, self._grader)) for text in texts])
            else:
                calls = [(reward, text, reference) for text, reference in zip(texts, references, strict=True)]
                columns.append(self._each_once(user_reward, calls))
        return columns

    def finish(self, columns: list[list[Future]]) -> np.ndarray:
        """Rewards [answers, K], when all are there; failures count here, once for each different call."""
        return np.array([self._values(*column) for column in zip(self._rewards, columns, strict=True)]).T

    def judge(self, texts: Sequence[str], references: Sequence[str], tags: bool = False) -> list[Future]:
        """Futures of whether the final answer of each text is its reference; with `tags`, that inside the answer tags.

        Their results are True, False, or the Failure where there is no verdict.
        """
        if self._grader == "reference":
            pairs = [(ref, text[-RELEASED_WINDOW:]) for ref, text in zip(references, texts, strict=True)]
            return self._each_once(released_verdict, pairs)
        pairs = [(ref, final_answer(text, tags) or "") for ref, text in zip(references, texts, strict=True)]
        quick = {pair: quick_verdict(*pair) for pair in dict.fromkeys(pairs)}
        return self._each_once(slow_verdict, pairs, {pair: _known(v) for pair, v in quick.items() if v is not None})

    def accuracy(self, texts: Sequence[str], references: Sequence[str], tags: bool = False) -> list[bool]:
        """As `judge`, with the results; failures are wrong, and counted."""
        return [value == 1.0 for value in self._values("accuracy", self.judge(texts, references, tags))]

    def _each_once(self, function: Callable, calls: Sequence[tuple], known: Mapping = MappingProxyType({})) -> list:
        futures = dict(known)
        for call in calls:
            if call not in futures:
                futures[call] = self._workers.submit(function, call, self._time_limit)
        return [futures[call] for call in calls]

    def _values(self, reward: str, futures: list[Future]) -> list[float]:
        lowest = 0.0 if reward in REWARDS else self._low
        values = {}
        for future in dict.fromkeys(futures):
            result = future.result()
            if reward not in REWARDS and not isinstance(result, Failure) and not self._low <= result <= self._high:
                result = Failure("OutOfRange", f"{reward} gave {result:g}, not in {self._low:g} to {self._high:g}")
            if isinstance(result, Failure):
                self._count(result)
            values[future] = lowest if isinstance(result, Failure) else float(result)
        return [values[future] for future in futures]

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


def _known(result: bool) -> Future:
    future: Future = Future()
    future.set_result(result)
    return future


def user_reward_problem(reward: str) -> str | None:
    """What keeps a user's reward from being called, None if nothing does; runs in a worker."""
    try:
        function = _load(reward)
        inspect.signature(function).bind("text", "reference")
    except Exception as error:  # whatever the user's file raises
        return f"{type(error).__name__}: {error}"
    return None


def user_reward(reward: str, text: str, reference: str) -> float:
    """A user's reward of one answer; runs in a worker."""
    return float(_load(reward)(text, reference))


@lru_cache
def _load(reward: str) -> Callable[[str, str], float]:
    file, _, name = reward.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
