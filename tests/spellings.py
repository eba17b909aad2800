r"""Rules that rewrite a reference answer: into another spelling of the same, or into something else.

A rule is a function of the reference that returns the new text, or None where it does not apply.
"""

import re
from collections.abc import Callable
from fractions import Fraction

import sympy

Rule = Callable[[str], str | None]

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d*\.\d+")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\[dt]?frac\{\d+\}\{\d+\}")
_ANY_FRACTION = re.compile(r"\\frac(?![a-zA-Z])")
_PAIR = re.compile(r"(\\left\s*)?([(\[])([^()\[\],]*),([^()\[\],]*?)(\\right\s*)?([)\]])")
_MATRIX = re.compile(r"(\\begin\{[pb]matrix\})(.*)(\\end\{[pb]matrix\})", re.DOTALL)
_BASED = re.compile(r"(-?\d+)_\{?(\d+)\}?")
_POWER = re.compile(r"\^(?:(\d)|\{(\d+)\})")


def _if_changed(old: str, new: str) -> str | None:
    return new if new != old else None


def _value(text: str) -> Fraction | None:
    """Of an integer, decimal or fraction."""
    if match := _FRACTION.fullmatch(text):
        sign, numerator, denominator = match.groups()
        return Fraction(int(sign + numerator), int(denominator))
    return Fraction(text) if _INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text) else None


def _list(text: str) -> list[str] | None:
    """The different elements of a comma list of numbers; `1, 200` and its like may also be one number."""
    parts = [part.strip() for part in text.split(",")]
    plain = len(parts) > 1 and all(map(_NUMBER.fullmatch, parts)) and len(set(parts)) == len(parts)
    return parts if plain and not re.search(r"\d,\s?\d{3}(?!\d)", text) else None


def _coordinates(text: str) -> tuple[str, list[str], str] | None:
    """Opening, elements and closing of a tuple in round parentheses."""
    match = re.fullmatch(r"((?:\\left\s*)?\()([^()\[\]]*?)((?:\\right\s*)?\))", text)
    parts = match[2].split(",") if match else []
    return (match[1], [part.strip() for part in parts], match[3]) if len(parts) > 1 else None


def _polynomial(reference: str) -> sympy.Expr | None:
    """What the text says where it is a polynomial in single letters; `i` and `e` are numbers, `f(4 - x)` is none."""
    text = re.sub(r"\^\{(\d+)\}", r"^\1", reference)
    if not re.fullmatch(r"[a-df-hj-z0-9+\-^() ]+", text) or re.search(r"[a-z]{3}|[fgp]\(|\^[a-z(]|\d\s+\d", text):
        return None
    if not re.search("[a-z]", text):
        return None
    text = text.replace(" ", "")
    parsed = sympy.sympify(re.sub(r"(?<=[a-z0-9)])(?=[a-z(])|(?<=\))(?=\d)", "*", text).replace("^", "**"))
    return parsed


# The same answer, spelled otherwise.


def dfrac(reference: str) -> str | None:
    return _if_changed(reference, _ANY_FRACTION.sub(r"\\dfrac", reference))


def tfrac(reference: str) -> str | None:
    return _if_changed(reference, _ANY_FRACTION.sub(r"\\tfrac", reference))


