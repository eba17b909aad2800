import bz2
import csv
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bnpo.config import parse_train_config
from bnpo.data import Columns, Problem, load_problems, load_sources, questions_at, sampling_seeds
from bnpo.evaluation.suites import Dataset, dataset_problems
from bnpo.files import ROOT, InputError
from conftest import refused
from hub import COMMIT, hub
from planner.inputs import training_inputs

ROWS = [
    {
        "question": "Tom has 3 pens,\nand buys 4 more. How many?",
        "answer": "3 + 4 = <<3+4=7>>7\n#### 7",
    },
    {"question": 'A "dozen" of eggs is how many?', "answer": "#### 012"},
]
GSM8K = Columns(problem_field="question", answer_pattern=r"####\s*(.*)")


def parquet(path, rows=ROWS):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write(path, rows=ROWS):
    """The rows as a file of the kind that the suffix says."""
    if path.suffix == ".parquet":
        parquet(path, rows)
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


@pytest.mark.parametrize(
    "name", ["rows.jsonl", "rows.json", "list.json", "rows.csv", "rows.parquet"]
)
def test_all_kinds_of_files_give_the_same_problems(name, tmp_path):
    problems = load_problems(write(tmp_path / name), GSM8K)
    assert [(p.problem, p.answer) for p in problems] == [
        (ROWS[0]["question"], "7"),
        (ROWS[1]["question"], "012"),
    ]
    assert len({p.id for p in problems}) == 2
    named = write(tmp_path / name, [{"id": "a", "question": "1", "answer": "NA"}])
    assert load_problems(named, Columns(problem_field="question")) == [Problem("a", "1", "NA")]


def test_several_sources_keep_their_order_and_have_ids_of_their_own(tmp_path):
    first, second = write(tmp_path / "a.jsonl"), parquet(tmp_path / "b.parquet")
    problems, facts = load_sources([str(first), str(second)], GSM8K)
    assert [p.id for p in problems] == ["a.jsonl:1", "a.jsonl:2", "b.parquet:1", "b.parquet:2"]
    assert [fact["problems"] for fact in facts.values()] == [2, 2]
    assert [p.id for p in load_sources([str(first)], GSM8K)[0]] == ["1", "2"]


