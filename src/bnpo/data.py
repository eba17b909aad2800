"""Where problems come from (files, folders, the hub, built-in tasks), and the order of a run."""

import ast
import csv
import hashlib
import io
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bnpo.files import (
    ROOT,
    InputError,
    data_name,
    line_of,
    read_bytes,
    read_json_lines,
    read_text,
    unwritable,
)
from bnpo.grading.rewards import Form
from bnpo.tasks import TRAINING_PROBLEMS, Messages, Problem, built_in_problems, is_built_in
from mathequal import final_answer

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset, DatasetDict

# Groups are arguments of `datasets.load_dataset`. A split has no default: a test set must not be
# `train` by mistake.
HUB = re.compile(
    r"hub:(?P<path>[\w.-]+/[\w.-]+)(:(?P<name>[^@#]+))?(@(?P<revision>[^#]+))?#(?P<split>.+)"
)
HUB_FORM = "hub:OWNER/NAME:CONFIG@REVISION#SPLIT, where :CONFIG and @REVISION can be left out"
LAST_BOX = "last_box"  # a value of --answer-pattern: the function of this name


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a data set has its problems and answers."""

    problem_field: str = "problem"
    """Field or column with the question, as text or as chat messages. `a.b` is field b inside
    field a."""
    answer_field: str = "answer"
    """Field or column with the reference answer, such as `reward_model.ground_truth`."""
    answer_pattern: str | None = None
    r"""Part of the field that is the reference answer: `last_box` for the last \boxed{...}, or a
    regular expression with one group, such as '####\s*(.*)' for GSM8K."""

    def __post_init__(self) -> None:
        if self.answer_pattern in (None, LAST_BOX):
            return
        try:
            if re.compile(self.answer_pattern).groups != 1:
                raise re.error(r"it needs one group, around the answer, as in '####\s*(.*)'")
        except re.error as error:
            raise InputError(f"--answer-pattern {self.answer_pattern!r}: {error}") from error


# What rewards ask for, by their name in --rewards
Forms = Mapping[str, Form]
NO_FORMS: Forms = MappingProxyType({})


def load_sources(
    sources: Sequence[str], columns: Columns, forms: Forms = NO_FORMS
) -> tuple[list[Problem], dict[str, dict]]:
    """Return the problems of --train-data, and what config.json says of each source.

    With several sources, ids begin with the source's name. Ids that repeat become positions. Each
    problem has the columns that the rewards of `forms` ask for. Raises InputError for missing ones.
    """
    problems, facts = [], {}
    for source in sources:
        found, revision = _load(source, columns, forms)
        facts[source] = {"problems": len(found), "sha256": content_hash(found)}
        facts[source]["revision"] = revision
        prefix = f"{Path(source).name}:" if len(sources) > 1 else ""
        problems += [replace(problem, id=prefix + problem.id) for problem in found]
    if len({problem.id for problem in problems}) < len(problems):
        problems = [replace(problem, id=str(i)) for i, problem in enumerate(problems, 1)]
    return problems, facts


def load_problems(source: str | Path, columns: Columns = Columns()) -> list[Problem]:
    return _load(str(source), columns)[0]


def content_hash(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of ids, texts, answers and columns that rewards read, which identifies
    problems in results.
    """
    rows: list[list] = [[problem.id, problem.problem, problem.answer] for problem in problems]
    for row, problem in zip(rows, problems, strict=True):
        row += [problem.fields] if problem.fields else []
    # Columns may be dates, or others that JSON does not have
    return hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()


