r"""Rules that rewrite a reference answer into another spelling of the same."""

import re

import sympy
from references import (
    BASED,
    DECIMAL,
    FRACTION,
    INTEGER,
    NUMBER,
    Rules,
    elements,
    if_changed,
    polynomial,
    value_of,
    whole,
)

SAME = Rules()
_NO_EQUATION = r"[=,<>x]|\\[lg]e|\\text|\\in|\\le|\\ge|\\begin"
_THOUSANDS = r"(?<=\d)(?=(?:\d{3})+\Z)"

SAME.rows(
    ("dfrac", 700, r"\\frac(?![a-zA-Z])", r"\\dfrac"),
    ("tfrac", 700, r"\\frac(?![a-zA-Z])", r"\\tfrac"),
    ("plain_frac", 100, r"\\[dt]frac", r"\\frac"),
    ("fraction_without_braces", 100, r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2"),
    ("half_braceless_fraction", 200, r"\\frac\{(\d)\}\{", r"\\frac\1{"),
    ("slash", 400, whole(FRACTION), r"\1\2/\3"),
    ("minus_in_the_numerator", 40, whole(r"-\\[dt]?frac\{(\d+)\}\{(\d+)\}"), r"\\frac{-\1}{\2}"),
    ("minus_in_the_denominator", 40, whole(r"-\\[dt]?frac\{(\d+)\}\{(\d+)\}"), r"\\frac{\1}{-\2}"),
    ("unreduced", 400, whole(FRACTION), lambda m: rf"{m[1]}\frac{{{3 * int(m[2])}}}{{{3 * int(m[3])}}}"),
    ("sides_swapped", 40, whole("([^=]*)=([^=]*)"), r"\2 = \1", r"[<>,;]|\\text|\\(?:left|right)|\\[lg]e|\\begin"),
    ("trailing_zeros", 800, whole(INTEGER), r"\g<0>.00"),
    ("plus_sign", 800, whole(rf"(?=\d)(?:{NUMBER.pattern})"), r"+\g<0>"),
    ("no_left_right", 90, r"\\(?:left|right)(?![a-zA-Z])\s*", ""),
    # spaces matter in words and within a number
    ("wide", 900, r"(?<![\^{\\])[-+=,()]", r" \g<0> ", r"\\text|\\mbox|\d,(?:\\!)?\d{3}|_"),
    ("thin_spaces", 500, r"[,+]", r"\g<0>\\,", r"\\text|\\mbox|\\[,!]|\d,\d{3}"),
    ("negative_spaces", 200, r"(?<![a-zA-Z\\^_{])[(\[](?!\{)", r"\\!\g<0>"),
    ("unit_in_text", 1400, whole(NUMBER), r"\g<0>\\text{ cm}"),
    ("square_unit", 1400, whole(NUMBER), r"\g<0> \\text{ square units}"),
    ("powered_unit", 1400, whole(NUMBER), r"\g<0>\\ \\mathrm{m}^2"),
    ("plain_unit", 1400, whole(NUMBER), r"\g<0> minutes"),
    ("degree_sign", 1400, whole(NUMBER), r"\g<0>^\\circ"),
    (
        "without_unit",
        40,
        whole(r"(.*\d)\s*\\(?:text|mbox)\{ ?(?:[a-zA-Z]{2,}|square [a-z]+)\}"),
        r"\1",
        "base|mod|lion",
    ),
    ("named", 2200, whole(".+"), r"x = \g<0>", _NO_EQUATION),
    ("no_degree_sign", 60, r"\s*\^\{?\\circ\}?$", "", "tan"),  # the sine of 15 degrees is not that of 15
    ("dollar", 800, whole(r"\d+(\.\d+)?"), r"\\$\g<0>"),
    ("no_dollar", 30, r"\\\$", ""),
    ("percent_sign_dropped", 20, r"\\?%$", ""),
    ("thousands", 200, _THOUSANDS, ",", r"[^\d-]"),
    ("thousands_in_braces", 200, _THOUSANDS, "{,}", r"[^\d-]"),
    ("thousands_with_spaces", 200, _THOUSANDS, r",\\!", r"[^\d-]"),
    ("no_thousands", 40, r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d{3})", ""),
    # no product in the sine of y
    ("cdot", 400, r"(?<=\d)\s*(\\sqrt|\\pi|[a-hj-z]\b|\()", r" \\cdot \1", r"\\text|\\begin|_|\\(?:sin|cos|tan|log)"),
    ("period", 3000, whole(".+"), r"\g<0>."),
    ("dollars_around", 3000, whole(".+"), r"$\g<0>$"),
    ("display_style", 3000, whole(".+"), r"\\displaystyle \g<0>"),
    ("boxed_twice", 3000, whole(".+"), r"\\boxed{\g<0>}"),
    ("words_without_text", 30, whole(r"\\text\{([A-Za-z]+|\([A-Z]\))\}"), r"\1"),
    ("words_in_other_type", 40, r"^\\text\{", r"\\textbf{"),
    ("other_brackets_of_a_matrix", 100, r"\{pmatrix\}", "{bmatrix}"),
    ("base_in_braces", 30, whole(BASED), r"\1_{\2}"),
    ("unicode_minus", 600, "-", "−"),
)


@SAME.rule(100)
def mixed_number(reference: str) -> str | None:
    match = FRACTION.fullmatch(reference)
    if not match or int(match[2]) < int(match[3]) or int(match[2]) % int(match[3]) == 0:
        return None
    whole_part, rest = divmod(int(match[2]), int(match[3]))
    return f"{match[1]}{whole_part}\\frac{{{rest}}}{{{match[3]}}}"


@SAME.rule(100)
def decimal(reference: str) -> str | None:
    value = value_of(reference) if FRACTION.fullmatch(reference) else None
    if value is None or 10**6 % value.denominator:
        return None
    return f"{float(value):.6f}".rstrip("0")


@SAME.rule(100)
def fraction_of_a_decimal(reference: str) -> str | None:
    value = value_of(reference) if DECIMAL.fullmatch(reference) else None
    return None if value is None else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


@SAME.rule(200)
def left_right(reference: str) -> str | None:
    if "\\left" in reference or reference.count("(") + reference.count("[") != len(re.findall(r"[)\]]", reference)):
        return None
    text = re.sub(r"(?<!sqrt)\[|\(", r"\\left\g<0>", reference)
    return if_changed(reference, re.sub(r"\)|(?<!\d)\](?!\{)|\](?=$| )", r"\\right\g<0>", text))


@SAME.rule(500)
def narrow(reference: str) -> str | None:
    if re.search(r"\\text|\\mbox|\\begin|\\\s", reference):
        return None
    # needed between two digits, and after a command before a letter
    return if_changed(reference, re.sub(r"(?<!\d) +|(?<=\d) +(?!\d)", _space, reference))


def _space(match: re.Match) -> str:
    before, after = match.string[: match.start()], match.string[match.end() :]
    return " " if re.search(r"\\[a-zA-Z]+$", before) and re.match(r"[a-zA-Z]", after) else ""


@SAME.rule(11)
def reordered_expressions(reference: str) -> str | None:
    parts = [part.strip() for part in reference.split(",")]
    is_other = re.search(r"[()\[\]=<>{,!]\s*,|,\s*\\?[!]|[()\[\]=]|\\text|\\begin", reference)
    if len(parts) < 2 or elements(reference) or is_other:
        return None
    return ",".join(reversed(parts)) if all(re.search(r"\\sqrt|i$", part) for part in parts) else None


@SAME.rule(40)
def reordered_set(reference: str) -> str | None:
    is_set = reference.startswith(r"\{") and reference.endswith(r"\}")
    parts = elements(reference[2:-2] if is_set else reference)
    return rf"\{{{', '.join(reversed(parts))}\}}" if parts else None


for _name, _join in (
    ("reordered_list", lambda parts: ", ".join(reversed(parts))),
    ("and_before_the_last", lambda parts: rf"{', '.join(parts[:-1])} \text{{ and }} {parts[-1]}"),
    ("set_of_a_list", lambda parts: rf"\{{{', '.join(parts)}\}}"),
):

    def _list(reference: str, join=_join) -> str | None:
        parts = elements(reference)
        return join(parts) if parts else None

    SAME[_name], SAME.least[_name] = _list, 40


for _name, _form in (
    ("expanded", lambda parsed: sympy.latex(sympy.expand(parsed))),
    ("factored", lambda parsed: sympy.latex(sympy.factor(parsed))),
    ("terms_reversed", lambda parsed: sympy.latex(sympy.expand(parsed), order="rev-lex")),
):

    def _polynomial(reference: str, form=_form) -> str | None:
        parsed = polynomial(reference)
        return None if parsed is None else if_changed(reference, form(parsed))

    SAME[_name], SAME.least[_name] = _polynomial, 100


@SAME.rule(15)
def subtracted(reference: str) -> str | None:
    """An equation as difference = 0."""
    left, equals, right = reference.partition("=")
    if not equals or re.fullmatch(r"\s*[a-zA-Z]\s*", left) is None or re.search(r"[=<>,;]|\\[a-eg-z]", right):
        return None
    return f"{left} - ({right}) = 0" if re.search("[a-z]", right) else None
