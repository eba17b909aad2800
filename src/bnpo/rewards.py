"""Binary rewards of answers, graded in worker processes that can be killed."""

import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError

import numpy as np
from pebble import ProcessExpired, ProcessFuture, ProcessPool

from bnpo.answers import final_answer, quick_verdict, slow_verdict

TIME_LIMIT = 5.0
"""Seconds for one verdict of math-verify."""

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_FORMAT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)


def format_reward(text: str) -> bool:
    """Whether `text` is `<think>...</think><answer>...</answer>` with each tag once (Table 2).

    >>> format_reward("<think>hm</think> <answer>4</answer>"), format_reward("<think>hm</think> 4")
    (True, False)
    """
    return all(text.count(tag) == 1 for tag in _TAGS) and _FORMAT.fullmatch(text) is not None


REWARDS = ("accuracy", "format")
"""Names of the rewards; `accuracy` is 1 where the final answer equals the reference."""


class Grader:
    """Rewards of answers; what is not settled by a cheap comparison goes to `workers` processes.

    A verdict that takes longer than TIME_LIMIT, or whose worker dies or raises, is 0 and counted in `failures` by kind.
    """

    def __init__(self, rewards: Sequence[str] = ("accuracy",), workers: int = 1):
        self.rewards = tuple(rewards)
        self.failures: Counter[str] = Counter()
        # Spawned, since forking a process with threads (torch, vLLM) can deadlock.
        self._pool = ProcessPool(max_workers=workers, context=multiprocessing.get_context("spawn"))
        self._pool.schedule(slow_verdict, args=("x", "x"))  # the import takes seconds: start it now

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Rewards [answers, K] in {0, 1} of `texts` against `references`, one each."""
        columns: dict[str, Callable[[], list[bool]]] = {
            "accuracy": lambda: self._accuracy(texts, references),
            "format": lambda: [format_reward(text) for text in texts],
        }
        return np.array([columns[name]() for name in self.rewards], dtype=np.float64).T

    def _accuracy(self, texts: Sequence[str], references: Sequence[str]) -> list[bool]:
        answers = [final_answer(text) or "" for text in texts]
        pairs = list(zip(references, answers, strict=True))
        # Samples of one question repeat answers: each different pair is looked at once.
        verdicts: dict[tuple[str, str], bool | ProcessFuture] = {}
        for pair in dict.fromkeys(pairs):
            verdict = quick_verdict(*pair)
            verdicts[pair] = self._pool.schedule(slow_verdict, pair, timeout=TIME_LIMIT) if verdict is None else verdict
        settled = {pair: self._result(v) if isinstance(v, ProcessFuture) else v for pair, v in verdicts.items()}
        return [settled[pair] for pair in pairs]

    def _result(self, future: ProcessFuture) -> bool:
        try:
            return future.result()
        except TimeoutError:
            self.failures["timeouts"] += 1
        except ProcessExpired:
            self.failures["deaths"] += 1
        except Exception as error:  # whatever sympy or the LaTeX parser raises on a model's text
            self.failures[type(error).__name__] += 1
        return False

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()
