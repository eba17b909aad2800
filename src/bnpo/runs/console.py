"""Copies of what a run prints, in its folder: console.log, and console-1.log and so on from earlier starts."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from bnpo.files import writing


class _Copied:
    """A stream whose text is also written to a file, except for updates of a progress bar."""

    def __init__(self, stream: TextIO, file: TextIO):
        self._stream, self._file = stream, file

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            # A full disk must not end a run here. Files that the run needs raise an InputError instead.
            with suppress(OSError):
                self._file.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def copy_console(run: Path) -> None:
    """Append all that this process prints from now on to <run>/console.log. For every rank. Raises InputError."""
    with writing(run):
        # Line-buffered, so that a killed process loses no line.
        file = (run / "console.log").open("a", encoding="utf-8", buffering=1)
    sys.stdout, sys.stderr = _Copied(sys.stdout, file), _Copied(sys.stderr, file)
    # Tracebacks of errors that users see in one line go to the file only.
    logger = logging.getLogger("bnpo")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(file))
    logger.propagate = False


def archive_console(run: Path) -> None:
    """Rename console.log of an earlier start to the next free number, and delete its end.json. Rank 0 only."""
    (run / "end.json").unlink(missing_ok=True)
    earlier = run / "console.log"
    if earlier.exists():
        numbers = [path.stem.removeprefix("console-") for path in run.glob("console-*.log")]
        # The highest number plus one: the user may have deleted some of the files.
        latest = max((int(number) for number in numbers if number.isdecimal()), default=0)
        earlier.rename(run / f"console-{latest + 1}.log")
