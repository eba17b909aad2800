"""What training leaves behind at its end: the page of the run, and a summary in the terminal."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bnpo.files import line_of
from runpage.page import write_page
from runpage.run_files import summary


@contextmanager
def page_at_end(run: Path, *, rank: int) -> Iterator[None]:
    """Write the page into the folder `run` when the context ends, also by an exception. Without
    one, print the summary. Only rank 0 does.

    A training that ended before it claimed the folder leaves it alone: it may hold an earlier run.
    """
    earlier = _claim(run)
    ended_well = False
    try:
        yield
        ended_well = True
    finally:
        if rank == 0 and _claim(run) not in (earlier, None):
            show_end(run, with_summary=ended_well and (run / "metrics.jsonl").exists())


def show_end(run: Path, *, with_summary: bool) -> None:
    """Write the page of a run and print its summary. If that fails, print a line: no run ends
    because of its page, and no other error is hidden.
    """
    try:
        write_page(run / "report.html", [run])
        if with_summary:
            print(f"\n{summary(run)}", flush=True)
    except Exception as error:  # of any kind, such as a full disk
        again = shlex.join(["python", "-m", "runpage", str(run)])
        print(f"the page was not written ({line_of(error)}). Try again: {again}", flush=True)


def _claim(run: Path) -> tuple[int, int] | None:
    """Return what changes when training claims a folder: it then writes config.json anew."""
    try:
        status = (run / "config.json").stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