MIXED = [{"problem": "1", "answer": "2"}, {"problem": "1", "answer": True}]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
PATTERN = (
    r"1: --answer-pattern '([0-9]) eggs' finds nothing in the answer '3 + 4 = <<3+4=7>>7\n#### 7'"
)


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        (
            "rows.parquet",
            ROWS,
            {},
            "field 'problem' is missing; there are question, answer; name it with --problem-f",
        ),
        (
            "rows.jsonl",
            ROWS,
            {"answer_field": "no"},
            "rows.jsonl:1: field 'problem' is missing; there are question",
        ),
        (
            "rows.parquet",
            ROWS,
            {"problem_field": "question", "answer_pattern": "([0-9]) eggs"},
            PATTERN,
        ),
        (
            "rows.jsonl",
            MIXED,
            {},
            "rows.jsonl:2: field 'answer' has type bool; it must be a text or a number",
        ),
        (
            "rows.parquet",
            MIXED[1:],
            {},
            "rows.parquet:1: field 'answer' has type bool; it must be a text or a number",
        ),
        (
            "rows.parquet",
            [MIXED[0], {"problem": "2"}],
            {},
            "rows.parquet:2: field 'answer' is empty; it must be a",
        ),
        ("list.json", [MIXED[0], "more"], {}, "list.json:2: a str where a JSON object is needed"),
        (
            "list.json",
            "[{},\n{}",
            {},
            "list.json:2: not JSON (Expecting ',' delimiter, column 3); the file",
        ),
        ("rows.jsonl", '{"problem": "1", "answer": "1"}\nno\n', {}, "rows.jsonl:2: not JSON"),
        (
            "rows.jsonl",
            b"\xff\xfe utf-16",
            {},
            "is not UTF-8 text (invalid start byte at byte 0); save it as UTF-8",
        ),
        ("rows.jsonl", b"\x1f\x8b\x08 gzip", {}, "rows.jsonl: cannot be read ("),
        ("rows.csv", b"BZh9 bzip2", {}, "rows.csv: cannot be read ("),
        ("rows.json", b"\x28\xb5\x2f\xfd zstd", {}, "rows.json: cannot be read ("),
        ("rows.jsonl", b"PK\x03\x04", {}, "is a zip archive or an Excel file; unpack it, or save"),
        ("rows.csv", b"PK\x03\x04", {}, "is a zip archive or an Excel file; unpack it, or save"),
        ("rows.jsonl", b"PAR1", {}, "is a Parquet file; let its name end in .parquet"),
        ("rows.jsonl", b"ARROW1", {}, "is an Arrow file; save it as .parquet"),
        (
            "rows.parquet",
            LFS,
            {},
            "is only a pointer of Git LFS; fetch the file with `git lfs pull",
        ),
        ("rows.jsonl", LFS, {}, "is only a pointer of Git LFS; fetch the file with `git lfs pull`"),
        (
            "rows.jsonl",
            [{"problem": "1", "answer": r"so \boxed{7"}],
            {"answer_pattern": "last_box"},
            r"rows.jsonl:1: --answer-pattern 'last_box' finds nothing in the answer 'so \\boxed{7'",
        ),
        (
            "rows.csv",
            "problem,answer\n1\n",
            {},
            "rows.csv:1: field 'answer' is empty; it must be a text or a number",
        ),
        (
            "rows.csv",
            "problem,answer\n1,2,3\n",
            {},
            "rows.csv: cannot be read (ValueError: row 1 has more cells than",
        ),
        ("rows.csv", "", {}, "rows.csv: is empty; it needs a problem and an answer in each row"),
        (
            "rows.csv",
            "problem,answer\n",
            {},
            "rows.csv: is empty; it needs a problem and an answer in each row",
        ),
        ("rows.parquet", "", {}, "rows.parquet: cannot be read ("),
        (
            "rows.jsonl",
            [{"problem": "1", "answer": "\ud835"}],
            {},
            "rows.jsonl:1: half of a surrogate pair",
        ),
    ],
)
def test_bad_files_are_one_line_that_names_the_cure(name, content, columns, message, tmp_path):
    path = tmp_path / name
    if isinstance(content, str | bytes):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        write(path, content)
    with refused(f"{path}.*{re.escape(message.removeprefix(name))}"):
        load_problems(path, Columns(**columns))


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
VERL = {
    "prompt": CHAT,
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0},
}
VERL_FIELDS = {"problem_field": "prompt", "answer_field": "reward_model.ground_truth"}
AMBIGUOUS = {"prompt": CHAT, "a.b": "2", "a": {"b": "3"}}


@pytest.mark.parametrize("name", ["rows.jsonl", "list.json", "rows.parquet"])
@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"problem": "1+1=?", "answer": 2}, {}, ("1+1=?", "2")),  # AIME's answers
        ({"problem": "1/2=?", "answer": 0.5}, {}, ("1/2=?", "0.5")),
        ({"problem": 7, "answer": "7"}, {}, ("7", "7")),
        (VERL, VERL_FIELDS, (CHAT, "2")),
        ({"problem": json.dumps(CHAT), "answer": "2"}, {}, (CHAT, "2")),
        ({"problem": json.dumps(CHAT, indent=1), "answer": "2"}, {}, (CHAT, "2")),
        ({"problem": '[{"role": 1}] has?', "answer": "2"}, {}, ('[{"role": 1}] has?', "2")),
        ({"problem": "[1, 2] + [3] = ?", "answer": "2"}, {}, ("[1, 2] + [3] = ?", "2")),
        ({"problem": "1", "answer": ["70"]}, {}, ("1", "70")),  # OlympiadBench's final_answer
        ({"problem": "1", "answer": [70]}, {}, ("1", "70")),
        (AMBIGUOUS, {"problem_field": "prompt", "answer_field": "a.b"}, (CHAT, "2")),
        (
            {"prompt": CHAT, "x": {"y": {"z": 4}}},
            {"problem_field": "prompt", "answer_field": "x.y.z"},
            (CHAT, "4"),
        ),
    ],
)
def test_the_forms_of_other_projects(name, row, columns, expected, tmp_path):
    [problem] = load_problems(write(tmp_path / name, [row]), Columns(**columns))
    assert (problem.problem, problem.answer) == expected


