"""Files that are whole or absent, whatever kills the process or the machine, and what is said when they cannot be."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from bnpo.problems import InputError


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: object) -> None:
    """Write `content` so that the file is whole or absent."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    flush(unfinished)
    os.replace(unfinished, path)
    flush(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InputError for what fails to be written to `path`, or below it."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch raises RuntimeError when a disk is full, and for much else.
        if isinstance(error, RuntimeError) and "inline_container" not in str(error) and "Writer" not in str(error):
            raise
        reason = (isinstance(error, OSError) and error.strerror) or str(error).splitlines()[0]
        cure = "make it writable" if isinstance(error, PermissionError) else "make room there"
        raise InputError(
            f"{path}: cannot be written ({reason}); what was written before is whole: {cure}, and go on with --resume"
        ) from error
