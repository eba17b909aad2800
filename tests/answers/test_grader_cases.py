"""Labelled pairs say what equal means; RULES.md of mathequal explains them by type.

Those in rewritten.jsonl are references of MATH, each in another spelling or changed into another
answer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from cheats import candidates, value_of
from pair_grader import PairGrader, reference_answers

from conftest import json_lines

FOLDER = Path(__file__).parent
REWRITTEN = json_lines(FOLDER / "rewritten.jsonl")
CASES = json_lines(FOLDER / "grader_cases.jsonl") + REWRITTEN
KINDS = sorted({case["kind"] for case in CASES})
ONE_WAY = {"boxed_twice", "tolerances, lists and units of data sets"}
"""A box is taken off an answer, never off a reference, and only a reference has a tolerance."""


@pytest.fixture(scope="module")
def grader():
    grader = PairGrader()
    yield grader
    grader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_labelled_pairs_are_graded_as_labelled_either_way(grader, kind):
    cases = [case for case in CASES if case["kind"] == kind]
    pairs = [(case["gold"], case["prediction"]) for case in cases]
    for tried in (pairs, [] if kind in ONE_WAY else [pair[::-1] for pair in pairs]):
        wrong = [
            case
            for case, right in zip(cases, grader(tried), strict=bool(tried))
            if right != case["equal"]
        ]
        assert not wrong, "\n".join(map(str, wrong))
    assert grader.failures == {}


GRADE = """
import json
import sys

from pair_grader import PairGrader

grader = PairGrader()
print(json.dumps(grader(json.load(sys.stdin))))
grader.close()
"""


@pytest.mark.program
def test_verdicts_do_not_depend_on_the_order_of_hashes():
    cases = Random(0).sample(CASES, 300)
    given = []
    for seed in ("1", "20"):
        done = subprocess.run(
            [sys.executable, "-c", GRADE],
            input=json.dumps([(case["gold"], case["prediction"]) for case in cases]),
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        given.append(json.loads(done.stdout))
    assert given == 2 * [[case["equal"] for case in cases]]


SETS = ("math_train", "math500", "amc23", "aime2024", "aime2025")


def test_in_no_pair_only_the_released_rule_is_right(data_dir):
    """Every reference and itself, references in other spellings or changed, and answers to other
    problems.
    """
    references, random = (
        reference_answers(*(data_dir / f"{name}.jsonl" for name in SETS)),
        Random(2),
    )
    cases = [(reference, reference, True) for reference in references]
    cases += [(case["gold"], case["prediction"], case["equal"]) for case in REWRITTEN]
    cases += [(*random.sample(references, 2), False) for _ in range(1_500)]
    # In the end, those on which the default is wrong and the other right
    for rule in ("default", "paper"):
        grader = PairGrader(rule)
        given = grader([case[:2] for case in cases], wrap=r"The answer is $\boxed{%s}$.")
        cases = [
            case
            for case, right in zip(cases, given, strict=True)
            if (right == case[2]) == (rule == "paper")
        ]
        # One that fails must not pass for one that says no
        assert rule == "paper" or grader.failures == {}
        grader.close()
    assert cases == []


REFERENCES, EACH = 300, 25


def tried(folder: Path) -> list[tuple[str, str, bool, bool]]:
    """Return (reference, text, whether it has the value, whether it is accepted) for plain
    numbers of MATH.
    """
    random = Random(0)
    answers = [
        answer
        for answer in reference_answers(folder / "math_train.jsonl")
        if value_of(answer) is not None
    ]
    strings = []
    for reference in random.sample(answers, REFERENCES):
        chosen = random.sample(list(candidates(value_of(reference))), EACH)
        strings += [(reference, text, worth == value_of(reference)) for text, worth in chosen]
    grader = PairGrader()
    given = grader([(reference, text) for reference, text, _ in strings])
    grader.close()
    assert grader.failures == {}
    return [(*string, accepted) for string, accepted in zip(strings, given, strict=True)]


def test_a_search_over_short_strings_finds_no_cheat(data_dir):
    strings = tried(data_dir)
    assert [string for string in strings if string[3] and not string[2]] == []
    missed = [string for string in strings if string[2] and not string[3]]
    assert len(missed) * 100 <= sum(deserved for _, _, deserved, _ in strings), missed
    assert sum(accepted for _, _, _, accepted in strings) >= 50
