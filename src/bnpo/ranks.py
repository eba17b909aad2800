"""The ranks of a run: how they meet, and how they end together if one is killed, one raises, or the user stops them.

Libraries do not ensure this: gloo notices a dead rank without naming it, NCCL may wait minutes for it, and the
DeepSpeed launcher sees only its own machine.
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
from typing import NamedTuple

import psutil
import torch
import torch.distributed as dist

from bnpo.files import InputError, RunError, line_of

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run after its step. SIGHUP comes from a terminal that is closed."""
ECHO_SECONDS = 1.0
"""Signals this soon after the first one count as the same request. Ctrl-C reaches a rank twice: from the terminal, and
as SIGTERM from the launcher."""


def gather(own: object, group: dist.ProcessGroup | None = None) -> list:
    """Return the objects of all ranks, or of those in `group`, in the order of the ranks. A collective of them."""
    objects = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, own, group)
    return objects


def check_port() -> None:
    """Raise InputError if another program uses the port at which the ranks meet. For rank 0."""
    port = os.environ.get("MASTER_PORT")
    # Under torchelastic the launcher itself listens at the port.
    if port is None or dist.is_torchelastic_launched():
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise _port_error(os.strerror(error.errno)) from error


def _port_error(reason: str) -> InputError:
    port = int(os.environ["MASTER_PORT"])
    return InputError(
        f"port {port}, at which the ranks meet: {reason} (another run on this machine?). Choose another port: "
        f"deepspeed --master_port {port + 1} train.py ..."
    )


class End(NamedTuple):
    """How a rank ends with an error: its exit status, and the message for the other ranks ("": it was killed)."""

    status: int
    message: str


