"""What a run says, kept in its folder as well: console.log, and console-1.log and so on of the starts before."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from bnpo.files import writing


class _Both:
    """A stream that also writes to a file, apart from lines that only move a bar."""

    def __init__(self, stream: TextIO, file: TextIO):
        self._stream, self._file = stream, file

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            with suppress(OSError):  # a full disk is told by what must be written
                self._file.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def keep_console(run: Path) -> None:
    """From here on this process's lines are added to <run>/console.log too; every rank adds its own. Raises InputError
    where it cannot be opened."""
    with writing(run):
        file = (run / "console.log").open("a", encoding="utf-8", buffering=1)
    sys.stdout, sys.stderr = _Both(sys.stdout, file), _Both(sys.stderr, file)


def set_end_aside(run: Path) -> None:
    """Give console.log of an earlier start the next free number, and delete its end.json (rank 0 only)."""
    (run / "end.json").unlink(missing_ok=True)
    earlier = run / "console.log"
    if earlier.exists():
        numbers = [path.stem.removeprefix("console-") for path in run.glob("console-*.log")]
        latest = max((int(number) for number in numbers if number.isdecimal()), default=0)
        earlier.rename(run / f"console-{latest + 1}.log")