NO_CHAT = (
    "field 'problem' is a list; its items must be messages with role and content, the last of them "
    "the user's"
)
NO_TEXT = "it must be a text or a number"


@pytest.mark.parametrize("name", ["rows.jsonl", "list.json", "rows.parquet"])
@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        (
            VERL,
            {"problem_field": "prompt"},
            "field 'answer' is missing; there are prompt, reward_model",
        ),
        (
            VERL,
            VERL_FIELDS | {"answer_field": "reward_model"},
            f"field 'reward_model' has type dict; {NO_TEXT}",
        ),
        (
            VERL,
            VERL_FIELDS | {"answer_field": "prompt.x"},
            "field 'prompt.x' is missing; there are prompt",
        ),
        (
            {"problem": "1", "answer": ["70", "71"]},
            {},
            f"field 'answer' has type list; {NO_TEXT}. Join the items with commas if an answer",
        ),
        ({"problem": "1", "answer": [["70"]]}, {}, f"field 'answer' has type list; {NO_TEXT}"),
        ({"problem": "1", "answer": [None]}, {}, f"field 'answer' is empty; {NO_TEXT}"),
        (
            {"problem": str(CHAT), "answer": "1"},
            {},
            "field 'problem' is a chat as Python writes it",
        ),
        ({"problem": str(CHAT[0]), "answer": "1"}, {}, "field 'problem' is a chat as Python writ"),
        ({"problem": json.dumps(CHAT[:1]), "answer": "1"}, {}, NO_CHAT),
        (
            {"problem": json.dumps({"messages": CHAT}), "answer": "1"},
            {},
            "field 'problem' has type dict; it must be a text or a list of messages",
        ),
        ({"problem": "1", "answer": float("nan")}, {}, f"field 'answer' is empty; {NO_TEXT}"),
        ({"problem": [{"role": "user"}], "answer": "1"}, {}, NO_CHAT),
        ({"problem": [], "answer": "1"}, {}, NO_CHAT),
        ({"problem": [*CHAT, {"role": "assistant", "content": "2"}], "answer": "1"}, {}, NO_CHAT),
    ],
)
def test_fields_that_cannot_be_read_are_named(name, row, columns, message, tmp_path):
    with refused(re.escape(f"{name}:1: {message}")):
        load_problems(write(tmp_path / name, [row]), Columns(**columns))


def zstd(content: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as file:
        file.write(content)
    return packed.getvalue().to_pybytes()


PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "list.json", "rows.csv"])
def test_packed_files_and_files_from_windows_are_read(name, kind, tmp_path):
    r"""With a byte-order mark, with \r\n, and packed, whether the name says so or not."""
    expected = load_problems(write(tmp_path / "rows.jsonl"), GSM8K)
    content = write(tmp_path / name).read_bytes()
    windows = b"\xef\xbb\xbf" + (content if name == "rows.csv" else content.replace(b"\n", b"\r\n"))
    for file, packed in (
        (name, windows),
        (f"{name}.{kind}", PACK[kind](windows)),
        (name, PACK[kind](windows)),
    ):
        (tmp_path / file).write_bytes(packed)
        found = load_problems(tmp_path / file, GSM8K)
        assert [(p.problem, p.answer) for p in found] == [(p.problem, p.answer) for p in expected]


