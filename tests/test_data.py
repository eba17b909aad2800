import numpy as np
import pytest

from bnpo.data import load_problems, next_place, questions_at
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
        ('{"problem": "1", "answer": true}\n', r"data.jsonl:1: field 'answer' has type bool; it must be a text or"),
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
    epochs = [[questions_at(30, 5, 30 * epoch + 5 * i, seed=1) for i in range(6)] for epoch in range(2)]
    orders = [np.concatenate(epoch).tolist() for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]
    assert orders[0] != np.concatenate([questions_at(30, 5, 5 * i, seed=2) for i in range(6)]).tolist()


def test_another_number_of_questions_continues_behind_the_last_one():
    """Batches of 4, then of 6, of 30 problems: none is asked twice in an epoch, and only its end is left out."""
    place, asked = 0, []
    for questions in (4, 4, 6, 6, 6, 6):
        asked.append(questions_at(30, questions, place, seed=1).tolist())
        place = next_place(30, questions, place) + questions
    order = np.concatenate([questions_at(30, 1, i, seed=1) for i in range(30)]).tolist()
    assert np.concatenate(asked[:5]).tolist() == order[:26]
    assert asked[5] == questions_at(30, 6, 30, seed=1).tolist()
    assert place == 36


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\x1f\x8b\x08 gzip")
    with pytest.raises(InputError, match=r"data.jsonl: is not UTF-8 text \(invalid start byte at byte 1\); save it as"):
        load_problems(path)
