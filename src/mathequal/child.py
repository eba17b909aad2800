"""Compute verdicts in a child process that is killed and replaced when one hangs or exhausts the memory."""

import multiprocessing
import os
import resource
import signal
from collections import Counter
from multiprocessing.connection import Connection
from typing import NamedTuple

from mathequal.equality import final_answer, quick_verdict

RULES = ("default", "reference")
"""Our rule, and that of the authors' released code."""
TIME_LIMIT = 5.0
"""Seconds for one verdict."""
MEMORY_LIMIT = 2 << 30
"""Bytes of data that the child may hold. Beyond it allocations raise MemoryError."""


class Outcome(NamedTuple):
    """A verdict, or why there is none: `failure` is "", `timeout`, `death` or the name of an exception."""

    equal: bool
    failure: str = ""


class VerdictProcess:
    """One child process, which computes verdicts one after the other. Close it at the end."""

    def __init__(self, time_limit: float):
        self._time_limit = time_limit
        # Sets of sympy are visited in the order of their hashes: without this, verdicts could differ between runs.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["mathequal.warm"])  # so that a new child takes milliseconds
        self._start()

    def _start(self) -> None:
        self._pipe, childs_end = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(childs_end, self._time_limit), daemon=True)
        self._process.start()
        childs_end.close()

    def verdict(self, rule: str, reference: str, answer: str) -> Outcome:
        """Compute a verdict by a rule of symbolic.py, `slow_verdict` or `released_verdict`."""
        try:
            self._pipe.send((rule, reference, answer))
            return self._pipe.recv()
        except (EOFError, OSError):  # the child has died
            self.close()
            timeout = self._process.exitcode == -signal.SIGALRM
            self._start()
            return Outcome(False, "timeout" if timeout else "death")

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


class LimitedGrader:
    """Grades answers within the limits, each pair once. `failures` counts the pairs without a verdict by the reason."""

    def __init__(self, rule: str = "default", time_limit: float = TIME_LIMIT):
        self._rule = rule
        self._child = VerdictProcess(time_limit)
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self.failures: Counter[str] = Counter()
        self._child.verdict("slow_verdict", "1+x", "x+1")  # the child is ready when this returns

    def equal(self, reference: str, text: str) -> bool:
        """Whether `text`, with its answer in a box or a bare answer, is right; False without a verdict."""
        pair = (reference, text)
        if pair not in self._outcomes:
            self._outcomes[pair] = self._outcome(reference, text)
            if self._outcomes[pair].failure:
                self.failures[self._outcomes[pair].failure] += 1
        return self._outcomes[pair].equal

    def _outcome(self, reference: str, text: str) -> Outcome:
        answer = final_answer(text)
        if self._rule == "reference":
            boxed = f"\\boxed{{{text}}}" if answer is None else text
            return self._child.verdict("released_verdict", reference, boxed)
        answer = text if answer is None else answer
        verdict = quick_verdict(reference, answer)
        return self._child.verdict("slow_verdict", reference, answer) if verdict is None else Outcome(verdict)

    def close(self) -> None:
        self._child.close()


def _serve(pipe: Connection, time_limit: float) -> None:
    """Answer requests until the pipe is closed. The kernel ends this process when a verdict takes too long."""
    from mathequal import symbolic

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's business
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            rule, reference, answer = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, time_limit)  # without a handler, SIGALRM kills
        try:
            outcome = Outcome(getattr(symbolic, rule)(reference, answer))
        except BaseException as error:  # SystemExit, too, must not end the child
            outcome = Outcome(False, type(error).__name__)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(outcome)
