"""What rules are built from: verdicts, how they combine, how formulas are compared, and which rule a pair has."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mathequal.values import Equation, Scalar, Value

Verdict = bool | None
"""None where the judge cannot know."""


@dataclass(frozen=True)
class Judge:
    """How formulas are compared. The quick one of equality.py often returns None, the full one of symbolic.py never."""

    same_value: Callable[[Scalar, Scalar], Verdict]
    """Whether two formulas have the same value, whatever their units."""
    same_quantity: Callable[[Scalar, Scalar], Verdict]
    """Whether two formulas with different units are the same quantity: 5 cm and 50 mm."""
    rounded: Callable[[Scalar, Scalar], Verdict]
    """Whether one of the two is a decimal, and the other one rounded to its places."""
    same_solutions: Callable[[Equation, Equation], Verdict]
    """Whether two equations of two sides have the same solutions."""
    same_set: Callable[[Value, Value], Verdict]
    """Whether two sets of real numbers, or conditions on a variable, are the same."""


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """Return False if one verdict is False, else None if one is None, else True."""
    unknown = False
    for verdict in verdicts:
        if verdict is False:
            return False
        unknown = unknown or verdict is None
    return None if unknown else True


def some(verdicts: Iterable[Verdict]) -> Verdict:
    """Return True if one verdict is True, else None if one is None, else False."""
    none_is = every(None if verdict is None else not verdict for verdict in verdicts)
    return None if none_is is None else not none_is


Rule = Callable[..., Verdict]
"""A function of two values, of the types that it is registered for, and a judge."""
_RULES: dict[tuple[type, type], Rule] = {}


def rule_for(first: type, *others: type) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule for the first type and any of the others, in either order."""

    def register(rule: Rule) -> Rule:
        _RULES.update({(first, other): rule for other in others})
        return rule

    return register


def equal(first: Value, second: Value, judge: Judge) -> Verdict:
    """Whether two values are equal, None where `judge` cannot know. Values of types without a rule are different."""
    for one, other in ((first, second), (second, first)):
        rule = _RULES.get((type(one), type(other)))
        if rule is not None:
            return rule(one, other, judge)
    return False


def in_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> Verdict:
    if len(first) != len(second):
        return False
    return every(equal(one, other, judge) for one, other in zip(first, second, strict=True))


def in_any_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> Verdict:
    """Whether there is a one-to-one match of equal values."""
    if len(first) != len(second):
        return False
    verdicts = [[equal(one, other, judge) for other in second] for one in first]
    if _has_match([[verdict is True for verdict in row] for row in verdicts]):
        return True
    return None if _has_match([[verdict is not False for verdict in row] for row in verdicts]) else False


def _has_match(fits: list[list[bool]]) -> bool:
    """Whether every row can have a column of its own that fits, by augmenting paths."""
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
