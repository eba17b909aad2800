"""What the rules of rules.py are built from: verdicts, how they combine, and how formulas are compared."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mathequal.values import Equation, Scalar, Value

Verdict = bool | None
"""None where the judge cannot know."""


@dataclass(frozen=True)
class Judge:
    """How formulas are compared. The quick one of equality.py often returns None, the full one of symbolic.py never."""

    same_value: Callable[[Scalar, Scalar], Verdict]
    """Whether two formulas have the same value, whatever their units."""
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
    unknown = False
    for verdict in verdicts:
        if verdict:
            return True
        unknown = unknown or verdict is None
    return None if unknown else False
