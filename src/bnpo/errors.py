"""How a program ends with an error: what it prints, what it keeps in a file, and which of several
ranks prints it.
"""

import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from bnpo.files import RunError, line_of

# Without a launcher nobody ends a rank that waits for the first rank of its machine. It then waits
# this long until it takes it for absent.
ABSENT_SECONDS = 60.0
OUT_OF_MEMORY = (
    "Lower --micro-batch-tokens or --gpu-memory. scripts/plan.py estimates what takes how much, "
    "and docs/gpus.md lists what else saves memory"
)
_folder: Path | None = None  # where `report` keeps tracebacks
_marks: dict[str, socket.socket] = {}  # names that this process has taken, as long as it lives


def keep_tracebacks_in(folder: Path) -> None:
    """Let `report` write tracebacks into `folder`, which must belong to this program."""
    global _folder
    _folder = folder


@contextmanager
def error_line() -> Iterator[None]:
    """Print an error that leaves the context, as `report` does, and end the program with its exit
    status.

    Ranks read the same input and find the same error in it. The first one of the machine prints it.
    """
    is_first_rank = os.environ.get("LOCAL_RANK", "0") == "0"
    if is_first_rank:
        _mark("checks")
    try:
        yield
    except Exception as error:
        if not is_first_rank and "met" not in _marks and _first_rank_fails():
            sys.exit(getattr(error, "exit_status", 1))
        sys.exit(report(error))


def ranks_meet() -> None:
    """Say that this rank has passed the checks that need no other rank."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _mark("met")
    else:
        _marks["met"] = socket.socket()  # known to this process only


def report(error: Exception) -> int:
    """Print an error, and return the exit status.

    A RunError is for the user, who needs its line only. Any other error is printed with its
    traceback after a line that says so, and is added to error.txt in the folder of
    `keep_tracebacks_in`.
    """
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which takes seconds to import
        error = RunError(f"{line_of(error)} {OUT_OF_MEMORY}")
    if isinstance(error, RunError):
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    place = ""
    trace = "".join(traceback.format_exception(error))
    if _folder and _folder.is_dir():
        file = _folder / "error.txt"
        with suppress(OSError), file.open("a", encoding="utf-8", errors="replace") as opened:
            rank = os.environ.get("RANK", "0")
            opened.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}, rank {rank}\n{trace}\n")
            place = f" and is in {file}"
    line = f"error: the program failed ({line_of(error)}). Its traceback follows{place}"
    print(f"{line}\n{trace}", end="", file=sys.stderr, flush=True)
    return 1


def _first_rank_fails() -> bool:
    """Wait until the first rank of this machine has passed the checks that this rank has failed, or
    has ended, and return whether it has ended. It then has printed the error.
    """
    seen, absent_since = False, time.monotonic()
    while not _is_marked("met"):
        if _is_marked("checks"):
            seen, absent_since = True, time.monotonic()
        elif seen:
            return True
        elif time.monotonic() - absent_since > ABSENT_SECONDS:
            break
        time.sleep(0.1)
    return False


def _mark_name(stage: str) -> str:
    # The ranks of a machine have one parent. A name that begins with \0 is no file, and is free
    # when its process has ended.
    return f"\0bnpo-{os.getppid()}-{os.environ.get('MASTER_PORT', '')}-{stage}"


def _mark(stage: str) -> None:
    """Let other processes of this job see that this one has reached `stage`."""
    if stage in _marks:
        return
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with suppress(OSError):  # another program of the same parent: no rank
        mark.bind(_mark_name(stage))
    _marks[stage] = mark


def _is_marked(stage: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_mark_name(stage))
        except OSError:
            return False
    return True
