"""Sources of problems: files of all kinds, folders, the hub; and the order of a run's questions."""

import bz2
import csv
import gzip
import json
import lzma
import os
import re
import subprocess
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bnpo.batch import WATCHED, questions_at, sampling_seeds
from bnpo.data import Columns, Problem, load_problems, load_sources
from bnpo.evaluation.suites import Dataset, dataset_problems
from bnpo.files import ROOT
from bnpo.tasks import built_in_problems
from conftest import refused
from hub import COMMIT, hub

ROWS = [
    {"question": "Tom has 3 pens,\nand buys 4 more.", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"},
    {"question": 'A "dozen" of eggs is how many?', "answer": "#### 012"},
]
GSM8K = Columns(problem_field="question", answer_pattern=r"####\s*(.*)")
QUESTION = Columns(problem_field="question")


def write(path, rows=ROWS):
    """The rows as a file of the kind that the suffix says, or `rows` itself if it is text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, str | bytes):
        path.write_bytes(rows if isinstance(rows, bytes) else rows.encode())
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.name == "list.json":
        path.write_text(json.dumps(rows, indent=2))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def zstd(content: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as file:
        file.write(content)
    return packed.getvalue().to_pybytes()


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}
FILES = ["rows.jsonl", "rows.json", "list.json", "rows.csv", "rows.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_all_kinds_of_files_give_the_same_problems(name, tmp_path):
    """Also packed, whether the name says so or not, and from Windows: a byte-order mark, CRLF."""
    content = write(tmp_path / name).read_bytes()
    if name not in ("rows.parquet", "rows.csv"):
        content = b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
    versions = {name: content}
    for kind, pack in PACK.items():
        versions |= {f"{name}.{kind}": pack(content), f"{kind}/{name}": pack(content)}
    for file, packed in versions.items():
        problems = load_problems(write(tmp_path / file, packed), GSM8K)
        expected = [(ROWS[0]["question"], "7"), (ROWS[1]["question"], "012")]
        assert [(p.problem, p.answer) for p in problems] == expected
        assert len({p.id for p in problems}) == 2
    named = write(tmp_path / name, [{"id": "a", "question": "1", "answer": "NA"}])
    assert load_problems(named, QUESTION) == [Problem("a", "1", "NA")]


def test_numbers_of_fp32_are_read_as_they_were_meant(tmp_path):
    answers = pa.array([0.1, 2.5, 3.7, 7.0], pa.float32())
    table = pa.table({"problem": ["?"] * 4, "answer": answers})
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    assert [problem.answer for problem in load_problems(path)] == ["0.1", "2.5", "3.7", "7"]


def test_more_problems_than_a_built_in_task_has_are_refused():
    with refused(r"word-problems: has about \d+ different problems for test, not 9000; ask for"):
        built_in_problems("word-problems", "test", 9000)


def test_a_cell_may_be_large_and_lines_without_a_row_count(tmp_path):
    rows = [{"question": "x" * 3_000_000, "answer": "3"}]
    assert len(load_problems(write(tmp_path / "rows.csv", rows), QUESTION)[0].problem) == 3_000_000
    lines = '{"problem": "1", "answer": "1"}\n\n{"problem": "é", "answer": ""}\n'
    assert [p.id for p in load_problems(write(tmp_path / "lines.jsonl", lines))] == ["1", "3"]


def test_several_sources_keep_their_order_and_get_ids_of_their_own(tmp_path):
    first, second = str(write(tmp_path / "a.jsonl")), str(write(tmp_path / "b.parquet"))
    problems, facts = load_sources([first, second], GSM8K)
    assert [p.id for p in problems] == ["a.jsonl:1", "a.jsonl:2", "b.parquet:1", "b.parquet:2"]
    assert [fact["problems"] for fact in facts.values()] == [2, 2]
    same = [{"id": "a", "problem": str(n), "answer": "1"} for n in range(3)]
    repeated = load_sources([str(write(tmp_path / "same.jsonl", same))], Columns())[0]
    assert [p.id for p in repeated] == ["1", "2", "3"]


TWO = [{"problem": "1", "answer": "2"}, {"problem": "1", "answer": True}]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
NO_PATTERN = ": --answer-pattern '([0-9]) eggs' finds nothing in the answer '3 + 4 = <<3+4=7>>7"
EGGS = {"problem_field": "question", "answer_pattern": "([0-9]) eggs"}
BOX = {"answer_pattern": "last_box"}
LONG = "1" * 5000
MISSING = "field 'problem' is missing; there are question, answer; name it with --problem-field"


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.parquet", ROWS, {}, f":1: {MISSING}"),
        ("a.parquet", ROWS, EGGS, f":1{NO_PATTERN}"),
        ("a.jsonl", TWO, {}, ":2: field 'answer' has type bool; it must be a text or a number"),
        ("a.parquet", [TWO[0], {"problem": "2"}], {}, ":2: field 'answer' is empty; it must be a"),
        ("list.json", [TWO[0], "more"], {}, ":2: a str where a JSON object is needed"),
        ("list.json", "[{},\n{}", {}, ":2: not JSON (Expecting ',' delimiter, column 3); the file"),
        ("a.jsonl", "[" * 100_000, {}, ":1: has too many brackets within brackets"),
        ("a.jsonl", f'{{}}\n{{"answer": {LONG}}}', {}, ":2: a number has more than 4,300 digits"),
        ("list.json", f"[{LONG}]", {}, ": a number has more than 4,300 digits; write it as a text"),
        ("a.jsonl", b"\xff\xfe utf-16", {}, "is not UTF-8 text (invalid start byte at byte 0)"),
        ("a.jsonl", b"\x1f\x8b\x08 gzip", {}, ": cannot be read ("),
        ("a.jsonl.xz", lzma.compress(b"{}" * 99)[:-9], {}, ": cannot be read ("),
        ("a.csv", b"PK\x03\x04", {}, "is a zip archive or an Excel file; unpack it, or save"),
        ("a.jsonl", b"PAR1", {}, "is a Parquet file; let its name end in .parquet"),
        ("a.parquet", LFS, {}, "is only a pointer of Git LFS; fetch the file with `git lfs pull`"),
        ("a.jsonl", [{"problem": "1", "answer": r"so \boxed{7"}], BOX, r":1: --answer-pattern"),
        ("a.csv", "problem,answer\n,2\n", {}, ":1: field 'problem' is empty; it must be a text or"),
        ("a.csv", "problem,answer\n1\n", {}, ":1: field 'answer' is empty; it must be a text or"),
        ("a.csv", "problem,answer\n1,2,3\n", {}, "row 1 has more cells than columns"),
        ("a.csv", "", {}, ": is empty; it needs a problem and an answer in each row"),
        ("a.jsonl", [{"problem": "1", "answer": "\ud835"}], {}, ":1: half of a surrogate pair"),
    ],
)
def test_bad_files_are_one_line_that_names_the_cure(name, content, columns, message, tmp_path):
    path = write(tmp_path / name, content)
    with refused(f"^{path}.*{re.escape(message)}"):
        load_problems(path, Columns(**columns))


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
VERL = {"prompt": CHAT, "reward_model": {"style": "rule", "ground_truth": "2"}}
VERL_FIELDS = {"problem_field": "prompt", "answer_field": "reward_model.ground_truth"}
DOTTED = {"problem_field": "prompt", "answer_field": "a.b"}
NO_CHAT = "field 'problem' is a list; its items must be messages with role and content, the last"
NO_TEXT = "it must be a text or a number"


@pytest.mark.parametrize("name", ["rows.jsonl", "list.json", "rows.parquet"])
@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"problem": "1+1=?", "answer": 2}, {}, ("1+1=?", "2")),  # AIME's answers
        (VERL, VERL_FIELDS, (CHAT, "2")),
        ({"problem": json.dumps(CHAT, indent=1), "answer": "2"}, {}, (CHAT, "2")),
        ({"problem": str(CHAT), "answer": "2"}, {}, (CHAT, "2")),
        ({"problem": '[{"role": 1}] has?', "answer": "2"}, {}, ('[{"role": 1}] has?', "2")),
        ({"problem": "1", "answer": r"\boxed{1}, then \fbox{2}."}, BOX, ("1", "2")),
        ({"problem": "1", "answer": r"it is \boxed 1,234.5."}, BOX, ("1", "1,234.5")),
        ({"problem": "1", "answer": [70]}, {}, ("1", "70")),  # OlympiadBench's final_answer
        ({"prompt": CHAT, "a.b": "2", "a": {"b": "3"}}, DOTTED, (CHAT, "2")),
        (VERL, {"problem_field": "prompt"}, "field 'answer' is missing; there are prompt, rew"),
        (VERL, VERL_FIELDS | {"answer_field": "reward_model"}, "has type dict; it must be a text"),
        ({"problem": "1", "answer": ["7", "8"]}, {}, f"type list; {NO_TEXT}. Join the items"),
        ({"problem": "1", "answer": float("nan")}, {}, f"field 'answer' is empty; {NO_TEXT}"),
        ({"problem": "1", "answer": 1e23}, {}, ("1", "1" + 23 * "0")),
        ({"problem": "1", "answer": 9.1e15}, {}, ("1", "9100000000000000")),
        ({"problem": "1", "answer": -0.5}, {}, ("1", "-0.5")),
        ({"problem": "1", "answer": 0.00001}, {}, ("1", "0.00001")),
        ({"problem": "1", "answer": float("inf")}, {}, "is infinite or too large for a number"),
        # As pandas writes an array of messages into a CSV file
        ({"problem": f"[{CHAT[0]}\n {CHAT[1]}]", "answer": "2"}, {}, "looks like a chat in a text"),
        ({"problem": "[{'from': 'human', 'value': '1'}]", "answer": "2"}, {}, NO_CHAT),
        ({"problem": json.dumps(CHAT[:1]), "answer": "1"}, {}, NO_CHAT),
        ({"problem": [{"role": "user"}], "answer": "1"}, {}, NO_CHAT),
    ],
)
def test_the_forms_of_other_projects(name, row, columns, expected, tmp_path):
    """`expected` is the problem and the answer, or what the refusal says."""
    path = write(tmp_path / name, [row])
    if isinstance(expected, str):
        with refused(f"^{path}:1: .*{re.escape(expected)}"):
            load_problems(path, Columns(**columns))
        return
    [problem] = load_problems(path, Columns(**columns))
    assert (problem.problem, problem.answer) == expected


def test_the_last_boxes_of_math_are_its_answers(data_dir):
    """All 7,500 solutions."""
    found = load_problems(data_dir / "math_train.jsonl", Columns(answer_field="solution", **BOX))
    expected = load_problems(data_dir / "math_train.jsonl")
    assert len(found) == 7500
    assert [problem.answer for problem in found] == [problem.answer for problem in expected]


CONFIGS = """---
configs:
- config_name: main
  data_files: [{split: train, path: main/train.parquet}]
- config_name: socratic
  data_files: [{split: train, path: socratic/train.parquet}]
---
"""


def test_a_folder_of_a_data_set(tmp_path):
    """Of save_to_disk, files as on the hub, and a clone with two configurations."""
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=data, test=data.select([1])).save_to_disk(tmp_path / "two")
    for file, rows in (("files/train-0", ROWS), ("files/test-0", ROWS[:1])):
        write(tmp_path / f"{file}.parquet", rows)
    for config, rows in (("main", ROWS), ("socratic", ROWS[1:])):
        write(tmp_path / "clone" / config / "train.parquet", rows)
    (tmp_path / "clone" / "README.md").write_text(CONFIGS)
    (tmp_path / "empty").mkdir()
    for name, expected in (
        *(("one", ROWS), ("two#train", ROWS), ("two#test", ROWS[1:]), ("files#test", ROWS[:1])),
        *(("clone:main#train", ROWS), ("clone:socratic", ROWS[1:])),
    ):
        texts = [p.problem for p in load_problems(tmp_path / name, QUESTION)]
        assert texts == [row["question"] for row in expected]
    for name, message in (
        *((name, "name one of its splits, t.*, as in .*#test") for name in ("two", "two#dev")),
        ("two:main#train", "save_to_disk writes no configurations; leave out :main"),
        ("clone#train", r"the available configs: \['main', 'socratic'\].* write FOLDER:CONFIG#SPL"),
        ("clone:other#train", "'other' not found.*check the folder"),
        ("empty", r"cannot be read \(.*\); check the folder"),
        ("nothing:main#train", "no such data file"),
    ):
        with refused(f"{name}: .*{message}"):
            load_problems(tmp_path / name, QUESTION)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub:o/n#train,hub:o/m#test", ": no such data file; separate sources by blanks"),
        ("hub:gsm8k#train", "Write hub:OWNER/NAME:CONFIG@REVISION#SPLIT"),
        ("hub:openai/gsm8k:main", "Write hub:OWNER/NAME:CONFIG@REVISION#SPLIT"),
        ("word-problems:9:3", "write word-problems:LARGEST:STEPS, such as word-problems:20:2"),
        ("word-problems:9999999999", "LARGEST from 9 to 999999999"),
    ],
)
def test_malformed_names_of_sources(name, message):
    with refused(f"^{name}: .*{message}" if message[0] != ":" else f"^{name}{message}"):
        load_problems(name)


def test_suites_take_the_same_sources_and_fields(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "test.parquet")
    fields = {"problem_field": "question", "answer_pattern": r"####\s*(.*)"}
    problems = dataset_problems(Dataset("~/test.parquet", repetitions=1, **fields))
    assert [problem.answer for problem in problems] == ["7", "012"]


LOAD = """
import json, sys
from bnpo.files import InputError
from bnpo.data import Columns, load_sources
for name in sys.argv[1:]:
    try:
        columns = Columns(problem_field="question", answer_pattern=r"####\\s*(.*)")
        problems, facts = load_sources([name], columns)
        print(json.dumps([[problem.answer for problem in problems], facts[name]["revision"]]))
    except InputError as error:
        print(json.dumps(str(error)))
"""


def load_from(endpoint, home, *names, offline="0"):
    """What each source gives to a program with a hub at `endpoint` and its cache in `home`."""
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *names],
        **{"cwd": ROOT, "env": os.environ | environment, "text": True, "check": True},
        stdout=subprocess.PIPE,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.program
def test_a_data_set_of_the_hub_is_loaded_with_its_commit(tmp_path):
    card = CONFIGS.replace("socratic/", "main/").encode()
    content = write(tmp_path / "train.parquet").read_bytes()
    train = "hub:openai/gsm8k:main#train"
    wrong = (train.replace("train", "test"), train.replace("main", "no"), "hub:openai/no#train")
    with hub("openai/gsm8k", {"README.md": card, "main/train.parquet": content}) as endpoint:
        pinned = train.replace("#", f"@{COMMIT}#")
        loaded, same, *refusals = load_from(endpoint, tmp_path, train, pinned, *wrong)
    assert loaded == same == [["7", "012"], COMMIT]
    for line, name in zip(refusals, wrong, strict=True):
        assert line.startswith(f"{name}: cannot be read (")
        assert "\n" not in line
    # Without a network it is the copy in the cache, unless that has another revision.
    other = train.replace("#", f"@{'f' * 40}#")
    cached, refusal = load_from("http://127.0.0.1:9", tmp_path, train, other, offline="1")
    assert cached == loaded
    assert f"cannot be reached, and the local copy is of revision {COMMIT})" in refusal


def test_an_epoch_visits_every_problem_once_in_an_order_of_its_own():
    orders = [
        np.concatenate(
            [questions_at(30, 5, 30 * epoch + 5 * i, seed)[0] for i in range(6)]
        ).tolist()
        for epoch, seed in ((0, 1), (1, 1), (0, 2))
    ]
    assert [sorted(order) for order in orders] == 3 * [list(range(30))]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    # Batches of 4, then of 6: none is asked twice in an epoch, and only its end is left out
    cursor, asked = 0, []
    for questions in (4, 4, 6, 6, 6, 6):
        indices, cursor = questions_at(30, questions, cursor, seed=1)
        asked.append(indices.tolist())
    assert [question for step in asked[:5] for question in step] == orders[0][:26]
    assert asked[5] == questions_at(30, 6, 30, seed=1)[0].tolist()
    assert cursor == 36


def test_seeds_depend_on_stream_question_and_draw():
    def seed(*entropy: int) -> int:
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    assert sampling_seeds(7, 3, [5, 6]) == [seed(7, 3, 5), seed(7, 3, 6)]
    assert sampling_seeds(7, WATCHED, [5]) == [seed(7, 2**32 - 1, 5)]
    draws = [sampling_seeds(0, 3, range(8), draw) for draw in range(4)]
    assert draws[2] == [seed(0, 3, q, 2) for q in range(8)]
    assert len({seed for of_draw in draws for seed in of_draw}) == 4 * 8
