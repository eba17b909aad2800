"""No short string is accepted that has another value than the reference; search_cheats.py tries all."""

from fractions import Fraction
from random import Random

import pytest
from cheats import candidates
from pair_grader import PairGrader, reference_answers
from references import value_of

REFERENCES, EACH = 300, 25


@pytest.fixture(scope="module")
def values(data_dir) -> list[tuple[str, Fraction]]:
    """Of the references of MATH that are plain numbers."""
    references = reference_answers(data_dir / "math_train.jsonl")
    return [(reference, value) for reference in references if (value := value_of(reference)) is not None]


def test_a_search_over_short_strings_finds_no_cheat(values):
    random = Random(0)
    pairs = [
        (reference, text, worth == value)
        for reference, value in random.sample(values, REFERENCES)
        for text, worth in random.sample(list(candidates(value)), EACH)
    ]
    grader = PairGrader()
    given = grader([(reference, text) for reference, text, _ in pairs])
    grader.close()
    assert grader.failures == {}
    assert [pair for pair, right in zip(pairs, given, strict=True) if right and not pair[2]] == []
    missed = [pair for pair, right in zip(pairs, given, strict=True) if pair[2] and not right]
    assert len(missed) * 100 <= sum(deserved for _, _, deserved in pairs), missed
    assert sum(given) >= 50
