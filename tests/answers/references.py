"""How reference answers are taken apart for the rules that rewrite them."""

import re
from collections.abc import Callable
from fractions import Fraction

import sympy

Rule = Callable[[str], str | None]

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d*\.\d+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\[dt]?frac\{\d+\}\{\d+\}")
ANY_FRACTION = re.compile(r"\\frac(?![a-zA-Z])")
PAIR = re.compile(r"(\\left\s*)?([(\[])([^()\[\],]*),([^()\[\],]*?)(\\right\s*)?([)\]])")
MATRIX = re.compile(r"(\\begin\{[pb]matrix\})(.*)(\\end\{[pb]matrix\})", re.DOTALL)
BASED = re.compile(r"(-?\d+)_\{?(\d+)\}?")
POWER = re.compile(r"\^(?:(\d)|\{(\d+)\})")


def if_changed(old: str, new: str) -> str | None:
    return new if new != old else None


def value_of(text: str) -> Fraction | None:
    """Of an integer, decimal or fraction."""
    if match := FRACTION.fullmatch(text):
        sign, numerator, denominator = match.groups()
        return Fraction(int(sign + numerator), int(denominator))
    return Fraction(text) if INTEGER.fullmatch(text) or DECIMAL.fullmatch(text) else None


def elements(text: str) -> list[str] | None:
    """The different elements of a comma list of numbers; `1, 200` and its like may also be one number."""
    parts = [part.strip() for part in text.split(",")]
    plain = len(parts) > 1 and all(map(NUMBER.fullmatch, parts)) and len(set(parts)) == len(parts)
    return parts if plain and not re.search(r"\d,\s?\d{3}(?!\d)", text) else None


def coordinates(text: str) -> tuple[str, list[str], str] | None:
    """Opening, elements and closing of a tuple in round parentheses."""
    match = re.fullmatch(r"((?:\\left\s*)?\()([^()\[\]]*?)((?:\\right\s*)?\))", text)
    parts = match[2].split(",") if match else []
    return (match[1], [part.strip() for part in parts], match[3]) if len(parts) > 1 else None


def polynomial(reference: str) -> sympy.Expr | None:
    """What the text says where it is a polynomial in single letters; `i` and `e` are numbers, `f(4 - x)` is none."""
    text = re.sub(r"\^\{(\d+)\}", r"^\1", reference)
    if not re.fullmatch(r"[a-df-hj-z0-9+\-^() ]+", text) or re.search(r"[a-z]{3}|[fgp]\(|\^[a-z(]|\d\s+\d", text):
        return None
    if not re.search("[a-z]", text):
        return None
    text = text.replace(" ", "")
    parsed = sympy.sympify(re.sub(r"(?<=[a-z0-9)])(?=[a-z(])|(?<=\))(?=\d)", "*", text).replace("^", "**"))
    return parsed
