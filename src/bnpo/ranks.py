"""The ranks of a run: the GPUs that they can use, how they meet, and how they end.

A rank that dies or raises breaks the collectives of the others, and the launcher ends those that
are left.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import psutil
import torch
import torch.distributed as dist

from bnpo.environment import expects_cuda
from bnpo.errors import ranks_meet
from bnpo.files import InputError, line_of

# SIGHUP comes from a terminal that is closed
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Signals this soon after the first repeat its request: the launcher passes Ctrl-C on, as SIGTERM
ECHO_SECONDS = 1.0
# In which the launcher of a rank notices that another of its ranks has ended
LAUNCHER_SECONDS = 10.0


def has_cuda(optional: bool = False) -> bool:
    """Return whether torch can use a GPU. Raises InputError for one that it cannot use, or hides
    it if `optional`.
    """
    if torch.version.cuda and expects_cuda() and not torch.cuda.is_available():
        if not optional:
            raise InputError(
                f"torch, built for CUDA {torch.version.cuda}, cannot use the GPU of this machine. "
                "Update its driver, start the container with --gpus all, or use the CPU: "
                "CUDA_VISIBLE_DEVICES= in front of the command"
            )
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # libraries would fail at the GPU that they see
    return torch.cuda.is_available()


def visible_gpus() -> list[str]:
    """Return the GPUs of this process, as CUDA_VISIBLE_DEVICES names them. Raises InputError
    like `has_cuda`.
    """
    count = torch.cuda.device_count() if has_cuda() else 0
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = names.split(",") if names else list(map(str, range(count)))
    return gpus[:count]  # CUDA ignores names after one that it does not know


def trains_in_float16() -> bool:
    """Return whether DeepSpeed trains in float16 here: on a GPU, or on a CPU that has
    instructions for it.
    """
    from deepspeed.accelerator import get_accelerator  # takes seconds to import

    return bool(get_accelerator().is_fp16_supported())


def end_on_gpus() -> None:
    """End this process with success if it has used a GPU, before libraries can crash as the
    interpreter shuts down.
    """
    if torch.cuda.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def gather(own: object, group: dist.ProcessGroup | None = None) -> list:
    """Return the objects of all ranks, or of those in `group`, in the order of the ranks. A
    collective of them.
    """
    objects = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, own, group)
    return objects


class Ranks:
    """A context for the ranks that the launcher started. It connects them, and catches
    STOP_SIGNALS.

    The first signal is a request to stop, the second ends the process. Signals that were ignored
    when the process started, as nohup ignores SIGHUP, stay ignored. If an exception leaves the
    context, rank 0 calls `on_failure`.
    """

    def __init__(self) -> None:
        self.on_failure: Callable[[str], None] = lambda line: None
        self._signalled, self._launchers = False, _launchers()

    def __enter__(self) -> "Ranks":
        ranks_meet()
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        try:
            # Both backends: weights are gathered on the GPUs by NCCL, Python objects on the CPUs by
            # gloo.
            self._store, rank, ranks = next(dist.rendezvous("env://"))
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, store=self._store, rank=rank, world_size=ranks)
        except RuntimeError as error:
            variables = "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and MASTER_ADDR"
            cure = f"choose another --master_port if it is in use, and correct or unset {variables}"
            raise InputError(f"the ranks cannot connect ({line_of(error)}); {cure}") from error
        # Last: a rank that waits in vain for the others above must end at the first signal.
        # Python handlers run in the main thread, which may wait in a collective. The interpreter
        # writes signal numbers to this socket at once, and a thread reads them.
        # Attributes, since Python closes what nothing refers to
        self._signals, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch_signals, daemon=True).start()
        return self

    def asked_to_stop(self) -> bool:
        """Return whether any rank was asked to stop. A collective, so that all ranks stop after
        the same step.
        """
        return any(gather(self._asked))

    @property
    def _asked(self) -> bool:
        """Whether this process was signalled, or the launcher that started it has ended."""
        return self._signalled or _launchers() != self._launchers

    def __exit__(self, kind, error, trace) -> None:
        # KeyboardInterrupt and SystemExit are no failures to explain
        if not isinstance(error, Exception):
            return
        # A collective fails when another rank has ended, which shows its error. If all ranks find
        # the same error, the first one of the machine shows it, or the first to come here if that
        # one is late. The launcher then signals the others, which have nothing to add. Torch has no
        # class for gloo's errors
        is_echo = isinstance(error, dist.DistError) or "gloo" in str(error)
        if dist.get_rank() == 0:
            self.on_failure(f"{kind.__name__}: {error}")
        # If the user has stopped the run, the signal is not the launcher's
        was_asked, waited_since = self._asked, time.monotonic()
        while is_echo or (os.environ["LOCAL_RANK"] != "0" and not was_asked):
            if self._asked:
                raise SystemExit(1) from error
            if time.monotonic() - waited_since > LAUNCHER_SECONDS:
                break  # it is on another machine, or this rank's error is its own
            time.sleep(0.1)
        if not is_echo and not self._comes_first(error):
            raise SystemExit(1) from error

    def _comes_first(self, error: Exception) -> bool:
        """Return whether no other rank of this machine has shown the same error."""
        machine = f"{socket.gethostname()} {os.getppid()}"
        try:
            return self._store.add(f"{machine} {type(error).__name__}: {error}", 1) == 1
        except RuntimeError:  # rank 0, which holds the numbers, has ended with its own error
            return False

    def _watch_signals(self) -> None:
        first_time = None
        while True:
            number = self._signals.recv(1)[0]
            if number not in STOP_SIGNALS:
                continue
            if first_time is None:
                first_time, self._signalled = time.monotonic(), True
                if os.environ.get("LOCAL_RANK", "0") == "0":
                    print(
                        "\nstopping after this step; a second signal stops at once",
                        file=sys.stderr,
                        flush=True,
                    )
            elif time.monotonic() - first_time > ECHO_SECONDS:
                os._exit(128 + number)


def _launchers() -> tuple[int, int]:
    """Return the ids of the two processes of `deepspeed`: this rank's parent and the parent of
    that.
    """
    try:
        return os.getppid(), psutil.Process(os.getppid()).ppid()
    except psutil.NoSuchProcess:
        return os.getppid(), 0