@pytest.mark.parametrize("kind", PACK)
def test_packed_files_that_are_cut_or_of_another_kind_are_refused(kind, tmp_path):
    (tmp_path / f"cut.jsonl.{kind}").write_bytes(PACK[kind](b'{"problem": "1"}' * 100)[:-9])
    (tmp_path / f"no.jsonl.{kind}").write_bytes(b"{}")
    for file in (f"cut.jsonl.{kind}", f"no.jsonl.{kind}"):
        with pytest.raises(InputError, match=rf"{file}: cannot be read \("):
            load_problems(tmp_path / file)
    packed = parquet(tmp_path / "rows.parquet").read_bytes()
    (tmp_path / f"rows.parquet.{kind}").write_bytes(PACK[kind](packed))
    assert len(load_problems(tmp_path / f"rows.parquet.{kind}", GSM8K)) == 2
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        archive.add(write(tmp_path / "rows.jsonl"))
    (tmp_path / f"rows.tar.{kind}").write_bytes(PACK[kind]((tmp_path / "rows.tar").read_bytes()))
    with refused("is a tar archive; unpack it, and name a file in it"):
        load_problems(tmp_path / f"rows.tar.{kind}")


def test_a_cell_may_be_large(tmp_path):
    rows = [{"question": "1+1=?", "answer": "2"}, {"question": "x" * 3_000_000, "answer": "3"}]
    problems = load_problems(write(tmp_path / "rows.csv", rows), Columns(problem_field="question"))
    assert [(len(p.problem), p.answer) for p in problems] == [(5, "2"), (3_000_000, "3")]


def test_a_folder_of_a_data_set(tmp_path):
    columns, texts = Columns(problem_field="question"), [row["question"] for row in ROWS]
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=data, test=data.select([1])).save_to_disk(tmp_path / "two")
    (tmp_path / "files").mkdir()
    parquet(tmp_path / "files" / "train-00000.parquet")
    parquet(tmp_path / "files" / "test-00000.parquet", ROWS[:1])
    for name, expected in (
        ("one", texts),
        ("two#train", texts),
        ("two#test", texts[1:]),
        ("files#test", texts[:1]),
    ):
        assert [p.problem for p in load_problems(tmp_path / name, columns)] == expected
    for name in ("two", "two#dev", "files"):
        with refused(r"cannot be read \(ValueError: name one of its splits, t.*, as in .*#test\)"):
            load_problems(tmp_path / name, columns)
    with refused(r"cannot be read \(ValueError: save_to_disk writes no configurations; leave out"):
        load_problems(f"{tmp_path / 'two'}:main#train", columns)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: cannot be read \(.*\); check the folder"):
        load_problems(tmp_path / "empty", columns)


TWO_CONFIGS = """---
configs:
- config_name: main
  data_files: [{split: train, path: main/train.parquet}]
- config_name: socratic
  data_files: [{split: train, path: socratic/train.parquet}]
---
"""


def test_a_clone_with_two_configurations(tmp_path):
    columns, clone = Columns(problem_field="question"), tmp_path / "gsm8k"
    for name, rows in (("main", ROWS), ("socratic", ROWS[1:])):
        (clone / name).mkdir(parents=True)
        parquet(clone / name / "train.parquet", rows)
    (clone / "README.md").write_text(TWO_CONFIGS)
    assert len(load_problems(f"{clone}:main#train", columns)) == 2
    assert len(load_problems(f"{clone}:socratic", columns)) == 1
    with refused(
        r"ValueError: name one of its configurations, main, socratic, as in .*gsm8k:main#"
    ):
        load_problems(f"{clone}#train", columns)
    with refused(
        r"other#train: cannot be read \(ValueError: .*'other' not found.*check the folder"
    ):
        load_problems(f"{clone}:other#train", columns)
    with refused(r"nothing:main#train: no such data file"):
        load_problems(f"{tmp_path}/nothing:main#train", columns)


