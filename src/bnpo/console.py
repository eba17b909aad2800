"""What a process prints: output streams that cannot fail, and a copy of their text in a file."""

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class _Output(io.FileIO):
    """The file under an output stream. What cannot be written, to a full disk or a closed terminal, is dropped."""

    copy: BinaryIO | None = None  # one for both streams

    def write(self, data) -> int:
        if _Output.copy and bytes(data[:1]) != b"\r":  # not the updates of a progress bar
            with suppress(OSError):
                _Output.copy.write(data)
        with suppress(OSError):
            return super().write(data) or len(data)  # None: the reader of a pipe is too slow
        return len(data)


def secure_output() -> None:
    """Replace stdout and stderr by streams that cannot fail: what a program prints must not end it.

    Characters that the encoding lacks are replaced as well. Streams that somebody else has replaced, such as pytest,
    stay.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed when the program was started
            setattr(sys, name, open(os.devnull, "w", errors="replace"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):
            stream.flush()
            buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            errors = "replace" if name == "stdout" else "backslashreplace"
            # Line by line, also into a file: DeepSpeed starts its ranks with `python -u`, so that nothing waits.
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=True))


def copy_output(file: Path) -> None:
    """Append what this process prints from now on to `file` as well. Raises OSError."""
    _Output.copy = file.open("ab", buffering=0)  # unbuffered: a killed process loses no line
