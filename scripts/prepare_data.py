"""Download data sets from the Hugging Face hub: by default the paper's, MATH to train on and four
to evaluate on.

    # the paper's five, into data/
    python scripts/prepare_data.py
    # some of them
    python scripts/prepare_data.py --only math_train math500
    # other sets, or all sets of suites
    python scripts/prepare_data.py --only gsm8k_train school olympiad

data/manifest.json lists the files on the hub and their revision for each set, with the number of
problems and a hash. A set is written only if both are right. Sets that exist already are checked
and kept, so the same command continues after an interruption.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import logging

from bnpo.data import load_problems
from bnpo.environment import run_program
from bnpo.evaluation.suites import SUITES, load_suite
from bnpo.files import ROOT, InputError, read_json_lines, write_json_lines
from hub_rows import convert_rows


@dataclass(frozen=True)
class Source:
    """The manifest's entry of a set: files on the hub, and what its problems must be."""

    repo: str
    revision: str
    files: list[str]
    rows: int
    texts: bool
    """Whether the hash covers texts and answers, or only the answers."""
    sha256: str


MANIFEST = json.loads((ROOT / "data" / "manifest.json").read_text(encoding="utf-8"))
SOURCES = {name: Source(**entry) for name, entry in MANIFEST["sets"].items()}


def convert(name: str, paths: list[Path]) -> list[dict]:
    """Return the rows of set `name` from the hub's files `paths`. Raises InputError if one
    cannot be read.
    """
    rows = []
    try:
        for path in paths:
            if path.suffix == ".parquet":
                rows += pyarrow.parquet.read_table(path, partitioning=None).to_pylist()
            else:
                rows += [row for _, row in read_json_lines(path)]
        return convert_rows(name, rows)
    # Errors of pyarrow derive from these.
    except (AttributeError, KeyError, TypeError, ValueError, OSError, InputError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise bad_source(name, f"{' '.join(map(str, paths))} cannot be read ({reason})") from error


def digest(rows: list[dict], texts: bool) -> str:
    """Return the hash of the problems as data/manifest.json defines it."""
    if texts:
        content = [[" ".join(row["problem"].split()), row["answer"]] for row in rows]
    else:
        content = sorted(row["answer"] for row in rows)
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def check(name: str, rows: list[dict]) -> str | None:
    """Return a message that says what is wrong with the rows of set `name`. None if they are
    right.
    """
    source = SOURCES[name]
    if len(rows) != source.rows:
        return f"it has {len(rows)} problems, expected {source.rows}"
    if (found := digest(rows, source.texts)) != source.sha256:
        return (
            f"the sha256 of its {'problems and ' * source.texts}answers is {found}, expected "
            f"{source.sha256}"
        )
    return None


def bad_source(name: str, what: str) -> InputError:
    """Return the error for a file from the hub that has a fault."""
    source = SOURCES[name]
    cached = Path(constants.HF_HUB_CACHE) / f"datasets--{source.repo.replace('/', '--')}"
    return InputError(
        f"{name}: {what}; nothing was written. Delete {cached} and run this again. If it fails "
        f"again, please report that {source.repo} has changed since revision {source.revision}"
    )


def download(name: str) -> list[Path]:
    """Download the files of set `name`, or find them in the hub's cache. Raises InputError if
    neither is possible.
    """
    source = SOURCES[name]
    # It warns about every attempt; the error below has the reason of the last one
    logging.set_verbosity_error()
    place = {"repo_type": "dataset", "revision": source.revision}
    try:
        return [Path(hf_hub_download(source.repo, file, **place)) for file in source.files]
    except Exception as error:  # a dozen kinds, of the hub client and of its HTTP library
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise InputError(
            f"{name}: {source.repo} could not be downloaded from the hub at {constants.ENDPOINT} "
            f"({reason}). Run this on a machine with a network and copy the data folder, or set "
            "HF_ENDPOINT to a mirror of the hub, or HF_HOME to a folder whose cache has the file"
        ) from error


def prepare(name: str, folder: Path) -> None:
    """Make sure that `folder` has set `name`. Raises InputError if its file of that name is
    another one.
    """
    path = folder / f"{name}.jsonl"
    if path.exists():
        try:
            if fault := check(name, [asdict(problem) for problem in load_problems(path)]):
                raise InputError(f"{path}: {fault}")
        except InputError as error:
            raise InputError(
                f"{error}; delete {path.name} and run this again to download it"
            ) from error
        print(f"{path}: {SOURCES[name].rows} problems, kept", flush=True)
        return
    print(f"{name}: {' '.join(SOURCES[name].files)} of {SOURCES[name].repo}", flush=True)
    rows = convert(name, download(name))
    if fault := check(name, rows):
        raise bad_source(name, fault)
    write_json_lines(path, rows, "choose another --output-dir")
    print(f"{path}: {len(rows)} problems, written", flush=True)


PAPERS = ("math_train", "math500", "amc23", "aime2024", "aime2025")
"""The sets that the paper trains and evaluates on."""


def sets_of(name: str) -> list[str]:
    """Return the sets that a suite in evals/ lists, or `name` if it is a set. Raises InputError."""
    if name in SOURCES:
        return [name]
    suites = sorted(path.stem for path in SUITES.glob("*.json"))
    if name not in suites:
        raise InputError(
            f"--only {name}: unknown; sets: {', '.join(SOURCES)}; suites: {', '.join(suites)}"
        )
    files = [Path(dataset.data).stem for dataset in load_suite(name).datasets.values()]
    return [file for file in files if file in SOURCES]


@dataclass
class Args:
    only: tuple[str, ...] = PAPERS
    """Sets to prepare, or suites whose sets to prepare. The default is the paper's sets."""
    output_dir: Path = ROOT / "data"
    """Folder for the files <set>.jsonl."""


def main(args: Args) -> None:
    names = [name for given in args.only for name in sets_of(given)]
    try:
        for name in dict.fromkeys(names):
            prepare(name, args.output_dir)
    except OSError as error:
        raise InputError(str(error)) from error


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
