"""What rules are built from: how formulas are compared, which rule a pair of types has, and items in any order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mathequal.values import Equation, Scalar, Value


class Undecided(Exception):
    """The quick judge cannot know, so symbolic.py must decide."""


@dataclass(frozen=True)
class Judge:
    """How formulas are compared. That of equality.py may raise Undecided, that of symbolic.py never."""

    same_value: Callable[[Scalar, Scalar], bool]  # whatever their units
    same_quantity: Callable[[Scalar, Scalar], bool]  # of different units: 5 cm and 50 mm
    rounded: Callable[[Scalar, Scalar], bool]  # one is a decimal, and the other one rounded to its places
    same_solutions: Callable[[Equation, Equation], bool]  # of two sides each
    same_set: Callable[[Value, Value], bool]  # of real numbers, or conditions on a variable


Rule = Callable[..., bool]
"""A function of two values, of the types that it is registered for, and a judge."""
_RULES: dict[tuple[type, type], Rule] = {}


def rule_for(first: type, *others: type) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule for the first type and any of the others, in either order."""

    def register(rule: Rule) -> Rule:
        _RULES.update({(first, other): rule for other in others})
        return rule

    return register


def equal(first: Value, second: Value, judge: Judge) -> bool:
    """Whether two values are equal. Values of types without a rule are different."""
    for one, other in ((first, second), (second, first)):
        rule = _RULES.get((type(one), type(other)))
        if rule is not None:
            return rule(one, other, judge)
    return False


def in_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> bool:
    if len(first) != len(second):
        return False
    return all(equal(one, other, judge) for one, other in zip(first, second, strict=True))


def in_any_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> bool:
    """Whether there is a one-to-one match of equal values, found by augmenting paths."""
    if len(first) != len(second):
        return False
    fits = [[equal(one, other, judge) for other in second] for one in first]
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in range(len(fits)):
            if fits[row][column] and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(fits)))