class Ranks:
    """A context for the ranks that the launcher started. It connects them, and ends all of them if one fails.

    `run` names the run. Entering raises InputError on a rank that meets the ranks of another run.

    If an exception leaves the context, the rank that raised it first (rank 0 if all raised it) prints the traceback,
    and it becomes SystemExit. RunError passes through. Rank 0 calls `on_failure` with a line that says why all end.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.on_failure: Callable[[str], None] = lambda line: None

    def __enter__(self) -> "Ranks":
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        store, self._rank, ranks = self._meet()
        # Both backends: weights are gathered on the GPUs by NCCL, Python objects on the CPUs by gloo.
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        try:
            dist.init_process_group(backend, store=store, rank=self._rank, world_size=ranks)
        except RuntimeError as error:
            cure = "correct GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and MASTER_ADDR, or unset them"
            raise InputError(f"the ranks cannot connect ({line_of(error)}); {cure}") from error
        self._connect()
        # Last: a rank that waits in vain for the others above must end at the first signal.
        self._interrupt = Interrupt()
        return self

    def _meet(self) -> tuple[dist.Store, int, int]:
        """Return the store that the ranks share, this rank, and the number of ranks. Raises InputError for the port."""
        try:
            store, rank, ranks = next(dist.rendezvous("env://"))
        except dist.DistNetworkError as error:
            # The port was free in `check_port`. A run that was started at the same time has taken it since.
            if "EADDRINUSE" in str(error):
                raise _port_error(os.strerror(errno.EADDRINUSE)) from error
            raise
        # Compared here, since the process group would accept a rank of another run in place of one of this run.
        if rank == 0:
            store.set("run", self._run)
        run_of_rank_0 = store.get("run").decode()
        if run_of_rank_0 != self._run:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            reason = f"the ranks of {run_of_rank_0} meet here, not those of {self._run}"
            raise InputError(f"{address}: {reason}. Choose another port with deepspeed --master_port")
        return store, rank, ranks

    def asked_to_stop(self) -> bool:
        """Return whether any rank was signalled. A collective, so that all ranks stop after the same step."""
        return any(gather(self._interrupt.requested))

    def _connect(self) -> None:
        """Connect rank 0 with every other rank, and start the thread that watches the connections."""
        # The kernel closes a connection when the process at its other end dies.
        name = f"rank {self._rank} (process {os.getpid()} on {socket.gethostname()})"
        address = [None]  # a list: the broadcast replaces its element
        if self._rank == 0:
            key, ranks = secrets.token_bytes(16), dist.get_world_size()
            with Listener(("", 0), backlog=ranks, authkey=key) as listener:
                # After the listener is open: the broadcast lets other ranks connect.
                address = [(listener.address[1], key)]
                dist.broadcast_object_list(address)
                peers = [listener.accept() for _ in range(1, ranks)]
        else:
            dist.broadcast_object_list(address)
            port, key = address[0]
            peers = [Client((os.environ["MASTER_ADDR"], port), authkey=key)]
        for peer in peers:
            peer.send(name)
        self._peers: dict[Connection, str] = {peer: peer.recv() for peer in peers}
        self._peer_failed, self._leaving = threading.Event(), False
        threading.Thread(target=self._watch_peers, daemon=True).start()

    def __exit__(self, kind, error, trace) -> None:
        # KeyboardInterrupt and SystemExit are no failures to explain.
        if not isinstance(error, Exception):
            self._leave(End(1, f"ended: {kind.__name__}") if error else None)
            return
        # A collective fails when another rank ends. News of that rank then arrives at about the same time, so wait for
        # it: the thread that gets it ends this process. Rank 0 waits least, so that it shows an error that all raise.
        if self._peer_failed.wait(1 if self._rank == 0 else 5):
            time.sleep(60)
        line = f"{kind.__name__}: {error}"
        if self._rank == 0:
            self.on_failure(line)
        if isinstance(error, RunError):
            self._leave(End(error.exit_status, f"error: {error}"))
            return
        sys.excepthook(kind, error, trace)
        # Before the others know: they end at once, and the launcher then kills this process.
        sys.stderr.flush()
        self._leave(End(1, f"failed: {line}"))
        raise SystemExit(1) from error

    def _leave(self, end: End | None) -> None:
        """Send the other ranks how this rank ends. None: without an error."""
        self._leaving = True
        for peer in self._peers:
            with suppress(OSError):  # it has ended
                peer.send(end)

    def _watch_peers(self) -> None:
        """Wait for messages from the other ranks, and end this process if one of them fails."""
        peers = dict(self._peers)
        while peers:
            for peer in wait(list(peers)):
                try:
                    end = peer.recv()
                except (EOFError, OSError):
                    end = End(1, "")
                if end is None:
                    del peers[peer]
                elif not self._leaving:
                    self._end_with(peers[peer], end)

    def _end_with(self, name: str, end: End) -> None:
        """End this process, since the rank called `name` has ended. One rank per run prints why."""
        self._peer_failed.set()
        line = f"{name} {end.message or 'died without an error of its own: killed or crashed'}"
        # Rank 0 prints it, or rank 1 if rank 0 was killed.
        if self._rank == 0 or (self._rank == 1 and not end.message):
            hint = "" if end.message else ". The launcher shows its return code"
            print(f"\n{line}{hint}", file=sys.stderr, flush=True)
        if self._rank == 0:
            self.on_failure(line)
        if not end.message:
            time.sleep(2)  # The launcher reports the first process that ends: let that be the dead rank.
        if self._rank == 0:
            # Other ranks are connected to rank 0 only. With a message they print nothing.
            self._leave(End(end.status, "ended with another rank"))
        # Not sys.exit: the main thread may wait in a collective for ever.
        os._exit(end.status)


class Interrupt:
    """Catches STOP_SIGNALS: the first sets `requested`, the second ends the process. Made in the main thread.

    Signals that were ignored when the process started, as nohup ignores SIGHUP, stay ignored.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._launchers = _launchers()
        # Python handlers run in the main thread, which may wait in a collective. The interpreter writes signal numbers
        # to this socket at once, and a thread reads them.
        self._signals, self._wakeup = socket.socketpair()  # attributes, since Python closes what nothing refers to
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch_signals, daemon=True).start()

    @property
    def requested(self) -> bool:
        """Whether this process was signalled, or the launcher that started it has ended."""
        return self._signalled or _launchers() != self._launchers

    def _watch_signals(self) -> None:
        first_time = None
        while True:
            number = self._signals.recv(1)[0]
            if number not in STOP_SIGNALS:
                continue
            if first_time is None:
                first_time, self._signalled = time.monotonic(), True
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print("\nstopping after this step; a second signal stops at once", file=sys.stderr, flush=True)
            elif time.monotonic() - first_time > ECHO_SECONDS:
                os._exit(128 + number)


def _launchers() -> tuple[int, int]:
    """Return the ids of the two processes of `deepspeed`: this rank's parent and the parent of that."""
    try:
        return os.getppid(), psutil.Process(os.getppid()).ppid()
    except psutil.NoSuchProcess:
        return os.getppid(), 0
