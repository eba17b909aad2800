"""Whether two conditions on a real variable, intervals or unions of them are the same set of numbers.

Two sets are the same if they agree on every number at which either may begin or end, and between each two of these.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import mpmath
import sympy
from mpmath import mp

from mathequal.numeric import DIGITS, Undefined, is_real, names, value
from mathequal.values import Equation, Group, Region, Relation, Scalar, Value

_CLOSE = mpmath.mpf(10) ** -25
Parse = Callable[[Scalar], sympy.Expr]


def same_region(first: Value, second: Value, parse: Parse) -> bool:
    """Raises Undefined where one is no set of real numbers whose limits can be found."""
    variables = [_variables(side, parse) for side in (first, second)]
    if any(len(found) > 1 for found in variables):
        raise Undefined("conditions on several variables")
    if all(variables) and variables[0] != variables[1]:
        return False
    with mp.workdps(DIGITS):
        ends = sorted([*_ends(first, parse), *_ends(second, parse)])
        distinct = [end for i, end in enumerate(ends) if i == 0 or end - ends[i - 1] > _CLOSE]
        tried = list(distinct)
        if distinct:
            tried += [distinct[0] - 1, distinct[-1] + 1]
            tried += [(low + high) / 2 for low, high in pairwise(distinct)]
        return all(_contains(first, x, parse) == _contains(second, x, parse) for x in tried or [mpmath.mpf(0)])


def _scalars(region: Value) -> Iterator[Scalar]:
    if isinstance(region, Scalar):
        yield region
    for part in getattr(region, "items", None) or getattr(region, "parts", None) or getattr(region, "sides", ()):
        yield from _scalars(part)


def _variables(region: Value, parse: Parse) -> set[str]:
    return set().union(*(names(parse(scalar)) for scalar in _scalars(region)))


def _number(scalar: Value, parse: Parse) -> mpmath.mpf:
    if not isinstance(scalar, Scalar):
        raise Undefined("a limit that is no number")
    expression = parse(scalar)
    if expression in (sympy.oo, -sympy.oo):
        return mpmath.inf if expression == sympy.oo else -mpmath.inf
    found = value(expression, {})
    if not is_real(found):
        raise Undefined("a limit that is no real number")
    return mpmath.re(found)


def _is_interval(group: Group) -> bool:
    return len(group.items) == 2 and group.opening in ("(", "[") and group.closing in (")", "]")


def _is_point(value: Value) -> bool:
    """In a list, `(1,2)` is one: only infinity or a square bracket makes an interval."""
    limits = [item.latex for item in getattr(value, "items", ()) if isinstance(item, Scalar)]
    is_pair = isinstance(value, Group) and value.opening + value.closing == "()"
    return is_pair and not any(r"\infty" in limit for limit in limits)


def _parts(region: Value) -> tuple[Value, ...]:
    """What a region is made of: itself, if it is not joined from others."""
    if isinstance(region, Region):
        return region.parts
    if isinstance(region, Group) and not (region.items and all(map(_is_point, region.items))):
        return region.items
    raise Undefined("no set of numbers")


def _ends(region: Value, parse: Parse) -> list[mpmath.mpf]:
    """Every number at which the set may begin or end."""
    if isinstance(region, Scalar):
        return [_number(region, parse)]
    if isinstance(region, Group) and _is_interval(region):
        limits = [_number(item, parse) for item in region.items]
        return [limit for limit in limits if mpmath.isfinite(limit)]
    if isinstance(region, Equation):
        return _ends(_as_relation(region), parse)
    if isinstance(region, Relation):
        pairs = [(parse(left), parse(right)) for left, _, right in _pairs(region)]
        if not any(names(*pair) for pair in pairs):
            raise Undefined("a relation of numbers, which is no set")
        return [end for pair in pairs if names(*pair) for end in _roots(*pair)]
    return [end for part in _parts(region) for end in _ends(part, parse)]


def _as_relation(equation: Equation) -> Relation:
    sides = tuple(side for side in equation.sides if isinstance(side, Scalar))
    if len(sides) < len(equation.sides):
        raise Undefined("an equation of something else than formulas")
    return Relation(sides, ("=",) * (len(sides) - 1))


def _pairs(relation: Relation) -> Iterator[tuple[Scalar, str, Scalar]]:
    return zip(relation.sides, relation.operators, relation.sides[1:], strict=False)


def _roots(left: sympy.Expr, right: sympy.Expr) -> list[mpmath.mpf]:
    """Where the sides of a relation are equal, or where one of them has no value."""
    if sympy.oo in (left, right) or -sympy.oo in (left, right):
        return []
    [variable] = left.free_symbols | right.free_symbols
    plain = sympy.Symbol("x", real=True)
    difference = sympy.nsimplify((left - right).xreplace({variable: plain}), rational=True).doit()
    top, bottom = sympy.together(difference).as_numer_denom()
    found: list[sympy.Expr] = []
    for formula in (top, bottom):
        if formula.is_number:
            continue
        if formula.is_polynomial(plain):
            roots = sympy.Poly(formula, plain).sqf_part().nroots(n=DIGITS, maxsteps=200)
            found += [sympy.re(root) for root in roots if abs(sympy.im(root)) < _CLOSE]
            continue
        solutions = sympy.solveset(formula, plain, sympy.Reals)
        if not isinstance(solutions, sympy.FiniteSet) and solutions is not sympy.S.EmptySet:
            raise Undefined("a relation that sympy does not solve")
        found += list(solutions)
    return [mpmath.mpf(str(root.evalf(DIGITS))) for root in found]


def _contains(region: Value, x: mpmath.mpf, parse: Parse) -> bool:
    if isinstance(region, Scalar):
        return abs(x - _number(region, parse)) <= _CLOSE
    if isinstance(region, Equation):
        return _contains(_as_relation(region), x, parse)
    if isinstance(region, Relation):
        return all(_holds(parse(left), operator, parse(right), x) for left, operator, right in _pairs(region))
    if isinstance(region, Group) and _is_interval(region):
        low, high = (_number(item, parse) for item in region.items)
        if abs(x - low) <= _CLOSE or abs(x - high) <= _CLOSE:
            closed = [(low, region.opening == "["), (high, region.closing == "]")]
            return all(is_closed for limit, is_closed in closed if abs(x - limit) <= _CLOSE) and low <= high
        return low < x < high
    inside = [_contains(part, x, parse) for part in _parts(region)]
    if not isinstance(region, Region):  # conditions with commas hold together
        together = inside and all(isinstance(part, Relation) for part in _parts(region))
        return (all if together else any)(inside)
    if region.operator == r"\setminus":
        return inside[0] and not any(inside[1:])
    return (any if region.operator == r"\cup" else all)(inside)


def _holds(left: sympy.Expr, operator: str, right: sympy.Expr, x: mpmath.mpf) -> bool:
    sides = []
    for side in (left, right):
        if side in (sympy.oo, -sympy.oo):
            sides.append(mpmath.inf if side == sympy.oo else -mpmath.inf)
            continue
        try:
            found = value(side, dict.fromkeys(names(side), x))
        except Undefined:
            return False
        if not is_real(found):
            return False
        sides.append(mpmath.re(found))
    one, other = sides
    alike = one == other or abs(one - other) <= _CLOSE * max(1, min(abs(one), abs(other)))
    return {
        "<": one < other and not alike,
        ">": one > other and not alike,
        r"\le": one < other or alike,
        r"\ge": one > other or alike,
        r"\ne": not alike,
        "=": alike,
    }[operator]
