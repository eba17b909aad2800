r"""Rules that rewrite a reference answer into something else.

A rule is a function of the reference that returns the new text, or None where it does not apply.
"""

import re

from references import (
    BASED,
    DECIMAL,
    FRACTION,
    INTEGER,
    MATRIX,
    NUMBER,
    PAIR,
    POWER,
    coordinates,
    elements,
    if_changed,
    polynomial,
    value_of,
)


def sign_flipped(reference: str) -> str | None:
    if not value_of(reference):
        return None
    return reference[1:] if reference.startswith("-") else f"-{reference}"


def negated(reference: str) -> str | None:
    return None if polynomial(reference) is None else f"-({reference})"


def inner_sign_flipped(reference: str) -> str | None:
    match = re.search(r"(?<=[\w)}])\s*([-+])\s*(?=[\w\\(])", reference)
    if not match or re.search(r"\\text|\\pm|\\phantom|\|", reference):
        return None
    sign = "-" if match[1] == "+" else "+"
    return reference[: match.start(1)] + sign + reference[match.end(1) :]


def first_digit_changed(reference: str) -> str | None:
    match = re.match(r"-?(\d)", reference)
    return reference[: match.start(1)] + str(int(match[1]) % 9 + 1) + reference[match.end(1) :] if match else None


def last_digit_changed(reference: str) -> str | None:
    if not INTEGER.fullmatch(reference) and not DECIMAL.fullmatch(reference):
        return None
    return reference[:-1] + str((int(reference[-1]) + 1) % 10)


def digit_added(reference: str) -> str | None:
    return f"{reference}1" if INTEGER.fullmatch(reference) and reference != "0" else None


def second_value(reference: str) -> str | None:
    return f"{reference}, 9998" if NUMBER.fullmatch(reference) else None


def either_value(reference: str) -> str | None:
    return rf"{reference} \text{{ or }} 9998" if NUMBER.fullmatch(reference) else None


def bound(reference: str) -> str | None:
    return f"x > {reference}" if NUMBER.fullmatch(reference) else None


def imaginary(reference: str) -> str | None:
    return f"{reference}i" if value_of(reference) else None


def imaginary_upright(reference: str) -> str | None:
    return rf"{reference}\mathrm{{i}}" if value_of(reference) else None


def to_a_root(reference: str) -> str | None:
    return rf"\sqrt{{{reference}}}" if INTEGER.fullmatch(reference) and reference not in ("0", "1") else None


def magnitude(reference: str) -> str | None:
    return rf"{reference}\text{{ million}}" if value_of(reference) else None


def solution_of_an_equation(reference: str) -> str | None:
    """Says something about x that is not its value."""
    return f"|x| = {reference}" if value_of(reference) else None


def numerator_changed(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"(frac\{)(\d+)\}", lambda m: f"{m[1]}{int(m[2]) + 1}}}", reference, count=1))


def denominator_changed(reference: str) -> str | None:
    return if_changed(
        reference, re.sub(r"(frac\{[1-9]\d*\}\{)(\d+)\}", lambda m: f"{m[1]}{int(m[2]) + 1}}}", reference, count=1)
    )


def inverted(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    return f"{match[1]}\\frac{{{match[3]}}}{{{match[2]}}}" if match and match[2] != match[3] else None


def root_changed(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"(\\sqrt\{)(\d+)\}", lambda m: f"{m[1]}{int(m[2]) + 1}}}", reference, count=1))


