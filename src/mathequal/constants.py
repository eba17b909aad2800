r"""Functions with constants that may be any number, such as `x^2+C` and `C_1e^x+C_2e^{-x}`, compared as sets."""

import re

import mpmath
import sympy
from mpmath import mp

from mathequal.numeric import DIGITS, Point, Undefined, is_real, names, points, value
from mathequal.parsing import parse
from mathequal.values import Equation, Value

# Letters that may be such constants, if one of the two formulas has one that certainly is
_CONSTANT = re.compile(r"[A-DK]|[cC](?:_\d)?")
_CERTAIN = re.compile(r"C|[cC]_\d")
_VARIABLE = re.compile("[stuvxyz]|theta")
# y, x(t) or F(x), but not y', f^{-1}(x) or P
_NAME = re.compile(r"([f-hs-zFGH])(?:\([a-z]\))?")
_CLOSE = mpmath.mpf(10) ** -30
_LARGE = 10**9
"""Formulas are compared where neither has larger values, which would hide small ones."""

Rows = list[list[mpmath.mpf]]
"""For each point the value of a formula without its constants, and the factor of each constant."""


def same_functions(first: Value, second: Value) -> bool:
    """Whether every function of either is one of the other. Raises Undefined if one is no such set of functions.

    A set is an antiderivative such as `x^2+C`, or the solutions of a differential equation, where one of the two is
    called `y` or `x(t)`. Elsewhere `C` may be a given number, and `R-C` is not `R+C`.
    """
    formulas = _formula(first), _formula(second)
    certain = set(filter(_CERTAIN.fullmatch, names(*formulas)))
    shared = names(formulas[0]) & names(formulas[1]) - certain
    constants = [names(formula) - shared for formula in formulas]
    if not (certain and all(constants) and all(map(_CONSTANT.fullmatch, constants[0] | constants[1]))):
        raise Undefined("no functions with constants")
    if len(shared) != 1 or not all(map(_VARIABLE.fullmatch, shared)):
        raise Undefined("no functions of one variable")
    with mp.workdps(DIGITS):
        first_rows, second_rows = _rows(formulas, constants, shared)
        is_antiderivative = all(len(row) == 2 and abs(row[1] - 1) < _CLOSE for row in first_rows + second_rows)
        letters = _function_names(first, second)
        if letters & shared or len(letters) > 1 or not (is_antiderivative or letters):
            raise Undefined("different functions, or constants that may be given numbers")
        return _holds_all(first_rows, second_rows) and _holds_all(second_rows, first_rows)


def _formula(side: Value) -> sympy.Expr:
    is_named = isinstance(side, Equation) and side.names[0] and len(side.sides) == 2
    return parse(side.sides[1] if is_named else side)


def _function_names(*sides: Value) -> set[str]:
    """Return what two sides are called: y for `y=x^2+C`, nothing for a formula alone. Raises Undefined for `y'`."""
    letters = set()
    for side in sides:
        match = _NAME.fullmatch(side.names[0] or "") if isinstance(side, Equation) else None
        if match:
            letters.add(match[1])
        elif isinstance(side, Equation):
            raise Undefined("no name of a function")
    return letters


def _rows(formulas: tuple[sympy.Expr, sympy.Expr], constants: list[set[str]], variables: set[str]) -> tuple[Rows, Rows]:
    rows: tuple[Rows, Rows] = ([], [])
    for point in points(variables):
        try:
            both = [_row(formulas[i], point, sorted(constants[i])) for i in (0, 1)]
        except Undefined:
            continue
        for i in (0, 1):
            rows[i].append(both[i])
    if len(rows[0]) < max(map(len, constants)) + 3:
        raise Undefined("too few points")
    return rows


def _row(formula: sympy.Expr, point: Point, constants: list[str]) -> list[mpmath.mpf]:
    def at(*numbers: float) -> mpmath.mpf:
        number = value(formula, {**point, **dict(zip(constants, map(mpmath.mpf, numbers), strict=True))})
        if not is_real(number) or abs(number) > _LARGE:
            raise Undefined("not real, or too large")
        return mpmath.re(number)

    count = len(constants)
    without = at(*[0] * count)
    factors = [at(*(int(i == j) for j in range(count))) - without for i in range(count)]
    others = [(-1) ** i * (i + 1.5) for i in range(count)]
    for sign in (1, -1):
        expected = without + sum(sign * other * factor for other, factor in zip(others, factors, strict=True))
        if abs(at(*(sign * other for other in others)) - expected) > _CLOSE * max(1, abs(expected)):
            raise Undefined("not linear")
    return [without, *factors]


def _holds_all(rows: Rows, others: Rows) -> bool:
    """Whether `rows` can be made any of `others` by a choice of constants: a least squares fit without residuals."""
    if len(rows[0]) == 2 and not any(row[0] for row in rows + others):
        raise Undefined("a factor, which may be a given number")
    factors = mpmath.matrix([row[1:] for row in rows])
    wanted = [[other[0] - row[0] for row, other in zip(rows, others, strict=True)]]
    wanted += [[other[i] for other in others] for i in range(1, len(others[0]))]
    for column in map(mpmath.matrix, wanted):
        try:
            fit = mp.lu_solve(factors, column)
        except (ValueError, ZeroDivisionError) as error:
            raise Undefined("constants that do the same") from error
        if mpmath.norm(factors * fit - column) > _CLOSE * max(1, mpmath.norm(column)):
            return False
    return True
