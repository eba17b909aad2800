import numpy as np
import pytest

from bnpo.data import load_problems, questions_of_step
from bnpo.files import InputError


def write(tmp_path, text):
    path = tmp_path / "data.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_load(tmp_path):
    path = write(
        tmp_path, '{"id": "a", "problem": "1+1", "answer": "2", "level": 3}\n\n{"problem": "é", "answer": ""}\n'
    )
    problems = load_problems(path)
    assert [(p.id, p.problem, p.answer) for p in problems] == [("a", "1+1", "2"), ("3", "é", "")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"data.jsonl: is empty"),
        ('{"problem": "1", "answer": "1"}\nnonsense\n', r"data.jsonl:2: not JSON"),
        ('["a"]\n', r"data.jsonl:1: a list where a JSON object is needed"),
        ('{"problem": "1"}\n', r"data.jsonl:1: field 'answer' is missing"),
        ('{"problem": "1", "answer": 5}\n', r"data.jsonl:1: field 'answer' has type int; it must be a string"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as error:
        load_problems(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such data file"):
        load_problems(tmp_path / "absent.jsonl")


def test_an_epoch_visits_every_problem_once_in_an_order_of_its_own():
    epochs = [[questions_of_step(30, 5, 6 * epoch + i, seed=1) for i in range(6)] for epoch in range(2)]
    orders = [np.concatenate(epoch).tolist() for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]
    assert orders[0] != np.concatenate([questions_of_step(30, 5, i, seed=2) for i in range(6)]).tolist()


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\x1f\x8b\x08 gzip")
    with pytest.raises(InputError, match=r"data.jsonl: cannot be read as UTF-8 text \(invalid start byte at byte 1\)"):
        load_problems(path)
