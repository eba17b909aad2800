"""Worker processes for calls that may hang, exhaust the memory or crash: each is killed and replaced on its own."""

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

from pebble import ProcessExpired, ProcessFuture, ProcessPool

MEMORY_LIMIT = 2 << 30
"""Bytes of data a worker may hold; beyond it allocations raise MemoryError."""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True)
class Failure:
    """Why a call has no result: kind `timeout`, `death` (the worker died or was killed) or the exception's name."""

    kind: str
    message: str = ""


class Workers:
    """A pool of `count` worker processes, usable from any thread; they end with the process that made them.

    Workers are forked from a server process of their own that has imported `preload`: a fresh one costs milliseconds,
    and nothing is forked from a process with threads (torch, vLLM), which can deadlock.
    """

    def __init__(self, count: int, preload: Sequence[str]):
        main_file = getattr(sys.modules["__main__"], "__file__", None)
        if main_file and not Path(main_file).exists():
            raise RuntimeError(f"worker processes import the main program, but {main_file} is no file; put it in one")
        self._count = count
        self._lock = threading.Lock()
        # Sets of sympy are visited in the order of their hashes: without this, verdicts could differ between runs.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._pool = self._start()

    def _start(self) -> ProcessPool:
        pool = ProcessPool(max_workers=self._count, initializer=_restrict, context=self._context)
        pool.schedule(os.getpid)  # starts the processes now, not with the first real call
        return pool

    def map(self, function: Callable, arguments: Sequence[tuple], time_limit: float) -> list[object | Failure]:
        """`function(*args)` for all `args`, each in a worker and for at most `time_limit` seconds.

        `function` must be importable by the workers. A call that fails yields a Failure; it never raises.
        """
        results: list[object | Failure] = [Failure("death", "the worker pool broke down")] * len(arguments)
        pending = range(len(arguments))
        for _ in range(3):
            with self._lock:
                if not self._pool.active:
                    self.close()
                    self._pool = self._start()
                pool = self._pool
            futures: dict[int, ProcessFuture] = {}
            broken = []
            for i in pending:
                try:
                    futures[i] = pool.schedule(_call, (function, arguments[i]), timeout=time_limit)
                except RuntimeError:  # how the pool refuses work when it has broken down
                    broken.append(i)
            for i, future in futures.items():
                try:
                    results[i] = future.result()
                except TimeoutError:
                    results[i] = Failure("timeout", f"no result in {time_limit:g} s")
                except ProcessExpired as error:
                    results[i] = Failure("death", f"the worker ended with status {error.exitcode}")
                except BrokenProcessPool:  # a worker was killed while none was at work: the library then gives up
                    broken.append(i)
            pending = sorted(broken)
            if not pending:
                break
        return results

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _restrict() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends a worker at once even inside C code
    # The server ends with the program, unless its children hold the pipe that tells it: as long as a worker hangs, that
    # would be for ever. With the server go the workers.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _call(function: Callable, arguments: tuple) -> object | Failure:
    try:
        return function(*arguments)
    except Exception as error:  # counted by the caller; a plain Failure, since not every exception survives pickling
        return Failure(type(error).__name__, str(error)[:200])
