"""The labelled pairs of grader_cases.jsonl, which say what equal means; RULES.md of mathequal explains them by type."""

import json
from collections import Counter
from pathlib import Path

import numerically
import pytest
from pair_grader import PairGrader

CASES = [json.loads(line) for line in (Path(__file__).parent / "grader_cases.jsonl").read_text().splitlines()]
KINDS = sorted({case["kind"] for case in CASES})


@pytest.fixture(scope="module")
def grader():
    grader = PairGrader()
    yield grader
    grader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_labelled_pairs_are_graded_as_labelled_either_way(grader, kind):
    cases = [case for case in CASES if case["kind"] == kind]
    golds, predictions = ([case[field] for case in cases] for field in ("gold", "prediction"))
    for references, answers in ((golds, predictions), (predictions, golds)):
        given = grader(list(zip(references, answers, strict=True)))
        wrong = [case for case, right in zip(cases, given, strict=True) if right != case["equal"]]
        assert not wrong, "\n".join(map(str, wrong))
    assert grader.failures == {}


def test_there_are_enough_pairs_of_every_kind():
    counts = Counter((case["kind"], case["equal"]) for case in CASES)
    assert len(CASES) >= 400
    assert len(KINDS) >= 14
    assert {kind: count for kind, count in counts.items() if count < 8} == {}
    assert len({(case["gold"], case["prediction"]) for case in CASES}) == len(CASES)


def test_labels_agree_with_arithmetic_that_is_not_the_graders():
    """Where that has a value for both; `convention` marks what src/mathequal/RULES.md settles otherwise."""
    checked = [(case, numerically.same(case["gold"], case["prediction"])) for case in CASES]
    expected = {
        "numerical": lambda case, same: same is case["equal"],
        "convention": lambda case, same: same is not case["equal"] and same is not None,
        "by eye": lambda case, same: same is None,
    }
    assert [case for case, same in checked if not expected[case["label"]](case, same)] == []
    assert sum(case["label"] == "numerical" for case in CASES) >= 200
