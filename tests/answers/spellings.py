r"""Rules that rewrite a reference answer into another spelling of the same.

A rule is a function of the reference that returns the new text, or None where it does not apply.
"""

import re

import sympy
from references import (
    ANY_FRACTION,
    BASED,
    DECIMAL,
    FRACTION,
    INTEGER,
    NUMBER,
    elements,
    if_changed,
    polynomial,
    value_of,
)


def dfrac(reference: str) -> str | None:
    return if_changed(reference, ANY_FRACTION.sub(r"\\dfrac", reference))


def tfrac(reference: str) -> str | None:
    return if_changed(reference, ANY_FRACTION.sub(r"\\tfrac", reference))


def plain_frac(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\\[dt]frac", r"\\frac", reference))


def fraction_without_braces(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", reference))


def half_braceless_fraction(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\\frac\{(\d)\}\{", r"\\frac\1{", reference))


def slash(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    return f"{match[1]}{match[2]}/{match[3]}" if match else None


def minus_in_the_numerator(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    return f"\\frac{{-{match[2]}}}{{{match[3]}}}" if match and match[1] else None


def minus_in_the_denominator(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    return f"\\frac{{{match[2]}}}{{-{match[3]}}}" if match and match[1] else None


def unreduced(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    return f"{match[1]}\\frac{{{3 * int(match[2])}}}{{{3 * int(match[3])}}}" if match else None


def mixed_number(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    if not match or int(match[2]) < int(match[3]) or int(match[2]) % int(match[3]) == 0:
        return None
    whole, rest = divmod(int(match[2]), int(match[3]))
    return f"{match[1]}{whole}\\frac{{{rest}}}{{{match[3]}}}"


def decimal(reference: str) -> str | None:
    value = value_of(reference) if FRACTION.fullmatch(reference) else None
    if value is None or 10**6 % value.denominator:
        return None
    return f"{float(value):.6f}".rstrip("0")


def fraction_of_a_decimal(reference: str) -> str | None:
    value = value_of(reference) if DECIMAL.fullmatch(reference) else None
    return None if value is None else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def trailing_zeros(reference: str) -> str | None:
    return f"{reference}.00" if INTEGER.fullmatch(reference) else None


def plus_sign(reference: str) -> str | None:
    return f"+{reference}" if re.match(r"\d", reference) and NUMBER.fullmatch(reference) else None


def left_right(reference: str) -> str | None:
    if "\\left" in reference or reference.count("(") + reference.count("[") != len(re.findall(r"[)\]]", reference)):
        return None
    text = re.sub(r"(?<!sqrt)\[|\(", r"\\left\g<0>", reference)
    return if_changed(reference, re.sub(r"\)|(?<!\d)\](?!\{)|\](?=$| )", r"\\right\g<0>", text))


def no_left_right(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\\(?:left|right)(?![a-zA-Z])\s*", "", reference))


def wide(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\d,(?:\\!)?\d{3}|_", reference):  # spaces matter in words and within a number
        return None
    return if_changed(reference, re.sub(r"(?<![\^{\\])[-+=,()]", r" \g<0> ", reference).strip())


def narrow(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\\begin|\\\s", reference):
        return None
    # needed between two digits, and after a command before a letter
    return if_changed(reference, re.sub(r"(?<!\d) +|(?<=\d) +(?!\d)", _space, reference))


def _space(match: re.Match) -> str:
    before, after = match.string[: match.start()], match.string[match.end() :]
    return " " if re.search(r"\\[a-zA-Z]+$", before) and re.match(r"[a-zA-Z]", after) else ""


def thin_spaces(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\\[,!]|\d,\d{3}", reference):
        return None
    return if_changed(reference, re.sub(r"[,+]", r"\g<0>\\,", reference))


def negative_spaces(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"(?<![a-zA-Z\\^_{])[(\[](?!\{)", r"\\!\g<0>", reference))


def unit_in_text(reference: str) -> str | None:
    return rf"{reference}\text{{ cm}}" if NUMBER.fullmatch(reference) else None


def square_unit(reference: str) -> str | None:
    return rf"{reference} \text{{ square units}}" if NUMBER.fullmatch(reference) else None


def powered_unit(reference: str) -> str | None:
    return rf"{reference}\ \mathrm{{m}}^2" if NUMBER.fullmatch(reference) else None


def plain_unit(reference: str) -> str | None:
    return f"{reference} minutes" if NUMBER.fullmatch(reference) else None


def without_unit(reference: str) -> str | None:
    match = re.fullmatch(r"(.*\d)\s*\\(?:text|mbox)\{ ?(?:[a-zA-Z]{2,}|square [a-z]+)\}", reference)
    return match[1] if match and not re.search("base|mod|lion", reference) else None


def named(reference: str) -> str | None:
    return f"x = {reference}" if not re.search(r"[=,<>x]|\\[lg]e|\\text|\\in|\\le|\\ge|\\begin", reference) else None


def degree_sign(reference: str) -> str | None:
    return rf"{reference}^\circ" if NUMBER.fullmatch(reference) else None


def no_degree_sign(reference: str) -> str | None:
    # the sine of 15 degrees is not that of 15
    return None if "tan" in reference else if_changed(reference, re.sub(r"\s*\^\{?\\circ\}?$", "", reference))


def dollar(reference: str) -> str | None:
    return rf"\${reference}" if re.fullmatch(r"\d+(\.\d+)?", reference) else None


def no_dollar(reference: str) -> str | None:
    return if_changed(reference, reference.replace(r"\$", ""))


def percent_sign_dropped(reference: str) -> str | None:
    return if_changed(reference, re.sub(r"\\?%$", "", reference))


def thousands(reference: str) -> str | None:
    return if_changed(reference, f"{int(reference):,}") if INTEGER.fullmatch(reference) else None


def thousands_in_braces(reference: str) -> str | None:
    text = thousands(reference)
    return text and text.replace(",", "{,}")


def thousands_with_spaces(reference: str) -> str | None:
    text = thousands(reference)
    return text and text.replace(",", r",\!")


def no_thousands(reference: str) -> str | None:
    text = re.sub(r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d{3})", "", reference)
    return if_changed(reference, text)


def reordered_list(reference: str) -> str | None:
    parts = elements(reference)
    return ", ".join(reversed(parts)) if parts else None


def reordered_expressions(reference: str) -> str | None:
    parts = [part.strip() for part in reference.split(",")]
    if (
        len(parts) < 2
        or elements(reference)
        or re.search(r"[()\[\]=<>{,!]\s*,|,\s*\\?[!]|[()\[\]=]|\\text|\\begin", reference)
    ):
        return None
    return ",".join(reversed(parts)) if all(re.search(r"\\sqrt|i$", part) for part in parts) else None


def and_before_the_last(reference: str) -> str | None:
    parts = elements(reference)
    return rf"{', '.join(parts[:-1])} \text{{ and }} {parts[-1]}" if parts else None


def set_of_a_list(reference: str) -> str | None:
    parts = elements(reference)
    return rf"\{{{', '.join(parts)}\}}" if parts else None


def reordered_set(reference: str) -> str | None:
    parts = elements(reference)
    if reference.startswith(r"\{") and reference.endswith(r"\}"):
        parts = elements(reference[2:-2])
    return rf"\{{{', '.join(reversed(parts))}\}}" if parts else None


def expanded(reference: str) -> str | None:
    parsed = polynomial(reference)
    return None if parsed is None else if_changed(reference, sympy.latex(sympy.expand(parsed)))


def factored(reference: str) -> str | None:
    parsed = polynomial(reference)
    return None if parsed is None else if_changed(reference, sympy.latex(sympy.factor(parsed)))


def terms_reversed(reference: str) -> str | None:
    parsed = polynomial(reference)
    return None if parsed is None else if_changed(reference, sympy.latex(sympy.expand(parsed), order="rev-lex"))


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
    return if_changed(reference, re.sub(r"(?<=\d)\s*(\\sqrt|\\pi|[a-hj-z]\b|\()", r" \\cdot \1", reference))


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
    return if_changed(reference, re.sub(r"^\\text\{", r"\\textbf{", reference))


def other_brackets_of_a_matrix(reference: str) -> str | None:
    return if_changed(reference, reference.replace("{pmatrix}", "{bmatrix}"))


def base_in_braces(reference: str) -> str | None:
    match = BASED.fullmatch(reference)
    return if_changed(reference, f"{match[1]}_{{{match[2]}}}") if match else None


def unicode_minus(reference: str) -> str | None:
    return if_changed(reference, reference.replace("-", "−"))