def test_ids_that_are_not_unique_are_replaced_by_the_position(tmp_path):
    rows = [{"id": "a", "problem": str(n), "answer": "1"} for n in range(3)]
    path = str(write(tmp_path / "rows.jsonl", rows))
    assert [p.id for p in load_sources([path], Columns())[0]] == ["1", "2", "3"]
    (tmp_path / "other").mkdir()
    other = str(
        write(tmp_path / "other" / "rows.jsonl", [{"id": 1, "problem": "5", "answer": "1"}])
    )
    problems, _ = load_sources([other, path, other], Columns())
    assert [(p.id, p.problem) for p in problems] == [
        ("1", "5"),
        ("2", "0"),
        ("3", "1"),
        ("4", "2"),
        ("5", "5"),
    ]


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So \boxed{3} or {x,\n better \boxed{\frac{1}{2}}. Done {.", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{\frac{\sqrt{a_{1}^{2}}}{2}}", r"\frac{\sqrt{a_{1}^{2}}}{2}"),
        (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
        (r"\boxed{1}, then \fbox{2}.", "2"),
        (r"it is $\boxed 2$.", "2"),
        (r"it is \boxed 1,234.5.", "1,234.5"),
        (r"\boxed{ x }", "x"),
        (r"\boxed{}", ""),  # two of MATH
    ],
)
def test_the_last_box_of_a_solution(solution, answer, tmp_path):
    columns = Columns(answer_pattern="last_box")
    columns.check()
    rows = [{"problem": "1", "answer": solution}]
    assert load_problems(write(tmp_path / "rows.jsonl", rows), columns)[0].answer == answer


def test_the_last_boxes_of_math_are_its_answers(data_dir):
    """All 7,500 solutions."""
    columns = Columns(answer_field="solution", answer_pattern="last_box")
    found = load_problems(data_dir / "math_train.jsonl", columns)
    expected = load_problems(data_dir / "math_train.jsonl")
    assert len(found) == 7500
    assert [problem.answer for problem in found] == [problem.answer for problem in expected]


def test_rows_without_an_id_are_numbered(tmp_path):
    """Lines without a row count, too."""
    (tmp_path / "lines.jsonl").write_text(
        '{"problem": "1", "answer": "1"}\n\n{"problem": "é", "answer": ""}\n'
    )
    assert [problem.id for problem in load_problems(tmp_path / "lines.jsonl")] == ["1", "3"]
    rows = [{"problem": "1", "answer": "1", "id": "a"}, {"problem": "2", "answer": "2", "id": None}]
    for name in ("rows.parquet", "rows.jsonl"):
        assert [problem.id for problem in load_problems(write(tmp_path / name, rows))] == ["a", "2"]


@pytest.mark.parametrize("folder", ["{home}", "~"])
def test_suites_take_the_same_sources_and_fields(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    parquet(tmp_path / "test.parquet")
    dataset = Dataset(
        folder.format(home=tmp_path) + "/test.parquet",
        repetitions=1,
        problem_field="question",
        answer_pattern=r"####\s*(.*)",
    )
    assert [problem.answer for problem in dataset_problems(dataset)] == ["7", "012"]


def test_a_dry_run_shows_the_first_two_prompts_as_rendered_and_the_answers_found(tmp_path):
    path = parquet(
        tmp_path / "train.parquet",
        [{"question": f"{n}+1=?", "answer": f"#### {n + 1}"} for n in range(3)],
    )
    flags = [
        "--train-data",
        str(path),
        "--problem-field",
        "question",
        "--answer-pattern",
        r"####\s*(.*)",
    ]
    config, _ = parse_train_config(
        ["--preset", "tiny", "--questions-per-step", "2", *flags], has_cuda=False
    )
    lines = "\n".join(training_inputs(config).lines)
    for n in range(2):
        assert f"prompt of problem {n + 1}:\n<|im_start|>user\n{n}+1=?<|im_end|>" in lines
        assert f"answer: {n + 1}\n" in lines
    assert "2+1=?" not in lines


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
    """What each source gives to a program whose hub has the address `endpoint` and whose cache
    is in `home`.
    """
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline}
    command = [sys.executable, "-c", LOAD, *names]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.program
