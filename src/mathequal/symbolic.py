"""Decide by parsing and evaluating formulas whether two answers are equal; and the rule of the authors' released code.

Runs in processes that can be killed: anything here can hang, run out of memory or raise. math-verify's own time limits
are off, since they need signals in the main thread, and elsewhere score 0 without a word.
"""

import logging
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import mpmath
import pint
import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parser, verify
from math_verify import parse as math_verify_parse
from mpmath import mp
from sympy.polys.polyerrors import BasePolynomialError

from mathequal.constants import same_functions
from mathequal.equality import verdict
from mathequal.families import same_families
from mathequal.names import is_constant
from mathequal.numbers import decimal_places, fewest_decimal_places, is_rounded
from mathequal.numeric import DIGITS, MORE_DIGITS, Undefined, names, same_values, same_zeros, value, zeros_shared
from mathequal.parsing import expression, parse
from mathequal.regions import same_region
from mathequal.rules import Judge
from mathequal.values import Equation, Relation, Scalar, Value

# It warns on every call that its own time limits are off, which is the intention.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def slow_verdict(reference: str, answer: str) -> bool:
    """Whether the two are equal, where `quick_verdict` cannot know."""
    return verdict(reference, answer, SLOW)


def _same_value(first: Scalar, second: Scalar) -> bool:
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


def _rounded(first: Scalar, second: Scalar) -> bool:
    r"""Whether a number, written `\pi \approx 3.14` or the other way round, is the decimal to its last digit.

    The two must also be within 1 % of each other.
    """
    exact, decimal = (first, second) if _DECIMAL.fullmatch(second.latex) else (second, first)
    if not _DECIMAL.fullmatch(decimal.latex):
        return _same_value(exact, decimal)
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


def _same_solutions(first: Equation, second: Equation) -> bool:
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


def _same_set(first: Value, second: Value) -> bool:
    """Whether two sets are the same; or two relations of several variables, up to a factor above zero."""
    try:
        return same_region(first, second)
    except Undefined:
        pass
    if not (isinstance(first, Relation) and isinstance(second, Relation)):
        return False
    one, other = _ascending(first), _ascending(second)
    if one.operators != other.operators:
        return False
    all_constant = all(is_constant(side.latex) for side in (*one.sides, *other.sides))
    if len(one.operators) > 1 or all_constant:
        return all(map(_same_value, one.sides, other.sides))
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


def _same_quantity(first: Scalar, second: Scalar) -> bool:
    if {first.unit, second.unit} == {"degree", "radian"}:
        factor = r"\frac{\pi}{180}" if first.unit == "degree" else r"\frac{180}{\pi}"
    elif re.search("celsius|fahrenheit|kelvin", first.unit + second.unit):  # no factor converts them
        return False
    else:
        try:
            factor = str(_registry().Quantity(Fraction(1), first.unit).to(second.unit).magnitude)
        except pint.PintError:  # of another dimension, or without a size: euros
            return False
    return _same_value(Scalar(rf"({first.latex})\cdot({factor})"), second)


def _decided(compare: Callable[..., bool]) -> Callable[..., bool]:
    """Return `compare`, which then is False where something has no value."""

    def decide(first: Value, second: Value) -> bool:
        try:
            return compare(first, second)
        except (Undefined, TypeError, BasePolynomialError):  # TypeError: a matrix where a number is needed
            return False

    return decide


_RULES = (_same_value, _same_quantity, _rounded, _same_solutions, _same_set, same_families, same_functions)
SLOW = Judge(*map(_decided, _RULES))


# Repeated answers to a problem are often the same formula. math-verify itself remembers only 20.
parser.parse_latex_cached = lru_cache(4096)(parser.parse_latex_cached.__wrapped__)


def released_verdict(reference: str, text: str) -> bool:
    """Return the verdict of the authors' released code: math-verify on the last 500 characters of the whole text."""
    gold = _released_parse(f"\\boxed{{{reference}}}", is_reference=True)
    prediction = _released_parse(text[-500:], is_reference=False)
    return bool(gold and prediction) and verify(gold, prediction, timeout_seconds=None)


def _released_parse(text: str, is_reference: bool) -> list:
    syntax = {"basic_latex": True, "units": True, "malformed_operators": is_reference, "nits": is_reference}
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(**syntax, boxed="all"),
        boxed_match_priority=0,
        try_extract_without_anchor=is_reference,
    )
    fallback = "no_fallback" if is_reference else "first_match"
    return math_verify_parse(
        text, [config], fallback_mode=fallback, extraction_mode="first_match", parsing_timeout=None
    )