def _load(
    source: str, columns: Columns, forms: Forms = NO_FORMS
) -> tuple[list[Problem], str | None]:
    """Return the problems of a source, and the commit of a data set of the hub."""
    if is_built_in(source):
        problems = built_in_problems(source, "train", TRAINING_PROBLEMS)
        rows = [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in problems]
        return [_problem(source, row, Columns(), forms) for row in rows], None
    kind, commit = _kind(source), None
    if kind == "lines":
        numbered = read_json_lines(source)
    else:
        try:
            rows, commit = _read_table(kind, source, columns, forms)
        except InputError:
            raise
        except Exception as error:  # a dozen kinds, of four libraries
            path, fault, cure = unwritable(error), "cannot be read", ADVICE.get(kind, "check it")
            if path and not Path(path).is_relative_to(source.partition("#")[0]):
                fault = f"the cache of data sets cannot be written, {path}"
                cure = "set HF_HOME to a folder that can"
            raise InputError(f"{source}: {fault} ({line_of(error)}); {cure}") from error
        if not rows:
            raise InputError(f"{source}: is empty; it needs a problem and an answer in each row")
        numbered = [(f"{source}:{number}", row) for number, row in enumerate(rows, 1)]
    return [_problem(source_line, row, columns, forms) for source_line, row in numbered], commit


ADVICE = {
    "folder": "check the folder, and write FOLDER:CONFIG#SPLIT, where :CONFIG can be left out",
    "hub": "check the name, the network, and for a gated data set your login (hf auth login). "
    f"Write {HUB_FORM}",
}


def _kind(source: str) -> str:
    """Return hub, folder, csv, parquet or lines."""
    if source.startswith("hub:") and ",hub:" not in source:
        return "hub"
    if folder_and_config(source):
        return "folder"
    if not os.path.isfile(source):  # unlike Path.is_file, False for names that are too long
        stem = Path(source).stem
        cure = f"correct the path. Data sets of the hub are {HUB_FORM}"
        if stem in json.loads(read_text(ROOT / "data" / "manifest.json"))["sets"]:
            cure = f"`python scripts/prepare_data.py --only {stem}` downloads it"
        if "," in source:
            cure = f"separate sources by blanks: --train-data {source.replace(',', ' ')}"
        raise InputError(f"{source}: no such data file; {cure}")
    suffix = Path(data_name(source)).suffix
    return suffix[1:] if suffix in (".csv", ".parquet") else "lines"


def folder_and_config(source: str) -> tuple[str, str | None] | None:
    """Return folder and configuration of FOLDER:CONFIG#SPLIT. None: there is no such folder."""
    path = source.partition("#")[0]
    if os.path.isdir(path):
        return path, None
    folder, _, config = path.rpartition(":")
    return (folder, config) if os.path.isdir(folder) else None


def _read_table(
    kind: str, source: str, columns: Columns, forms: Forms
) -> tuple[list[dict], str | None]:
    """Return the rows of a source that is no JSON, and the commit of a data set of the hub."""
    if kind == "csv":
        csv.field_size_limit(sys.maxsize)
        # All texts: 007 is not the number 7
        rows = list(csv.DictReader(io.StringIO(read_text(source)), strict=True))
        if longer := [number for number, row in enumerate(rows, 1) if None in row]:
            raise ValueError(
                f"row {longer[0]} has more cells than columns; quote cells with commas"
            )
        return rows, None
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        table = parquet.read_table(pyarrow.BufferReader(read_bytes(source)))
        return _rows(table, columns, forms), None
    dataset, commit = _from_hub(source) if kind == "hub" else (_from_folder(source), None)
    if isinstance(dataset, dict):
        path, _, split = source.partition("#")
        if split not in dataset and (split or len(dataset) > 1):
            raise ValueError(
                f"name one of its splits, {', '.join(dataset)}, as in {path}#{min(dataset)}"
            )
        dataset = dataset[split or min(dataset)]
    return _rows(dataset.with_format("arrow")[:], columns, forms), commit


def _from_hub(source: str) -> tuple["Dataset", str]:
    """Return a data set of the hub and its commit."""
    import datasets  # takes a second

    match = HUB.fullmatch(source)
    if match is None:
        raise ValueError("no name of a data set")
    # hf:// is the hub, even if a local folder has the same name.
    path = f"hf://datasets/{match['path']}"
    dataset = datasets.load_dataset(**match.groupdict() | {"path": path})
    # Without a network `datasets` takes its newest copy, whatever the revision. Its folder is
    # named by the commit.
    commit = Path(dataset.cache_files[0]["filename"]).parent.name
    if len(match["revision"] or "") == len(commit) and match["revision"] != commit:
        raise ConnectionError(
            f"the hub cannot be reached, and the local copy is of revision {commit}"
        )
    return dataset, commit


