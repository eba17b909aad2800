"""Worker processes for calls that may hang, exhaust the memory or crash.

They are our own because `multiprocessing` and process pools do not fit: their processes import the
program's main module, may not be started by a daemonic process, and make sockets in the temporary
folder, whose path can be too long. The workers of a pool also share a pipe and a lock: if one is
killed at the wrong moment, for example by the kernel when memory is short, all others wait for
ever.
"""

import atexit
import ctypes
import fcntl
import os
import queue
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pkgutil import resolve_name

import psutil

MEMORY_LIMIT = 2 << 30
"""Bytes of data a worker may hold; beyond it allocations raise MemoryError."""
WALL_CLOCK_FACTOR = 10
"""A call may take this many times its limit of processor time by the clock: calls that sleep use no
processor time, and on a busy machine the clock must not decide a verdict."""
END = signal.SIGUSR1
"""Signal from the kernel that tells a keeper to end, since the program wants it or has ended."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


@dataclass(frozen=True)
class Failure:
    """Why a call has no result. `kind` is `timeout`, `death` (the worker died in the call),
    `no_worker` (no worker process could be started) or the exception's name.
    """

    kind: str
    message: str = ""


class Workers:
    """`count` worker processes that any thread may use. They end with the process that made them.

    - Workers are forked from a server process: a fresh interpreter with the program's module search
      path that has imported `mathequal.warm`, but never the program's main module. So a new worker
      costs milliseconds, and nothing is forked from a process with threads (torch, vLLM), which
      can deadlock.
    - Each worker has its own thread and pipe. A worker that is killed can neither hold a lock nor
      lose another's call.
    - Each worker has a keeper process. Whatever ends the worker, its keeper ends all processes that
      its calls started.
    """

    def __init__(self, count: int, time_limit: float):
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._workers = [_Worker(time_limit, self._calls) for _ in range(count)]

    def submit(self, function: str, *args: object) -> "Future[object]":
        """Return the future of a call of `function`, "module:name", in a worker: its result or a
        Failure. It never raises.
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


_shared: dict[float, Workers] = {}
_shared_lock = threading.Lock()


def shared_workers(time_limit: float) -> Workers:
    """Return the workers of this process with this limit of processor time, at most four."""
    with _shared_lock:
        if time_limit not in _shared:
            _shared[time_limit] = Workers(min(4, os.cpu_count() or 1), time_limit)
        return _shared[time_limit]


class _Worker(threading.Thread):
    """The thread that hands a worker one call after the other, until the queue gives None."""

    def __init__(self, time_limit: float, calls: queue.SimpleQueue):
        super().__init__(daemon=True)
        self._time_limit, self._calls, self._over = time_limit, calls, False
        self._pipe, self._control = _start_worker(time_limit)
        _running.add(self)
        self.start()

    def run(self) -> None:
        for future, call in iter(self._calls.get, None):
            try:
                result = self._call(call)
            except Exception as error:
                # Arguments that cannot be sent. The caller that waits must get a result.
                result = Failure(type(error).__name__, str(error)[:200])
            future.set_result(result)
        _running.discard(self)
        self.end()

    def end(self) -> None:
        """Kill the worker, whatever it is doing. It is not replaced."""
        self._over = True
        self._kill()

    def forget(self) -> None:
        """Close the sockets in a forked process, which must keep no worker of its parent alive."""
        self._pipe.close()
        self._control.close()

    def _kill(self) -> int | None:
        """Return the status with which the worker has ended, None if its keeper does not say."""
        with suppress(OSError):  # the keeper has ended
            self._control.shutdown(socket.SHUT_WR)
        status = self._status()
        self._pipe.close()
        self._control.close()
        return status

    def _status(self) -> int | None:
        # A keeper may wait for a process that it may not kill, such as another user's
        with suppress(OSError, ValueError):
            self._control.settimeout(10)
            return int(self._control.recv(10))
        return None

    def _restart(self) -> None:
        self._kill()
        if self._over:
            raise RuntimeError("the program is ending")
        self._pipe, self._control = _start_worker(self._time_limit)

    def _call(self, call: tuple) -> object:
        for _attempt in range(3):
            with suppress(EOFError, OSError):
                self._pipe.send(call)
                self._pipe.recv()  # the worker has received the call
                break
            try:
                self._restart()  # it was killed while idle, which is no fault of this call
            except OSError as error:  # no memory for a process, or no interpreter
                return Failure("no_worker", f"no worker process can be started: {error}")
        else:
            return Failure("no_worker", "worker processes die before they take a call")
        longest = self._time_limit * WALL_CLOCK_FACTOR
        with suppress(EOFError, OSError):  # raised when the worker has died
            if self._pipe.poll(longest):
                return self._pipe.recv()
            self._restart()
            return Failure("timeout", f"no result in {longest:g} s")
        # The pipe closes before the keeper knows why the worker ended
        status = self._status()
        self._restart()
        if status == 128 + signal.SIGPROF:
            return Failure("timeout", f"no result in {self._time_limit:g} s of processor time")
        return Failure("death", f"the worker ended with status {status}")


_running: set[_Worker] = set()
"""The workers of this process."""


