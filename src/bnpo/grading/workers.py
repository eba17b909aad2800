"""Worker processes for calls that may hang, exhaust the memory or crash: each is killed and replaced on its own.

Own code, since process pools share a pipe and a lock between their workers: one killed at the wrong moment (by the
kernel when memory is short, for example) stops all of them for ever.
"""

import atexit
import ctypes
import multiprocessing
import os
import queue
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pathlib import Path
from pkgutil import resolve_name

import psutil

from bnpo.processes import signal_at_program_end

MEMORY_LIMIT = 2 << 30
"""Bytes of data a worker may hold; beyond it allocations raise MemoryError."""

END = signal.SIGUSR1
"""What tells a keeper to end: sent by its program, and by the kernel when that has ended."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


@dataclass(frozen=True)
class Failure:
    """Why a call has no result: kind `timeout`, `death` (the worker died or was killed) or the exception's name."""

    kind: str
    message: str = ""


class Workers:
    """`count` worker processes, usable from any thread; they end with the process that made them.

    What they run is given by name, `module:function`: the program itself need not import what takes its workers long.

    Workers are forked from a server process of their own that has imported `preload`: a fresh one costs milliseconds,
    and nothing is forked from a process with threads (torch, vLLM), which can deadlock. Each has a thread and a pipe of
    its own, so that one that is killed, at whatever moment, can neither hold a lock nor lose a call of the others.
    Each has a keeper, too: whatever ends the worker, all that its calls have started ends with it.
    """

    def __init__(self, count: int, time_limit: float, preload: str):
        main_file = getattr(sys.modules["__main__"], "__file__", None)
        if main_file and not Path(main_file).exists():
            raise RuntimeError(f"worker processes import the main program, but {main_file} is no file; put it in one")
        # Sets of sympy are visited in the order of their hashes: without this, verdicts could differ between runs.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, preload])
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        workers = [_Worker(context, time_limit) for _ in range(count)]
        self._threads = [threading.Thread(target=_serve, args=(w, self._calls), daemon=True) for w in workers]
        for thread in self._threads:
            thread.start()

    def submit(self, function: str, *args: object) -> "Future[object | Failure]":
        """`function(*args)` in a worker, for at most `time_limit` seconds; a call that fails results in a Failure.

        The future never raises.
        """
        future: Future = Future()
        self._calls.put((future, function, args))
        return future

    def close(self) -> None:
        """End the workers, when the calls under way have ended."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


def _serve(worker: "_Worker", calls: queue.SimpleQueue) -> None:
    """One thread a worker: hands it one call after the other, until there is a None."""
    while (item := calls.get()) is not None:
        future, *call = item
        try:
            result = worker.call(call)
        except Exception as error:
            # Arguments that cannot be sent, or no memory for a new process: whoever waits must hear of it.
            result = Failure(type(error).__name__, str(error)[:200])
        future.set_result(result)
    worker.end()


class _Worker:
    """The pipe to a worker, and the process that keeps it."""

    def __init__(self, context: multiprocessing.context.BaseContext, time_limit: float):
        self._context, self._time_limit, self._over = context, time_limit, False
        self._start()
        # At exit multiprocessing sends SIGTERM, which workers ignore, and waits: for ever.
        atexit.register(self.end)

    def _start(self) -> None:
        if self._over:
            raise RuntimeError("the program ends")
        pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=_keep, args=(theirs, get_temp_dir()), name="bnpo worker", daemon=True)
        process.start()
        theirs.close()
        self._pipe, self._process = pipe, process

    def end(self) -> None:
        """Kill the worker, whatever it does, for good."""
        self._over = True
        atexit.unregister(self.end)
        self._kill()

    def _kill(self) -> int | None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, END)
        self._process.join(timeout=10)
        self._process.kill()  # should the keeper wait for what it may not kill, such as a process of another user
        self._process.join()
        self._pipe.close()
        return self._process.exitcode

    def call(self, call: list) -> object | Failure:
        for _ in range(3):
            taken, late = False, False
            with suppress(EOFError, OSError):  # it has died
                self._pipe.send(call)
                self._pipe.recv()
                taken = True
                if self._pipe.poll(self._time_limit):
                    return self._pipe.recv()
                late = True
            status = self._kill()
            self._start()
            if late:
                return Failure("timeout", f"no result in {self._time_limit:g} s")
            if taken:
                return Failure("death", f"the worker ended with status {status}")
            # else it was killed while it had nothing to do: no fault of this call
        return Failure("death", "workers die before they take a call")


def _keep(pipe: Connection, folder: str) -> None:
    """Fork the worker; when it ends, or END comes, kill it and everything that it has started.

    As their "subreaper" the keeper becomes the parent of descendants whose own has ended, so that it finds all of them,
    in sessions of their own or not. No time limit and no memory limit kills the keeper itself. After a program that was
    killed it also deletes `folder`, where multiprocessing has the fork server's socket.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {END, signal.SIGCHLD})
    # Ctrl-C and the launcher reach all processes, but the step under way still needs its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()  # out of reach of what kills the program's whole group
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal_at_program_end(END)
    keeper, worker = os.getpid(), os.fork()
    if worker == 0:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:  # else it has ended before the kernel was told
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {END, signal.SIGCHLD})
            _work(pipe)
        return
    pipe.close()
    status = None
    while status is None and signal.sigwait({END, signal.SIGCHLD}) == signal.SIGCHLD:
        status = _reap(worker)
    _kill_descendants()
    if not multiprocessing.parent_process().is_alive():
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if status is None else status if status >= 0 else 128 - status)  # as shells tell of signals


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _reap(worker: int) -> int | None:
    """Forget the children that have ended; the exit status of the worker if it is one of them."""
    while True:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == worker:
            return os.waitstatus_to_exitcode(status)
        if process == 0:
            return None


def _kill_descendants() -> None:
    with suppress(ChildProcessError):  # none is left
        while True:  # what was started meanwhile is found in the next round
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            os.waitpid(-1, 0)


def _work(pipe: Connection) -> None:
    """The main loop of a worker."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:  # closed by the other side
            return
        function = resolve_name(name)  # an import, perhaps, which is no part of the call
        pipe.send(None)
        pipe.send(_call(function, args))


def _call(function: Callable, args: tuple) -> object | Failure:
    try:
        return function(*args)
    except BaseException as error:  # also SystemExit, which is not the caller's
        try:
            message = " ".join(str(error).split())[:200]
        except Exception:  # its own __str__ raises
            message = ""
        return Failure(type(error).__name__, message)
