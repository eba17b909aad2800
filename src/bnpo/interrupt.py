"""SIGTERM and Ctrl-C: the first asks the run to stop after the step, a second ends this process at once."""

import os
import signal
import socket
import sys
import threading
import time

import psutil

ECHO_SECONDS = 1.0
"""Signals this soon after the first are the same wish: Ctrl-C reaches a rank from the terminal and, as SIGTERM, from
the launcher."""


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
