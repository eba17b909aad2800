r"""The types of answers, and the readers of those without parts: words, times of day, numbers in a
base, formulas.

Formulas stay LaTeX here. formula.py makes expressions of them where a verdict needs one.
"""

import re
from dataclasses import dataclass, field

from mathequal import words
from mathequal.words import GREEK, PRIVATE, TRIGONOMETRIC, WORD, moved, plain_number, shown, unit


@dataclass(frozen=True)
class Scalar:
    """A formula: a number or an expression with variables. `unit` is "" if none, or an unknown one,
    is named.

    `product` is "", or the whole formula where its last letter may also be a variable: the `5 m` of
    5 metres.
    """

    latex: str
    unit: str = field(default="", compare=False, repr=False)
    product: str = field(default="", repr=False)
    # What it counts: the apples of 5 apples
    things: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Word:
    """Words in small letters, or the letter of a choice."""

    text: str


@dataclass(frozen=True)
class Equation:
    """Two or more sides. Where `names` has a text, the side only names a value: the `x` of `x =
    5`.
    """

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
    """Items in brackets: `(` or `[` a tuple, `{` a set, "" a list, `:` a ratio. Two items may be an
    interval.

    A matrix is a group of rows, that is, opened by "rows". If it has only one row or column, it is
    that "row" or "column".
    """

    opening: str
    closing: str
    items: tuple["Value", ...]
    names: tuple[str, ...] = ()  # of the items, where they have some, as in p=5, q=2
    # Joined by `or`: 32 or 2^5
    alternatives: bool = field(default=False, compare=False, repr=False)
    latex: str = field(default="", compare=False, repr=False)  # of a matrix


@dataclass(frozen=True)
class Region:
    r"""Sets of real numbers, or conditions, that are joined by `operator`: `\cup`, `\cap` or
    `\setminus`.
    """

    operator: str
    parts: tuple["Value", ...]


REALS = Group("(", ")", (Scalar(r"-\infty"), Scalar(r"\infty")))
Value = Scalar | Word | Equation | Relation | Group | Region

_FUNCTION = rf"\\(?:{TRIGONOMETRIC})(?![a-zA-Z])"
TRIGONOMETRY = re.compile(_FUNCTION)

LETTER = rf"(?:[a-zA-Z]|\\(?:{GREEK}))"
_POINTS = r"[A-Z](?:\s*[A-Z]){1,3}'?"  # two to four points of a figure: AB, A B C, ABCD'
_RATIO_TERM = rf"(?:[a-zA-Z](?:_(?:\w|\{{\w+\}}))?|{_POINTS})"
_RATIO_PART = rf"(?:{_POINTS}|\[{_POINTS}\]|d?[a-z])"

NAME = re.compile(
    "|".join(
        (
            # x, x', a_1, a_{n+1}, f^{-1}, f(x), f'(2), P(A \cap (B))
            rf"(?:{LETTER}|\\(?:bar|hat|tilde|dot)\s*\{{?\w\}}?)'*\s*(?:_(?:\w|\{{[^{{}}]+\}}))?'*(?:\^\{{-1\}})?\s*(?:\((?:[^()]|\([^()]*\))+\))?",
            # AB, area, but not xy, which is a product
            r"(?![xyz]+(?![a-zA-Z]))[a-zA-Z]{2,}'?",
            # |AB| and |z|, but not |x|; [ABC], which is an area
            rf"\|(?:{_POINTS}|[uvwz])\||\[{_POINTS}\]",
            # A \cap B, \langle E\rangle
            rf"[A-Z](?:\s*\\(?:cap|cup|setminus)\s*[A-Z])+|\\langle\s*{LETTER}\s*\\rangle",
            # (x, y)
            rf"\({LETTER}(?:,\s*{LETTER})+\)",
            # \angle ABC, m\angle 1, \triangle{ABC}
            rf"(?:m|{moved('m')})?\s*\\(?:measured)?(?:angle|triangle)\s*(?:\{{[A-Z\s]+\}}|(?:[A-Z]\s*(?:_\d)?\s*)+|\d|{LETTER})",
            # \Delta p
            r"\\Delta\s*[a-zA-Z](?:_\w)?",
            # \frac{AB}{CD}, \frac{dy}{dx}, \frac{a}{b}
            rf"\\frac\{{{_RATIO_PART}\}}\{{{_RATIO_PART}\}}",
            # a:b:c, V_1:V_2, AB:BC
            rf"{_RATIO_TERM}(?:\s*:\s*{_RATIO_TERM})+",
            # \sin A, \cos \angle ABC, \tan\theta
            rf"{_FUNCTION}\s*(?:[A-Z]|\\angle\s*[A-Z]+|\\(?:{GREEK}))",
            # words: \text{Area}, \text{Area of } \triangle ABC
            rf"(?:{WORD}\s*)+(?:[A-Z]|\([^()=]*\)|(?:\\triangle\s*)?{_POINTS})?",
        )
    )
)

