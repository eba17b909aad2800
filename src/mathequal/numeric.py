"""Evaluate formulas to many digits, and compare them at points of their variables.

Two formulas with variables are equal if they agree wherever both are real (if either has `i`: wherever both are
defined), at points of either sign. So square roots and logarithms of variables count where they are real, as in answers
whose variables are positive, while |x| and x differ. Odd roots of negative numbers are real.
"""

import zlib
from collections.abc import Callable, Mapping
from random import Random

import mpmath
import sympy
from mpmath import mp

# Digits of a value at a point; of a number without variables; and the most for a number with many before the point
DIGITS, MORE_DIGITS, MOST_DIGITS = 60, 1000, 20_000
_CLOSE = mpmath.mpf(10) ** -30
_RANGES = ((1.1, 3), (0.1, 0.9), (3, 7), (-3, -1.1), (-0.9, -0.1), (-4, 4), (-4, 4), (-4, 4))
"""The range of every variable at each point. At the last points variables have different signs."""
_NEEDED = 3
"""Points at which two formulas must agree."""

# Functions of sympy by name, and what computes their values
_FUNCTIONS: dict[str, Callable] = {
    "Abs": abs,
    "Max": max,
    "Min": min,
    "Mod": lambda dividend, divisor: dividend - divisor * mpmath.floor(dividend / divisor),
    "ceiling": mpmath.ceil,
    "conjugate": mpmath.conj,
}
for _name in (
    *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh"),
    *("exp", "log", "factorial", "binomial", "gamma", "floor", "sign", "re", "im"),
):
    _FUNCTIONS[_name] = getattr(mpmath, _name)


class Undefined(Exception):
    """There is no finite value, or the formula cannot be read."""


Point = Mapping[str, mpmath.mpf]
"""The value of each variable."""


def value(expression: sympy.Expr, point: Point) -> mpmath.mpc:
    """Return the value at `point`, to the digits of mpmath's context. Raises Undefined."""
    try:
        number = mpmath.mpc(_value(expression, point))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Undefined from error
    if not mpmath.isfinite(number):
        raise Undefined
    return number


def _value(expression: sympy.Expr, point: Point) -> mpmath.mpc:
    if isinstance(expression, sympy.Symbol):
        return point[expression.name]
    if isinstance(expression, sympy.Float):
        return mpmath.mpf(str(expression))  # as it was written
    if isinstance(expression, sympy.Rational):
        return mpmath.mpf(int(expression.p)) / int(expression.q)
    if isinstance(expression, sympy.NumberSymbol | sympy.core.numbers.ImaginaryUnit):
        constants = {"Pi": mp.pi, "Exp1": mp.e, "ImaginaryUnit": mp.j}
        return constants[type(expression).__name__] * 1  # times 1: to the digits of the context
    arguments = [_value(argument, point) for argument in expression.args]
    if isinstance(expression, sympy.Add):
        return mpmath.fsum(arguments)
    if isinstance(expression, sympy.Mul):
        return mpmath.fprod(arguments)
    if isinstance(expression, sympy.Pow):
        return _power(*arguments)
    if isinstance(expression, sympy.UnevaluatedExpr):
        return arguments[0]
    name = type(expression).__name__
    if isinstance(expression, sympy.core.function.AppliedUndef):
        return _value_of_unknown_function(name, arguments)
    if name not in _FUNCTIONS:
        raise Undefined(name)
    return _FUNCTIONS[name](*arguments)


def _value_of_unknown_function(name: str, arguments: list[mpmath.mpc]) -> mpmath.mpc:
    """Return a value of f, of which only the name is known: the same for the same name and arguments."""
    weighted_sum = sum(place * argument for place, argument in enumerate(arguments, start=1))
    return mpmath.sin(weighted_sum + zlib.crc32(name.encode()))


