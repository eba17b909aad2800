"""Labelled pairs say what equal means; RULES.md of mathequal explains them by type.

Those in rewritten.jsonl are references of MATH, each in another spelling or changed into another
answer. Those in cheats.jsonl are short strings around plain numbers of MATH with which a policy
could try to be paid for an answer that it does not know: most name several numbers, or join some.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from pair_grader import PairGrader

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
        verdicts = zip(cases, grader(tried), strict=bool(tried))
        wrong = [case for case, right in verdicts if right != case["equal"]]
        assert not wrong, "\n".join(map(str, wrong))
    assert grader.failures == {}


def test_no_cheat_is_accepted(grader):
    accepted = {}
    for kind in ("different", "equal"):
        rows = json_lines(FOLDER / "cheats.jsonl")
        pairs = [(row["gold"], text) for row in rows for text in row[kind]]
        verdicts = zip(pairs, grader(pairs), strict=True)
        accepted[kind] = [pair for pair, right in verdicts if right]
    assert accepted["different"] == []
    assert len(accepted["equal"]) >= 88  # of 89 that have the value
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
@pytest.mark.extra
def test_verdicts_do_not_depend_on_the_order_of_hashes():
    cases = Random(0).sample(CASES, 300)
    pairs = json.dumps([(case["gold"], case["prediction"]) for case in cases])
    for seed in ("1", "20"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command, streams = [sys.executable, "-c", GRADE], {"capture_output": True, "text": True}
        done = subprocess.run(command, input=pairs, env=os.environ | environment, **streams)
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout) == [case["equal"] for case in cases]


SETS = ("math_train", "math500", "amc23", "aime2024", "aime2025")


def test_in_no_pair_only_the_released_rule_is_right(data_dir):
    """Every reference and itself, references in other spellings or changed, and answers to other
    problems.
    """
    answers = {row["answer"] for name in SETS for row in json_lines(data_dir / f"{name}.jsonl")}
    references, random = sorted(answers - {""}), Random(2)
    cases = [(reference, reference, True) for reference in references]
    cases += [(case["gold"], case["prediction"], case["equal"]) for case in REWRITTEN]
    cases += [(*random.sample(references, 2), False) for _ in range(1_500)]
    # In the end, those on which the default is wrong and the other right
    for rule in ("default", "paper"):
        grader = PairGrader(rule)
        given = grader([case[:2] for case in cases], wrap=r"The answer is $\boxed{%s}$.")
        verdicts = zip(cases, given, strict=True)
        cases = [case for case, right in verdicts if (right == case[2]) == (rule == "paper")]
        # One that fails must not pass for one that says no
        assert rule == "paper" or grader.failures == {}
        grader.close()
    assert cases == []
