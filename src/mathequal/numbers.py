"""Plain numbers: their values, without a parser."""

import re
from fractions import Fraction

_DECIMAL = r"-?(?:\d{1,30}|\d{1,3}(?:,\d{3}){1,9})?(?:\.\d{1,30})?"
_NUMBER = re.compile(rf"[+]?({_DECIMAL})(?:\s*\\cdot\s*10\^(?:\{{(-?\d{{1,2}})\}}|(\d)))?", re.ASCII)
_FRACTION = re.compile(
    r"([+-]?)\s*(?:(\d{1,30})(?=[\s\\])\s*)?(?:\\frac\{(-?\d{1,30})\}\{(-?\d{1,30})\}|(-?\d{1,30})\s*/\s*(\d{1,30}))",
    re.ASCII,
)


def number(latex: str) -> Fraction | None:
    r"""The value of a plain integer, decimal, fraction, mixed number or power of ten; else None.

    >>> [str(number(text)) for text in (r"-\frac{5}{4}", "-1.25", "1 1/2", r"1\frac{1}{2}", "1,500", "x", "1/0")]
    ['-5/4', '-5/4', '3/2', '3/2', '1500', 'None', 'None']
    """
    if match := _FRACTION.fullmatch(latex):
        sign, whole, *parts = match.groups()
        top, bottom = (int(part) for part in parts if part)
        if bottom == 0 or (whole and not 0 < top < bottom):  # 1 -1/2 is a difference, 2\frac{7}{3} a product
            return None
        return (-1 if sign == "-" else 1) * (int(whole or 0) + Fraction(top, bottom))
    if (match := _NUMBER.fullmatch(latex)) and any(map(str.isdigit, match[1])):
        return Fraction(match[1].replace(",", "")) * Fraction(10) ** int(match[2] or match[3] or 0)
    return None


def places(latex: str) -> int:
    """How many decimals a plain decimal has, 0 for anything else."""
    match = re.fullmatch(r"[+-]?[\d,]*\.(\d+)", latex, re.ASCII)
    return len(match[1]) if match else 0


def is_rounded(first: Fraction, second: Fraction, decimals: int) -> bool:
    """Whether one may be the other rounded to `decimals` places, of which it needs six, and five leading digits."""
    difference = abs(first - second)
    return decimals >= 6 and difference * 2 * 10**decimals <= 1 and difference * 10**5 <= max(abs(first), abs(second))
