"""Decide whether two conditions on a real variable, intervals or unions of them are the same set of numbers.

Two sets are the same if they agree on every number at which either may begin or end, and between each two of these.
"""

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import mpmath
import sympy
from mpmath import mp

from mathequal.numeric import DIGITS, Undefined, is_real, names, value
from mathequal.parsing import parse
from mathequal.values import Equation, Group, Region, Relation, Scalar, Value

_DIGITS = 4 * DIGITS
_CLOSE = mpmath.mpf(10) ** (DIGITS - _DIGITS)
_INFINITIES = {sympy.oo: mpmath.inf, -sympy.oo: -mpmath.inf}


class _Set(NamedTuple):
    """A set of real numbers: every number at which it may begin or end, and whether a number is in it."""

    ends: list[mpmath.mpf]
    contains: Callable[[mpmath.mpf], bool]


def same_region(first: Value, second: Value) -> bool:
    """Whether two sets are the same. Raises Undefined if one is no set of real numbers whose ends can be found."""
    variables = _variables(first), _variables(second)
    if max(map(len, variables)) > 1:
        raise Undefined("conditions on several variables")
    if all(variables) and variables[0] != variables[1]:
        return False
    with mp.workdps(_DIGITS):
        one, other = _set_of(first), _set_of(second)
        return all(one.contains(x) == other.contains(x) for x in _numbers_to_try([*one.ends, *other.ends]))


def _numbers_to_try(ends: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """Return every end, a number between each two of them, and one below and above them all."""
    ends = sorted(ends)
    distinct = ends[:1] + [end for previous, end in pairwise(ends) if end - previous > _CLOSE]
    if not distinct:
        return [mpmath.mpf(0)]
    between = [(low + high) / 2 for low, high in pairwise(distinct)]
    return [*distinct, distinct[0] - 1, distinct[-1] + 1, *between]


def _variables(region: Value) -> set[str]:
    if isinstance(region, Scalar):
        return names(parse(region))
    parts = getattr(region, "items", None) or getattr(region, "parts", None) or getattr(region, "sides", ())
    return set().union(*map(_variables, parts))


def _set_of(region: Value) -> _Set:
    if isinstance(region, Scalar):
        number = _real_value(parse(region))
        return _Set([number], lambda x: abs(x - number) <= _CLOSE)
    if isinstance(region, Relation | Equation):
        return _solutions(region)
    if (
        isinstance(region, Group)
        and len(region.items) == 2
        and region.opening + region.closing in ("()", "(]", "[)", "[]")
    ):
        return _interval(region)
    if not isinstance(region, Region | Group) or _has_points(region):
        raise Undefined("no set of numbers")
    sets = [_set_of(part) for part in (region.parts if isinstance(region, Region) else region.items)]
    ends = [end for part in sets for end in part.ends]
    if isinstance(region, Region) and region.operator == r"\setminus":
        return _Set(ends, lambda x: sets[0].contains(x) and not any(part.contains(x) for part in sets[1:]))
    # In a list conditions hold together, while numbers and intervals are joined.
    hold_together = (
        isinstance(region, Group) and region.items and all(isinstance(item, Relation) for item in region.items)
    )
    if hold_together or (isinstance(region, Region) and region.operator == r"\cap"):
        common = _Set(ends, lambda x: all(part.contains(x) for part in sets))
        # x < -2, x > 1 cannot hold together, so the comma means "or".
        if isinstance(region, Region) or any(map(common.contains, _numbers_to_try(ends))):
            return common
    return _Set(ends, lambda x: any(part.contains(x) for part in sets))


def _has_points(region: Region | Group) -> bool:
    """Whether a list has points only. `(1,2)` is one; a square bracket or infinity makes it an interval."""
    if isinstance(region, Region):
        return False
    points = [item for item in region.items if isinstance(item, Group) and item.opening + item.closing == "()"]
    limits = [limit.latex for point in points for limit in point.items if isinstance(limit, Scalar)]
    return bool(points) and len(points) == len(region.items) and not any(r"\infty" in limit for limit in limits)


def _interval(interval: Group) -> _Set:
    low, high = (_real_value(parse(limit)) for limit in interval.items)

    def contains(x: mpmath.mpf) -> bool:
        at_low, at_high = abs(x - low) <= _CLOSE, abs(x - high) <= _CLOSE
        if (at_low and interval.opening == "(") or (at_high and interval.closing == ")"):
            return False
        return low <= high if at_low or at_high else low < x < high

    return _Set([limit for limit in (low, high) if mpmath.isfinite(limit)], contains)


def _solutions(relation: Relation | Equation) -> _Set:
    """Return the numbers for which a chain of relations holds."""
    sides = [parse(side) for side in relation.sides]
    operators = relation.operators if isinstance(relation, Relation) else ("=",) * (len(sides) - 1)
    pairs = list(zip(sides, operators, sides[1:], strict=False))
    with_variables = [(left, right) for left, _, right in pairs if names(left, right)]
    if not with_variables:
        raise Undefined("a relation of numbers, which is no set")
    ends = [root for left, right in with_variables for root in _roots(left, right)]
    return _Set(ends, lambda x: all(_holds(left, sign, right, x) for left, sign, right in pairs))


def _roots(left: sympy.Expr, right: sympy.Expr) -> list[mpmath.mpf]:
    """Return where the sides of a relation are equal, or where one of them has no value."""
    if left in _INFINITIES or right in _INFINITIES:
        return []
    [variable] = left.free_symbols | right.free_symbols
    x = sympy.Symbol("x", real=True)
    difference = sympy.nsimplify((left - right).xreplace({variable: x}), rational=True).doit()
    roots: list[sympy.Expr] = []
    for formula in sympy.together(difference).as_numer_denom():
        if formula.is_number:
            continue
        if formula.is_polynomial(x):
            complex_roots = sympy.Poly(formula, x).sqf_part().nroots(n=_DIGITS, maxsteps=200)
            roots += [sympy.re(root) for root in complex_roots if abs(sympy.im(root)) < _CLOSE]
            continue
        solutions = sympy.solveset(formula, x, sympy.Reals)
        if not isinstance(solutions, sympy.FiniteSet) and solutions is not sympy.S.EmptySet:
            raise Undefined("a relation that sympy does not solve")
        roots += list(solutions)
    return [mpmath.mpf(str(root.evalf(_DIGITS))) for root in roots]


_COMPARISONS = {"<": operator.lt, ">": operator.gt, r"\le": operator.le, r"\ge": operator.ge, r"\ne": operator.ne}


def _holds(left: sympy.Expr, sign: str, right: sympy.Expr, x: mpmath.mpf) -> bool:
    """Whether a relation is true at `x`. It is not where a side has no real value."""
    try:
        one, other = _real_value(left, x), _real_value(right, x)
    except Undefined:
        return False
    if one != other and abs(one - other) <= _CLOSE * max(1, min(abs(one), abs(other))):
        other = one
    return _COMPARISONS.get(sign, operator.eq)(one, other)


def _real_value(side: sympy.Expr, x: mpmath.mpf | None = None) -> mpmath.mpf:
    if side in _INFINITIES:
        return _INFINITIES[side]
    number = value(side, dict.fromkeys(names(side), x))
    if not is_real(number):
        raise Undefined("no real number")
    return mpmath.re(number)