def _power(base: mpmath.mpc, exponent: mpmath.mpc) -> mpmath.mpc:
    """Return a power; of a negative number the real root, if there is one."""
    if base == 0:
        return mpmath.mpf(exponent == 0) if mpmath.re(exponent) >= 0 else 1 / base
    if mpmath.im(base) == 0 and mpmath.re(base) < 0 and mpmath.im(exponent) == 0:
        # Is the exponent a fraction with a small odd denominator?
        for denominator in (1, 3, 5, 7, 9, 11):
            numerator = mpmath.re(exponent) * denominator
            if abs(numerator - mpmath.nint(numerator)) < _CLOSE:
                size = mpmath.power(-mpmath.re(base), mpmath.re(exponent))
                return -size if int(mpmath.nint(numerator)) % 2 else size
    return mpmath.power(base, exponent)


def points(variables: set[str]) -> list[Point]:
    """Return the points at which formulas are compared: the same for the same variables."""
    return [{name: _coordinate(name, i) for name in variables} for i in range(len(_RANGES))]


def _coordinate(name: str, point: int) -> mpmath.mpf:
    return mpmath.mpf(str(Random(f"{name}{point}").uniform(*_RANGES[point])))


def is_close(first: mpmath.mpc, second: mpmath.mpc) -> bool:
    return abs(first - second) <= _CLOSE * max(abs(first), abs(second))


def is_real(number: mpmath.mpc) -> bool:
    return abs(mpmath.im(number)) <= _CLOSE * abs(number)


def names(*expressions: sympy.Basic) -> set[str]:
    """Return the names of the variables."""
    return {symbol.name for expression in expressions for symbol in expression.free_symbols}


def same_values(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether two formulas have the same values. Raises Undefined if they are numbers, and one has no value."""
    variables = names(first, second)
    with mp.workdps(DIGITS):
        if not variables:
            return _same_numbers(first, second)
        agreeing_points = 0
        has_i = first.has(sympy.I) or second.has(sympy.I)
        for point in points(variables):
            try:
                one, other = value(first, point), value(second, point)
            except Undefined:
                continue
            if is_close(one, other) or max(abs(one), abs(other)) < mpmath.mpf(10) ** -45:
                agreeing_points += 1
            elif has_i or (is_real(one) and is_real(other)):
                return False
        return agreeing_points >= _NEEDED


def _same_numbers(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Compare formulas without variables to all digits before the point. Only what is zero to many digits is zero."""
    one, other = value(first, {}), value(second, {})
    size = max(abs(one), abs(other))
    if not is_close(one, other) and size > mpmath.mpf(10) ** -40:
        return False
    digits_before_point = int(mpmath.log10(size)) if size > 1 else 0
    digits = MORE_DIGITS + digits_before_point
    if digits > MOST_DIGITS:
        return False
    with mp.workdps(digits):
        one, other = value(first, {}), value(second, {})
        size = max(abs(one), abs(other))
        # The last 30 or 40 digits may be rounding errors.
        return abs(one - other) <= size * mpmath.mpf(10) ** (30 - digits) or size < mpmath.mpf(10) ** (40 - digits)


def same_zeros(first: sympy.Expr, second: sympy.Expr, positive: bool = False) -> bool:
    """Whether one formula is the other times a constant, which must be above zero if `positive`."""
    ratio, agreeing_points = None, 0
    with mp.workdps(DIGITS):
        for point in points(names(first, second)):
            try:
                one, other = value(first, point), value(second, point)
            except Undefined:
                continue
            if one == 0 and other == 0:
                continue
            if one == 0 or other == 0:
                return False
            if ratio is None:
                ratio = one / other
            if not is_close(one / other, ratio):
                return False
            agreeing_points += 1
        return agreeing_points >= _NEEDED and (not positive or (is_real(ratio) and mpmath.re(ratio) > 0))


def lowered(first: sympy.Basic, second: sympy.Basic) -> tuple[sympy.Basic, sympy.Basic]:
    """Return both with variables in small letters, unless one has a letter in both cases: there x is not X."""
    for expression in (first, second):
        variables = names(expression)
        if len({name.casefold() for name in variables}) < len(variables):
            return first, second
    return _with_small_letters(first), _with_small_letters(second)


def _with_small_letters(expression: sympy.Basic) -> sympy.Basic:
    symbols = expression.free_symbols
    return expression.xreplace({s: sympy.Symbol(s.name[0].lower() + s.name[1:]) for s in symbols})
