"""The values of plain numbers, without a parser."""

import re
from fractions import Fraction

from mathequal.units import MULTIPLES

# -5, 1.25, .5, 1,500, and 3.1 \cdot 10^{-7} or 2 \cdot 10^5
_DECIMAL = r"-?(?:\d{1,30}|\d{1,3}(?:,\d{3}){1,9})?(?:\.\d{1,30})?"
_NUMBER = re.compile(rf"[+]?({_DECIMAL})(?:\s*\\cdot\s*10\^(?:\{{(-?\d{{1,2}})\}}|(\d)))?", re.ASCII)
# \frac{3}{4}, 3/4, and with a whole number in front 1\frac{1}{2} and 1 1/2
_FRACTION = re.compile(
    r"([+-]?)\s*(?:(\d{1,30})(?=[\s\\])\s*)?(?:\\frac\{(-?\d{1,30})\}\{(-?\d{1,30})\}|(-?\d{1,30})\s*/\s*(\d{1,30}))",
    re.ASCII,
)
_PLAIN_DECIMAL = re.compile(r"[+-]?[\d,]*\.(\d+)(?:\s*\\cdot\s*10\^(?:\{(-?\d{1,2})\}|(\d)))?", re.ASCII)


def plain_number(latex: str) -> Fraction | None:
    r"""Return the value of a plain integer, decimal, fraction, mixed number or power of ten; else None.

    >>> [str(plain_number(text)) for text in (r"-\frac{5}{4}", "-1.25", "1 1/2", r"1\frac{1}{2}", "1,500", "x", "1/0")]
    ['-5/4', '-5/4', '3/2', '3/2', '1500', 'None', 'None']
    """
    decimal = _NUMBER.fullmatch(latex)
    if decimal and re.search(r"\d", decimal[1]):
        return Fraction(decimal[1].replace(",", "")) * Fraction(10) ** int(decimal[2] or decimal[3] or 0)
    fraction = _FRACTION.fullmatch(latex)
    if not fraction:
        return None
    whole, top, bottom = (
        int(digits or 0) for digits in (fraction[2], fraction[3] or fraction[5], fraction[4] or fraction[6])
    )
    if bottom == 0 or (fraction[2] and not 0 < top < bottom):  # 1 -1/2 is a difference, 2\frac{7}{3} a product
        return None
    size = whole + Fraction(top, bottom)
    return -size if fraction[1] == "-" else size


def decimal_places(latex: str) -> int:
    """Return how many decimals a plain decimal has, 0 for anything else."""
    match = _PLAIN_DECIMAL.fullmatch(latex)
    return max(len(match[1]) - int(match[2] or match[3] or 0), 0) if match else 0


def fewest_decimal_places(first: str, second: str) -> int:
    """Return the decimals of the shorter one of two formulas that are decimals, 0 if none is."""
    places = [decimal_places(first), decimal_places(second)]
    return min(places) if all(places) else max(places)


def is_rounded(first: Fraction, second: Fraction, decimals: int) -> bool:
    """Whether one number may be the other rounded to `decimals` places.

    That takes at least six places, and the same five leading digits: `0.333333` is a third, `0.333` is not.
    """
    difference = abs(first - second)
    within_last_place = difference * 2 * 10**decimals <= 1
    return decimals >= 6 and within_last_place and difference * 10**5 <= max(abs(first), abs(second))


_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TWENTY_TO_99 = [f"{ten} {digit}".removesuffix(" zero") for ten in _TENS for digit in _DIGITS]

NUMBER_WORDS = (*_DIGITS, *_TEENS, *_TWENTY_TO_99)
"""The numbers from 0 to 99 in words, so that the index of a word is its value: `twenty four` is at 24."""

_PARTS = ("", "", "half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def number_in_words(phrase: str) -> int | Fraction | None:
    """Return the number that `twenty-four`, `minus two`, `three hundred and five` or `two thirds` is."""
    words = " ".join(phrase.replace("-", " ").split())
    for sign in ("minus ", "negative "):
        if words.startswith(sign):
            size = number_in_words(words.removeprefix(sign))
            return None if size is None else -size
    count, _, part = words.rpartition(" ")
    part = part.removesuffix("s").replace("halve", "half").replace("fourth", "quarter")
    if part in _PARTS[2:] and count in NUMBER_WORDS[1:20]:
        return Fraction(NUMBER_WORDS.index(count), _PARTS.index(part))
    for multiple in reversed(MULTIPLES):
        before, found, after = words.partition(multiple)
        if found:
            size = number_in_words(before) if before.strip() not in ("", "a") else 1
            rest = number_in_words(after.strip().removeprefix("and ")) if after else 0
            value = MULTIPLES[multiple]
            return None if size is None or rest is None or rest >= value else size * value + rest
    return NUMBER_WORDS.index(words) if words in NUMBER_WORDS else None
