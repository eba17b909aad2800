r"""Lists of angles for every whole number, such as `\pi/3+2\pi k, 5\pi/3+2\pi k`, compared as sets of numbers."""

import math
import re
from fractions import Fraction

import mpmath
from mpmath import mp

from mathequal.numeric import DIGITS, Undefined, is_real, names, value
from mathequal.parsing import expression
from mathequal.values import Equation, Group, Scalar, Value

_LETTERS = {"k", "l", "m", "n"}
_CLOSE = mpmath.mpf(10) ** -30
_MOST_RESIDUES = 500


def same_families(first: Value, second: Value) -> bool:
    """Whether both hold the same numbers. Raises Undefined if one is no list of families."""
    with mp.workdps(DIGITS):
        families = [_families(first), _families(second)]
        steps = [_ratio(step / families[0][0][1]) for family in families for _, step in family]
        # The common period is the least common multiple of all steps, here in units of the first step.
        numerator = math.lcm(*(step.numerator for step in steps))
        period = families[0][0][1] * numerator / math.gcd(*(step.denominator for step in steps))
        return _residues(families[0], period) == _residues(families[1], period)


def _families(listed: Value) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Return the first number and the step of each arithmetic progression; of (-1)^k there are two."""
    is_solution = isinstance(listed, Equation) and re.fullmatch(r"[a-z]|\\[a-z]+", listed.names[0] or "")
    if isinstance(listed, Equation) and is_solution and len(listed.sides) == 2:  # x=\pi k, but not a_n or f(n)
        return _families(listed.sides[1])
    if isinstance(listed, Group) and listed.items and listed.opening in ("", "{") and not listed.names:
        return [family for item in listed.items for family in _families(item)]
    if not isinstance(listed, Scalar) or listed.unit not in ("", "degree"):
        raise Undefined("no family of numbers")
    latex = listed.latex + (r"\degree" if listed.unit == "degree" else "")
    formula = expression(latex.replace(r"\degree", r"\cdot\frac{\pi}{180}"))
    letters = names(formula)
    if len(letters) != 1 or not letters <= _LETTERS:
        raise Undefined("no family of numbers")
    values = [value(formula, dict.fromkeys(letters, mpmath.mpf(k))) for k in range(8)]
    at = [mpmath.re(number) for number in values]
    step = at[2] - at[0]
    if (
        not all(map(is_real, values))
        or abs(step) < _CLOSE
        or any(abs(at[k + 2] - at[k] - step) > _CLOSE for k in range(6))
    ):
        raise Undefined("no arithmetic progression of real numbers")
    return [(at[0], step), (at[1], step)]


def _ratio(number: mpmath.mpf) -> Fraction:
    ratio = Fraction(str(mpmath.nstr(abs(number), 40))).limit_denominator(1000)
    if abs(abs(number) - mpmath.mpf(ratio.numerator) / ratio.denominator) > _CLOSE:
        raise Undefined("steps without a common period")
    return ratio


def _residues(families: list[tuple[mpmath.mpf, mpmath.mpf]], period: mpmath.mpf) -> set[str]:
    """Return the numbers from zero up to the period, as parts of it."""
    found: set[str] = set()
    for start, step in families:
        count = int(mpmath.nint(abs(period / step)))
        if count > _MOST_RESIDUES:
            raise Undefined("too many numbers in a period")
        parts = ((start + k * step) / period for k in range(count))
        found |= {mpmath.nstr(part - mpmath.floor(part + _CLOSE) + _CLOSE, 20) for part in parts}
    return found