_TERM = r"(?:[fgh]\(-?\d+\)|(?:[a-wA-W]|[xyz](?=_))(?:_(?:\w|\{\w+\}))?)"
# Only one way to match white space: COMBINATION repeats this, and two ways each time would be 2^n
# in all.
_JOINT = r"\s*(?:(?:[-+]|\\cdot\s)\s*)?"
COMBINATION = re.compile(
    rf"{_TERM}(?:{_JOINT}{_TERM})+|{_TERM}\^(?P<power>\d)(?:{_JOINT}{_TERM}\^(?P=power))+"
    rf"|{_FUNCTION}\s*(?:\^\d)?\s*(?:\d?\s*{LETTER}|\\frac\{{{LETTER}\}}\{{\d\}})"
)
"""What problems ask for: `m+n` and `\\sin 2x`. A sum of `x`, `y` and `z` would be a line or a
plane."""

# Commands and letters that are no variables, and a unit behind a number
_CONSTANT = re.compile(
    rf"{_FUNCTION}|\\(?:frac|sqrt|cdot|pi|binom|ln|log|exp|gcd|lcm|max|min|[lr]floor|[lr]ceil|degree|percent|infty|pm|mp)"
    rf"(?![a-zA-Z])|[ei](?![a-zA-Z])|(?<=\d)\s*{WORD}+$"
)


def is_constant(formula: str) -> bool:
    """Whether `formula` has no variable, that is, no letters but those of functions, `e` and
    `i`.
    """
    return not re.search(rf"[a-zA-Z]|{WORD}", _CONSTANT.sub(" ", formula))


# Words before a number that make no difference: "about 5"
_PREFACE_WORDS = ("about", "approximately", "roughly", "around", "answer")
_PREFACE = re.compile(rf"^(?:{'|'.join(map(moved, _PREFACE_WORDS))})(?!{PRIVATE})\s*")


def read_words(text: str) -> Value | None:
    """Read an answer of words alone, or a list of them."""
    if not re.fullmatch(rf"(?={WORD})(?:{PRIVATE}|[\s\d])*", text) or _PREFACE.match(text):
        return None
    phrase = _bare(shown(text))
    amount, _, name = phrase.rpartition(" ")
    number = words.number_in_words(amount if unit(name) else phrase)  # ten hours
    if number is not None or words.INFINITELY_MANY.fullmatch(phrase):
        return Scalar(r"\infty" if number is None else str(number), unit(name) or "")
    if phrase in ("all real numbers", "all reals", "real numbers"):
        return REALS
    phrases = [_bare(part) for part in re.split(r",(?:\s*and\b)?|;|\band\b", shown(text))]
    return (
        Group("", "", tuple(map(Word, phrases)))
        if len(phrases) > 1 and all(phrases)
        else Word(phrase)
    )


# "the series converges absolutely by the ratio test" is "absolutely convergent"
_CONVERGENCE = re.compile(
    r"(con|di)verge(?:s|nt)(?: (\w+ly))?(?: by .*(?:test|criterion)|,? (?:because|since)\b.*)?$"
)
_NEEDLESS = re.compile(
    r"^(?:(?:the|this) (?:\w+ )?(?:series|integral|sequence) (?=.*vergent)(?:is )?|(?:an?|the) "
    r"(?=\w\w)|(?:option|choice|answer) )|(?<=not )an? | (?<=ary |ent )condition$"
)


def _bare(phrase: str) -> str:
    """Return `phrase` without an article, and the letter of a choice alone: `b` for `option
    (b)`.
    """
    phrase = _CONVERGENCE.sub(r"\2 \1vergent", phrase.strip()).strip()
    return re.sub(r"^\(([a-z0-9])\)$", r"\1", _NEEDLESS.sub("", phrase))


# 8:34 p.m., 8:34:05 am, 8 am; without `am` or `pm` it is read as a ratio
_CLOCK = re.compile(rf"(\d{{1,2}})\s*(?::\s*(\d\d))?\s*(?::\s*(\d\d))?\s*({WORD})", re.ASCII)


