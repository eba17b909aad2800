"""Verdicts on rewritten real references: other spellings of the same answer are right, other answers are wrong."""

import json
import os
import subprocess
import sys
from random import Random

import pytest
from changes import DIFFERENT
from pair_grader import PairGrader, reference_answers
from references import Rule, Rules
from spellings import SAME

SAMPLE = 60
"""References a rule is tried on, of those it applies to."""


@pytest.fixture(scope="module")
def references(data_dir) -> list[str]:
    return reference_answers(data_dir / "math_train.jsonl", data_dir / "math500.jsonl")


@pytest.fixture(scope="module")
def grader():
    grader = PairGrader()
    yield grader
    grader.close()


def rewritten(rule: Rule, references: list[str]) -> list[tuple[str, str]]:
    return [(reference, spelling) for reference in references if (spelling := rule(reference)) is not None]


def sample(pairs: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    return Random(0).sample(pairs, min(count, len(pairs)))


def verdicts(grader: PairGrader, pairs: list[tuple[str, str]]) -> list[bool]:
    """Of answers in a box. Every one is a verdict: none failed."""
    given = grader(pairs)
    assert grader.failures == {}
    return given


def listed(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"{reference!r} and {spelling!r}" for reference, spelling in pairs)


def cases(rules: Rules) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("rule", "least"), [(rule, rules.least[name]) for name, rule in rules.items()], ids=rules
    )


@cases(SAME)
def test_another_spelling_is_right(grader, references, rule, least):
    pairs = rewritten(rule, references)
    assert len(pairs) >= least
    chosen = sample(pairs, SAMPLE)
    missed = [pair for pair, right in zip(chosen, verdicts(grader, chosen), strict=True) if not right]
    assert not missed, listed(missed)


@cases(DIFFERENT)
def test_another_answer_is_wrong(grader, references, rule, least):
    pairs = rewritten(rule, references)
    assert len(pairs) >= least
    chosen = sample(pairs, SAMPLE)
    taken = [pair for pair, right in zip(chosen, verdicts(grader, chosen), strict=True) if right]
    assert not taken, listed(taken)


@pytest.fixture(scope="module")
def mixed_pairs(references) -> list[tuple[str, str]]:
    """Equal ones, near ones and unrelated ones, a third each."""
    equal, near = (
        # a box is taken off an answer, never off a reference
        [pair for name, rule in rules.items() if name != "boxed_twice" for pair in rewritten(rule, references)]
        for rules in (SAME, DIFFERENT)
    )
    first, second = (Random(seed).sample(references, 100) for seed in (1, 2))
    return sample(equal, 100) + sample(near, 100) + list(zip(first, second, strict=True))


def test_verdicts_are_symmetric(grader, mixed_pairs):
    there, back = (verdicts(grader, pairs) for pairs in (mixed_pairs, [pair[::-1] for pair in mixed_pairs]))
    assert 80 <= sum(there) <= 150
    one_way = [pair for pair, right, again in zip(mixed_pairs, there, back, strict=True) if right != again]
    assert not one_way, listed(one_way)


GRADE = """
import json
import sys

from pair_grader import PairGrader

grader = PairGrader()
print(json.dumps(grader(json.load(sys.stdin))))
grader.close()
"""


@pytest.mark.program
def test_verdicts_do_not_depend_on_the_order_of_hashes(grader, mixed_pairs):
    given = []
    for seed in ("1", "20"):
        done = subprocess.run(
            [sys.executable, "-c", GRADE],
            input=json.dumps(mixed_pairs),
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        given.append(json.loads(done.stdout))
    assert given[0] == given[1] == verdicts(grader, mixed_pairs)
