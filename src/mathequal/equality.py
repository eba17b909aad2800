r"""Find the final answer in a text, and decide at once whether it equals a reference where that is cheap.

`quick_verdict` settles most pairs in microseconds. Where formulas must be parsed and evaluated, which can take seconds
or gigabytes, it returns None, and symbolic.py decides in a process that can be killed. No text is ever evaluated as
Python.
"""

import re
from collections import deque
from fractions import Fraction

from mathequal import equations  # noqa: F401
from mathequal.numbers import fewest_decimal_places, is_rounded, plain_number
from mathequal.reading import read
from mathequal.rules import Judge, Undecided, equal
from mathequal.spelling import spelled
from mathequal.values import Scalar, Value

MAX_LENGTH = 500
"""Characters. A longer answer is right only if it is the reference letter by letter (the longest of MATH has 159)."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*(\{?)")
# How the content of \boxed 7 and \boxed\frac12 begins, but not that of "in \boxed format", and what it ends before
_WITHOUT_BRACES = re.compile(r"[-+(\[]?\s*(?:\.?\d|\\[a-zA-Z{$]|[a-zA-Z](?![a-zA-Z]))")
_END_WITHOUT_BRACES = re.compile(r"(?<!\\)\$|\n|\\[)\]]")
# In `\\{` the second backslash ends a line break, and does not escape the brace.
_BRACES = re.compile(r"\\[\\{}]|\{+|\}+")
SEARCHED, MAX_BRACES = 120_000, 5_000
"""Characters at the end of a text that are searched for a box, and braces that are looked at to find the end of one, so
that no text takes longer than some milliseconds."""


def final_answer(text: str, tags: bool = False) -> str | None:
    r"""Return the content of the last complete `\boxed{...}` or `\boxed 7` of `text`, stripped; None if there is none.

    With `tags`, only the last complete `<answer>...</answer>` is searched, if there is one; without a box in it, its
    whole content is the answer. Takes milliseconds, however long `text` is and however its braces are nested.

    >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{3}{4}}, not \boxed{5")
    '\\frac{3}{4}'
    >>> final_answer(r"<think>\boxed{1}</think><answer>2</answer>", tags=True)
    '2'
    """
    if tags:
        before, closing_tag, _ = text.rpartition("</answer>")
        _, opening_tag, content = before.rpartition("<answer>")
        if closing_tag and opening_tag:
            return final_answer(content) or content.strip()
    text = text[-SEARCHED:]
    seen, end = 0, len(text)
    for box in reversed(deque(_BOX.finditer(text), maxlen=MAX_BRACES)):
        if not box[1] and not _WITHOUT_BRACES.match(text, box.end()):
            continue
        if not box[1]:
            content = _END_WITHOUT_BRACES.split(text[box.end() : box.end() + MAX_LENGTH], maxsplit=1)[0]
            if content.count("}") > content.count("{"):  # of a box around it
                content = content[: content.rindex("}")]
            return content.strip()
        depth = 1
        for braces in _BRACES.finditer(text, box.end(), end):
            token = braces[0]
            if token[0] == "}" and len(token) >= depth:
                return text[box.end() : braces.start() + depth - 1].strip()
            depth += len(token) if token[0] == "{" else -len(token) if token[0] == "}" else 0
            seen += 1
            if seen == MAX_BRACES:
                return None
        # This box has no end, so a box around it has none either: an earlier box must end before this one begins.
        end = box.start()
    return None


def simple_number(text: str) -> Fraction | None:
    """Return the value of digits with at most a minus sign and a decimal point, None for anything else.

    Uses no regular expression, so that no text takes long.

    >>> simple_number("-1.50"), simple_number("1/2")
    (Fraction(-3, 2), None)
    """
    size = text.removeprefix("-")
    whole, point, decimals = size.partition(".")
    if len(size) > 30 or not (size.isascii() and whole.isdigit() and (decimals.isdigit() or not point)):
        return None
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    return value if size == text else -value


def instant_verdict(reference: str, answer: str) -> bool | None:
    """Whether the two are equal, as long as comparing strings or simple numbers can tell; else None.

    This is safe to call in a training process: it takes microseconds whatever the texts are.
    """
    reference, answer = reference.strip(), answer.strip()
    if not answer or not reference:
        return False
    if reference == answer:
        return True
    if max(len(reference), len(answer)) > MAX_LENGTH:
        return False
    one, other = simple_number(reference), simple_number(answer)
    if one is None or other is None:
        return None
    if one != other and "." in reference and "." in answer:
        return None  # one may be the other rounded
    return one == other


def normal_form(text: str) -> str:
    r"""Return one text for answers that read alike, whatever their spelling and unit. Equal answers may still differ.

    >>> normal_form(r"$\dfrac12\text{ cm}^2$.") == normal_form("1/2")
    True
    """
    value = read(text)
    exact = plain_number(value.latex) if isinstance(value, Scalar) else None
    return repr(value) if exact is None else str(exact)


# White space, but not between digits: 1 1/2 is not 11/2.
_NEEDLESS_SPACE = re.compile(r"(?<!\d)\s+|\s+(?![\d.])")
# A single letter that is no constant, as `e` and `i` are
_VARIABLE = re.compile("[a-df-hj-zA-HJ-Z]")


def _quick_same_value(first: Scalar, second: Scalar) -> bool:
    texts = [_NEEDLESS_SPACE.sub("", scalar.latex) for scalar in (first, second)]
    if texts[0] == texts[1] or "" in texts:
        return texts[0] == texts[1] != ""
    one, other = plain_number(first.latex), plain_number(second.latex)
    if one is not None and other is not None:
        return one == other or is_rounded(one, other, fewest_decimal_places(first.latex, second.latex))
    if len(texts[0]) == 1 and texts[0].casefold() == texts[1].casefold():  # choices
        return True
    if any(map(_VARIABLE.fullmatch, texts)) and (one, other) != (None, None):  # x is not 5
        return False
    raise Undecided


def _undecided(first: Value, second: Value) -> bool:
    raise Undecided


QUICK = Judge(_quick_same_value, *[_undecided] * 6)


def quick_verdict(reference: str, answer: str) -> bool | None:
    r"""Whether the two are equal where that is cheap to see, None where it takes symbolic.py. Symmetric.

    An empty answer is wrong whatever the reference. A hostile text can take long.
    """
    instant = instant_verdict(reference, answer)
    if instant is not None:
        return instant
    reference, answer = reference.strip(), answer.strip()
    try:
        return verdict(reference, answer, QUICK)
    except Undecided:
        return None


# The references 9.9 \pm 0.1 and "about 18.9"
_TOLERANCE = re.compile(r"\$?\s*(-?\d+(?:\.\d+)?)\s*\\pm\s*(\d*\.\d+)\s*\$?")
_ABOUT = re.compile(r"\s*(?:\\text\s*\{\s*)?(?:about|approximately|roughly|around|\$?\s*\\approx|≈)", re.IGNORECASE)


# Letters for any whole number beside \pi, and for any constant behind a formula in x
_ANY_NUMBER = (
    re.compile(
        r"(?=.*(?:\\pi|\\mathbb\s*\{?\s*Z))(?:\\(?:[a-zA-Z]++|[^a-zA-Z])|[^kmnl\\])*?(?<![a-zA-Z\\])([kmnl])(?![a-zA-Z])"
    ),
    re.compile(r".*[xtyu].*\+\s*([cCkK])[\s.$]*$"),
)
# A C or c_1 that may be a constant of integration
_MAYBE_CONSTANT = re.compile(r"(?<![a-zA-Z\\])(?:C|c\s*_)")
_LETTER = re.compile(r"(?<![a-zA-Z\\])(?<!\\mathbb\{)(?<!\\mathbb )[a-zA-Z](?![a-zA-Z])")
# x=\pi k, a list of such, or \pi k for k in \mathbb{Z}; the angles (n-2)\pi of a polygon are no family
_FAMILY = re.compile(
    r"(?!.*(?:[<>]|\\[gl]e|\\mathbb\s*\{?\s*(?:N|Z\s*\}?\s*[_^])|natural|positive|negative))"
    r"(?=.*(?:\\pi|\\circ|°|π|\\mathbb\s*\{?\s*Z|ℤ))"
    r"(?=.*(?:\\mathbb\s*\{?\s*Z|ℤ|integer|\\pm|,|;|\bor\b)|\s*\$?\s*(?:[xtz]|\\(?:theta|alpha|varphi|phi))\s*=)"
    r".*(?<![a-zA-Z\\])[kmnl](?![a-zA-Z])"
)
_OF_ALL_INTEGERS = re.compile(r"\\mathbb\s*\{?\s*Z|ℤ|integer|\\pm|,|;|\bor\b")


def _with_same_letters(reference: str, answer: str) -> tuple[str, str]:
    r"""Return both with one name for a number that may be any, \pi k and \pi n, and for a letter in either case."""
    letters, others = set(_LETTER.findall(answer)), set(_LETTER.findall(reference))
    bare = {letter.casefold() for letter in re.findall(_LETTER.pattern + r"(?!\s*_|[1-9])", f"{reference} {answer}")}
    single = {letter for letter in "abcdeiABCDEI" if letter.casefold() in bare}  # choices and constants, but not C_1
    names = {letter: letter.swapcase() for letter in letters - single}
    for pattern in _ANY_NUMBER:
        matches = pattern.match(reference), pattern.match(answer)
        if matches[0] and matches[1]:
            names[matches[1][1]] = matches[0][1]
    new_names = {old: new for old, new in names.items() if new in others - letters and old not in others}
    return reference, _LETTER.sub(lambda match: new_names.get(match[0], match[0]), answer)


# C. x = 42, Option C: 42 and \\textbf{(C) }42
_CHOICE_WITH_TEXT = re.compile(
    r"\s*\$?\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*(?:[oO]ption\s+)?(?:\(([A-J])\)|([A-J])\}?[).:])"
    r"(?=[\s}~]|\\[ ,;:!q]|$)\s*\}?(?P<rest>.*)"
)


def _choice(text: str) -> tuple[str, str]:
    r"""Return C and `42` for `\textbf{(C) }42`, two empty texts for what begins with no choice or names another."""
    match = _CHOICE_WITH_TEXT.fullmatch(text)
    if match is None or re.search(r"(?<![a-zA-Z\\])[A-J](?![a-zA-Z])|\b(?:or|not|and|nor)\b", match["rest"]):
        return "", ""
    rest = match["rest"].strip(" $")
    return match[1] or match[2], rest[:-1] if rest.count("}") > rest.count("{") else rest


def verdict(reference: str, answer: str, judge: Judge) -> bool:
    """Whether the two are equal. Symmetric, but only the reference may be inexact: 9.9 ± 0.1, about 18.9."""
    texts = [re.sub(r"(?<![\d,])\s+|(?<=\d)\s+(?![\d.])", "", spelled(text).text()) for text in (reference, answer)]
    choices = _choice(reference), _choice(answer)
    bare = [text.strip("()").upper() for text in texts]  # B for \\textbf{(B)}
    if texts[0] == texts[1] != "" or bare[0] == choices[1][0] != "" or bare[1] == choices[0][0] != "":
        return True
    expected, given = map(read, _with_same_letters(reference, answer))
    if equal(expected, given, judge):
        return True
    are_families = _FAMILY.match(reference) and _FAMILY.match(answer) and _OF_ALL_INTEGERS.search(reference + answer)
    if are_families and judge.same_families(expected, given):
        return True
    has_constant = _MAYBE_CONSTANT.search(reference) or _MAYBE_CONSTANT.search(answer)
    if has_constant and judge.same_functions(read(reference), read(answer)):
        return True
    values = choices[0][1], choices[1][1]
    if bool(values[0]) != bool(values[1]) and equal(read(values[0] or reference), read(values[1] or answer), judge):
        return True
    if not isinstance(given, Scalar):
        return False
    inexact, number = _TOLERANCE.fullmatch(reference), plain_number(given.latex)
    if inexact and number is not None:
        center, tolerance = Fraction(inexact[1]), Fraction(inexact[2])
        # A large tolerance is more likely a formula with two values, such as 1 \pm 0.5.
        return tolerance * 10 <= abs(number) and abs(number - center) <= tolerance
    return bool(_ABOUT.match(reference)) and isinstance(expected, Scalar) and judge.rounded(given, expected)
