"""Evaluate formulas to many digits, and compare them at points of their variables.

Two formulas with variables are equal if they agree wherever both are real (if either has `i`: wherever both are
defined), at points of either sign. So square roots and logarithms of variables count where they are real, as in answers
whose variables are positive, while |x| and x differ. Odd roots of negative numbers are real.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from itertools import product
from random import Random

import mpmath
import sympy
from mpmath import mp
from sympy.core.function import AppliedUndef

# Digits of a value at a point; of a comparison that must be certain; and the most that a comparison may take
DIGITS, MORE_DIGITS, MOST_DIGITS = 60, 1000, 20_000
_CLOSE = mpmath.mpf(10) ** -30
_RANGES = ((1.1, 3), (0.1, 0.9), (3, 7), (-3, -1.1), (-0.9, -0.1), (-4, 4), (-4, 4), (-4, 4))
"""The range of every variable at each point. At the last points variables have different signs."""
_FURTHER_RANGES = ((0, 1), (1, 2), (2, 3), (0, 9), (9, 99), (-1, 1), (-9, 9), (-2, -1)) * 4
"""Ranges of further points, for formulas that are real in few places."""
_NEEDED = 3
"""Points at which two formulas must agree."""
_STEPS = (sympy.floor, sympy.ceiling, sympy.Mod)
_GAMMA = (sympy.factorial, sympy.binomial, sympy.gamma)
_WHOLE_NUMBERS = (*range(1, 13), 25, 60, 100, 128, 729, 2024)
_WHOLE = re.compile(r"[i-nKMN](?![a-zA-Z])")
"""Letters that stand for whole numbers where a formula has steps, as in `\\lfloor n/2\\rfloor`."""


def _rounded_down(x: mpmath.mpf) -> mpmath.mpf:
    """Return the floor of `x`; of a whole number that is off by an error of rounding, that number."""
    nearest = mpmath.nint(x)
    return nearest if abs(x - nearest) < mpmath.mpf(10) ** (-mp.dps // 2) else mpmath.floor(x)


# What computes the types of sympy that mpmath has no function of the same name for. The factor 1 rounds a constant to
# the digits of the context.
_FUNCTIONS: dict[str, Callable] = {
    "Pi": lambda: mp.pi * 1,
    "Exp1": lambda: mp.e * 1,
    "ImaginaryUnit": lambda: mp.j * 1,
    "Add": lambda *terms: mpmath.fsum(terms),
    "Mul": lambda *factors: mpmath.fprod(factors),
    "Pow": lambda base, exponent: _power(base, exponent),
    "UnevaluatedExpr": lambda x: x,
    "Abs": abs,
    "Max": max,
    "Min": min,
    "Mod": lambda dividend, divisor: dividend - divisor * _rounded_down(dividend / divisor),
    "floor": _rounded_down,
    "ceiling": lambda x: -_rounded_down(-x),
    "conjugate": mpmath.conj,
}
_FUNCTIONS_OF_MPMATH = re.compile(
    "a?(?:sin|cos|tan|cot)h?|sec|csc|sech|csch|exp|log|factorial|binomial|gamma|sign|re|im"
)


class Undefined(Exception):
    """There is no finite value, or the formula cannot be read."""


Point = Mapping[str, mpmath.mpf]
"""The value of each variable, and under "" the number of the point."""


def value(expression: sympy.Expr, point: Point, steps: list[mpmath.mpc] | None = None) -> mpmath.mpc:
    """Return the value at `point`, to the digits of mpmath's context. Raises Undefined.

    `steps` gets every number on the way.
    """
    try:
        number = mpmath.mpc(_value(expression, point, [] if steps is None else steps))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Undefined from error
    if not mpmath.isfinite(number):
        raise Undefined
    return number


def _value(expression: sympy.Expr, point: Point, steps: list[mpmath.mpc]) -> mpmath.mpc:
    arguments = [_value(argument, point, steps) for argument in expression.args]
    number = _value_from_arguments(expression, arguments, point)
    if isinstance(expression, sympy.Rational):
        steps += [mpmath.mpf(int(expression.p)), mpmath.mpf(int(expression.q))]
    steps.append(number)
    return number


def _sizes(steps: list[mpmath.mpc]) -> list[int]:
    """Return the binary exponents of the numbers that are not zero."""
    return [mpmath.mag(number) for number in steps if number and mpmath.isfinite(number)]


def _value_from_arguments(expression: sympy.Expr, arguments: list[mpmath.mpc], point: Point) -> mpmath.mpc:
    if isinstance(expression, sympy.Symbol):
        return point[expression.name]
    if isinstance(expression, sympy.Float):
        return mpmath.mpf(str(expression))  # as it was written
    if isinstance(expression, sympy.Rational):
        return mpmath.mpf(int(expression.p)) / int(expression.q)
    name = type(expression).__name__
    if isinstance(expression, AppliedUndef):  # a number that depends on the name, the arguments and the point
        weighted_sum = sum(place * argument for place, argument in enumerate(arguments, start=1))
        return mpmath.sin(weighted_sum + zlib.crc32(f"{name}{int(point.get('', 0))}".encode()))
    if _FUNCTIONS_OF_MPMATH.fullmatch(name):
        return getattr(mpmath, name)(*arguments)
    return _FUNCTIONS[name](*arguments)  # any other function is a LookupError


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
    found: list[Point] = []
    for number, limits in enumerate(_RANGES + _FURTHER_RANGES):
        point = {name: mpmath.mpf(str(Random(f"{name}{number}").uniform(*limits))) for name in variables}
        found.append(point | {"": mpmath.mpf(number)})
    return found


def is_real(number: mpmath.mpc) -> bool:
    return abs(mpmath.im(number)) <= _CLOSE * abs(number)


def names(*expressions: sympy.Basic) -> set[str]:
    """Return the names of the variables."""
    return {symbol.name for expression in expressions for symbol in expression.free_symbols}


def same_values(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether two formulas have the same values. Raises Undefined if they are numbers, and one has no value."""
    variables = names(first, second)
    if not variables:
        return _same_at(first, second, {}, MORE_DIGITS)[0]
    usual = points(variables)
    whole = [{name: mpmath.mpf(number) for name in variables} for number in _WHOLE_NUMBERS]
    whole += [{name: mpmath.mpf(Random(f"{name}{i}").randint(1, 12)) for name in variables} for i in range(9)]
    if first.has(*_STEPS) or second.has(*_STEPS):
        halves = [{name: number / 2 for name, number in point.items()} for point in whole]
        between = [] if all(map(_WHOLE.match, variables)) else [halves, usual[: len(_RANGES)]]
        return all(_agree(first, second, tried) for tried in (whole, *between))
    # The further points are for formulas that are real in few places, and whole ones for (-1)^n.
    for tried in (usual[: len(_RANGES)], usual[len(_RANGES) :], whole):
        verdict = _agree(first, second, tried)
        if verdict is not None:
            return verdict
    return False