def read_clock(text: str) -> Word | None:
    """Read a time of day as the word 20:34:00."""
    match = _CLOCK.fullmatch(text)
    half = re.sub(r"[. ]", "", shown(match[4])) if match else ""
    if not match or half not in ("am", "pm") or int(match[1]) > 24:
        return None
    hour = int(match[1]) % 12 + 12 * (half == "pm")
    return Word(f"{hour}:{match[2] or '00'}:{match[3] or '00'}")


# Digits: 1101, -37, 1A, AB5, (1101), or a word that holds them; the base: _2, _{12}, _{two}, or
# "base 2" behind them
_DIGITS = rf"(-?[0-9][0-9a-zA-Z]*|[A-F]+[0-9][0-9A-F]*|\(-?[0-9][0-9a-zA-Z]*\)|{WORD})"
_BASED = re.compile(
    rf"{_DIGITS}\s*(?:_(?:(\w|{WORD})|\{{\s*\(?\s*(\w+|{WORD}\s*\d*)\s*\)?\s*\}})|(?P<in_words>{WORD}\s*\d*))"
)
_BASE = re.compile(r"(\(?(?:in )?base )?(\w+)\)?")


def read_based(text: str) -> Scalar | None:
    """Read a number in a base, which is its unit: `1101_2` may leave it out."""
    match = _BASED.fullmatch(text)
    base = _BASE.fullmatch(shown(match[2] or match[3] or match[4])) if match else None
    if not match or not base or (match["in_words"] and not base[1]):
        return None
    digits = shown(match[1]).strip("()").casefold()
    try:
        number = (
            words.NUMBER_WORDS.index(base[2]) if base[2] in words.NUMBER_WORDS else int(base[2])
        )
        int(digits, number)
    except ValueError:  # no digits of that base
        return None
    return Scalar(digits, f"base_{number}")


# 5 cm, 5 cm^2, 5 m/s^2, 5 m s^{-1}
_NUMBER_WITH_UNIT = re.compile(rf"(.*?)\s*({WORD}(?:{WORD}|[\s/]|\\cdot|\^\{{?-?\d\}}?)*)")
# 5 m: perhaps metres, perhaps a product, as is 5m
_NUMBER_AND_LETTER = re.compile(r"(-?[\d.,]+(?:\\pi)?)\s*([mshgLJNWV](?:\^\d)?)")

# 2 hours 30, before minutes
_LARGER = re.compile(rf"(\d+)\s*({WORD})\s*(\d+)")
_PARTS_OF_UNITS = {
    "hour": ("minute", 60),
    "minute": ("second", 60),
    "foot": ("inch", 12),
    "pound": ("ounce", 16),
}


def read_formula(text: str) -> Scalar | Word:
    """Read whatever is nothing else: a formula, perhaps with a unit; with other words in it, it
    is a word.
    """
    unit_name, things = "", ""
    formula = _PREFACE.sub("", text)
    # Metres over seconds
    formula = re.sub(rf"\\frac\{{({WORD})\}}\{{({WORD})\}}$", r"\1/\2", formula)
    ending = _NUMBER_WITH_UNIT.fullmatch(formula)
    if ending and re.search(r"\d|\\pi", ending[1]):
        amount = ending[1]
        phrase = re.sub(r"\\cdot|[{}]", " ", shown(ending[2])).strip()
        phrase = re.sub(r"^\(([^()]*)\)$", r"\1", phrase)  # 5 (cm)
        multiple, _, counted = phrase.partition(" ")
        if multiple in words.MULTIPLES:  # 3 million
            number, factor, phrase = plain_number(amount), words.MULTIPLES[multiple], counted
            amount = rf"({amount})\cdot {factor}" if number is None else str(number * factor)
        found = unit(phrase) if phrase else ""
        larger = _LARGER.fullmatch(amount)
        part, factor = (
            _PARTS_OF_UNITS.get(unit(shown(larger[2])) or "", ("", 0)) if larger else ("", 0)
        )
        if larger and factor and part == found:
            amount = str(int(larger[1]) * factor + int(larger[3]))
        if found is not None:
            formula, unit_name, things = amount, found, "" if found else phrase
    letter = _NUMBER_AND_LETTER.fullmatch(formula)
    if letter:
        return Scalar(letter[1], unit(letter[2].lower()) or "", formula)
    if re.search(WORD, formula):
        return Word(shown(text))
    for sign in ("percent", "degree"):
        if formula.endswith(rf"\{sign}") and not (
            sign == "degree" and TRIGONOMETRY.search(formula)
        ):
            return Scalar(formula.removesuffix(rf"\{sign}").strip(), sign)
    return Scalar(formula, unit_name, things=things)
