"""Problems from the sources that --train-data and suites name: files, data sets of the hub, built-in arithmetic."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.arithmetic import TRAINING_PROBLEMS, arithmetic_problems
from bnpo.files import InputError, line_of, read_json_lines
from bnpo.problems import Problem
from bnpo.word_problems import NAME as WORD_PROBLEMS
from bnpo.word_problems import word_problems

if TYPE_CHECKING:
    import pyarrow

# Groups are arguments of `datasets.load_dataset`. A split has no default: a test set must not be `train` by mistake.
HUB = re.compile(r"hub:(?P<path>[\w.-]+/[\w.-]+)(:(?P<name>[^@#]+))?(@(?P<revision>[^#]+))?#(?P<split>.+)")
HUB_FORM = "hub:OWNER/NAME:CONFIG@REVISION#SPLIT, where :CONFIG and @REVISION can be left out"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a data set has its problems and answers."""

    problem_field: str = "problem"
    """Field or column with the question."""
    answer_field: str = "answer"
    """Field or column with the reference answer."""
    answer_pattern: str | None = None
    r"""Regular expression with one group, which is the reference answer within its field: '####\s*(.*)' for GSM8K. The
    default takes the whole field."""

    def check(self) -> None:
        """Raise InputError for a pattern that is no regular expression with one group."""
        try:
            if self.answer_pattern is not None and re.compile(self.answer_pattern).groups != 1:
                raise re.error(r"it needs one group, around the answer, as in '####\s*(.*)'")
        except re.error as error:
            raise InputError(f"--answer-pattern {self.answer_pattern!r}: {error}") from error


def load_sources(names: Sequence[str], columns: Columns) -> tuple[list[Problem], dict[str, dict]]:
    """Return the problems of --train-data, and what config.json says of each source. Raises InputError.

    With several sources, the ids of the problems begin with the name of their source.
    """
    problems, facts = [], {}
    for name in names:
        found, revision = _load(name, columns)
        facts[name] = {"problems": len(found), "sha256": content_hash(found), "revision": revision}
        prefix = f"{Path(name).name}:" if len(names) > 1 else ""
        problems += [replace(problem, id=prefix + problem.id) for problem in found]
    return problems, facts


def load_problems(source: str | Path, columns: Columns = Columns()) -> list[Problem]:
    """Return the problems of one source. Raises InputError that names the source, its line or row, and the cure."""
    return _load(str(source), columns)[0]


def content_hash(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of ids, texts and answers, so that results identify the problems they were measured on."""
    rows = [[problem.id, problem.problem, problem.answer] for problem in problems]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def built_in_problems(name: str, split: str, count: int) -> list[Problem]:
    """Return `count` problems of a split of a built-in task, which are made, not read. Of other sources, none."""
    if name == "arithmetic":
        return arithmetic_problems(split, count)
    if name.partition(":")[0] == WORD_PROBLEMS:
        return word_problems(name, split, count)
    return []


def _load(name: str, columns: Columns) -> tuple[list[Problem], str | None]:
    """Return the problems of a source, and the commit of a data set of the hub."""
    if problems := built_in_problems(name, "train", TRAINING_PROBLEMS):
        return problems, None
    revision, on_hub = None, name.startswith("hub:")
    if not on_hub and not Path(name).is_file():
        advice = f"`python scripts/prepare_data.py --only {Path(name).stem}` downloads the sets of data/README.md"
        raise InputError(f"{name}: no such data file; {advice}. Data sets of the hub are {HUB_FORM}")
    if on_hub or name.endswith((".csv", ".parquet")):
        try:
            table, revision = _hub_table(name) if on_hub else (_file_table(name, columns), None)
            needed = {columns.problem_field, columns.answer_field, "id"} & set(table.column_names)
            # Without one of them, all columns are kept for the error message.
            rows = (table.select(sorted(needed)) if len(needed - {"id"}) == 2 else table[:1]).to_pylist()
        except Exception as error:  # a dozen kinds, of four libraries
            login = "the name, the network, and for a gated data set your login (hf auth login)"
            advice = login if on_hub else "the file"
            raise InputError(f"{name}: cannot be read ({line_of(error)}); check {advice}") from error
        numbered = [(f"{name}:{number}", row) for number, row in enumerate(rows, 1)]
    else:
        numbered = read_json_lines(name)
    if not numbered:
        raise InputError(f"{name}: is empty; it needs a problem and an answer in each row")
    return [_problem(place, row, columns) for place, row in numbered], revision


def _hub_table(name: str) -> tuple["pyarrow.Table", str]:
    """Return a data set of the hub and its commit. What the local cache does not have is downloaded."""
    import datasets  # takes a second

    match = HUB.fullmatch(name)
    if match is None:
        raise ValueError(f"a data set of the hub is {HUB_FORM}")
    asked = match.groupdict()
    # hf:// is the hub, even if a local folder has the same name.
    dataset = datasets.load_dataset(**asked | {"path": f"hf://datasets/{asked['path']}"})
    # Without a network `datasets` takes its newest copy, whatever the revision. Its folder is named by the commit.
    commit = Path(dataset.cache_files[0]["filename"]).parent.name
    if len(asked["revision"] or "") == len(commit) and asked["revision"] != commit:
        raise ConnectionError(f"the hub cannot be reached, and the local copy is of revision {commit}")
    return dataset.with_format("arrow")[:], commit


def _file_table(name: str, columns: Columns) -> "pyarrow.Table":
    """Return the table in a CSV or parquet file."""
    import pyarrow.csv
    import pyarrow.parquet

    if name.endswith(".parquet"):
        return pyarrow.parquet.read_table(name, partitioning=None)
    # As text: by themselves, CSV readers take the answer 007 for the number 7.
    text = dict.fromkeys((columns.problem_field, columns.answer_field, "id"), pyarrow.string())
    options = pyarrow.csv.ConvertOptions(column_types=text)
    return pyarrow.csv.read_csv(name, None, pyarrow.csv.ParseOptions(newlines_in_values=True), options)


def _problem(place: str, row: dict, columns: Columns) -> Problem:
    """Return the problem in a row. `place` ends with the number of the line or row, which is also the default id."""
    for flag, field in (("problem-field", columns.problem_field), ("answer-field", columns.answer_field)):
        if field not in row:
            advice = f"name it with --{flag}, or in a suite with {flag.replace('-', '_')}"
            raise InputError(f"{place}: field '{field}' is missing; there are {', '.join(row)}; {advice}")
        if not isinstance(row[field], str):
            raise InputError(f"{place}: field '{field}' has type {type(row[field]).__name__}; it must be a string")
    answer, pattern = row[columns.answer_field], columns.answer_pattern
    if pattern is not None:
        match = re.search(pattern, answer)
        if match is None or match[1] is None:
            raise InputError(f"{place}: --answer-pattern {pattern!r} finds nothing in the answer {answer[:200]!r}")
        answer = match[1].strip()
    name = place.rpartition(":")[2] if row.get("id") is None else str(row["id"])
    problem = Problem(name, row[columns.problem_field], answer)
    try:
        "".join((problem.id, problem.problem, problem.answer)).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: half of a surrogate pair, which is no text ({error.reason}); correct it") from error
    return problem
