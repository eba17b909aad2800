"""Wherever the rule of the authors' released code is right, the default is."""

from random import Random

from pair_grader import PairGrader, reference_answers
from test_grader_cases import REWRITTEN

SETS = ("math_train", "math500", "amc23", "aime2024", "aime2025")


def test_in_no_pair_only_the_released_rule_is_right(data_dir):
    """Every reference and itself, references in other spellings or changed, and answers to other problems."""
    references, random = reference_answers(*(data_dir / f"{name}.jsonl" for name in SETS)), Random(2)
    cases = [(reference, reference, True) for reference in references]
    cases += [(case["gold"], case["prediction"], case["equal"]) for case in REWRITTEN]
    cases += [(*random.sample(references, 2), False) for _ in range(1_500)]
    for rule in ("default", "paper"):  # in the end, those on which the default is wrong and the other right
        grader = PairGrader(rule)
        given = grader([case[:2] for case in cases], wrap=r"The answer is $\boxed{%s}$.")
        cases = [case for case, right in zip(cases, given, strict=True) if (right == case[2]) == (rule == "paper")]
        assert rule == "paper" or grader.failures == {}  # one that fails must not pass for one that says no
        grader.close()
    assert cases == []
