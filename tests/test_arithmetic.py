from fractions import Fraction

import numpy as np
import pytest
from make_tiny_model import spellings, worked

from bnpo.data import SPLITS, Question, arithmetic_problems, draw_question, latex
from mathequal import equal


def test_splits_never_overlap_whatever_the_seed():
    texts = {split: {p.problem for seed in (0, 1) for p in arithmetic_problems(split, 1000, seed)} for split in SPLITS}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]


def test_problems_are_reproducible_distinct_and_only_appended_to():
    few, many = arithmetic_problems("test", 50), arithmetic_problems("test", 500)
    assert many[:50] == few
    assert len({p.problem for p in many}) == 500


def test_references_are_the_value_of_the_expression():
    for problem in arithmetic_problems("train", 300):
        expression = problem.problem.removesuffix("=?")
        divisor = 1
        if expression.startswith("("):
            expression, divisor = expression[1:].split(")/")
        value = Fraction(sum(int(term) for term in expression.replace("-", "+-").split("+")), int(divisor))
        assert problem.answer == latex(value) == spellings(value)[0]


def test_the_worked_chain_ends_in_the_answer():
    rng = np.random.default_rng(0)
    assert worked(Question((37, 9, -21), 6)) == "37+9=46 46-21=25 25/6=25/6"
    for _ in range(200):
        question = draw_question(rng, "train")
        assert Fraction(worked(question).rsplit("=")[-1]) == question.answer


@pytest.mark.parametrize("value", [Fraction(5, 4), Fraction(-5, 4), Fraction(1, 3), Fraction(-30), Fraction(7, 8)])
def test_every_spelling_is_graded_as_right(value):
    reference, *others = spellings(value)
    assert all(equal(reference, other) for other in others)
    assert not equal(reference, spellings(value + 1)[0])