def plain_frac(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\\[dt]frac", r"\\frac", reference))


def fraction_without_braces(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", reference))


def half_braceless_fraction(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\\frac\{(\d)\}\{", r"\\frac\1{", reference))


def slash(reference: str) -> str | None:
    match = _FRACTION.fullmatch(reference)
    return f"{match[1]}{match[2]}/{match[3]}" if match else None


def minus_in_the_numerator(reference: str) -> str | None:
    match = _FRACTION.fullmatch(reference)
    return f"\\frac{{-{match[2]}}}{{{match[3]}}}" if match and match[1] else None


def minus_in_the_denominator(reference: str) -> str | None:
    match = _FRACTION.fullmatch(reference)
    return f"\\frac{{{match[2]}}}{{-{match[3]}}}" if match and match[1] else None


def unreduced(reference: str) -> str | None:
    match = _FRACTION.fullmatch(reference)
    return f"{match[1]}\\frac{{{3 * int(match[2])}}}{{{3 * int(match[3])}}}" if match else None


def mixed_number(reference: str) -> str | None:
    match = _FRACTION.fullmatch(reference)
    if not match or int(match[2]) < int(match[3]) or int(match[2]) % int(match[3]) == 0:
        return None
    whole, rest = divmod(int(match[2]), int(match[3]))
    return f"{match[1]}{whole}\\frac{{{rest}}}{{{match[3]}}}"


def decimal(reference: str) -> str | None:
    value = _value(reference) if _FRACTION.fullmatch(reference) else None
    if value is None or 10**6 % value.denominator:
        return None
    return f"{float(value):.6f}".rstrip("0")


def fraction_of_a_decimal(reference: str) -> str | None:
    value = _value(reference) if _DECIMAL.fullmatch(reference) else None
    return None if value is None else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def trailing_zeros(reference: str) -> str | None:
    return f"{reference}.00" if _INTEGER.fullmatch(reference) else None


def plus_sign(reference: str) -> str | None:
    return f"+{reference}" if re.match(r"\d", reference) and _NUMBER.fullmatch(reference) else None


def left_right(reference: str) -> str | None:
    if "\\left" in reference or reference.count("(") + reference.count("[") != len(re.findall(r"[)\]]", reference)):
        return None
    text = re.sub(r"(?<!sqrt)\[|\(", r"\\left\g<0>", reference)
    return _if_changed(reference, re.sub(r"\)|(?<!\d)\](?!\{)|\](?=$| )", r"\\right\g<0>", text))


def no_left_right(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\\(?:left|right)(?![a-zA-Z])\s*", "", reference))


def wide(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\d,(?:\\!)?\d{3}|_", reference):  # spaces matter in words and within a number
        return None
    return _if_changed(reference, re.sub(r"(?<![\^{\\])[-+=,()]", r" \g<0> ", reference).strip())


def narrow(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\\begin|\\\s", reference):
        return None
    # needed between two digits, and after a command before a letter
    return _if_changed(reference, re.sub(r"(?<!\d) +|(?<=\d) +(?!\d)", _space, reference))


def _space(match: re.Match) -> str:
    before, after = match.string[: match.start()], match.string[match.end() :]
    return " " if re.search(r"\\[a-zA-Z]+$", before) and re.match(r"[a-zA-Z]", after) else ""


def thin_spaces(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\\[,!]|\d,\d{3}", reference):
        return None
    return _if_changed(reference, re.sub(r"[,+]", r"\g<0>\\,", reference))


def negative_spaces(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"(?<![a-zA-Z\\^_{])[(\[](?!\{)", r"\\!\g<0>", reference))


def unit_in_text(reference: str) -> str | None:
    return rf"{reference}\text{{ cm}}" if _NUMBER.fullmatch(reference) else None


def square_unit(reference: str) -> str | None:
    return rf"{reference} \text{{ square units}}" if _NUMBER.fullmatch(reference) else None


def powered_unit(reference: str) -> str | None:
    return rf"{reference}\ \mathrm{{m}}^2" if _NUMBER.fullmatch(reference) else None


def plain_unit(reference: str) -> str | None:
    return f"{reference} minutes" if _NUMBER.fullmatch(reference) else None


def without_unit(reference: str) -> str | None:
    match = re.fullmatch(r"(.*\d)\s*\\(?:text|mbox)\{ ?(?:[a-zA-Z]{2,}|square [a-z]+)\}", reference)
    return match[1] if match and not re.search("base|mod|lion", reference) else None


def named(reference: str) -> str | None:
    return f"x = {reference}" if not re.search(r"[=,<>x]|\\[lg]e|\\text|\\in|\\le|\\ge|\\begin", reference) else None


def degree_sign(reference: str) -> str | None:
    return rf"{reference}^\circ" if _NUMBER.fullmatch(reference) else None


def no_degree_sign(reference: str) -> str | None:
    # the sine of 15 degrees is not that of 15
    return None if "tan" in reference else _if_changed(reference, re.sub(r"\s*\^\{?\\circ\}?$", "", reference))


def dollar(reference: str) -> str | None:
    return rf"\${reference}" if re.fullmatch(r"\d+(\.\d+)?", reference) else None


def no_dollar(reference: str) -> str | None:
    return _if_changed(reference, reference.replace(r"\$", ""))


def percent_sign_dropped(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\\?%$", "", reference))


def thousands(reference: str) -> str | None:
    return _if_changed(reference, f"{int(reference):,}") if _INTEGER.fullmatch(reference) else None


def thousands_in_braces(reference: str) -> str | None:
    text = thousands(reference)
    return text and text.replace(",", "{,}")


def thousands_with_spaces(reference: str) -> str | None:
    text = thousands(reference)
    return text and text.replace(",", r",\!")


def no_thousands(reference: str) -> str | None:
    text = re.sub(r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d{3})", "", reference)
    return _if_changed(reference, text)


def reordered_list(reference: str) -> str | None:
    parts = _list(reference)
    return ", ".join(reversed(parts)) if parts else None


def reordered_expressions(reference: str) -> str | None:
    parts = [part.strip() for part in reference.split(",")]
    if (
        len(parts) < 2
        or _list(reference)
        or re.search(r"[()\[\]=<>{,!]\s*,|,\s*\\?[!]|[()\[\]=]|\\text|\\begin", reference)
    ):
        return None
    return ",".join(reversed(parts)) if all(re.search(r"\\sqrt|i$", part) for part in parts) else None


def and_before_the_last(reference: str) -> str | None:
    parts = _list(reference)
    return rf"{', '.join(parts[:-1])} \text{{ and }} {parts[-1]}" if parts else None


def set_of_a_list(reference: str) -> str | None:
    parts = _list(reference)
    return rf"\{{{', '.join(parts)}\}}" if parts else None


def reordered_set(reference: str) -> str | None:
    parts = _list(reference)
    if reference.startswith(r"\{") and reference.endswith(r"\}"):
        parts = _list(reference[2:-2])
    return rf"\{{{', '.join(reversed(parts))}\}}" if parts else None


def expanded(reference: str) -> str | None:
    parsed = _polynomial(reference)
    return None if parsed is None else _if_changed(reference, sympy.latex(sympy.expand(parsed)))


def factored(reference: str) -> str | None:
    parsed = _polynomial(reference)
    return None if parsed is None else _if_changed(reference, sympy.latex(sympy.factor(parsed)))


def terms_reversed(reference: str) -> str | None:
    parsed = _polynomial(reference)
    return None if parsed is None else _if_changed(reference, sympy.latex(sympy.expand(parsed), order="rev-lex"))


def sides_swapped(reference: str) -> str | None:
    left, equals, right = reference.partition("=")
    if not equals or re.search(r"[=<>,;]|\\text|\\(?:left|right)|\\[lg]e|\\begin", left + right):
        return None
    return f"{right} = {left}"


def subtracted(reference: str) -> str | None:
    """An equation as difference = 0."""
    left, equals, right = reference.partition("=")
    if not equals or re.fullmatch(r"\s*[a-zA-Z]\s*", left) is None or re.search(r"[=<>,;]|\\[a-eg-z]", right):
        return None
    return f"{left} - ({right}) = 0" if re.search("[a-z]", right) else None


def cdot(reference: str) -> str | None:
    if re.search(r"\\text|\\begin|_|\\(?:sin|cos|tan|log)", reference):  # no product in the sine of y
        return None
    return _if_changed(reference, re.sub(r"(?<=\d)\s*(\\sqrt|\\pi|[a-hj-z]\b|\()", r" \\cdot \1", reference))


def period(reference: str) -> str | None:
    return f"{reference}."


def dollars_around(reference: str) -> str | None:
    return f"${reference}$"


def display_style(reference: str) -> str | None:
    return rf"\displaystyle {reference}"


def boxed_twice(reference: str) -> str | None:
    return rf"\boxed{{{reference}}}"


def words_without_text(reference: str) -> str | None:
    match = re.fullmatch(r"\\text\{([A-Za-z]+|\([A-Z]\))\}", reference)
    return match[1] if match else None


def words_in_other_type(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"^\\text\{", r"\\textbf{", reference))


def other_brackets_of_a_matrix(reference: str) -> str | None:
    return _if_changed(reference, reference.replace("{pmatrix}", "{bmatrix}"))


def base_in_braces(reference: str) -> str | None:
    match = _BASED.fullmatch(reference)
    return _if_changed(reference, f"{match[1]}_{{{match[2]}}}") if match else None


def unicode_minus(reference: str) -> str | None:
    return _if_changed(reference, reference.replace("-", "−"))


# Another answer.


def sign_flipped(reference: str) -> str | None:
    if not _value(reference):
        return None
    return reference[1:] if reference.startswith("-") else f"-{reference}"


def negated(reference: str) -> str | None:
    return None if _polynomial(reference) is None else f"-({reference})"


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
    if not _INTEGER.fullmatch(reference) and not _DECIMAL.fullmatch(reference):
        return None
    return reference[:-1] + str((int(reference[-1]) + 1) % 10)


def digit_added(reference: str) -> str | None:
    return f"{reference}1" if _INTEGER.fullmatch(reference) and reference != "0" else None


def second_value(reference: str) -> str | None:
    return f"{reference}, 9998" if _NUMBER.fullmatch(reference) else None


def either_value(reference: str) -> str | None:
    return rf"{reference} \text{{ or }} 9998" if _NUMBER.fullmatch(reference) else None


def bound(reference: str) -> str | None:
    return f"x > {reference}" if _NUMBER.fullmatch(reference) else None


def imaginary(reference: str) -> str | None:
    return f"{reference}i" if _value(reference) else None


def imaginary_upright(reference: str) -> str | None:
    return rf"{reference}\mathrm{{i}}" if _value(reference) else None


def to_a_root(reference: str) -> str | None:
    return rf"\sqrt{{{reference}}}" if _INTEGER.fullmatch(reference) and reference not in ("0", "1") else None


def magnitude(reference: str) -> str | None:
    return rf"{reference}\text{{ million}}" if _value(reference) else None


def solution_of_an_equation(reference: str) -> str | None:
    """Says something about x that is not its value."""
    return f"|x| = {reference}" if _value(reference) else None


def numerator_changed(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"(frac\{)(\d+)\}", lambda m: f"{m[1]}{int(m[2]) + 1}}}", reference, count=1))


def denominator_changed(reference: str) -> str | None:
    return _if_changed(
        reference, re.sub(r"(frac\{[1-9]\d*\}\{)(\d+)\}", lambda m: f"{m[1]}{int(m[2]) + 1}}}", reference, count=1)
    )


def inverted(reference: str) -> str | None:
    match = _FRACTION.fullmatch(reference)
    return f"{match[1]}\\frac{{{match[3]}}}{{{match[2]}}}" if match and match[2] != match[3] else None


def root_changed(reference: str) -> str | None:
    return _if_changed(
        reference, re.sub(r"(\\sqrt\{)(\d+)\}", lambda m: f"{m[1]}{int(m[2]) + 1}}}", reference, count=1)
    )


def root_dropped(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\\sqrt\{(\d+)\}", r"\\cdot \1", reference, count=1).removeprefix(r"\cdot "))


def pi_dropped(reference: str) -> str | None:
    text = re.sub(r"(?<=\d)\s*\\pi$", "", reference)
    return _if_changed(reference, text)


def swapped(reference: str) -> str | None:
    found = _coordinates(reference)
    if not found or found[1][0] == found[1][1]:
        return None
    opening, parts, closing = found
    return opening + ", ".join([parts[1], parts[0], *parts[2:]]) + closing


def coordinate_dropped(reference: str) -> str | None:
    found = _coordinates(reference)
    return found[0] + ", ".join(found[1][:-1]) + found[2] if found and len(found[1]) > 2 else None


def coordinate_changed(reference: str) -> str | None:
    found = _coordinates(reference)
    if not found or not _INTEGER.fullmatch(found[1][-1]):
        return None
    opening, parts, closing = found
    return opening + ", ".join([*parts[:-1], str(int(parts[-1]) + 1)]) + closing


def opened(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"(?<!sqrt)\[", "(", reference)) if _PAIR.search(reference) else None


def opened_right(reference: str) -> str | None:
    return _if_changed(reference, re.sub(r"\](?!\{)", ")", reference)) if _PAIR.search(reference) else None


def closed(reference: str) -> str | None:
    """Of an interval that is closed at its other end, or it could be a point."""
    match = _PAIR.fullmatch(reference)
    if not match or match[2] != "(" or match[6] != "]" or "infty" in match[3]:
        return None
    return reference.replace("(", "[", 1)


def union_cut(reference: str) -> str | None:
    first, cup, _ = reference.partition(r"\cup")
    return first.strip() if cup else None


def exponent_changed(reference: str) -> str | None:
    match = _POWER.search(reference)
    if not match or re.search(r"\\(?:text|mbox)", reference):  # of a unit, which the answer may leave out
        return None
    exponent = int(match[1] or match[2]) + 1
    return f"{reference[: match.start()]}^{{{exponent}}}{reference[match.end() :]}"


def element_dropped(reference: str) -> str | None:
    parts = _list(reference)
    return ", ".join(parts[1:]) if parts else None


def element_added(reference: str) -> str | None:
    parts = _list(reference)
    return ", ".join([*parts, "9999"]) if parts else None


def element_changed(reference: str) -> str | None:
    parts = _list(reference)
    return ", ".join([*parts[:-1], "9999"]) if parts else None


def other_base(reference: str) -> str | None:
    match = _BASED.fullmatch(reference)
    return f"{match[1]}_{{{int(match[2]) + 1}}}" if match else None


def other_digits_in_a_base(reference: str) -> str | None:
    match = _BASED.fullmatch(reference)
    return f"{match[1]}0_{{{match[2]}}}" if match else None


def letter_changed(reference: str) -> str | None:
    text = re.sub(r"(?<=text\{)(\(?)([A-Z])(?=\)?\}$)", lambda m: m[1] + chr(65 + (ord(m[2]) - 64) % 26), reference)
    return _if_changed(reference, text)


def word_changed(reference: str) -> str | None:
    return r"\text{Something}" if re.fullmatch(r"\\text\{[A-Za-z]{2,}\}", reference) else None


def variable_changed(reference: str) -> str | None:
    return None if _polynomial(reference) is None else re.sub(r"[a-z]", "u", reference)


def constant_added(reference: str) -> str | None:
    return None if _polynomial(reference) is None else f"{reference} + 1"


def entry_changed(reference: str) -> str | None:
    match = _MATRIX.fullmatch(reference)
    if not match:
        return None
    return _if_changed(reference, re.sub(r"(?<![\d}])\d+(?!\d)", lambda m: str(int(m[0]) + 1), reference, count=1))


def rows_swapped(reference: str) -> str | None:
    match = _MATRIX.fullmatch(reference)
    rows = match[2].split(r"\\") if match else []
    if len(rows) < 2 or rows[0].strip() == rows[1].strip():
        return None
    return match[1] + r" \\ ".join([rows[1], rows[0], *rows[2:]]) + match[3]


def ten_times(reference: str) -> str | None:
    value = _value(reference) if _DECIMAL.fullmatch(reference) else None
    return None if not value else str(float(value * 10))


def nearly(reference: str) -> str | None:
    """A decimal of a fraction, rounded to two digits where that is not exact."""
    value = _value(reference) if _FRACTION.fullmatch(reference) else None
    return None if value is None or 100 % value.denominator == 0 else f"{float(value):.2f}"
