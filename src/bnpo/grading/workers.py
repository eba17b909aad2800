"""Worker processes for calls that may hang, exhaust the memory or crash.

This is our own code because the workers of a process pool share a pipe and a lock. If one is killed
at the wrong moment, for example by the kernel when memory is short, all others wait for ever.
"""

import atexit
import ctypes
import fcntl
import multiprocessing
import os
import queue
import resource
import shutil
import signal
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pkgutil import resolve_name

import psutil

from bnpo.environment import secure_output

MEMORY_LIMIT = 2 << 30
"""Bytes of data a worker may hold; beyond it allocations raise MemoryError."""
WALL_CLOCK_FACTOR = 10
"""A call may take this many times its limit of processor time by the clock: calls that sleep use no
processor time, and on a busy machine the clock must not decide a verdict."""
END = signal.SIGUSR1
"""Signal that tells a keeper to end, from the program, or from the kernel when the program has
ended."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


@dataclass(frozen=True)
class Failure:
    """Why a call has no result. `kind` is `timeout`, `death` (the worker died) or the
    exception's name.
    """

    kind: str
    message: str = ""


class Workers:
    """`count` worker processes that any thread may use. They end with the process that made them.

    - Workers are forked from a server process that has imported `preload`. So a new worker costs
      milliseconds, and nothing is forked from a process with threads (torch, vLLM), which can
      deadlock.
    - Each worker has its own thread and pipe. A worker that is killed can neither hold a lock nor
      lose another's call.
    - Each worker has a keeper process. Whatever ends the worker, its keeper ends all processes that
      its calls started.
    """

    def __init__(self, count: int, time_limit: float, preload: str):
        main_file = getattr(sys.modules["__main__"], "__file__", None)
        if main_file and not os.path.exists(main_file):
            raise RuntimeError(
                f"worker processes import the main program, but {main_file} is no file; put it in "
                "one"
            )
        # sympy visits sets in the order of hashes. Without a fixed seed, verdicts could differ
        # between runs.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, preload])
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._workers = [_Worker(context, time_limit, self._calls) for _ in range(count)]

    def submit(self, function: str, *args: object) -> "Future[object | Failure]":
        """Return the future of a call of `function`, "module:name", in a worker. It never
        raises: see Failure.
        """
        future: Future = Future()
        self._calls.put((future, (function, args)))
        return future

    def close(self) -> None:
        """End the workers after the calls that are under way."""
        for _ in self._workers:
            self._calls.put(None)
        for worker in self._workers:
            worker.join()


class _Worker(threading.Thread):
    """The thread that hands a worker one call after the other, until the queue gives None."""

    def __init__(
        self,
        context: multiprocessing.context.BaseContext,
        time_limit: float,
        calls: queue.SimpleQueue,
    ):
        super().__init__(daemon=True)
        self._server, self._time_limit, self._calls, self._over = context, time_limit, calls, False
        self._start_process()
        # Not a daemon, since those may have no children, and users' functions may start pools. At
        # exit multiprocessing waits for such processes for ever, but this is called before.
        atexit.register(self._end)
        self.start()

    def run(self) -> None:
        for future, call in iter(self._calls.get, None):
            try:
                result = self._call(call)
            except Exception as error:
                # Arguments that cannot be sent, or no memory for a process. The caller that waits
                # must get a result.
                result = Failure(type(error).__name__, str(error)[:200])
            future.set_result(result)
        atexit.unregister(self._end)
        self._end()

    def _start_process(self) -> None:
        self._pipe, theirs = self._server.Pipe()
        # A process that multiprocessing started shares this folder with its parent, which still
        # needs it.
        folder = get_temp_dir() if multiprocessing.parent_process() is None else None
        arguments = (theirs, folder, self._time_limit)
        self._process = self._server.Process(target=_keep, args=arguments, name="bnpo worker")
        self._process.start()
        theirs.close()

    def _end(self) -> None:
        """Kill the worker, whatever it is doing. It is not replaced."""
        self._over = True
        self._kill()

    def _kill(self) -> int | None:
        if self._process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, END)
        self._process.join(timeout=10)
        # In case the keeper waits for a process that it may not kill, such as another user's
        self._process.kill()
        self._process.join()
        self._pipe.close()
        return self._process.exitcode

    def _restart(self) -> int | None:
        status = self._kill()
        if self._over:
            raise RuntimeError("the program is ending")
        self._start_process()
        return status

    def _call(self, call: tuple) -> object | Failure:
        for _attempt in range(3):
            with suppress(EOFError, OSError):
                self._pipe.send(call)
                self._pipe.recv()  # the worker has received the call
                break
            self._restart()  # it was killed while idle, which is no fault of this call
        else:
            return Failure("death", "workers die before they take a call")
        longest = self._time_limit * WALL_CLOCK_FACTOR
        with suppress(EOFError, OSError):  # raised when the worker has died
            if self._pipe.poll(longest):
                return self._pipe.recv()
            self._restart()
            return Failure("timeout", f"no result in {longest:g} s")
        # The pipe closes before the keeper knows why the worker ended. It then ends with the
        # worker's status.
        self._process.join(timeout=10)
        status = self._restart()
        if status == 128 + signal.SIGPROF:
            return Failure("timeout", f"no result in {self._time_limit:g} s of processor time")
        return Failure("death", f"the worker ended with status {status}")


def _keep(pipe: Connection, folder: str | None, time_limit: float) -> None:
    """Fork the worker, which END kills. When it has ended, kill all processes that it has started.

    The keeper is a "subreaper": it becomes the parent of descendants whose own parent has ended, so
    it finds all, even in sessions of their own. If the program was killed, it also deletes
    `folder`, which has the fork server's socket.
    """
    # Ctrl-C and the launcher signal all processes, but the step under way still needs its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()  # out of reach of what kills the program's whole group
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # 0: a signal that comes this early kills the keeper's group, which is all there is
    keeper, worker = os.getpid(), 0

    def end_worker(*_) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(worker, signal.SIGKILL)

    signal.signal(END, end_worker)
    signal_at_program_end(END)
    worker = os.fork()
    if worker == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:  # else the keeper ended before prctl was called
            signal.signal(END, signal.SIG_DFL)
            _work(pipe, time_limit)
        return
    pipe.close()
    ended, status = 0, 0
    while ended != worker:  # others are descendants whose own parent has ended
        ended, status = os.waitpid(-1, 0)
    signal.signal(END, signal.SIG_IGN)
    _kill_descendants()
    if folder and not multiprocessing.parent_process().is_alive():
        shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)  # shells report signals like this


def signal_at_program_end(number: int) -> None:
    """Let the kernel send this process, started by `multiprocessing`, a signal when the program
    ends in any way.
    """
    # The parent process is the fork server, which lives as long as any of its processes, so
    # PR_SET_PDEATHSIG would not do. This pipe closes with the program, which holds its other end,
    # and O_ASYNC turns that into the signal.
    program = multiprocessing.parent_process().sentinel
    fcntl.fcntl(program, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(program, fcntl.F_SETSIG, number)
    fcntl.fcntl(program, fcntl.F_SETFL, fcntl.fcntl(program, fcntl.F_GETFL) | os.O_ASYNC)


def _kill_descendants() -> None:
    with suppress(ChildProcessError):  # none is left
        while True:  # the next round finds processes that were started meanwhile
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            os.waitpid(-1, 0)


def _work(pipe: Connection, time_limit: float) -> None:
    # What a user's function prints, to a full disk or a closed terminal, must not make it fail
    secure_output()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Processes that a call starts end on them, as pools expect
    for number in (signal.SIGINT, signal.SIGTERM):
        os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))
        # This one does not; a handler, unlike SIG_IGN, does not outlive exec
        signal.signal(number, lambda *_: None)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:  # the other side has closed the pipe
            return
        # May import a module, which does not count as part of the call
        function = resolve_name(name)
        pipe.send(None)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # kills this process
        signal.setitimer(signal.ITIMER_PROF, time_limit)
        try:
            result = function(*args)
        except BaseException as error:  # SystemExit, too: a user's function must not end the worker
            result = Failure(type(error).__name__)
            with suppress(Exception):  # its own __str__ may raise
                result = Failure(type(error).__name__, " ".join(str(error).split())[:200])
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(result)
