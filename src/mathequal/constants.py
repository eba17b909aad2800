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
_CLOSE = mpmath.mpf(10) ** -30
_FAR = 10  # further away e^x and e^{-x} differ too much in size for a fit

Rows = list[list[mpmath.mpf]]
"""For each point the value of a formula without its constants, and the factor of each constant."""


def same_functions(first: Value, second: Value) -> bool:
    """Whether every function of either is one of the other. Raises Undefined if one is not linear in its constants."""
    formulas = _formula(first), _formula(second)
    certain = set(filter(_CERTAIN.fullmatch, names(*formulas)))
    shared = names(formulas[0]) & names(formulas[1]) - certain
    constants = [names(formula) - shared for formula in formulas]
    if not (shared and certain and all(constants) and all(map(_CONSTANT.fullmatch, constants[0] | constants[1]))):
        raise Undefined("no functions with constants")
    rows: tuple[Rows, Rows] = ([], [])
    with mp.workdps(DIGITS):
        for point in points(shared):
            if max(abs(point[name]) for name in shared) > _FAR:
                continue
            try:
                both = [_row(formulas[i], point, sorted(constants[i])) for i in (0, 1)]
            except Undefined:
                continue
            for i in (0, 1):
                rows[i].append(both[i])
        return _holds_all(rows[0], rows[1]) and _holds_all(rows[1], rows[0])


def _formula(side: Value) -> sympy.Expr:
    is_named = isinstance(side, Equation) and side.names[0] and len(side.sides) == 2
    return parse(side.sides[1] if is_named else side)


def _row(formula: sympy.Expr, point: Point, constants: list[str]) -> list[mpmath.mpf]:
    def at(*numbers: int) -> mpmath.mpf:
        number = value(formula, {**point, **dict(zip(constants, map(mpmath.mpf, numbers), strict=True))})
        if not is_real(number):
            raise Undefined
        return mpmath.re(number)

    count = len(constants)
    without = at(*[0] * count)
    factors = [at(*(int(i == j) for j in range(count))) - without for i in range(count)]
    together = at(*range(2, count + 2))
    if abs(together - without - sum((i + 2) * factors[i] for i in range(count))) > _CLOSE * max(1, abs(together)):
        raise Undefined("not linear")
    return [without, *factors]


def _holds_all(rows: Rows, others: Rows) -> bool:
    """Whether `rows` can be made any of `others` by a choice of constants: a least squares fit without residuals."""
    width = len(rows[0]) if rows else 0
    is_multiple = width == 2 and not any(row[0] for row in rows + others)  # CV and 2CV: C may be a given number
    if len(rows) < max(width, len(others[0]) if others else 0) + 2 or is_multiple:
        raise Undefined("too few points, or no constant of integration")
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
