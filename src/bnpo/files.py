"""Reading and writing files. Written files are complete or absent, whatever kills the process or
the machine.
"""

import bz2
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

if TYPE_CHECKING:
    from filelock import FileLock

# The checkout, which contains data sets and suites
ROOT = Path(__file__).resolve().parents[2]
SMOLLM2 = ROOT / "data" / "models" / "SmolLM2-135M-Instruct"  # written by scripts/get_model.py


class RunError(Exception):
    """A run cannot continue. The message is one line for the user, who needs no traceback."""

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # what a user typed may have line breaks


class InputError(RunError):
    """Bad input from the user. The message is one line: what is wrong, where, and what to do."""

    exit_status = 2


def line_of(error: BaseException) -> str:
    """Return the kind and the message of an error in one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def unwritable(error: BaseException) -> str:
    """Return the path that could not be written according to an error and its causes, or ''."""
    kinds = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, OSError) and cause.errno in kinds:
            return str(cause.filename or cause)
        cause = cause.__cause__ or cause.__context__
    return ""


def _reason(error: BaseException) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error).splitlines()[0]


def flush(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, parts: Iterable[str]) -> None:
    """Write a text file from its parts, such as lines. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    # In this order: after a power failure the new name must not belong to a file without content.
    flush(unfinished)
    os.replace(unfinished, path)
    flush(path.parent)


def write_json(path: Path, content: object) -> None:
    """Write `content` as a JSON file. Raises OSError."""
    write_whole(path, [json.dumps(content, indent=2, default=str), "\n"])


def write_json_lines(path: Path, rows: Iterable[dict], cure: str = "") -> None:
    """Write `rows` as a file of JSON lines, and create its folder. Raises InputError."""
    with writing(path, cure):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@contextmanager
def writing(path: Path, cure: str = "") -> Iterator[None]:
    """Turn an error of writing `path` into an InputError that ends with `cure`, or --resume."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch raises RuntimeError if a disk is full, and also for many other reasons.
        if isinstance(error, RuntimeError) and not re.search("inline_container|Writer", str(error)):
            raise
        if not cure:
            denied = isinstance(error, PermissionError)
            first = "Make it writable" if denied else "Free some disk space"
            cure = f"Earlier files are complete. {first}, then continue with --resume"
        raise InputError(f"{path}: cannot be written ({_reason(error)}); {cure}") from error


def let_others_read(folder: Path) -> None:
    """Give the weights below `folder` the permissions of new files: safetensors writes 0600."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o666 & ~umask)


def delete(path: Path) -> None:
    """Delete a file, a link (not what it points to), or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def lock(folder: Path, refusal: str) -> "FileLock":
    """Create `folder` and lock it while this process lives, or raise `refusal` or OSError."""
    from filelock import FileLock, Timeout  # here, since workers of the grader do not need it

    folder.mkdir(parents=True, exist_ok=True)
    # No soft lock, which is a mere file: it would stay behind when a process is killed.
    folder_lock = FileLock(folder / ".lock", blocking=False, fallback_to_soft=False)
    try:
        folder_lock.acquire()
    except Timeout as error:
        raise InputError(refusal) from error
    return folder_lock


def step_name(step: int) -> str:
    """Return the name of a step's files and folders. Names sort in the order of the steps."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """Return the step of a file or folder. None for other names, such as a user's copy
    step-000020.keep.
    """
    match = re.fullmatch(r"step-(\d{6,})(\.jsonl)?", path.name)
    return int(match[1]) if match else None


def read_json(path: Path, advice: str) -> dict:
    """Return the object in a JSON file. Raises InputError, which ends with `advice`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} where an object is needed")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}); {advice}") from error
    return content


def _unpack_zstd(content: bytes) -> bytes:
    import pyarrow  # here, since workers of the grader do not need it

    return pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd").read()


