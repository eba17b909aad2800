"""Formulas evaluated to many digits, and compared at points of their variables.

Two formulas with variables are equal if they agree wherever both are real (where either has `i`: wherever both are
defined), at points of either sign. So square roots and logarithms of variables count where they are real, as in answers
whose variables are positive, while |x| and x differ. Odd roots of negative numbers are real.
"""

import zlib
from collections.abc import Callable, Mapping
from random import Random

import mpmath
import sympy
from mpmath import mp

DIGITS, MORE_DIGITS, MOST_DIGITS = 60, 1000, 20_000
_CLOSE = mpmath.mpf(10) ** -30
_RANGES = ((1.1, 3), (0.1, 0.9), (3, 7), (-3, -1.1), (-0.9, -0.1), (-4, 4), (-4, 4), (-4, 4))
"""Where each variable is drawn from, point by point; the last points give variables different signs."""
_NEEDED = 3
"""Points at which two formulas must agree."""

_SAME_NAMES = (
    *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "sinh", "cosh", "tanh"),
    *("exp", "log", "factorial", "binomial", "gamma", "floor", "sign", "re", "im"),
)
_FUNCTIONS: dict[str, Callable] = {name: getattr(mpmath, name) for name in _SAME_NAMES} | {
    "Abs": abs,
    "Max": max,
    "Min": min,
    "Mod": lambda dividend, divisor: dividend - divisor * mpmath.floor(dividend / divisor),
    "ceiling": mpmath.ceil,
    "conjugate": mpmath.conj,
}
"""Of sympy, by name, and what computes them."""


class Undefined(Exception):
    """There is no finite value."""


Point = Mapping[str, mpmath.mpf]


def value(expression: sympy.Expr, point: Point) -> mpmath.mpc:
    """The value at `point`, to the digits of mpmath's context. Raises Undefined."""
    try:
        found = mpmath.mpc(_value(expression, point))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Undefined from error
    if not mpmath.isfinite(found):
        raise Undefined
    return found


def _value(expression: sympy.Expr, point: Point) -> mpmath.mpc:
    if isinstance(expression, sympy.Symbol):
        return point[expression.name]
    if isinstance(expression, sympy.Float):
        return mpmath.mpf(str(expression))  # as it was written
    if isinstance(expression, sympy.Rational):
        return mpmath.mpf(int(expression.p)) / int(expression.q)
    if isinstance(expression, sympy.NumberSymbol | sympy.core.numbers.ImaginaryUnit):
        return {"Pi": mp.pi, "Exp1": mp.e, "ImaginaryUnit": mp.j}[type(expression).__name__] * 1
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
    if isinstance(expression, sympy.core.function.AppliedUndef):  # some function of which only the name is known
        return mpmath.sin(sum((i + 1) * argument for i, argument in enumerate(arguments)) + zlib.crc32(name.encode()))
    if name not in _FUNCTIONS:
        raise Undefined(name)
    return _FUNCTIONS[name](*arguments)


def _power(base: mpmath.mpc, exponent: mpmath.mpc) -> mpmath.mpc:
    """With the real root of a negative number where there is one."""
    if base == 0:
        return mpmath.mpf(exponent == 0) if mpmath.re(exponent) >= 0 else 1 / base
    if mpmath.im(base) == 0 and mpmath.re(base) < 0 and mpmath.im(exponent) == 0:
        for root in (1, 3, 5, 7, 9, 11):
            top = mpmath.re(exponent) * root
            if abs(top - mpmath.nint(top)) < _CLOSE:
                size = mpmath.power(-mpmath.re(base), mpmath.re(exponent))
                return -size if int(mpmath.nint(top)) % 2 else size
    return mpmath.power(base, exponent)


def points(names: set[str]) -> list[Point]:
    """The points at which formulas are compared: the same for the same names."""
    return [
        {name: mpmath.mpf(str(Random(f"{name}{i}").uniform(*limits))) for name in names}
        for i, limits in enumerate(_RANGES)
    ]


def is_close(first: mpmath.mpc, second: mpmath.mpc) -> bool:
    return abs(first - second) <= _CLOSE * max(abs(first), abs(second))


def names(*expressions: sympy.Basic) -> set[str]:
    """Of the variables."""
    return {symbol.name for expression in expressions for symbol in expression.free_symbols}


def has_i(*expressions: sympy.Expr) -> bool:
    return any(expression.has(sympy.I) for expression in expressions)


def same_values(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether two formulas have the same values. Raises Undefined where none was found."""
    variables = names(first, second)
    with mp.workdps(DIGITS):
        if not variables:
            return _same_numbers(first, second)
        agree, complex_numbers = 0, has_i(first, second)
        for point in points(variables):
            try:
                one, other = value(first, point), value(second, point)
            except Undefined:
                continue
            if is_close(one, other) or max(abs(one), abs(other)) < mpmath.mpf(10) ** -45:
                agree += 1
            elif complex_numbers or (is_real(one) and is_real(other)):
                return False
        return agree >= _NEEDED


def is_real(number: mpmath.mpc) -> bool:
    return abs(mpmath.im(number)) <= _CLOSE * abs(number)


def _same_numbers(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Of two formulas without variables: to all digits before the point, and zero only if it is to many digits."""
    one, other = value(first, {}), value(second, {})
    size = max(abs(one), abs(other))
    if not is_close(one, other) and size > mpmath.mpf(10) ** -40:
        return False
    digits = MORE_DIGITS + (int(mpmath.log10(size)) if size > 1 else 0)
    if digits > MOST_DIGITS:
        return False
    with mp.workdps(digits):
        one, other = value(first, {}), value(second, {})
        size = max(abs(one), abs(other))
        return abs(one - other) <= size * mpmath.mpf(10) ** (30 - digits) or size < mpmath.mpf(10) ** (40 - digits)


def same_zeros(first: sympy.Expr, second: sympy.Expr, positive: bool = False) -> bool:
    """Whether one formula is the other times a constant, which must be above zero if `positive`."""
    ratio, agree = None, 0
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
            agree += 1
        return agree >= _NEEDED and (not positive or (is_real(ratio) and mpmath.re(ratio) > 0))


def lowered(first: sympy.Basic, second: sympy.Basic) -> tuple[sympy.Basic, sympy.Basic]:
    """Both with variables in small letters, unless one has a letter in both cases: x and X are two things there."""
    for expression in (first, second):
        if len({name.casefold() for name in names(expression)}) < len(names(expression)):
            return first, second
    return _small(first), _small(second)


def _small(expression: sympy.Basic) -> sympy.Basic:
    return expression.xreplace({s: sympy.Symbol(s.name[0].lower() + s.name[1:]) for s in expression.free_symbols})
