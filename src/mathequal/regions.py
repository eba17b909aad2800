"""Decide whether two conditions on a real variable, intervals or unions of them are the same set of numbers.

Two sets are the same if they agree on every number at which either may begin or end, and between each two of these.
"""

from collections.abc import Iterator
from itertools import pairwise

import mpmath
import sympy
from mpmath import mp

from mathequal.numeric import DIGITS, Undefined, is_real, names, value
from mathequal.parsing import parse
from mathequal.values import Equation, Group, Region, Relation, Scalar, Value

_DIGITS = 4 * DIGITS
_CLOSE = mpmath.mpf(10) ** (DIGITS - _DIGITS)
_INFINITIES = {sympy.oo: mpmath.inf, -sympy.oo: -mpmath.inf}


def same_region(first: Value, second: Value) -> bool:
    """Whether two sets are the same. Raises Undefined if one is no set of real numbers whose ends can be found."""
    first_variables, second_variables = _variables(first), _variables(second)
    if len(first_variables) > 1 or len(second_variables) > 1:
        raise Undefined("conditions on several variables")
    if first_variables and second_variables and first_variables != second_variables:
        return False
    with mp.workdps(_DIGITS):
        for x in _numbers_to_try([*_ends(first), *_ends(second)]):
            if _contains(first, x) != _contains(second, x):
                return False
    return True


def _numbers_to_try(ends: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """Return every end, a number between each two of them, and one below and above them all."""
    ends = sorted(ends)
    distinct = ends[:1]
    for previous, end in pairwise(ends):
        if end - previous > _CLOSE:
            distinct.append(end)
    if not distinct:
        return [mpmath.mpf(0)]
    between = [(low + high) / 2 for low, high in pairwise(distinct)]
    return [*distinct, distinct[0] - 1, distinct[-1] + 1, *between]


def _variables(region: Value) -> set[str]:
    if isinstance(region, Scalar):
        return names(parse(region))
    variables: set[str] = set()
    for part in getattr(region, "items", None) or getattr(region, "parts", None) or getattr(region, "sides", ()):
        variables |= _variables(part)
    return variables


def _number(limit: Value) -> mpmath.mpf:
    if not isinstance(limit, Scalar):
        raise Undefined("a limit that is no number")
    expression = parse(limit)
    if expression in _INFINITIES:
        return _INFINITIES[expression]
    number = value(expression, {})
    if not is_real(number):
        raise Undefined("a limit that is no real number")
    return mpmath.re(number)


def _is_interval(group: Group) -> bool:
    return len(group.items) == 2 and group.opening in ("(", "[") and group.closing in (")", "]")


def _is_point(item: Value) -> bool:
    """Whether an item of a list is a point. `(1,2)` is one; a square bracket or infinity makes it an interval."""
    if not (isinstance(item, Group) and item.opening + item.closing == "()"):
        return False
    return not any(isinstance(limit, Scalar) and r"\infty" in limit.latex for limit in item.items)


def _parts(region: Value) -> tuple[Value, ...]:
    """Return the sets that a region is joined from."""
    if isinstance(region, Region):
        return region.parts
    if isinstance(region, Group) and not (region.items and all(map(_is_point, region.items))):
        return region.items
    raise Undefined("no set of numbers")


def _ends(region: Value) -> list[mpmath.mpf]:
    """Return every number at which the set may begin or end."""
    if isinstance(region, Scalar):
        return [_number(region)]
    if isinstance(region, Group) and _is_interval(region):
        limits = [_number(item) for item in region.items]
        return [limit for limit in limits if mpmath.isfinite(limit)]
    if isinstance(region, Equation):
        return _ends(_as_relation(region))
    ends: list[mpmath.mpf] = []
    if isinstance(region, Relation):
        expressions = [(parse(left), parse(right)) for left, _, right in _pairs(region)]
        with_variables = [pair for pair in expressions if names(*pair)]
        if not with_variables:
            raise Undefined("a relation of numbers, which is no set")
        for left, right in with_variables:
            ends += _roots(left, right)
        return ends
    for part in _parts(region):
        ends += _ends(part)
    return ends


def _as_relation(equation: Equation) -> Relation:
    sides = tuple(side for side in equation.sides if isinstance(side, Scalar))
    if len(sides) < len(equation.sides):
        raise Undefined("an equation of something else than formulas")
    return Relation(sides, ("=",) * (len(sides) - 1))


def _pairs(relation: Relation) -> Iterator[tuple[Scalar, str, Scalar]]:
    """Return each operator of a chain with the sides beside it."""
    return zip(relation.sides, relation.operators, relation.sides[1:], strict=False)


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


def _contains(region: Value, x: mpmath.mpf) -> bool:
    if isinstance(region, Scalar):
        return abs(x - _number(region)) <= _CLOSE
    if isinstance(region, Equation):
        return _contains(_as_relation(region), x)
    if isinstance(region, Relation):
        return all(_holds(parse(left), operator, parse(right), x) for left, operator, right in _pairs(region))
    if isinstance(region, Group) and _is_interval(region):
        return _interval_contains(region, x)
    inside = [_contains(part, x) for part in _parts(region)]
    if isinstance(region, Region):
        if region.operator == r"\setminus":
            return inside[0] and not any(inside[1:])
        return any(inside) if region.operator == r"\cup" else all(inside)
    # A list: conditions with commas between them hold together, while numbers and intervals are joined.
    is_conditions = inside and all(isinstance(part, Relation) for part in _parts(region))
    return all(inside) if is_conditions else any(inside)


def _interval_contains(interval: Group, x: mpmath.mpf) -> bool:
    low, high = (_number(item) for item in interval.items)
    at_low, at_high = abs(x - low) <= _CLOSE, abs(x - high) <= _CLOSE
    if at_low and interval.opening != "[":
        return False
    if at_high and interval.closing != "]":
        return False
    if at_low or at_high:
        return low <= high
    return low < x < high


def _holds(left: sympy.Expr, operator: str, right: sympy.Expr, x: mpmath.mpf) -> bool:
    """Whether a relation is true at `x`. It is not where a side has no real value."""
    try:
        one, other = _real_value(left, x), _real_value(right, x)
    except Undefined:
        return False
    same = one == other or abs(one - other) <= _CLOSE * max(1, min(abs(one), abs(other)))
    return {
        "<": one < other and not same,
        ">": one > other and not same,
        r"\le": one < other or same,
        r"\ge": one > other or same,
        r"\ne": not same,
        "=": same,
    }[operator]


def _real_value(side: sympy.Expr, x: mpmath.mpf) -> mpmath.mpf:
    if side in _INFINITIES:
        return _INFINITIES[side]
    number = value(side, dict.fromkeys(names(side), x))
    if not is_real(number):
        raise Undefined("no real number")
    return mpmath.re(number)