def test_a_data_set_of_the_hub_is_loaded_with_its_commit(tmp_path):
    config = (
        "configs:\n- config_name: main\n  data_files:\n  - split: train\n    path: "
        "main/train.parquet\n"
    )
    card = f"---\n{config}---\n".encode()
    files = {
        "README.md": card,
        "main/train.parquet": parquet(tmp_path / "train.parquet").read_bytes(),
    }
    train = "hub:openai/gsm8k:main#train"
    with hub("openai/gsm8k", files) as endpoint:
        wrong = (
            "hub:openai/gsm8k:main#test",
            "hub:openai/gsm8k:other#train",
            "hub:openai/nothing#train",
        )
        loaded, pinned, *refused = load_from(
            endpoint, tmp_path, train, f"hub:openai/gsm8k@{COMMIT}#train", *wrong
        )
    assert loaded == pinned == [["7", "012"], COMMIT]
    for line, name in zip(refused, wrong, strict=True):
        assert line.startswith(f"{name}: cannot be read (")
        assert "\n" not in line
    # Without a network it is the copy in the cache, unless that has another revision.
    other = train.replace("#", f"@{'f' * 40}#")
    cached, refusal = load_from("http://127.0.0.1:9", tmp_path, train, other, offline="1")
    assert cached == loaded
    assert f"cannot be reached, and the local copy is of revision {COMMIT})" in refusal


@pytest.mark.program
def test_gated_data_sets_and_missing_networks_are_one_line(tmp_path):
    name = "hub:openai/gsm8k:main#train"
    with hub("openai/gsm8k", {}, gated=True) as endpoint:
        [gated] = load_from(endpoint, tmp_path, name)
    [unreachable] = load_from("http://127.0.0.1:9", tmp_path, name)
    assert "is a gated dataset" in gated
    for line in (gated, unreachable):
        assert line.startswith(f"{name}: cannot be read (")
        assert line.endswith("for a gated data set your login (hf auth login)")
        assert "\n" not in line


@pytest.mark.parametrize(
    "name", ["arithmetic,word-problems", "a.jsonl,hub:o/n#train", "hub:o/n#train,hub:o/m#test"]
)
def test_sources_that_are_separated_by_commas_are_refused_with_the_right_form(name):
    message = (
        f"{name}: no such data file; several sources .*: --train-data {name.replace(',', ' ')}$"
    )
    with pytest.raises(InputError, match=message):
        load_problems(name)


@pytest.mark.parametrize("name", ["hub:gsm8k#train", "hub:openai/gsm8k:main", "hub:openai/gsm8k"])
def test_names_of_hub_data_sets_need_an_owner_and_a_split(name):
    with pytest.raises(
        InputError,
        match=f"{name}: cannot be read .*a data set of the hub is hub:OWNER/NAME:CONFIG@R",
    ):
        load_problems(name)


def test_an_epoch_visits_every_problem_once_in_an_order_of_its_own():
    epochs = [
        [questions_at(30, 5, 30 * epoch + 5 * i, seed=1)[0] for i in range(6)] for epoch in range(2)
    ]
    orders = [np.concatenate(epoch).tolist() for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]
    assert (
        orders[0]
        != np.concatenate([questions_at(30, 5, 5 * i, seed=2)[0] for i in range(6)]).tolist()
    )


def test_another_number_of_questions_continues_behind_the_last_one():
    """Batches of 4, then of 6, of 30 problems: none is asked twice in an epoch, and only its end
    is left out.
    """
    place, asked = 0, []
    for questions in (4, 4, 6, 6, 6, 6):
        indices, place = questions_at(30, questions, place, seed=1)
        asked.append(indices.tolist())
    order = np.concatenate([questions_at(30, 1, i, seed=1)[0] for i in range(30)]).tolist()
    assert np.concatenate(asked[:5]).tolist() == order[:26]
    assert asked[5] == questions_at(30, 6, 30, seed=1)[0].tolist()
    assert place == 36


def test_draws_of_a_step_have_seeds_of_their_own():
    seeds = [sampling_seeds(0, 3, range(8), draw) for draw in range(4)]
    assert seeds[0] == sampling_seeds(0, 3, range(8))
    assert len({seed for of_draw in seeds for seed in of_draw}) == 4 * 8