def _agree(first: sympy.Expr, second: sympy.Expr, tried: list[Point]) -> bool | None:
    """Whether two formulas agree wherever both are real; None if that is at too few points."""
    agreeing_points = 0
    has_i = first.has(sympy.I) or second.has(sympy.I)
    is_slow = first.has(*_GAMMA) or second.has(*_GAMMA)  # takes seconds to many digits
    for point in tried:
        try:
            certainty = 0 if agreeing_points or is_slow else MORE_DIGITS
            same, is_real_point = _same_at(first, second, point, certainty)
        except Undefined:
            continue
        if same:
            agreeing_points += 1
        elif has_i or is_real_point:
            return False
    return True if agreeing_points >= _NEEDED else None


def _same_at(first: sympy.Expr, second: sympy.Expr, point: Point, certainty: int) -> tuple[bool, bool]:
    """Return whether two values agree, and whether both are real, as is every number on the way.

    Numbers on the way may be of very different sizes, as in 1 + 10^{-1000}. The digits reach from the largest to 30
    digits below the smallest, and `certainty` digits further.
    """
    steps: list[mpmath.mpc] = []
    with mp.workdps(DIGITS):
        one, other = value(first, point, steps), value(second, point, steps)
        sizes = _sizes(steps)
        smallest, largest = min(sizes, default=0), max(sizes, default=0)
        both_real = all(map(is_real, steps))
        is_close = abs(one - other) <= _CLOSE * max(abs(one), abs(other))
        if not is_close and largest - smallest < DIGITS:  # 60 bits of the 60 digits
            return False, both_real
    digits = DIGITS + certainty + (largest - smallest) * 3 // 10
    if digits > MOST_DIGITS:
        raise Undefined("numbers of very different sizes")
    with mp.workdps(digits):
        difference = abs(value(first, point) - value(second, point))
        return bool(difference <= mpmath.ldexp(mpmath.mpf(10) ** (-30 - certainty), smallest)), both_real


def same_zeros(first: sympy.Expr, second: sympy.Expr, positive: bool = False) -> bool:
    """Whether one formula is the other times a constant, which must be above zero if `positive`."""
    # That is so if first(x) * second(y) = first(y) * second(x) for all x and y.
    elsewhere: dict[sympy.Expr, sympy.Expr] = {}
    for symbol in first.free_symbols | second.free_symbols:
        elsewhere[symbol] = sympy.Symbol(f"{symbol.name} elsewhere", real=True)
    for call in first.atoms(AppliedUndef) | second.atoms(AppliedUndef):
        elsewhere[call] = sympy.Function(f"{call.func.__name__} elsewhere")(*call.args)
    both = first * second
    if same_values(both, sympy.Integer(0)):
        return False
    crossed = first * second.xreplace(elsewhere), second * first.xreplace(elsewhere)
    return same_values(*crossed) and (not positive or same_values(both, sympy.Abs(both)))


def zeros_shared(first: sympy.Expr, second: sympy.Expr, positive: bool) -> bool:
    """Whether some zeros of `first`, in positive numbers if `positive`, can be found and are zeros of `second`."""
    found = 0
    with mp.workdps(DIGITS):
        for start, name in product(points(names(first, second))[: len(_RANGES)], sorted(names(first))):
            steps: list[mpmath.mpc] = []
            try:
                size = abs(value(second, start, steps))
                value(first, start, steps)
                zero = _zero(first, start, name)
                if zero is None or (positive and min(zero[name] for name in names(first, second)) <= 0):
                    continue
                is_shared = abs(value(second, zero)) <= _CLOSE * max(1, size)
            except (Undefined, ValueError, ZeroDivisionError):
                continue
            if not is_shared or min(_sizes(steps), default=0) < -DIGITS:  # 10^{-40} would pass for zero
                return False
            found += 1
    return found >= _NEEDED


def _zero(formula: sympy.Expr, start: Point, name: str) -> Point | None:
    """Return a zero reached from `start` by Newton's secant in one variable, None if it is not real."""
    with mp.workdps(2 * DIGITS):
        x = start[name]
        zero = mpmath.findroot(lambda x: value(formula, {**start, name: x}), (x, x + 0.1), solver="secant", maxsteps=40)
        return {**start, name: mpmath.re(zero)} if is_real(zero) else None
