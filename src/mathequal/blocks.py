r"""Readers of what stands in rows: `\begin{cases}`, `\begin{aligned}`, `\begin{pmatrix}`."""

import re
from collections.abc import Callable

from mathequal.names import NAME, WORD
from mathequal.spelling import Spelled
from mathequal.values import Equation, Group, Matrix, Scalar, Value

Reader = Callable[[Spelled], Value]
"""Reads a part of an answer."""

_LINES = re.compile(
    r"(?:\\\{)?\s*\\begin\{(aligned|align\*?|gathered|split|cases|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}"
)
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}")
_CASES = re.compile(r"(?:([^=]+)=)?\s*(?:\\\{)?\s*\\begin\{(cases|array)\}(?:\{[^{}]*\})?(.*)\\end\{\2\}")
_WHEN = re.compile(r"\b(?:if|for|when|where|is)\b|[ .]+$")


def _rows(block: str) -> list[list[str]]:
    rows = ([entry.strip(" ,;").rstrip(" .") for entry in row.split("&")] for row in block.split(r"\\"))
    return [row for row in rows if any(row)]


def _is_aligned(rows: list[list[str]]) -> bool:
    """Whether the second column begins with relations: `x &= 1`."""
    return all(len(row) == 1 or re.match(r"[=<>]|\\(?:[lg]e|approx)(?![a-z])", row[1]) for row in rows)


def read_cases(text: Spelled, read: Reader) -> Value | None:
    """Read values with the conditions that they have, in any order, as a set of pairs."""
    match = _CASES.fullmatch(text.formula)
    rows = _rows(match[3]) if match else []
    if not match or r"\begin" in match[3] or len(rows) < 2 or {len(row) for row in rows} != {2}:
        return None
    if _is_aligned(rows):  # a system of equations
        return None
    if match[2] == "array" and not all(re.search(rf"[=<>]|\\[lg]e|{WORD}", condition) for _, condition in rows):
        return None  # a matrix
    words = tuple(" ".join(_WHEN.sub("", word).split()) for word in text.words)  # if n is even: n even
    plain = Spelled(text.formula, words)
    rows = [[re.sub(WORD, lambda sign: sign[0] * bool(plain.word(sign[0])), entry) for entry in row] for row in rows]
    pairs = (Group("case", "case", tuple(read(plain.part(entry)) for entry in row)) for row in rows)
    value = Group("{", "}", tuple(pairs))
    name = re.sub(r"\s", "", match[1] or "")
    if not name:
        return value
    if not NAME.fullmatch(name):
        return None
    return Equation((Scalar(name), value), (name, None), (False, False), approximate=False)


def read_lines(text: Spelled, read: Reader) -> Value | None:
    """Read lines below each other, such as a system of equations, as a list."""
    match = _LINES.fullmatch(text.formula)
    rows = _rows(match[2]) if match else []
    may_be_table = match is not None and "&" in match[2] and match[1] in ("cases", "array")
    if not match or r"\begin" in match[2] or (may_be_table and not _is_aligned(rows)):
        return None
    items = ["".join(row) for row in rows]
    return read(text.part(", ".join(items)))


def read_matrix(text: Spelled, read: Reader) -> Value | None:
    match = _MATRIX.fullmatch(text.formula)
    if not match or r"\begin" in match[2]:
        return None
    rows = [row.split("&") for row in match[2].split(r"\\") if row.strip()]
    return Matrix(tuple(tuple(read(text.part(entry)) for entry in row) for row in rows), text.formula)