def root_dropped(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\\sqrt\{(\d+)\}", r"\\cdot \1", reference, count=1).removeprefix(r"\cdot "))


def pi_dropped(reference: str) -> str | None:
    text = re.sub(r"(?<=\d)\s*\\pi$", "", reference)
    return if_changed(reference, text)


def swapped(reference: str) -> str | None:
    found = coordinates(reference)
    if not found or found[1][0] == found[1][1]:
        return None
    opening, parts, closing = found
    return opening + ", ".join([parts[1], parts[0], *parts[2:]]) + closing


def coordinate_dropped(reference: str) -> str | None:
    found = coordinates(reference)
    return found[0] + ", ".join(found[1][:-1]) + found[2] if found and len(found[1]) > 2 else None


def coordinate_changed(reference: str) -> str | None:
    found = coordinates(reference)
    if not found or not INTEGER.fullmatch(found[1][-1]):
        return None
    opening, parts, closing = found
    return opening + ", ".join([*parts[:-1], str(int(parts[-1]) + 1)]) + closing


def opened(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"(?<!sqrt)\[", "(", reference)) if PAIR.search(reference) else None


def opened_right(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\](?!\{)", ")", reference)) if PAIR.search(reference) else None


def closed(reference: str) -> str | None:
    """Of an interval that is closed at its other end, or it could be a point."""
    match = PAIR.fullmatch(reference)
    if not match or match[2] != "(" or match[6] != "]" or "infty" in match[3]:
        return None
    return reference.replace("(", "[", 1)


def union_cut(reference: str) -> str | None:
    first, cup, _ = reference.partition(r"\cup")
    return first.strip() if cup else None


def exponent_changed(reference: str) -> str | None:
    match = POWER.search(reference)
    if not match or re.search(r"\\(?:text|mbox)", reference):  # of a unit, which the answer may leave out
        return None
    exponent = int(match[1] or match[2]) + 1
    return f"{reference[: match.start()]}^{{{exponent}}}{reference[match.end() :]}"


def element_dropped(reference: str) -> str | None:
    parts = elements(reference)
    return ", ".join(parts[1:]) if parts else None


def element_added(reference: str) -> str | None:
    parts = elements(reference)
    return ", ".join([*parts, "9999"]) if parts else None


def element_changed(reference: str) -> str | None:
    parts = elements(reference)
    return ", ".join([*parts[:-1], "9999"]) if parts else None


def other_base(reference: str) -> str | None:
    match = BASED.fullmatch(reference)
    return f"{match[1]}_{{{int(match[2]) + 1}}}" if match else None


def other_digits_in_a_base(reference: str) -> str | None:
    match = BASED.fullmatch(reference)
    return f"{match[1]}0_{{{match[2]}}}" if match else None


def letter_changed(reference: str) -> str | None:
    text = re.sub(r"(?<=text\{)(\(?)([A-Z])(?=\)?\}$)", lambda m: m[1] + chr(65 + (ord(m[2]) - 64) % 26), reference)
    return if_changed(reference, text)


def word_changed(reference: str) -> str | None:
    return r"\text{Something}" if re.fullmatch(r"\\text\{[A-Za-z]{2,}\}", reference) else None


def variable_changed(reference: str) -> str | None:
    return None if polynomial(reference) is None else re.sub(r"[a-z]", "u", reference)


def constant_added(reference: str) -> str | None:
    return None if polynomial(reference) is None else f"{reference} + 1"


def entry_changed(reference: str) -> str | None:
    match = MATRIX.fullmatch(reference)
    if not match:
        return None
    return if_changed(reference, re.sub(r"(?<![\d}])\d+(?!\d)", lambda m: str(int(m[0]) + 1), reference, count=1))


def rows_swapped(reference: str) -> str | None:
    match = MATRIX.fullmatch(reference)
    rows = match[2].split(r"\\") if match else []
    if len(rows) < 2 or rows[0].strip() == rows[1].strip():
        return None
    return match[1] + r" \\ ".join([rows[1], rows[0], *rows[2:]]) + match[3]


def ten_times(reference: str) -> str | None:
    value = value_of(reference) if DECIMAL.fullmatch(reference) else None
    return None if not value else str(float(value * 10))


def nearly(reference: str) -> str | None:
    """A decimal of a fraction, rounded to two digits where that is not exact."""
    value = value_of(reference) if FRACTION.fullmatch(reference) else None
    return None if value is None or 100 % value.denominator == 0 else f"{float(value):.2f}"
