"""Random command lines and data files end in a result or in one line, never in a traceback."""

import csv
import io
import json
import random

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bnpo.config import PRESETS, check_config, flat_settings, parse_train_config
from bnpo.data import Columns, load_problems
from bnpo.environment import parse_command
from bnpo.evaluation.program import EvalConfig, check
from bnpo.evaluation.suites import load_suite
from bnpo.files import ROOT, InputError

WORDS = [
    "",
    " ",
    "0",
    "-1",
    "1",
    "7",
    "0.5",
    "1e309",
    "nan",
    "-inf",
    "None",
    "none",
    "True",
    "x",
    "é",
    "\ud835",
]
WORDS += [
    "--",
    "-",
    "-x",
    "=",
    ",",
    "a,b",
    "accuracy,format",
    "grpo",
    "9" * 30,
    "a" * 500,
    "\0",
    "\n",
    "{}",
    "[]",
]
WORDS += [
    "(",
    "[a",
    "(a)",
    "a.b",
    "/",
    ".",
    "/dev/null",
    "tests",
    "README.md",
    "x.py:f",
    "hub:a/b#c",
    "hub:",
    "{None}",
]
WORDS += ["~", "~/x", "🙂", "'"]


def flag_words(draw: random.Random, names: list[str]) -> list[str]:
    """Return one flag in one of the forms that people write."""
    flag, value = "--" + draw.choice(names).replace("_", draw.choice("-_")), draw.choice(WORDS)
    return draw.choice(
        [[flag], [flag, value], [f"{flag}={value}"], [flag, value, draw.choice(WORDS)], [value]]
    )


def only_one_line(action, *arguments) -> bool:
    """Return whether an action works. It may also raise one line, or exit as programs with wrong
    flags do.
    """
    lines, status = "", 2
    try:
        action(*arguments)
        return True
    except InputError as error:
        lines = str(error)
    except SystemExit as error:
        status = error.code
    assert (len(lines.splitlines()) <= 1, status) == (True, 2), repr(lines)
    return False


def start_training(flags: list[str]) -> None:
    check_config(parse_train_config(flags, has_cuda=False)[0], ranks=1)


def start_evaluation(flags: list[str]) -> None:
    config = parse_command(EvalConfig, ["--ckpt", "x", *flags], prog="eval.py")
    check(config)
    load_suite("paper" if config.suite == "auto" else config.suite)


@pytest.mark.parametrize("start", [start_training, start_evaluation])
def test_command_lines(start, capsys):
    draw = random.Random(0)
    names = [*flat_settings(PRESETS["tiny"]), "dry_run"]
    if start is start_evaluation:
        names = [*EvalConfig.__dataclass_fields__]
    worked = 0
    for _ in range(200):
        flags = [word for _ in range(draw.randint(1, 3)) for word in flag_words(draw, names)]
        worked += only_one_line(start, flags)
    assert worked > 5
    assert "Traceback" not in capsys.readouterr().err


VALUES = [
    "",
    "7",
    "1+1=?",
    "é\ud835",
    "\u2028",
    7,
    -0.5,
    1e300,
    float("nan"),
    True,
    None,
    [],
    {},
    ["7"],
]
VALUES += [
    [{"role": "user", "content": "1+1=?"}],
    [{"role": "user"}],
    [{"role": "system", "content": 1}],
    "x" * 10_000,
]
VALUES += [{"a": {"b": "c"}}]


def rows(draw: random.Random) -> list:
    fields = ["problem", "answer", "id", "a.b", "a", ""]
    usual = {"problem": "1+1=?", "answer": "2"}
    return [
        draw.choice(
            [
                usual,
                usual,
                usual,
                usual | {draw.choice(fields): draw.choice(VALUES)},
                draw.choice(VALUES),
            ]
        )
        for _ in range(draw.randint(0, 4))
    ]


def content(draw: random.Random, suffix: str) -> bytes:
    """Return a file of the kind that `suffix` says, in which something may be wrong."""
    items, out = rows(draw), io.BytesIO()
    objects = [item for item in items if isinstance(item, dict)]
    if suffix == ".parquet":
        try:
            pq.write_table(pa.Table.from_pylist(objects), out)
        except (pa.ArrowException, UnicodeEncodeError):  # rows that no table can hold
            return b""
        data = out.getvalue()
    elif suffix == ".csv":
        text = io.StringIO()
        csv.writer(text).writerows(
            [["problem", "answer", "id"], *([*item.values()] for item in objects)]
        )
        data = text.getvalue().encode("utf-8", "surrogatepass")
    elif draw.random() < 0.5:
        data = json.dumps(items).encode()
    else:
        data = b"\n".join(json.dumps(item).encode() for item in items)
    for _ in range(draw.choice([0, 0, 1, 3])):
        place = draw.randint(0, len(data))
        noise = draw.choice(
            [
                b"",
                b"\0",
                b"\xff",
                b"\xef\xbb\xbf",
                b"\r",
                b'"',
                b",",
                b"{",
                b"\n\n",
                draw.randbytes(4),
            ]
        )
        data = data[:place] + noise + data[place + draw.choice([0, 0, 1, 50]) :]
    return data


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz"])
def test_data_files(suffix, tmp_path):
    draw, worked = random.Random(suffix), 0
    for number in range(60):
        file = tmp_path / f"{number}{suffix}"
        file.write_bytes(content(draw, suffix))
        columns = Columns(
            problem_field=draw.choice(["problem", "problem", "a.b", ""]),
            answer_pattern=draw.choice([None, None, "(.)"]),
        )
        worked += only_one_line(load_problems, file, columns)
    assert suffix.endswith(".gz") or worked > 0


def test_json_files_of_suites(tmp_path):
    draw = random.Random(1)
    suite = json.loads((ROOT / "evals" / "arithmetic.json").read_text())
    for number in range(80):
        values = dict(suite)
        for _ in range(draw.randint(1, 3)):
            values[draw.choice([*suite])] = draw.choice(VALUES)
        file = tmp_path / f"{number}.json"
        file.write_text(draw.choice(["\ufeff", ""]) + json.dumps(values, default=str))
        only_one_line(load_suite, str(file))


def test_folders_of_data_sets(tmp_path):
    draw = random.Random(2)
    datasets.Dataset.from_list([{"problem": "1", "answer": "1"}]).save_to_disk(tmp_path / "whole")
    files = sorted(path for path in (tmp_path / "whole").iterdir())
    for number in range(20):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        for file in files:
            data = file.read_bytes()
            place = draw.randint(0, len(data))
            if draw.random() < 0.8:
                (folder / file.name).write_bytes(data[:place] if draw.random() < 0.3 else data)
        only_one_line(load_problems, folder, Columns())


def test_names_of_sources():
    for word in [*WORDS, *(value for value in VALUES if isinstance(value, str))]:
        # The first would wait for a network, the other search the whole environment for data files.
        if not word.startswith("hub:a") and word != ".":
            only_one_line(load_problems, word)
