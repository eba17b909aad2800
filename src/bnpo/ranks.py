"""What ranks agree on and how they end: together, whether one is killed, raises, or the user stops the run.

Own code: gloo notices a dead rank without naming it, NCCL may wait for one for minutes, and the DeepSpeed launcher
watches only the ranks of its own machine.
"""

import errno
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener, wait

import psutil
import torch
import torch.distributed as dist

from bnpo.files import InputError

ECHO_SECONDS = 1.0
"""Signals this soon after the first are the same wish: Ctrl-C reaches a rank from the terminal and, as SIGTERM, from
the launcher."""


def gather(own: object) -> list:
    """The objects of all ranks, in their order. A collective."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def check_port() -> None:
    """Raise InputError when the port at which the ranks would meet is another program's (for rank 0 to call)."""
    port = os.environ.get("MASTER_PORT")
    if port is None or dist.is_torchelastic_launched():  # then the launcher itself listens there
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise _port_error(os.strerror(error.errno)) from error


def _port_error(reason: str) -> InputError:
    port = int(os.environ["MASTER_PORT"])
    return InputError(
        f"port {port}, where the ranks would meet: {reason} (another run on this machine?); name another: deepspeed "
        f"--master_port {port + 1} train.py ..."
    )


class Ranks:
    """The ranks that the launcher started, as the context of all that they do together, from the process group on.

    Rank 0 holds a connection to every other rank, which the kernel closes when that process ends, in whatever way.
    An exception that leaves the context is shown as a traceback by the rank that raised it (rank 0, where all did) and
    becomes SystemExit; InputError passes through. Rank 0 calls `last_words` with the line that says why all end.
    `run` names the run, alike on all ranks: entering raises InputError for a rank that meets those of another.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.last_words: Callable[[str], None] = lambda line: None

    def __enter__(self) -> "Ranks":
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        store, self._rank, ranks = self._meet()
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=self._rank, world_size=ranks)
        self._connect()
        # Not before: a rank that waits for others in vain is to end at the first signal.
        self._interrupt = Interrupt()
        return self

    def _meet(self) -> tuple[dist.Store, int, int]:
        """Where the ranks of this run, and of no other, find each other; the number of this one, and of all."""
        try:
            store, rank, ranks = next(dist.rendezvous("env://"))
        except dist.DistNetworkError as error:
            if "EADDRINUSE" in str(error):  # since `check_port`, by a run that was started at the same time
                raise _port_error(os.strerror(errno.EADDRINUSE)) from error
            raise
        if rank == 0:
            store.set("run", self._run)
        elif (theirs := store.get("run").decode()) != self._run:
            raise InputError(
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} is where the ranks of {theirs} meet, not of "
                f"{self._run}; deepspeed --master_port names another port"
            )
        return store, rank, ranks

    def asked_to_stop(self) -> bool:
        """Whether any rank was signalled. A collective, so that all agree."""
        return any(gather(self._interrupt.requested))

    def _connect(self) -> None:
        name = f"rank {self._rank} (process {os.getpid()} on {socket.gethostname()})"
        place = [None]
        if self._rank == 0:
            key, ranks = secrets.token_bytes(16), dist.get_world_size()
            with Listener(("", 0), backlog=ranks, authkey=key) as listener:
                place = [(listener.address[1], key)]
                dist.broadcast_object_list(place)
                peers = [listener.accept() for _ in range(1, ranks)]
        else:
            dist.broadcast_object_list(place)
            port, key = place[0]
            peers = [Client((os.environ["MASTER_ADDR"], port), authkey=key)]
        for peer in peers:
            peer.send(name)
        self._peers: dict[Connection, str] = {peer: peer.recv() for peer in peers}
        self._lost, self._leaving = threading.Event(), False
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, kind, error, trace) -> None:
        if not isinstance(error, Exception):
            self._leave(error and (1, f"ended: {kind.__name__}"))
            return
        # What follows from another rank's end (a collective that fails) is raised about when the news of it comes, and
        # what all ranks raise comes from rank 0 first: wait for the news, whose thread then ends this process.
        if self._lost.wait(1 if self._rank == 0 else 5):
            time.sleep(60)
        line = f"{kind.__name__}: {error}"
        if self._rank == 0:
            self.last_words(line)
        if isinstance(error, InputError):
            self._leave((2, f"error: {error}"))
            return
        sys.excepthook(kind, error, trace)
        sys.stderr.flush()
        self._leave((1, f"failed: {line}"))
        raise SystemExit(1) from error

    def _leave(self, last_words: tuple[int, str] | None) -> None:
        """Tell the others that this rank is done (None), or with which exit status and message it ends."""
        self._leaving = True
        for peer in self._peers:
            with suppress(OSError):
                peer.send(last_words)

    def _watch(self) -> None:
        peers = dict(self._peers)
        while peers:
            for peer in wait(list(peers)):
                try:
                    last_words = peer.recv()
                except (EOFError, OSError):
                    last_words = (1, "")
                if last_words is None:
                    del peers[peer]
                elif not self._leaving:
                    self._follow(peers[peer], *last_words)

    def _follow(self, name: str, status: int, message: str) -> None:
        """End this process, as the rank `name` did; rank 0 tells the others, and rank 1 tells of rank 0's death."""
        self._lost.set()
        line = f"{name} {message or 'died without an error of its own: killed or crashed'}"
        if self._rank == 0 or (self._rank == 1 and not message):
            cure = "" if message else "; the launcher shows its return code"
            print(f"\n{line}{cure}", file=sys.stderr, flush=True)
        if self._rank == 0:
            self.last_words(line)
        if not message:
            time.sleep(2)  # The launcher reports what it finds first: let that be the dead rank.
        if self._rank == 0:
            self._leave((status, "told"))
        os._exit(status)


class Interrupt:
    """From its making on, signals do nothing but set `requested`, until the second. Make it in the main thread."""

    def __init__(self) -> None:
        self._asked = False
        self._launchers = _launchers()
        # Python's handlers wait for the main thread, which may wait for another rank; this pipe is written at once.
        self._signals, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self._wakeup = wakeup
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def requested(self) -> bool:
        """Whether this process was signalled, or the launcher that started it has gone."""
        return self._asked or _launchers() != self._launchers

    def _watch(self) -> None:
        first = None
        while True:
            number = self._signals.recv(1)[0]
            if number not in (signal.SIGINT, signal.SIGTERM):
                continue
            if first is None:
                first, self._asked = time.monotonic(), True
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print("\nstopping after this step; a second signal stops at once", file=sys.stderr, flush=True)
            elif time.monotonic() - first > ECHO_SECONDS:
                os._exit(128 + number)


def _launchers() -> tuple[int, int]:
    """The processes of `deepspeed`: the one that started this rank, and the one that started that."""
    try:
        return os.getppid(), psutil.Process(os.getppid()).ppid()
    except psutil.NoSuchProcess:
        return os.getppid(), 0
