"""Compare formulas, equations and conditions by parsing and evaluating them. What has no value is different.

Everything here may hang, run out of memory or raise, so it runs in processes that can be killed.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import mpmath
import pint
import sympy
from mpmath import mp
from sympy.polys.polyerrors import BasePolynomialError

from mathequal import sets
from mathequal.formula import (
    DIGITS,
    MORE_DIGITS,
    Undefined,
    expression,
    names,
    parse,
    same_values,
    same_zeros,
    value,
    zeros_shared,
)
from mathequal.values import Equation, Relation, Scalar, Value, is_constant
from mathequal.words import decimal_places, fewest_decimal_places, is_rounded, plain_number


def _decided(compare: Callable[..., bool]) -> Callable[..., bool]:
    """Return `compare`, which then is False where something has no value."""

    def decide(first: Value, second: Value) -> bool:
        try:
            return compare(first, second)
        except (Undefined, TypeError, BasePolynomialError):  # TypeError: a matrix where a number is needed
            return False

    return decide


# White space, but not between digits: 1 1/2 is not 11/2.
_NEEDLESS_SPACE = re.compile(r"(?<!\d)\s+|\s+(?![\d.])")
# A single letter that is no constant, as `e` and `i` are
_VARIABLE = re.compile("[a-df-hj-zA-HJ-Z]")


def _quick_same_value(first: Scalar, second: Scalar) -> bool | None:
    """Whether two formulas have one value where no parser is needed to see it; else None."""
    texts = [_NEEDLESS_SPACE.sub("", scalar.latex) for scalar in (first, second)]
    if texts[0] == texts[1] or "" in texts:
        return texts[0] == texts[1] != ""
    one, other = plain_number(first.latex), plain_number(second.latex)
    if one is not None and other is not None:
        return one == other or is_rounded(one, other, fewest_decimal_places(first.latex, second.latex))
    if len(texts[0]) == 1 and texts[0].casefold() == texts[1].casefold():  # choices
        return True
    if any(map(_VARIABLE.fullmatch, texts)) and (one, other) != (None, None):  # x is not 5
        return False
    return None


@_decided
def same_value(first: Scalar, second: Scalar) -> bool:
    """Whether two formulas have one value, whatever their units."""
    quick = _quick_same_value(first, second)
    if quick is not None:
        return quick
    one, other = expression(first.latex), expression(second.latex)
    if isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase):
        return one.shape == other.shape and all(map(same_values, one, other))
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return False
    decimals = fewest_decimal_places(first.latex, second.latex)
    return one == other or (decimals > 0 and _is_rounded(one, other, decimals)) or same_values(one, other)


def _is_rounded(first: sympy.Expr, second: sympy.Expr, decimals: int) -> bool:
    if first.free_symbols or second.free_symbols:
        return False
    # Few digits tell most numbers apart, and many can take seconds.
    for digits in (DIGITS, MORE_DIGITS):
        with mp.workdps(digits):
            one, other = value(first, {}), value(second, {})
            if one.imag or other.imag or not is_rounded(one.real, other.real, decimals):
                return False
    return True


_DECIMAL = re.compile(r"[-+]?[\d,]*\.?\d+")


@_decided
def rounded(first: Scalar, second: Scalar) -> bool:
    r"""Whether a number, written `\pi \approx 3.14` or the other way round, is the decimal to its last digit.

    The two must also be within 1 % of each other.
    """
    exact, decimal = (first, second) if _DECIMAL.fullmatch(second.latex) else (second, first)
    if not _DECIMAL.fullmatch(decimal.latex):
        return same_value(exact, decimal)
    with mp.workdps(DIGITS):
        exact_value, decimal_value = value(parse(exact), {}), value(parse(decimal), {})
        difference = abs(exact_value - decimal_value)
        half_last_place = mpmath.mpf(10) ** -decimal_places(decimal.latex) / 2
        within_last_place = difference <= half_last_place * (1 + mpmath.mpf(10) ** -30)
        return bool(within_last_place and difference * 100 <= abs(exact_value))


def _differences(first: Equation | Relation, second: Equation | Relation) -> tuple[sympy.Basic, sympy.Basic]:
    """Return left minus right of both."""
    first_left, first_right, second_left, second_right = map(parse, (*first.sides, *second.sides))
    return first_left - first_right, second_left - second_right


@_decided
def same_solutions(first: Equation, second: Equation) -> bool:
    """Whether left minus right is the same for both, up to a constant factor, or zero in the same places."""
    one, other = _differences(first, second)
    if same_zeros(one, other):
        return True
    one, other = (sympy.fraction(sympy.together(formula))[0] for formula in (one, other))
    # n = d(d-1)/2 solved for d, which is a root, is meant for positive numbers. In x, y and z it would be a curve.
    solved_for = {first.names[0], second.names[0]}
    choices = (False, True) if len(solved_for - {"x", "y", "z", None}) == 2 else (False,)
    shared = (zeros_shared(one, other, positive) and zeros_shared(other, one, positive) for positive in choices)
    return len(names(one, other)) > 1 and any(shared)


@_decided
def same_set(first: Value, second: Value) -> bool:
    """Whether two sets are the same; or two relations of several variables, up to a factor above zero."""
    try:
        return sets.same_region(first, second)
    except Undefined:
        pass
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
    operators = tuple(_MIRRORED.get(operator, operator) for operator in reversed(relation.operators))
    return Relation(relation.sides[::-1], operators)


@lru_cache(maxsize=1)
def _registry() -> pint.UnitRegistry:
    registry = pint.UnitRegistry(non_int_type=Fraction, on_redefinition="ignore")
    registry.define("dollar = [money]")
    registry.define("cent = 1/100 dollar")
    return registry


@_decided
def same_quantity(first: Scalar, second: Scalar) -> bool:
    if {first.unit, second.unit} == {"degree", "radian"}:
        factor = r"\frac{\pi}{180}" if first.unit == "degree" else r"\frac{180}{\pi}"
    elif re.search("celsius|fahrenheit|kelvin", first.unit + second.unit):  # no factor converts them
        return False
    else:
        try:
            factor = str(_registry().Quantity(Fraction(1), first.unit).to(second.unit).magnitude)
        except pint.PintError:  # of another dimension, or without a size: euros
            return False
    return same_value(Scalar(rf"({first.latex})\cdot({factor})"), second)


same_families = _decided(sets.same_families)
same_functions = _decided(sets.same_functions)
