"""Compute verdicts in a child process that is killed and replaced when one hangs or exhausts the memory."""

import multiprocessing
import os
import resource
import signal
from collections import Counter
from multiprocessing.connection import Connection

from mathequal.equality import final_answer, quick_verdict

RULES = ("default", "reference")
"""Our rule, and that of the authors' released code."""
TIME_LIMIT = 5.0
"""Seconds of processor time for one verdict, so that no verdict depends on what else the machine does."""
MEMORY_LIMIT = 2 << 30
"""Bytes of data that the child may hold. Beyond it allocations raise MemoryError."""


class LimitedGrader:
    """Grades answers within the limits, each pair once. Close it at the end.

    `failures` counts the pairs without a verdict by the reason: `timeout`, `death` or the name of an exception.
    """

    def __init__(self, rule: str = "default", time_limit: float = TIME_LIMIT):
        self._rule, self._time_limit = rule, time_limit
        self._verdicts: dict[tuple[str, str], bool] = {}
        self.failures: Counter[str] = Counter()
        # Sets of sympy are visited in the order of their hashes: without this, verdicts could differ between runs.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["mathequal.warm"])  # so that a new child takes milliseconds
        self._start()
        self._childs_verdict("slow_verdict", "1+x", "x+1")  # the child is ready when this returns

    def _start(self) -> None:
        self._pipe, childs_end = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(childs_end, self._time_limit), daemon=True)
        self._process.start()
        childs_end.close()

    def equal(self, reference: str, text: str) -> bool:
        """Whether `text`, with its answer in a box or a bare answer, is right; False without a verdict."""
        pair = (reference, text)
        if pair not in self._verdicts:
            self._verdicts[pair] = self._verdict(reference, text)
        return self._verdicts[pair]

    def _verdict(self, reference: str, text: str) -> bool:
        answer = final_answer(text)
        if self._rule == "reference":
            boxed = f"\\boxed{{{text}}}" if answer is None else text
            return self._childs_verdict("released_verdict", reference, boxed)
        answer = text if answer is None else answer
        verdict = quick_verdict(reference, answer)
        return self._childs_verdict("slow_verdict", reference, answer) if verdict is None else verdict

    def _childs_verdict(self, function: str, reference: str, answer: str) -> bool:
        """Return the verdict of a function of symbolic.py; False if it fails."""
        try:
            self._pipe.send((function, reference, answer))
            verdict, failure = self._pipe.recv()
        except (EOFError, OSError):  # the child has died
            self.close()
            verdict, failure = False, "timeout" if self._process.exitcode == -signal.SIGPROF else "death"
            self._start()
        if failure:
            self.failures[failure] += 1
        return verdict

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, time_limit: float) -> None:
    """Answer requests until the pipe is closed. The kernel ends this process when a verdict takes too long."""
    from mathequal import symbolic

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's business
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            function, reference, answer = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, time_limit)  # without a handler, SIGPROF kills
        try:
            outcome = getattr(symbolic, function)(reference, answer), ""
        except BaseException as error:  # SystemExit, too, must not end the child
            outcome = False, type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(outcome)
