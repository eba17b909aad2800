"""Wherever the rule of the authors' released code is right, the default is."""

from random import Random

import numerically
import pytest
from changes import DIFFERENT
from pair_grader import PairGrader, reference_answers
from spellings import SAME
from test_spellings import rewritten

EACH = 20
"""Pairs that a rule is tried on."""
OTHERS = 1_500
SETS = ("math_train", "math500", "amc23", "aime2024", "aime2025")


@pytest.fixture(scope="module")
def references(data_dir) -> list[str]:
    return reference_answers(*(data_dir / f"{name}.jsonl" for name in SETS))


@pytest.fixture(scope="module")
def graders():
    graders = {name: PairGrader(name) for name in ("default", "paper")}
    yield graders
    for grader in graders.values():
        grader.close()


def worse(graders: dict[str, PairGrader], pairs: list[tuple[str, str]], equal: bool) -> list[tuple[str, str]]:
    """Of pairs that are all equal, or all different, those on which only the default is wrong."""
    mistaken = pairs
    for name, is_wrong in (("default", True), ("paper", False)):
        if not mistaken:
            return []
        given = graders[name](mistaken, wrap=r"The answer is $\boxed{%s}$.")
        if name == "default":  # one that fails must not pass for one that says no
            assert graders[name].failures == {}
        mistaken = [pair for pair, right in zip(mistaken, given, strict=True) if (right != equal) == is_wrong]
    return mistaken


def test_on_every_reference_itself(graders, references):
    assert worse(graders, [(reference, reference) for reference in references], True) == []


@pytest.mark.parametrize(("rules", "equal"), [(SAME, True), (DIFFERENT, False)], ids=["spellings", "perturbed"])
def test_on_rewritten_references(graders, references, rules, equal):
    pairs = []
    for rule in rules.values():
        found = rewritten(rule, references)
        pairs += Random(1).sample(found, min(EACH, len(found)))
    assert len(pairs) > 15 * len(rules)
    assert worse(graders, pairs, equal) == []


def test_on_the_answers_of_other_problems(graders, references):
    random = Random(2)
    pairs = [tuple(random.sample(references, 2)) for _ in range(OTHERS)]
    different = [pair for pair in pairs if not numerically.same(*pair)]
    assert len(different) > 0.9 * OTHERS
    assert worse(graders, different, False) == []
