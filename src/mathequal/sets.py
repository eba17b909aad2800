r"""Compare sets: of real numbers, points of a curve, and functions with constants.

- Two conditions on a real variable, intervals or unions of them are the same set of numbers if they
  agree on every number at which either may begin or end, and between each two of these.
- Functions with constants that may be any number are `x^2+C` and `C_1e^x+C_2e^{-x}`.
"""

import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import mpmath
import sympy
from mpmath import mp

from mathequal.formula import (
    CLOSE,
    DIGITS,
    Undefined,
    names,
    parse,
    points,
    real_value,
    same_value,
    same_zeros,
)
from mathequal.values import Equation, Group, Region, Relation, Scalar, Value, is_constant

_END_DIGITS = 4 * DIGITS
_SAME_END = mpmath.mpf(10) ** (DIGITS - _END_DIGITS)
_INTERVALS = ("()", "(]", "[)", "[]")
_INFINITIES = {sympy.oo: mpmath.inf, -sympy.oo: -mpmath.inf}


class _Set(NamedTuple):
    """A set of real numbers: every number at which it may begin or end, and whether a number is
    in it.
    """

    ends: list[mpmath.mpf]
    contains: Callable[[mpmath.mpf], bool]


def same_region(first: Value, second: Value) -> bool:
    """Whether two sets are the same. Raises Undefined if one is no set of real numbers whose
    ends can be found.
    """
    variables = _variables(first), _variables(second)
    if max(map(len, variables)) > 1:
        raise Undefined("conditions on several variables")
    if all(variables) and variables[0] != variables[1]:
        return False
    with mp.workdps(_END_DIGITS):
        one, other = _set_of(first), _set_of(second)
        return all(
            one.contains(x) == other.contains(x) for x in _numbers_to_try([*one.ends, *other.ends])
        )


