"""Labelled pairs say what equal means; RULES.md of mathequal explains them by type.

Those in rewritten.jsonl are references of MATH, each in another spelling or changed into another answer.
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
ONE_WAY = {"boxed_twice"}
"""A box is taken off an answer, never off a reference."""


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
        wrong = [case for case, right in zip(cases, grader(tried), strict=bool(tried)) if right != case["equal"]]
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
