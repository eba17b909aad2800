"""Rules that rewrite reference answers, and how references are taken apart for them."""

import re
from collections.abc import Callable
from fractions import Fraction

import sympy

Rule = Callable[[str], str | None]
"""Returns the new text, or None where the rule does not apply."""

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d*\.\d+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\[dt]?frac\{\d+\}\{\d+\}")
PAIR = re.compile(r"(\\left\s*)?([(\[])([^()\[\],]*),([^()\[\],]*?)(\\right\s*)?([)\]])")
MATRIX = re.compile(r"(\\begin\{[pb]matrix\})(.*)(\\end\{[pb]matrix\})", re.DOTALL)
BASED = re.compile(r"(-?\d+)_\{?(\d+)\}?")
POWER = re.compile(r"\^(?:(\d)|\{(\d+)\})")


class Rules(dict[str, Rule]):
    """Rules by name. `least` says to how many different references of MATH each must apply."""

    def __init__(self):
        self.least: dict[str, int] = {}

    def rule(self, least: int) -> Callable[[Rule], Rule]:
        """Add the decorated function."""

        def add(rule: Rule) -> Rule:
            self[rule.__name__], self.least[rule.__name__] = rule, least
            return rule

        return add

    def rows(self, *rows: tuple) -> None:
        """Add rules (name, least, pattern, replacement) of what is replaced everywhere in a reference.

        The rule does not apply where the pattern that may come fifth occurs.
        """
        for name, least, pattern, replacement, *unless in rows:
            self[name], self.least[name] = _replacing(pattern, replacement, unless), least


def _replacing(pattern: str, replacement: str | Callable[[re.Match], str], unless: list[str]) -> Rule:
    def rule(reference: str) -> str | None:
        if any(re.search(other, reference) for other in unless):
            return None
        text = re.sub(pattern, replacement, reference)
        return None if text == reference else text

    return rule


def whole(pattern: re.Pattern | str) -> str:
    """Return the pattern of a whole reference."""
    return rf"(?s)\A(?:{pattern if isinstance(pattern, str) else pattern.pattern})\Z"


def first(pattern: str) -> str:
    """Return the pattern of the first place only, where what comes before is group 1."""
    return rf"(?s)\A(.*?){pattern}"


def if_changed(old: str, new: str) -> str | None:
    return new if new != old else None


def value_of(text: str) -> Fraction | None:
    """Return the value of an integer, decimal or fraction."""
    if match := FRACTION.fullmatch(text):
        sign, numerator, denominator = match.groups()
        return Fraction(int(sign + numerator), int(denominator))
    return Fraction(text) if INTEGER.fullmatch(text) or DECIMAL.fullmatch(text) else None


def elements(text: str) -> list[str] | None:
    """Return the different elements of a comma list of numbers; `1, 200` and its like may also be one number."""
    parts = [part.strip() for part in text.split(",")]
    plain = len(parts) > 1 and all(map(NUMBER.fullmatch, parts)) and len(set(parts)) == len(parts)
    return parts if plain and not re.search(r"\d,\s?\d{3}(?!\d)", text) else None


def coordinates(text: str) -> tuple[str, list[str], str] | None:
    """Return opening, elements and closing of a tuple in round parentheses."""
    match = re.fullmatch(r"((?:\\left\s*)?\()([^()\[\]]*?)((?:\\right\s*)?\))", text)
    parts = match[2].split(",") if match else []
    return (match[1], [part.strip() for part in parts], match[3]) if len(parts) > 1 else None


def polynomial(reference: str) -> sympy.Expr | None:
    """Return a polynomial in single letters, None for any other text. `i` and `e` are numbers, `f(4 - x)` is none."""
    text = re.sub(r"\^\{(\d+)\}", r"^\1", reference)
    if not re.fullmatch(r"[a-df-hj-z0-9+\-^() ]+", text) or re.search(r"[a-z]{3}|[fgp]\(|\^[a-z(]|\d\s+\d", text):
        return None
    if not re.search("[a-z]", text):
        return None
    text = text.replace(" ", "")
    return sympy.sympify(re.sub(r"(?<=[a-z0-9)])(?=[a-z(])|(?<=\))(?=\d)", "*", text).replace("^", "**"))
