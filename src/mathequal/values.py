"""The types of answers.

reading.py reads a text as one of them, and rules.py says when two are equal. No arithmetic is done with them: formulas
stay LaTeX until symbolic.py parses them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scalar:
    """A formula: a number or an expression with variables; `unit` is "" where none or an unknown one is named."""

    latex: str
    unit: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Word:
    """Words in small letters, or the letter of a choice."""

    text: str


@dataclass(frozen=True)
class Time:
    """Of day: hour, perhaps minute and second; `half` is `am`, `pm` or "" where it is not said."""

    clock: tuple[int, ...]
    half: str


@dataclass(frozen=True)
class Based:
    """Digits of a number in a base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Equation:
    """Two or more sides; where `names` has a text, the side is no more than a name for a value."""

    sides: tuple["Value", ...]
    names: tuple[str | None, ...]
    constant: tuple[bool, ...]
    approximate: bool


@dataclass(frozen=True)
class Relation:
    r"""A chain of sides with one of `<`, `>`, `\le`, `\ge`, `\ne`, `=` between each two."""

    sides: tuple[Scalar, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Items in brackets: `(` tuple, `[`, `{` set, "" list, `:` ratio; two in `(` or `[` may be an interval.

    `names` are those that the items were given, as in `p=5, q=2`.
    """

    opening: str
    closing: str
    items: tuple["Value", ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """Rows of entries, and how it is written."""

    rows: tuple[tuple["Value", ...], ...]
    latex: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Region:
    r"""Sets of real numbers joined: `operator` is `\cup`, `\cap` or `\setminus`."""

    operator: str
    parts: tuple["Value", ...]


REALS = Group("(", ")", (Scalar(r"-\infty"), Scalar(r"\infty")))
Value = Scalar | Word | Time | Based | Equation | Relation | Group | Matrix | Region
