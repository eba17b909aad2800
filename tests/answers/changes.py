r"""Rules that rewrite a reference answer into something else."""

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
    Rules,
    coordinates,
    elements,
    first,
    if_changed,
    polynomial,
    value_of,
    whole,
)

DIFFERENT = Rules()
_NOT_ZERO = r"\A-?(?:0|0?\.0+|\\[dt]?frac\{0\}\{\d+\})\Z"
_NO_PAIR = rf"(?s)\A(?!.*{PAIR.pattern})"
_VALUE = rf"{FRACTION.pattern}|{INTEGER.pattern}|{DECIMAL.pattern}"


def _plus_one(group: int) -> str:
    """Return a function of a match that adds one to the number in a group, and keeps the groups around it."""

    def changed(match: re.Match) -> str:
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return f"{match[0][:start]}{int(match[group]) + 1}{match[0][end:]}"

    return changed


DIFFERENT.rows(
    ("sign_flipped", 1400, whole(_VALUE), lambda m: m[0][1:] if m[0][0] == "-" else f"-{m[0]}", _NOT_ZERO),
    (
        "inner_sign_flipped",
        300,
        first(r"(?<=[\w)}])(\s*)([-+])(?=\s*[\w\\(])"),
        lambda m: f"{m[1]}{m[2]}{'-' if m[3] == '+' else '+'}",
        r"\\text|\\pm|\\phantom|\|",
    ),
    ("first_digit_changed", 1600, r"\A(-?)(\d)", lambda m: f"{m[1]}{int(m[2]) % 9 + 1}"),
    ("last_digit_changed", 900, whole(r"(-?\d*(?:\.\d*)?)(\d)"), lambda m: f"{m[1]}{(int(m[2]) + 1) % 10}"),
    ("inverted", 400, whole(FRACTION), r"\1\\frac{\3}{\2}"),
    ("opened", 40, r"(?<!sqrt)\[", "(", _NO_PAIR),
    ("opened_right", 40, r"\](?!\{)", ")", _NO_PAIR),
    # of an interval that is closed at its other end, or it could be a point
    ("closed", 7, r"\A((?:\\left\s*)?)\((?=[^()\[\],]*,[^()\[\],]*\]\Z)", r"\1[", r"\A[^,]*infty"),
    ("union_cut", 40, r"(?s)\s*\\cup.*", ""),
    ("letter_changed", 12, r"(?<=text\{)(\(?)([A-Z])(?=\)?\}$)", lambda m: m[1] + chr(65 + (ord(m[2]) - 64) % 26)),
    ("digit_added", 800, whole(INTEGER), r"\g<0>1", r"\A0\Z"),
    ("second_value", 1400, whole(NUMBER), r"\g<0>, 9998"),
    ("either_value", 1400, whole(NUMBER), r"\g<0> \\text{ or } 9998"),
    ("bound", 1400, whole(NUMBER), r"x > \g<0>"),
    ("imaginary", 1400, whole(_VALUE), r"\g<0>i", _NOT_ZERO),
    ("imaginary_upright", 1400, whole(_VALUE), r"\g<0>\\mathrm{i}", _NOT_ZERO),
    ("to_a_root", 800, whole(INTEGER), r"\\sqrt{\g<0>}", r"\A[01]\Z"),
    ("magnitude", 1400, whole(_VALUE), r"\g<0>\\text{ million}", _NOT_ZERO),
    # says something about x that is not its value
    ("solution_of_an_equation", 1400, whole(_VALUE), r"|x| = \g<0>", _NOT_ZERO),
    ("numerator_changed", 600, first(r"frac\{(\d+)\}"), _plus_one(2)),
    ("denominator_changed", 600, first(r"frac\{[1-9]\d*\}\{(\d+)\}"), _plus_one(2)),
    ("root_changed", 200, first(r"\\sqrt\{(\d+)\}"), _plus_one(2)),
    ("root_dropped", 30, r"\A\\sqrt\{(\d+)\}", r"\1"),
    ("root_dropped_behind", 100, first(r"(?<!^)\\sqrt\{(\d+)\}"), r"\1\\cdot \2"),
    ("pi_dropped", 60, r"(?<=\d)\s*\\pi$", ""),
    # not of a unit, which the answer may leave out
    (
        "exponent_changed",
        100,
        first(POWER.pattern),
        lambda m: f"{m[1]}^{{{int(m[2] or m[3]) + 1}}}",
        r"\\(?:text|mbox)",
    ),
    ("other_base", 40, whole(BASED), lambda match: f"{match[1]}_{{{int(match[2]) + 1}}}"),
    ("other_digits_in_a_base", 40, whole(BASED), r"\g<1>0_{\2}"),
    ("word_changed", 20, whole(r"\\text\{[A-Za-z]{2,}\}"), r"\\text{Something}"),
)


for _name, _change in (
    ("element_dropped", lambda parts: parts[1:]),
    ("element_added", lambda parts: [*parts, "9999"]),
    ("element_changed", lambda parts: [*parts[:-1], "9999"]),
):

    def _list(reference: str, change=_change) -> str | None:
        parts = elements(reference)
        return ", ".join(change(parts)) if parts else None

    DIFFERENT[_name], DIFFERENT.least[_name] = _list, 40

for _name, _least, _is_changed, _change in (
    ("swapped", 100, lambda parts: parts[0] != parts[1], lambda parts: [parts[1], parts[0], *parts[2:]]),
    ("coordinate_dropped", 40, lambda parts: len(parts) > 2, lambda parts: parts[:-1]),
    (
        "coordinate_changed",
        100,
        lambda parts: INTEGER.fullmatch(parts[-1]),
        lambda parts: [*parts[:-1], parts[-1] + "1"],
    ),
):

    def _tuple(reference: str, is_changed=_is_changed, change=_change) -> str | None:
        opening, parts, closing = coordinates(reference) or ("", [], "")
        return opening + ", ".join(change(parts)) + closing if parts and is_changed(parts) else None

    DIFFERENT[_name], DIFFERENT.least[_name] = _tuple, _least

for _name, _form in (
    ("negated", lambda reference: f"-({reference})"),
    ("variable_changed", lambda reference: re.sub("[a-z]", "u", reference)),
    ("constant_added", lambda reference: f"{reference} + 1"),
):

    def _polynomial(reference: str, form=_form) -> str | None:
        return None if polynomial(reference) is None else form(reference)

    DIFFERENT[_name], DIFFERENT.least[_name] = _polynomial, 100


@DIFFERENT.rule(100)
def entry_changed(reference: str) -> str | None:
    if not MATRIX.fullmatch(reference):
        return None
    return if_changed(reference, re.sub(r"(?<![\d}])\d+(?!\d)", lambda m: str(int(m[0]) + 1), reference, count=1))


@DIFFERENT.rule(90)
def rows_swapped(reference: str) -> str | None:
    match = MATRIX.fullmatch(reference)
    rows = match[2].split(r"\\") if match else []
    if len(rows) < 2 or rows[0].strip() == rows[1].strip():
        return None
    return match[1] + r" \\ ".join([rows[1], rows[0], *rows[2:]]) + match[3]


@DIFFERENT.rule(100)
def ten_times(reference: str) -> str | None:
    value = value_of(reference) if DECIMAL.fullmatch(reference) else None
    return None if not value else str(float(value * 10))


@DIFFERENT.rule(300)
def nearly(reference: str) -> str | None:
    """A decimal of a fraction, rounded to two digits where that is not exact."""
    value = value_of(reference) if FRACTION.fullmatch(reference) else None
    return None if value is None or 100 % value.denominator == 0 else f"{float(value):.2f}"
