"""The types of answers. Formulas stay LaTeX here; parsing.py makes expressions of them where a verdict needs one."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scalar:
    """A formula: a number or an expression with variables. `unit` is "" if none, or an unknown one, is named.

    `product` is "", or the whole formula where its last letter may also be a variable: the `5 m` of 5 metres.
    """

    latex: str
    unit: str = field(default="", compare=False, repr=False)
    product: str = field(default="", repr=False)
    things: str = field(default="", compare=False, repr=False)  # what it counts: the apples of 5 apples


@dataclass(frozen=True)
class Word:
    """Words in small letters, or the letter of a choice."""

    text: str


@dataclass(frozen=True)
class Time:
    """A time of day: hour, minute and second of each moment that it may be, two where `am` or `pm` is missing."""

    moments: frozenset[tuple[int, int, int]]
    ratio: "Value | None" = None  # what else the text may be: 9:24 is three eighths, too


@dataclass(frozen=True)
class Based:
    """A number in a base, by its digits: `1101_2`."""

    digits: str
    base: int


@dataclass(frozen=True)
class Equation:
    """Two or more sides. Where `names` has a text, the side only names a value: the `x` of `x = 5`."""

    sides: tuple["Value", ...]
    names: tuple[str | None, ...]
    constant: tuple[bool, ...]  # whether a side has no variables
    approximate: bool  # whether a sign is \\approx


@dataclass(frozen=True)
class Relation:
    r"""A chain of sides with one of `<`, `>`, `\le`, `\ge`, `\ne`, `=` between each two."""

    sides: tuple[Scalar, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Items in brackets: `(` or `[` a tuple, `{` a set, "" a list, `:` a ratio. Two items may be an interval."""

    opening: str
    closing: str
    items: tuple["Value", ...]
    names: tuple[str, ...] = ()  # of the items, where they have some, as in p=5, q=2
    alternatives: bool = field(default=False, compare=False, repr=False)  # joined by `or`: 32 or 2^5

    def has_groups(self) -> bool:
        """Whether all items are groups."""
        return all(isinstance(item, Group) for item in self.items)


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple["Value", ...], ...]
    latex: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Region:
    r"""Sets of real numbers, or conditions, that are joined by `operator`: `\cup`, `\cap` or `\setminus`."""

    operator: str
    parts: tuple["Value", ...]


REALS = Group("(", ")", (Scalar(r"-\infty"), Scalar(r"\infty")))
Value = Scalar | Word | Time | Based | Equation | Relation | Group | Matrix | Region
