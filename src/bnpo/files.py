"""Files that are whole or absent, whatever kills the process or the machine, and what is said when they cannot be."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

if TYPE_CHECKING:
    from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the checkout, to which data sets and suites belong."""


class InputError(Exception):
    """Bad input from the user: one line that names what is wrong, where, and what to do."""


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: object) -> None:
    """Write `content` so that the file is whole or absent."""
    _write_whole(path, json.dumps(content, indent=2, default=str) + "\n")


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    flush(unfinished)
    os.replace(unfinished, path)
    flush(path.parent)


def step_name(step: int) -> str:
    """What the files and folders of a step are called; in the order of the steps."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step whose file or folder `path` is; None for what only begins like one, such as a user's copy."""
    found = re.fullmatch(r"step-(\d{6,})", path.stem)
    return int(found[1]) if found else None


def read_json(path: Path, cure: str) -> dict:
    """The object in a JSON file. Raises InputError, which ends with `cure`, where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} where an object is needed")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {cure}") from error
    return content


def write_json_lines(path: Path, rows: Iterable[dict]) -> None:
    """Write `rows`, one a line, in a folder that is created if need be; whole or absent. Raises InputError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_json_lines(path: str | Path) -> list[tuple[str, dict]]:
    """The objects of a UTF-8 JSON-lines file, each with its place, `file:line`; empty lines are skipped.

    Raises InputError naming file and line when the file is missing, empty or malformed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such data file; data/README.md says how to get the data sets")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); the file must be JSON lines"
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON ({error}); the file needs one JSON object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: a {type(row).__name__} where a JSON object is needed")
        rows.append((f"{path}:{number}", row))
    if not rows:
        raise InputError(f"{path}: is empty; it needs one JSON object a line")
    return rows


def whole_json_lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines that may still be written, or whose writer was killed: without a last line
    that is not whole; none where there is no file. Raises InputError naming file and line for what is not JSON."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON ({error}); the file was edited: delete the line") from error
    return rows


def file_hash(path: Path) -> str:
    """SHA-256 of a file; an empty text for what is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock(folder: Path, refusal: str) -> "FileLock":
    """Keep other processes out of `folder`, which is created, until the returned lock is released or deleted, or this
    process ends, however it does.

    Raises InputError with the text `refusal` when another process has it, OSError when it cannot be written.
    """
    from filelock import FileLock, Timeout  # workers of the grader need none

    folder.mkdir(parents=True, exist_ok=True)
    # The kernel's lock or none: a soft one would outlive a process that is killed.
    held = FileLock(folder / ".lock", blocking=False, fallback_to_soft=False)
    try:
        held.acquire()
    except Timeout as error:
        raise InputError(refusal) from error
    return held


@contextmanager
def claiming(folder: Path) -> Iterator[None]:
    """Raise InputError for an output folder in which nothing can be written."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); --output-dir names another folder"
        ) from error


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
