r"""Download the paper's data sets: MATH to train on; MATH500, AMC23, AIME2024 and AIME2025 to evaluate on.

    python scripts/prepare_data.py                              # all five, into data/
    python scripts/prepare_data.py --only math_train math500    # some of them

data/manifest.json lists the file on the Hugging Face hub and its revision for each set, with the number of problems and
a hash. A set is written only if both are right. Sets that exist already are checked and kept, so the same command
continues after an interruption.
"""

import hashlib
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet
import tyro
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import logging

from bnpo.files import ROOT, InputError, json_lines, write_whole
from bnpo.sources import load_problems
from mathequal.equality import final_answer


@dataclass(frozen=True)
class Source:
    """The manifest's entry of a set: a file on the hub, and what its problems must be."""

    repo: str
    revision: str
    file: str
    rows: int
    texts: bool
    """Whether the hash covers texts and answers, or only the answers."""
    sha256: str


MANIFEST = json.loads((ROOT / "data" / "manifest.json").read_text(encoding="utf-8"))
SOURCES = {name: Source(**entry) for name, entry in MANIFEST["sets"].items()}


def last_box(solution: str) -> str:
    r"""Return the content of the last \boxed or \fbox of a solution of MATH. Two have no braces: `\boxed 2`."""
    boxes = re.split(r"\\(?:boxed|fbox) *", solution)[1:]
    if not boxes:
        raise ValueError(f"no box in the solution '{solution[:60]}'")
    if not boxes[-1].startswith("{"):
        return re.match(r"[^\s$.,]*", boxes[-1])[0]
    answer = final_answer(r"\boxed" + boxes[-1])
    if answer is None:
        raise ValueError(f"a box without end in the solution '{solution[:60]}'")
    return answer


def whole_number(value: float | str) -> str:
    """Return an answer of AMC or AIME as digits. The files on the hub hold 27, 27.0 or text."""
    if not float(value).is_integer():
        raise ValueError(f"the answer {value!r} is not a whole number")
    return str(int(float(value)))


def contest_id(url: str) -> str:
    """Return 2023-AMC12A-1 for the address .../2023_AMC_12A_Problems/Problem_1."""
    *_, contest, number = re.split(r"/|_Problems/Problem_", url)
    return f"{contest.replace('AMC_', 'AMC').replace('_', '-')}-{number}"


def convert_row(name: str, n: int, row: dict) -> dict:
    """Return row `n` of the hub's file of set `name` with the fields that all sets have."""
    record = dict.fromkeys(("id", "problem", "answer", "solution", "subject", "level", "source"))
    record["source"] = "MATH-train" if name == "math_train" else name.upper()
    if name == "math_train":
        level = row["level"].removeprefix("Level ")  # two problems have "Level ?"
        record.update(id=f"train/{n}", problem=row["problem"], answer=last_box(row["solution"]))
        record.update(solution=row["solution"], subject=row["type"], level=int(level) if level != "?" else None)
    elif name == "math500":
        record.update(id=row["unique_id"].removesuffix(".json"), problem=row["problem"], answer=row["answer"])
        record.update(solution=row["solution"], subject=row["subject"], level=row["level"])
    elif name == "amc23":
        record.update(id=contest_id(row["url"]), problem=row["question"], answer=whole_number(row["answer"]))
    elif name == "aime2024":
        answer = whole_number(last_box(row["solution"]))  # the solution is only a box with the answer
        record.update(id=contest_id(row["url"]), problem=row["problem"], answer=answer)
    elif name == "aime2025":
        exam = "I" if n < 15 else "II"  # 15 problems of the first exam, then 15 of the second
        record.update(id=f"2025-AIME-{exam}-{n % 15 + 1}", problem=row["problem"], answer=whole_number(row["answer"]))
    return record


def convert(name: str, path: Path) -> list[dict]:
    """Return the rows of set `name` from the hub's file `path`. Raises InputError if it cannot be read."""
    try:
        if path.suffix == ".parquet":
            rows = pyarrow.parquet.read_table(path, partitioning=None).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return [convert_row(name, n, row) for n, row in enumerate(rows)]
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:  # errors of pyarrow derive from these
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise bad_source(name, f"{path} cannot be read ({reason})") from error


def digest(rows: list[dict], texts: bool) -> str:
    """Return the hash of the problems as data/manifest.json defines it."""
    if texts:
        content = [[" ".join(row["problem"].split()), row["answer"]] for row in rows]
    else:
        content = sorted(row["answer"] for row in rows)
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def check(name: str, rows: list[dict]) -> str | None:
    """Return a message that says what is wrong with the rows of set `name`. None if they are right."""
    source = SOURCES[name]
    if len(rows) != source.rows:
        return f"it has {len(rows)} problems, expected {source.rows}"
    if (found := digest(rows, source.texts)) != source.sha256:
        return f"the sha256 of its {'problems and ' * source.texts}answers is {found}, expected {source.sha256}"
    return None


def bad_source(name: str, what: str) -> InputError:
    """Return the error for a file from the hub that has a fault."""
    source = SOURCES[name]
    cached = Path(constants.HF_HUB_CACHE) / f"datasets--{source.repo.replace('/', '--')}"
    return InputError(
        f"{name}: {what}; nothing was written. Delete {cached} and run this again. If it fails again, please report "
        f"that {source.file} of {source.repo} has changed since revision {source.revision}"
    )


def download(name: str) -> Path:
    """Download the file of set `name`, or find it in the hub's cache. Raises InputError if neither is possible."""
    source = SOURCES[name]
    logging.set_verbosity_error()  # it warns about every attempt; the error below has the reason of the last one
    try:
        return Path(hf_hub_download(source.repo, source.file, repo_type="dataset", revision=source.revision))
    except Exception as error:  # a dozen kinds, of the hub client and of its HTTP library
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise InputError(
            f"{name}: {source.repo} could not be downloaded from the hub at {constants.ENDPOINT} ({reason}). Run this "
            "on a machine with a network and copy the data folder, or set HF_ENDPOINT to a mirror of the hub, or "
            "HF_HOME to a folder whose cache has the file"
        ) from error


def write(path: Path, rows: list[dict]) -> None:
    """Write `rows` as a file of JSON lines that is complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json_lines(rows))


def prepare(name: str, folder: Path) -> None:
    """Make sure that `folder` has set `name`. Raises InputError if its file of that name is another one."""
    path = folder / f"{name}.jsonl"
    if path.exists():
        try:
            if fault := check(name, [asdict(problem) for problem in load_problems(path)]):
                raise InputError(f"{path}: {fault}")
        except InputError as error:
            raise InputError(f"{error}; delete {path.name} and run this again to download it") from error
        print(f"{path}: {SOURCES[name].rows} problems, kept", flush=True)
        return
    print(f"{name}: {SOURCES[name].file} of {SOURCES[name].repo}", flush=True)
    rows = convert(name, download(name))
    if fault := check(name, rows):
        raise bad_source(name, fault)
    write(path, rows)
    print(f"{path}: {len(rows)} problems, written", flush=True)


@dataclass
class Args:
    only: tuple[str, ...] = tuple(SOURCES)
    """Sets to prepare. The default is all."""
    output_dir: Path = ROOT / "data"
    """Folder for the files <set>.jsonl."""


def main(args: Args) -> None:
    try:
        if unknown := [name for name in args.only if name not in SOURCES]:
            raise InputError(f"--only {unknown[0]}: unknown set; known: {', '.join(SOURCES)}")
        for name in args.only:
            prepare(name, args.output_dir)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