# Compressed files by the bytes that they begin with, and the suffixes of their names
UNPACK = {
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
    b"\x28\xb5\x2f\xfd": _unpack_zstd,
}
PACKED = (".gz", ".bz2", ".xz", ".zst")
# Other files that are taken for data, by the bytes that they begin with, and what to do
UNREADABLE = {
    b"PK\x03\x04": "is a zip archive or an Excel file; unpack it, or save it as .csv",
    b"ARROW1": "is an Arrow file; save it as .parquet, or name the folder of save_to_disk",
    b"version https://git-lfs": "is only a pointer of Git LFS; fetch the file with `git lfs pull`",
}


def data_name(path: str | Path) -> str:
    """Return the name of a file without the suffix of its compression: a.csv for a.csv.bz2."""
    name = Path(path)
    return str(name.with_suffix("") if name.suffix in PACKED else name)


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file, which is unpacked if its first bytes say so."""
    try:
        content = Path(path).read_bytes()
        for start, unpack in UNPACK.items():
            if content.startswith(start):
                content = unpack(content)
                break
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from error
    for start, fault in UNREADABLE.items():
        if content.startswith(start):
            raise InputError(f"{path}: {fault}")
    return content


def read_text(path: str | Path) -> str:
    """Return the content of a UTF-8 file, which may be compressed, with \\n between lines."""
    content = read_bytes(path)
    if content.startswith(b"PAR1"):
        raise InputError(f"{path}: is a Parquet file; let its name end in .parquet")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = f"{error.reason} at byte {error.start}"
        raise InputError(f"{path}: is not UTF-8 text ({fault}); save it as UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json_lines(path: str | Path) -> list[tuple[str, dict]]:
    """Return FILE:NUMBER and object of each line of a JSON lines file, or entry of a .json list."""
    text, rows, number = read_text(path), [], 1
    is_list = data_name(path).endswith(".json") and text.lstrip().startswith("[")
    try:
        if is_list:
            rows = list(enumerate(json.loads(text), 1))
        else:
            # Not splitlines, which also splits at characters that JSON allows within a string.
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    rows.append((number, json.loads(line)))
    except json.JSONDecodeError as error:
        needed = "a list of objects" if is_list else "one JSON object per line"
        raise InputError(
            f"{path}:{number + error.lineno - 1}: not JSON ({error.msg}, column {error.colno}); "
            f"the file needs {needed}"
        ) from error
    except ValueError as error:  # Python reads no number of more than 4,300 digits
        place = path if is_list else f"{path}:{number}"
        raise InputError(
            f"{place}: a number has more than 4,300 digits; write it as a text"
        ) from error
    except RecursionError as error:
        raise InputError(f"{path}:{number}: has too many brackets within brackets") from error
    for number, row in rows:
        if not isinstance(row, dict):
            raise InputError(
                f"{path}:{number}: a {type(row).__name__} where a JSON object is needed"
            )
    if not rows:
        raise InputError(f"{path}: is empty; it needs one JSON object per line")
    return [(f"{path}:{number}", row) for number, row in rows]


def whole_json_lines(path: Path) -> list[dict]:
    """Return the objects of a file of JSON lines, without an incomplete last one. No file: none."""
    if not path.is_file():
        return []
    rows = []
    # What follows the last line break is an incomplete line, or empty.
    for line_number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InputError(
                f"{path}:{line_number}: not JSON ({error}); delete this line, which was edited"
            ) from error
    return rows


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits. Empty if there is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split_revision(model: str) -> tuple[str, str | None]:
    """Return a hub name and its revision, which is None without an @.

    >>> split_revision("Qwen/Qwen3-0.6B@main"), split_revision("Qwen/Qwen3-0.6B")
    (('Qwen/Qwen3-0.6B', 'main'), ('Qwen/Qwen3-0.6B', None))
    """
    name, at, revision = model.partition("@")
    return name, revision if at else None


def short_name(model: str) -> str:
    """Return the last part of the path of a folder or of a hub name, without a revision.

    >>> short_name("/models/Qwen3-0.6B"), short_name("Qwen/Qwen3-0.6B@refs/pr/1")
    ('Qwen3-0.6B', 'Qwen3-0.6B')
    """
    name, revision = split_revision(model)
    is_hub_name = revision is not None and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)
    return Path(name if is_hub_name else model).name