def _from_folder(source: str) -> "Dataset | DatasetDict":
    """Return the data set in a folder: of `save_to_disk`, or files as on the hub."""
    import datasets

    folder, config = folder_and_config(source) or (source, None)
    if not any((Path(folder) / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return datasets.load_dataset(folder, config)
    if config:
        raise ValueError(f"save_to_disk writes no configurations; leave out :{config}")
    return datasets.load_from_disk(folder)


def _rows(table: "pyarrow.Table", columns: Columns, forms: Forms) -> list[dict]:
    """Return the rows with the columns that are needed or, if one is missing, the first row."""
    names = set(table.column_names)
    needed: set[str] = set()
    for field in (columns.problem_field, columns.answer_field):
        # `a.b` is a column of this name, or field b of column a
        needed.add(field if field in names else field.partition(".")[0])
    wanted = {"id"}
    for form in forms.values():
        needed.update(form.needed)
        wanted.update(form.columns(dict.fromkeys(names)))  # asks for names, not for values
        wanted.update(form.parameters[1:])  # `_fields` refuses some of them
    if not needed <= names:
        return table[:1].to_pylist()  # `_problem` names the missing one
    selected = needed | (wanted & names)
    return _shortest_decimals(table.select(sorted(selected))).to_pylist()


def _shortest_decimals(table: "pyarrow.Table") -> "pyarrow.Table":
    """Return the table with 0.1 where a column of fp32 has 0.10000000149011612."""
    import pyarrow

    for i, column in enumerate(table.schema):
        if column.type == pyarrow.float32():
            decimals = table[i].cast(pyarrow.string()).cast(pyarrow.float64())
            table = table.set_column(i, column.name, decimals)
    return table


def _fields(source_line: str, row: dict, reference: str, forms: Forms) -> dict[str, object]:
    """Return the columns of a row that rewards ask for, where the answer is in `reference`. Raises
    InputError if one is missing, or if a reward would take the reference for another column.
    """
    fields: dict[str, object] = {}
    for reward, form in forms.items():
        for name in form.parameters[1:]:
            if name in row and name not in (reference, "reference", "references"):
                raise InputError(
                    f"{source_line}: has a field '{name}', but the second parameter of {reward}, "
                    f"which has this name, gets the reference, from the field '{reference}'; call "
                    f"it `reference`, and add '{name}' behind it if the function needs both"
                )
        if missing := [name for name in form.needed if name not in row]:
            raise InputError(
                f"{source_line}: has no field '{missing[0]}', which the reward {reward} asks for; "
                f"there are {', '.join(row)}; add it, or give the function's parameter a default"
            )
        fields |= form.columns(row)
    return fields


def describe_gaps(problems: Sequence[Problem], forms: Forms) -> list[str]:
    """Return a line for each column that some problems lack, and a reward has a default for."""
    lines = []
    for reward, form in forms.items():
        for name in form.optional:
            missing = sum(name not in problem.fields for problem in problems)
            if 0 < missing < len(problems):
                lines.append(
                    f"{missing} of {len(problems)} problems have no field '{name}': {reward} takes "
                    "its default for them"
                )
    return lines


def _problem(source_line: str, row: dict, columns: Columns, forms: Forms) -> Problem:
    """Return the problem in a row. `source_line` is FILE:NUMBER. The number is the default id."""
    question = _question(source_line, _field(source_line, row, "problem", columns), columns)
    answer = _answer(source_line, _field(source_line, row, "answer", columns), columns)
    number = source_line.rpartition(":")[2]
    name = number if row.get("id") is None else str(row["id"])
    reference = columns.answer_field.partition(".")[0]
    problem = Problem(name, question, answer, _fields(source_line, row, reference, forms))
    try:
        "".join((problem.id, problem.text, problem.answer)).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{source_line}: half of a surrogate pair; correct it") from error
    return problem


def _field(source_line: str, row: dict, name: str, columns: Columns) -> object:
    """Return the value of --problem-field or --answer-field, which may be `field.inner`."""
    path: str = getattr(columns, f"{name}_field")
    if path in row:
        return row[path]
    value: object = row
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            known = list(row)
            for outer, inner in row.items():
                known += [f"{outer}.{key}" for key in inner] if isinstance(inner, dict) else []
            raise InputError(
                f"{source_line}: field '{path}' is missing; there are {', '.join(known)}; name it "
                f"with --{name}-field, or in a suite with {name}_field"
            )
        value = value[part]
    return value


def _text(source_line: str, value: object, field: str, needed: str) -> str:
    """Return a text, or a number as text. 7.0 is 7: tables with empty cells have no integers. 1e23
    has 23 zeros: as an integer, the float would have other digits.
    """
    if isinstance(value, str):
        return value
    fault = f"{source_line}: field '{field}'"
    if value is None or value != value:  # nan stands for an empty cell
        raise InputError(f"{fault} is empty; it must be {needed}")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise InputError(f"{fault} has type {type(value).__name__}; it must be {needed}")
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        raise InputError(f"{fault} is infinite or too large for a number; write it as text")
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


# How a chat begins that a table holds as text, written by JSON or Python
CHAT_AS_TEXT = re.compile(
    r"\s*(\[?\s*\{\s*(['\"])(role|content|messages)\2|\[\s*\{\s*(['\"])from\4)\s*:"
)


def _question(source_line: str, value: object, columns: Columns) -> str | Messages:
    """Return the question in --problem-field: a text, or a chat, which may be written as text."""
    if isinstance(value, str) and CHAT_AS_TEXT.match(value):
        text = value
        for read in (json.loads, ast.literal_eval):
            # A question about messages, or too many brackets within brackets
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                value = read(text)
                break
        if value is text and text.strip()[0] == "[" and text.strip()[-1] == "]":
            raise InputError(
                f"{source_line}: field '{columns.problem_field}' looks like a chat in a text, but "
                "is neither JSON nor Python; write it with json.dumps"
            )
    if not isinstance(value, list):
        needed = "a text or a list of messages"
        # An empty cell of a CSV file is an empty text
        is_empty = isinstance(value, str) and not value.strip()
        return _text(source_line, None if is_empty else value, columns.problem_field, needed)
    are_messages = all(
        isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in value
    )
    if not value or not are_messages or value[-1]["role"] != "user":
        raise InputError(
            f"{source_line}: field '{columns.problem_field}' is a list; its items must be messages "
            "with role and content, the last of them the user's"
        )
    return value


def _answer(source_line: str, value: object, columns: Columns) -> str:
    """Return the reference answer in --answer-field, extracted by --answer-pattern."""
    needed, pattern = "a text or a number", columns.answer_pattern
    if isinstance(value, list):
        if len(value) > 1:
            needed += ". Join the items with commas if an answer must have all of them; if one is "
            needed += "enough, write them as one text for a reward of your own"
        else:  # as in OlympiadBench
            value = next(iter(value), None)
    answer = _text(source_line, value, columns.answer_field, needed)
    if pattern is None:
        return answer
    nothing = InputError(
        f"{source_line}: --answer-pattern {pattern!r} finds nothing in the answer {answer[:200]!r}"
    )
    if pattern == LAST_BOX:
        try:
            return last_box(answer).strip()  # two of MATH are empty
        except ValueError:
            raise nothing from None
    match = re.search(pattern, answer)
    found = (match[1] or "").strip() if match else ""
    if not found:
        raise nothing
    return found


def last_box(solution: str) -> str:
    r"""Return the content of the last \boxed or \fbox. Raises ValueError if there is none."""
    boxes = re.split(r"\\(?:boxed|fbox) *", solution)[1:]
    if not boxes:
        raise ValueError(f"no box in the solution '{solution[:60]}'")
    if not boxes[-1].startswith("{"):  # two of MATH have no braces: \boxed 2
        return re.split(r"[\s$]", boxes[-1])[0].rstrip(".,")
    answer = final_answer(r"\boxed" + boxes[-1])
    if answer is None:
        raise ValueError(f"a box without end in the solution '{solution[:60]}'")
    return answer