def _numbers_to_try(ends: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """Return every end, a number between each two of them, and one below and above them all."""
    ends = sorted(ends)
    distinct = ends[:1] + [
        end for previous, end in pairwise(ends) if end - previous > _SAME_END
    ] or [mpmath.mpf(0)]
    between = [(low + high) / 2 for low, high in pairwise(distinct)]
    return [*distinct, distinct[0] - 1, distinct[-1] + 1, *between]


def _variables(region: Value) -> set[str]:
    if isinstance(region, Scalar):
        return names(parse(region))
    parts = (
        getattr(region, "items", None)
        or getattr(region, "parts", None)
        or getattr(region, "sides", ())
    )
    return set().union(*map(_variables, parts))


def _set_of(region: Value) -> _Set:
    if isinstance(region, Scalar):
        number = _number(parse(region))
        return _Set([number], lambda x: abs(x - number) <= _SAME_END)
    if isinstance(region, Relation | Equation):
        return _solutions(region.sides, getattr(region, "operators", ("=",) * len(region.sides)))
    if (
        isinstance(region, Group)
        and len(region.items) == 2
        and region.opening + region.closing in _INTERVALS
    ):
        signs = ("<" if region.opening == "(" else r"\le", "<" if region.closing == ")" else r"\le")
        return _solutions((region.items[0], Scalar("x"), region.items[1]), signs)
    if not isinstance(region, Region | Group) or (
        isinstance(region, Group) and _has_points(region)
    ):
        raise Undefined("no set of numbers")
    joint, parts = (
        (region.operator, region.parts) if isinstance(region, Region) else ("list", region.items)
    )
    sets = [_set_of(part) for part in parts]
    ends = [end for part in sets for end in part.ends]
    if joint == r"\setminus":
        return _Set(
            ends, lambda x: sets[0].contains(x) and not any(part.contains(x) for part in sets[1:])
        )
    # In a list conditions hold together, while numbers and intervals are joined.
    are_conditions = bool(parts) and all(isinstance(part, Relation) for part in parts)
    if joint == r"\cap" or (joint == "list" and are_conditions):
        common = _Set(ends, lambda x: all(part.contains(x) for part in sets))
        # x < -2, x > 1 cannot hold together, so the comma means "or".
        if joint == r"\cap" or any(map(common.contains, _numbers_to_try(ends))):
            return common
    return _Set(ends, lambda x: any(part.contains(x) for part in sets))


def _has_points(region: Group) -> bool:
    """Whether a list has points only. `(1,2)` is one; a square bracket or infinity makes it an
    interval.
    """
    points = [
        item
        for item in region.items
        if isinstance(item, Group) and item.opening + item.closing == "()"
    ]
    limits = [limit.latex for point in points for limit in point.items if isinstance(limit, Scalar)]
    return (
        bool(points)
        and len(points) == len(region.items)
        and not any(r"\infty" in limit for limit in limits)
    )


def _solutions(chain: Sequence[Value], operators: Sequence[str]) -> _Set:
    """Return the numbers for which a chain of relations holds."""
    sides = list(map(parse, chain))
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
    for side, bound in ((left, right), (right, left)):
        if side.is_Symbol and not names(bound):  # no solver is needed, which could take long
            return [_number(bound)]
    variable, *others = left.free_symbols | right.free_symbols
    if others:
        raise Undefined("a relation of several variables")
    x = sympy.Symbol("x", real=True)
    difference = sympy.nsimplify((left - right).xreplace({variable: x}), rational=True).doit()
    roots: list[sympy.Expr] = []
    for formula in sympy.together(difference).as_numer_denom():
        if formula.is_number:
            continue
        if formula.is_polynomial(x):
            complex_roots = sympy.Poly(formula, x).sqf_part().nroots(n=_END_DIGITS, maxsteps=200)
            roots += [sympy.re(root) for root in complex_roots if abs(sympy.im(root)) < _SAME_END]
            continue
        solutions = sympy.solveset(formula, x, sympy.Reals)
        if not isinstance(solutions, sympy.FiniteSet) and solutions is not sympy.S.EmptySet:
            raise Undefined("a relation that sympy does not solve")
        roots += list(solutions)
    return [mpmath.mpf(str(root.evalf(_END_DIGITS))) for root in roots]


_COMPARISONS = {
    "<": operator.lt,
    ">": operator.gt,
    r"\le": operator.le,
    r"\ge": operator.ge,
    r"\ne": operator.ne,
}


def _holds(left: sympy.Expr, sign: str, right: sympy.Expr, x: mpmath.mpf) -> bool:
    """Whether a relation is true at `x`. It is not where a side has no real value."""
    try:
        one, other = _number(left, x), _number(right, x)
    except Undefined:
        return False
    if one != other and abs(one - other) <= _SAME_END * max(1, min(abs(one), abs(other))):
        other = one
    return _COMPARISONS.get(sign, operator.eq)(one, other)


def _number(side: sympy.Expr, x: mpmath.mpf | None = None) -> mpmath.mpf:
    return (
        _INFINITIES[side]
        if side in _INFINITIES
        else real_value(side, dict.fromkeys(names(side), x))
    )


def _differences(
    first: Equation | Relation, second: Equation | Relation
) -> tuple[sympy.Basic, sympy.Basic]:
    """Return left minus right of both."""
    first_left, first_right, second_left, second_right = map(parse, (*first.sides, *second.sides))
    return first_left - first_right, second_left - second_right


def same_solutions(first: Equation, second: Equation) -> bool:
    """Whether left minus right is the same for both, or its numerator is, up to a constant
    factor.
    """
    one, other = _differences(first, second)
    if same_zeros(one, other):
        return True
    # PV=nRT, P=nRT/V
    numerators = [sympy.fraction(sympy.together(formula))[0] for formula in (one, other)]
    return len(names(one, other)) > 1 and same_zeros(*numerators)


def same_set(first: Value, second: Value) -> bool:
    """Whether two sets are the same; or two relations of several variables, up to a factor above
    zero.
    """
    with suppress(Undefined):
        return same_region(first, second)
    if not (isinstance(first, Relation) and isinstance(second, Relation)):
        return False
    one, other = _ascending(first), _ascending(second)
    if one.operators != other.operators:
        return False
    all_constant = all(is_constant(side.latex) for side in (*one.sides, *other.sides))
    if len(one.operators) > 1 or all_constant:
        return all(map(same_value, one.sides, other.sides))
    return same_zeros(*_differences(one, other), positive=one.operators != (r"\ne",))


_MIRRORED = {">": "<", r"\ge": r"\le", "<": ">", r"\le": r"\ge"}


def _ascending(relation: Relation) -> Relation:
    """Return the same chain from the least to the greatest side: `1 < x` for `x > 1`."""
    if relation.operators[0] not in (">", r"\ge"):
        return relation
    operators = tuple(
        _MIRRORED.get(operator, operator) for operator in reversed(relation.operators)
    )
    return Relation(relation.sides[::-1], operators)


# Letters that may be such constants, if one of the two formulas has one that certainly is
_CONSTANT = re.compile(r"[A-DK]|[cC](?:_\d)?")
_CERTAIN = re.compile(r"C|[cC]_\d")
_VARIABLE = re.compile("[stuvxyz]|theta")
# y, x(t) or F(x), but not y', f^{-1}(x) or P
_NAME = re.compile(r"([f-hs-zFGH])(?:\([a-z]\))?")
_LARGE = 10**9  # formulas are compared where neither has larger values, which would hide small ones


def same_functions(first: Value, second: Value) -> bool:
    """Whether every function of either is one of the other. Raises Undefined if one is no such set
    of functions.

    A set is an antiderivative such as `x^2+C`, or the solutions of a differential equation, where
    one of the two is called `y` or `x(t)`. Elsewhere `C` may be a given number, and `R-C` is not
    `R+C`.
    """
    named = (
        isinstance(side, Equation) and side.names[0] and len(side.sides) == 2
        for side in (first, second)
    )
    formulas = [
        parse(side.sides[1] if name else side)
        for side, name in zip((first, second), named, strict=True)
    ]
    certain = set(filter(_CERTAIN.fullmatch, names(*formulas)))
    shared = names(formulas[0]) & names(formulas[1]) - certain
    constants = [sorted(names(formula) - shared) for formula in formulas]
    if not (
        certain and all(constants) and all(map(_CONSTANT.fullmatch, constants[0] + constants[1]))
    ):
        raise Undefined("no functions with constants")
    if len(shared) != 1 or not all(map(_VARIABLE.fullmatch, shared)):
        raise Undefined("no functions of one variable")
    with mp.workdps(DIGITS):
        terms = [
            _terms(formula, letters) for formula, letters in zip(formulas, constants, strict=True)
        ]
        rows = []
        for point in points(shared):
            with suppress(Undefined):
                row = [[real_value(term, point) for term in side] for side in terms]
                if max(map(abs, row[0] + row[1])) < _LARGE:
                    rows.append(row)
        if len(rows) < max(map(len, constants)) + 3:
            raise Undefined("too few points")
        # [points, 1 + constants]
        one, other = (mpmath.matrix(side) for side in zip(*rows, strict=True))
        is_antiderivative = all(
            side.cols == 2 and mpmath.norm(side[:, 1] - 1) < CLOSE for side in (one, other)
        )
        # y for y=x^2+C, nothing for a formula alone
        called = [
            _NAME.fullmatch(side.names[0] or "")
            for side in (first, second)
            if isinstance(side, Equation)
        ]
        letters = {match[1] for match in called if match}
        if (
            not all(called)
            or letters & shared
            or len(letters) > 1
            or not (is_antiderivative or letters)
        ):
            raise Undefined("different functions, or constants that may be given numbers")
        return _holds_all(one, other) and _holds_all(other, one)


def _terms(formula: sympy.Expr, constants: list[str]) -> list[sympy.Expr]:
    """Return a formula without its constants, and the factor of each. Raises Undefined if it is
    not linear in them.
    """
    symbols = [sympy.Symbol(name, real=True) for name in constants]
    factors = [formula.diff(symbol) for symbol in symbols]
    if names(*factors) & set(constants):
        raise Undefined("not linear")
    return [formula.xreplace(dict.fromkeys(symbols, sympy.Integer(0))), *factors]


def _holds_all(functions: mpmath.matrix, others: mpmath.matrix) -> bool:
    """Whether a choice of constants makes any of `others` of `functions`: a least squares fit
    without residuals.
    """
    if functions.cols == 2 and not any(functions[:, 0]) and not any(others[:, 0]):
        raise Undefined("a factor, which may be a given number")
    factors = functions[:, 1:]
    for i in range(others.cols):
        wanted = others[:, i] - functions[:, 0] if i == 0 else others[:, i]
        try:
            fit = mp.lu_solve(factors, wanted)
        except (ValueError, ZeroDivisionError) as error:
            raise Undefined("constants that do the same") from error
        if mpmath.norm(factors * fit - wanted) > CLOSE * max(1, mpmath.norm(wanted)):
            return False
    return True
