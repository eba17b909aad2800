"""Verdicts on rewritten real references: other spellings of the same answer are right, other answers are wrong."""

import inspect
import json
import os
import subprocess
import sys
from random import Random

import changes
import pytest
import spellings
from pair_grader import PairGrader, reference_answers
from references import Rule

SAMPLE = 60
"""References a rule is tried on, of those it applies to."""

SAME: dict[Rule, int] = {
    spellings.dfrac: 700,
    spellings.tfrac: 700,
    spellings.plain_frac: 100,
    spellings.fraction_without_braces: 100,
    spellings.half_braceless_fraction: 200,
    spellings.slash: 400,
    spellings.minus_in_the_numerator: 40,
    spellings.minus_in_the_denominator: 40,
    spellings.unreduced: 400,
    spellings.mixed_number: 100,
    spellings.decimal: 100,
    spellings.fraction_of_a_decimal: 100,
    spellings.trailing_zeros: 800,
    spellings.plus_sign: 800,
    spellings.left_right: 200,
    spellings.no_left_right: 90,
    spellings.wide: 900,
    spellings.narrow: 500,
    spellings.thin_spaces: 500,
    spellings.negative_spaces: 200,
    spellings.unit_in_text: 1400,
    spellings.square_unit: 1400,
    spellings.powered_unit: 1400,
    spellings.plain_unit: 1400,
    spellings.without_unit: 40,
    spellings.named: 2200,
    spellings.degree_sign: 1400,
    spellings.no_degree_sign: 60,
    spellings.dollar: 800,
    spellings.no_dollar: 30,
    spellings.percent_sign_dropped: 20,
    spellings.thousands: 200,
    spellings.thousands_in_braces: 200,
    spellings.thousands_with_spaces: 200,
    spellings.no_thousands: 40,
    spellings.reordered_list: 40,
    spellings.reordered_expressions: 11,
    spellings.and_before_the_last: 40,
    spellings.set_of_a_list: 40,
    spellings.reordered_set: 40,
    spellings.expanded: 100,
    spellings.factored: 100,
    spellings.terms_reversed: 100,
    spellings.sides_swapped: 40,
    spellings.subtracted: 15,
    spellings.cdot: 400,
    spellings.period: 3000,
    spellings.dollars_around: 3000,
    spellings.display_style: 3000,
    spellings.boxed_twice: 3000,
    spellings.words_without_text: 30,
    spellings.words_in_other_type: 40,
    spellings.other_brackets_of_a_matrix: 100,
    spellings.base_in_braces: 30,
    spellings.unicode_minus: 600,
}
DIFFERENT: dict[Rule, int] = {
    changes.sign_flipped: 1400,
    changes.negated: 100,
    changes.inner_sign_flipped: 300,
    changes.first_digit_changed: 1600,
    changes.last_digit_changed: 900,
    changes.digit_added: 800,
    changes.second_value: 1400,
    changes.either_value: 1400,
    changes.bound: 1400,
    changes.imaginary: 1400,
    changes.imaginary_upright: 1400,
    changes.to_a_root: 800,
    changes.magnitude: 1400,
    changes.solution_of_an_equation: 1400,
    changes.numerator_changed: 600,
    changes.denominator_changed: 600,
    changes.inverted: 400,
    changes.root_changed: 200,
    changes.root_dropped: 200,
    changes.pi_dropped: 60,
    changes.swapped: 100,
    changes.coordinate_dropped: 40,
    changes.coordinate_changed: 100,
    changes.opened: 40,
    changes.opened_right: 40,
    changes.closed: 7,
    changes.union_cut: 40,
    changes.exponent_changed: 100,
    changes.element_dropped: 40,
    changes.element_added: 40,
    changes.element_changed: 40,
    changes.other_base: 40,
    changes.other_digits_in_a_base: 40,
    changes.letter_changed: 12,
    changes.word_changed: 20,
    changes.variable_changed: 100,
    changes.constant_added: 100,
    changes.entry_changed: 100,
    changes.rows_swapped: 90,
    changes.ten_times: 100,
    changes.nearly: 300,
}
"""Rules, and to how many different references of MATH each must apply at least."""


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


def cases(rules: dict[Rule, int]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("rule", "least"), rules.items(), ids=[rule.__name__ for rule in rules])


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
        [pair for rule in rules if rule is not spellings.boxed_twice for pair in rewritten(rule, references)]
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


def test_every_rule_is_tried():
    for module, tried in ((spellings, SAME), (changes, DIFFERENT)):
        rules = {rule for name, rule in vars(module).items() if inspect.getmodule(rule) is module and name[0] != "_"}
        assert rules == {*tried}
