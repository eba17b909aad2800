"""How a program ends with an error: what it prints, what it keeps in a file, and which of several
ranks prints it.
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from bnpo.files import RunError, line_of

# Time that the first rank of a machine has to find the error of another one, and the launcher to
# end the others
LAUNCHER_SECONDS = 30.0
OUT_OF_MEMORY = (
    "Lower --micro-batch-tokens or --gpu-memory. scripts/plan.py estimates what takes how much, "
    "and docs/gpus.md lists what else saves memory"
)
_folder: Path | None = None  # where `report` keeps tracebacks
_have_met = False  # see `ranks_meet`


def keep_tracebacks_in(folder: Path) -> None:
    """Let `report` write tracebacks into `folder`, which must belong to this program."""
    global _folder
    _folder = folder


def is_first_rank() -> bool:
    """Return whether this process prints for all ranks of its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def error_line() -> Iterator[None]:
    """Print an error that leaves the context, as `report` does, and end the program with its exit
    status.

    Ranks read the same input and find the same error in it. The first one of the machine prints it,
    and the launcher then ends those that wait here.
    """
    try:
        yield
    except Exception as error:
        if not (_have_met or is_first_rank()):
            time.sleep(LAUNCHER_SECONDS)
        status = report(error)
        end_on_gpus(status)
        sys.exit(status)


def end_on_gpus(status: int = 0) -> None:
    """End a process that has used a GPU at once. In a normal end, libraries may crash, and vLLM
    destroys NCCL's communicator, where a rank that has failed alone waits for the others.
    """
    torch = sys.modules.get("torch")  # importing it takes seconds
    if torch and torch.cuda.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ranks_meet() -> None:
    """Say that this rank is connected: `bnpo.ranks.Ranks` decides from now on who prints."""
    global _have_met
    _have_met = True


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
