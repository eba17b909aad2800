"""examples/countdown.py: problems that have a solution, and a reward that checks expressions without running them."""

import importlib.util
import subprocess
import sys

import pytest

from bnpo.files import ROOT
from conftest import json_lines

SPEC = importlib.util.spec_from_file_location("countdown", ROOT / "examples" / "countdown.py")
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

REFERENCE = "100: 4 19 44"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("countdown") / "countdown.jsonl"
    command = [sys.executable, "examples/countdown.py", "--output", str(path), "--problems", "500"]
    subprocess.run(command, cwd=ROOT, check=True)
    return path


def rows(path):
    return json_lines(path)


def test_every_problem_has_the_solution_that_comes_with_it(data):
    assert len({row["problem"] for row in rows(data)}) == 500
    for row in rows(data):
        target, _, numbers = row["answer"].partition(": ")
        assert 1 <= int(target) <= 1000
        assert len(numbers.split()) in (3, 4)
        assert row["problem"].count(f" {target}.") == 1
        assert example.countdown(f"so \\boxed{{{row['solution']}}}", row["answer"]) == 1
        assert example.countdown(f"so \\boxed{{{row['solution']} + 1}}", row["answer"]) == 0


@pytest.mark.parametrize(
    "answer",
    ["(44-19)*4", "4 * (44 - 19)", r"(44-19) \times 4 = 100", r"4\cdot\left(44-19\right)", "$(44-19)*4$", "(44-19)×4"],
)
def test_right_expressions(answer):
    assert example.countdown(f"\\boxed{{{answer}}}", REFERENCE) == 1
    assert example.countdown(answer, REFERENCE) == 0  # no box


def test_fractions_are_exact():
    assert example.countdown(r"\boxed{8/(3-8/3)}", "24: 3 3 8 8") == 1
    assert example.countdown(r"\boxed{\frac{8}{3-\frac{8}{3}}}", "24: 3 3 8 8") == 0  # nested: not read
    assert example.countdown(r"\boxed{\frac{44-19}{4}*16}", "100: 4 16 19 44") == 1
    assert example.countdown(r"\boxed{1/3*3}", "1: 1 3 3") == 1


@pytest.mark.parametrize(
    "answer",
    [
        "100",  # not from the numbers
        "25*4",
        "(44-19)*4+0",
        "44-19*4",
        "44+19+37",
        "(44-19)*4*(19/19)",  # a number twice
        "((44-19)*4",
        "(44-19)**4",
        "44/(19-19)",
        "True*4*19*44",
        "4.0*(44-19)",
        "__import__('os').system('touch /tmp/owned')",
        "9**9**9**9",
        "(" * 150 + "1" + ")" * 150,
        "1+" * 5000 + "1",
        "",
    ],
)
def test_wrong_expressions_score_0_and_nothing_is_run(answer):
    assert example.countdown(f"\\boxed{{{answer}}}", REFERENCE) == 0
