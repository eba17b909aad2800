import re
from fractions import Fraction
from itertools import accumulate, combinations

import pytest
from make_tiny_model import spellings

from bnpo.data import load_problems
from bnpo.evaluation.suites import dataset_problems, load_suite
from bnpo.tasks import SPLITS, built_in_problems, latex


def test_splits_never_overlap_whatever_the_seed():
    made = built_in_problems
    texts = {
        split: {p.problem for n in (0, 1) for p in made("arithmetic", split, 1000, n)}
        for split in SPLITS
    }
    assert not any(texts[one] & texts[other] for one, other in combinations(SPLITS, 2))


def test_references_are_the_value_of_the_expression():
    for problem in built_in_problems("arithmetic", "train", 300):
        expression = problem.problem.removesuffix("=?")
        divisor = 1
        if expression.startswith("("):
            expression, divisor = expression[1:].split(")/")
        value = Fraction(
            sum(int(term) for term in expression.replace("-", "+-").split("+")), int(divisor)
        )
        assert problem.answer == latex(value) == spellings(value)[0]


SOURCES = ["word-problems", "word-problems:50:2"]


def changes(text: str) -> list[int]:
    """The start and every change of a problem with its sign, read from its text: `7 more` is a
    gain, `7` a loss.
    """
    start, *others = re.findall("([0-9]+)( more)?", text)
    return [int(start[0]), *(int(number) if more else -int(number) for number, more in others)]


def step_pairs(text: str) -> set[frozenset[int]]:
    """Both numbers of each addition or subtraction of a problem."""
    signed = changes(text)
    return {
        frozenset((before, abs(change)))
        for before, change in zip(accumulate(signed), signed[1:], strict=False)
    }


def pairs_of_text(text: str) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in combinations(map(abs, changes(text)), 2)}


@pytest.mark.parametrize("source", SOURCES)
def test_training_never_sees_the_pairs_of_the_test_set(source):
    tested = set().union(*(step_pairs(p.problem) for p in built_in_problems(source, "test", 300)))
    seen = set()
    for seed in (0, 1):
        for problem in built_in_problems(source, "train", 1500, seed):
            seen |= step_pairs(problem.problem) | pairs_of_text(problem.problem)
    assert tested
    assert not tested & seen


@pytest.mark.parametrize("source", SOURCES)
def test_references_are_what_the_text_says(source):
    for split in ("train", "test"):
        problems = built_in_problems(source, split, 200)
        assert len({p.problem for p in problems}) == 200
        assert built_in_problems(source, split, 50) == problems[:50]
        for problem in problems:
            assert int(problem.answer) == sum(changes(problem.problem)) >= 1


def test_it_is_a_source_of_training_and_of_suites():
    first = load_problems("word-problems")[0]
    assert first.problem == "Tom has 8 apples and buys 7 more. How many apples does Tom have now?"
    assert (first.id, first.answer) == ("word-problems/train/0", "15")
    suite = load_suite("word-problems")
    assert (suite.grader, suite.system_prompt) == ("last_number", "")
    problems = dataset_problems(suite.datasets["word-problems"])
    assert [p.id for p in (problems[0], problems[-1])] == [
        "word-problems/test/0",
        "word-problems/test/299",
    ]