class _Server:
    """The process that workers are forked from. It ends when the program closes its socket."""

    def __init__(self) -> None:
        # Unlike a stream, this type keeps the requests of several threads apart
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_interpreter(theirs.fileno())

    def fork_worker(self, time_limit: float, pipe: Connection, control: socket.socket) -> None:
        """Ask for a worker with these ends of its pipe and of its keeper's socket."""
        ends = [pipe.fileno(), control.fileno()]
        socket.send_fds(self._requests, [repr(time_limit).encode()], ends)

    def end(self) -> None:
        self._requests.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Close the socket in a forked process, which is not the parent of the server."""
        self._requests.close()
        self._process.returncode = 0  # else it warns that the process is still running


_server: _Server | None = None
_server_lock = threading.Lock()


def start_interpreter(passed: int) -> subprocess.Popen:
    """Start a fresh interpreter that serves requests from the socket `passed`."""
    code = (
        "import sys; sys.path[:] = sys.argv[2:]; "
        "from mathequal.workers import serve; serve(int(sys.argv[1]))"
    )
    search_path = [path for path in sys.path if isinstance(path, str)]
    return subprocess.Popen(
        # -P: the working directory is searched only if the program searches it
        [sys.executable, "-P", "-c", code, str(passed), *search_path],
        # sympy visits sets in the order of hashes. Without a fixed seed, verdicts could differ
        # between runs.
        env={"PYTHONHASHSEED": "0"} | os.environ,
        stdin=subprocess.DEVNULL,  # which may hold the program's own text
        pass_fds=[passed],
        start_new_session=True,  # out of reach of Ctrl-C
    )


def _start_worker(time_limit: float) -> tuple[Connection, socket.socket]:
    """Return our ends of the pipe of a new worker and of its keeper's socket. Their other ends are
    closed if the server ends at once. Raises OSError if it cannot be started.
    """
    global _server
    pipe, worker_end = Pipe()
    control, keeper_end = socket.socketpair()
    with worker_end, keeper_end, _server_lock:
        for _attempt in range(2):
            _server = _server or _Server()
            with suppress(ConnectionError):
                _server.fork_worker(time_limit, worker_end, keeper_end)
                break
            _server.end()  # it was killed
            _server = None
    return pipe, control


@atexit.register
def _end_all() -> None:
    for worker in list(_running):
        worker.end()
    if _server is not None:
        _server.end()


def _start_over() -> None:
    """Let a forked process have workers of its own: its parent's belong to threads that it lacks,
    and any lock may be held by one of them.
    """
    global _server, _server_lock, _shared_lock
    for parents in (*_running, *filter(None, [_server])):
        parents.forget()
    _running.clear()
    _shared.clear()
    _server, _server_lock, _shared_lock = None, threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_start_over)


def serve(requests_fd: int) -> None:
    """Run the server: fork a keeper and a worker for each request, until the program has ended."""
    # Ctrl-C and the launcher signal all processes, but the step under way still needs its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import_module("mathequal.warm")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    sys.argv = [""]
    with socket.socket(fileno=requests_fd) as requests:
        while True:
            request, ends, _, _ = socket.recv_fds(requests, 100, 2)
            if not request:
                return
            with suppress(OSError):  # no memory; the program sees that its ends are closed
                if os.fork() == 0:
                    requests.close()
                    _run_and_exit(_keep, *ends, float(request))
            for end in ends:
                os.close(end)


def _run_and_exit(function: Callable[..., int], *args: object) -> None:
    """End this process, which was forked, with the status that `function` returns."""
    status = 1
    try:
        status = function(*args)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _keep(pipe_fd: int, control_fd: int, time_limit: float) -> int:
    """Fork the worker, which END kills. When it has ended, kill all processes that it has started,
    and return its status.

    The keeper is a "subreaper": it becomes the parent of descendants whose own parent has ended, so
    it finds all, even in sessions of their own.
    """
    os.setsid()  # out of reach of what kills the program's whole group
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keeper = os.getpid()
    control = socket.socket(fileno=control_fd)
    # Processes that calls start by multiprocessing have their files in a folder of the parent's
    folder = None
    with suppress(OSError):  # nothing can be written
        folder = get_temp_dir()
    worker = os.fork()
    if worker == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        control.close()
        if os.getppid() == keeper:  # else the keeper ended before prctl was called
            _run_and_exit(_work, Connection(pipe_fd), time_limit)
        os._exit(1)
    os.close(pipe_fd)

    def end_worker(*_) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(worker, signal.SIGKILL)

    # Only now: a keeper that END ends before this would leave its folder behind
    signal.signal(END, end_worker)
    signal_when_readable(control_fd, END)
    if select.select([control], [], [], 0)[0]:  # since before the signal was asked for
        end_worker()
    ended, status = 0, 0
    while ended != worker:  # others are descendants whose own parent has ended
        ended, status = os.waitpid(-1, 0)
    signal.signal(END, signal.SIG_IGN)
    _kill_descendants()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code  # shells report signals like this
    with suppress(OSError):  # the program has ended
        control.send(str(code).encode())
    return code


def signal_when_readable(descriptor: int, number: int) -> None:
    """Let the kernel send this process a signal when there is something to read, or the other end
    is closed.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, number)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)


def _kill_descendants() -> None:
    with suppress(ChildProcessError):  # none is left
        while True:  # the next round finds processes that were started meanwhile
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            os.waitpid(-1, 0)


def _work(pipe: Connection, time_limit: float) -> int:
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
            return 0
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
                text = " ".join(str(error).split())[:200]
                notes = " ".join(" ".join(map(str, getattr(error, "__notes__", []))).split())[:80]
                result = Failure(type(error).__name__, f"{text} {notes}".strip())
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(result)
