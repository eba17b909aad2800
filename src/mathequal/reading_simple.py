r"""Readers of answers without parts: words, times of day, numbers in a base, and formulas with a unit."""

import re

from mathequal.names import TRIGONOMETRY, WORD
from mathequal.numbers import NUMBER_WORDS, number_in_words, plain_number
from mathequal.sentences import INFINITELY_MANY
from mathequal.spelling import Spelled
from mathequal.units import MULTIPLES, unit
from mathequal.values import REALS, Based, Group, Scalar, Time, Value, Word

# Words before a number that make no difference: "about 5"
_PREFACES = ("about", "approximately", "roughly", "around", "answer")


def read_words(text: Spelled) -> Value | None:
    """Read an answer of words alone, or a list of them."""
    if not re.fullmatch(rf"{WORD}[{WORD[1:-1]}\s\d]*", text.formula) or text.word(text.formula[0]) in _PREFACES:
        return None
    phrase = _bare(text.text())
    number = number_in_words(phrase)
    if number is not None or INFINITELY_MANY.fullmatch(phrase):
        return Scalar(r"\infty" if number is None else str(number))
    if counted := _counted(phrase):
        return counted
    if phrase in ("all real numbers", "all reals", "real numbers"):
        return REALS
    phrases = [_bare(part) for part in re.split(r",(?:\s*and\b)?|;|\band\b", text.text())]
    return Group("", "", tuple(map(Word, phrases))) if len(phrases) > 1 and all(phrases) else Word(phrase)


def _counted(phrase: str) -> Scalar | None:
    """Read `ten hours`."""
    words = phrase.split()
    for end in range(len(words) - 1, 0, -1):
        number, name = number_in_words(" ".join(words[:end])), unit(" ".join(words[end:]))
        if number is not None and name:
            return Scalar(str(number), name)
    return None


# "the series converges absolutely by the ratio test" is "absolutely convergent"
_CONVERGENCE = re.compile(
    r"^(?:(?:the|this) (?:\w+ )?(?:series|integral|sequence|limit) )?(?:is )?"
    r"(?:(absolutely|conditionally) )?(con|di)verge(?:s|nt)(?: (absolutely|conditionally))?"
    r"(?: by .*(?:test|criterion)|,? (?:because|since)\b.*)?$"
)


def _bare(phrase: str) -> str:
    """Return `phrase` without an article, and the letter of a choice alone: `b` for `option (b)`."""
    phrase = _CONVERGENCE.sub(r"\2vergent \1\3", phrase.strip())
    if "necessary" in phrase:
        phrase = re.sub(r"\b(?:an?|condition) ?", "", phrase)
    phrase = re.sub(r"^(?:(?:an?|the) (?=\w\w)|(?:option|choice|answer) )", "", phrase.strip())
    return re.sub(r"^\(([a-z0-9])\)$", r"\1", phrase)


# 8:34 p.m., 20:34:05, 8 am; a single number needs `am` or `pm`
_CLOCK = re.compile(rf"(\d{{1,2}})\s*(?::\s*(\d\d))?\s*(?::\s*(\d\d))?\s*({WORD}?)", re.ASCII)


def read_clock(text: Spelled) -> Time | None:
    """Read a time of day."""
    match = _CLOCK.fullmatch(text.formula)
    if not match:
        return None
    hour, minute, second = (int(digits or 0) for digits in match.groups()[:3])
    half = re.sub(r"[. ]", "", text.word(match[4])) if match[4] else ""
    is_24_hour_clock = match[2] and not half and minute < 60
    if hour > 24 or not (half in ("am", "pm") or is_24_hour_clock):
        return None
    hours = {"am": {hour % 12}, "pm": {hour % 12 + 12}}.get(half, {hour, (hour + 12) % 24} if hour <= 12 else {hour})
    return Time(frozenset((each, minute, second) for each in hours))


# Digits: 1101, -37, 1A, AB5, (1101), or a word that holds them; the base: _2, _{12}, _{two}, or "base 2" behind them
_DIGITS = rf"(-?[0-9][0-9a-zA-Z]*|[A-F]+[0-9][0-9A-F]*|\(-?[0-9][0-9a-zA-Z]*\)|{WORD})"
_BASED = re.compile(
    rf"{_DIGITS}\s*(?:_(?:(\w|{WORD})|\{{\s*\(?\s*(\w+|{WORD}\s*\d*)\s*\)?\s*\}})|(?P<in_words>{WORD}\s*\d*))"
)
_BASE = re.compile(r"(\(?(?:in )?base )?(\w+)\)?")


def read_based(text: Spelled) -> Based | None:
    """Read a number in a base."""
    match = _BASED.fullmatch(text.formula)
    base = _BASE.fullmatch(text.part(match[2] or match[3] or match[4]).text()) if match else None
    if not match or not base or (match["in_words"] and not base[1]):
        return None
    digits = text.part(match[1]).text().strip("()").casefold()
    try:
        number = NUMBER_WORDS.index(base[2]) if base[2] in NUMBER_WORDS else int(base[2])
        int(digits, number)
    except ValueError:  # no digits of that base
        return None
    return Based(digits, number)


# 5 cm, 5 cm^2, 5 m/s^2, 5 m s^{-1}
_NUMBER_WITH_UNIT = re.compile(rf"(.*?)\s*({WORD}(?:{WORD}|[\s/]|\\cdot|\^\{{?-?\d\}}?)*)")
# 5 m: perhaps metres, perhaps a product, as is 5m
_NUMBER_AND_LETTER = re.compile(r"(-?[\d.,]+(?:\\pi)?)\s*([mshgLJNWV](?:\^\d)?)")


# 2 hours 30 minutes
_TWO_UNITS = re.compile(rf"(\d+)\s*({WORD})\s*(\d+)\s*({WORD})")
_PARTS_OF_UNITS = {"hour": ("minute", 60), "minute": ("second", 60), "foot": ("inch", 12), "pound": ("ounce", 16)}


def _product(amount: str, factor: int) -> str:
    number = plain_number(amount)
    return rf"({amount})\cdot {factor}" if number is None else str(number * factor)


def read_two_units(text: Spelled) -> Scalar | None:
    """Read an amount in a unit and in a part of it."""
    match = _TWO_UNITS.fullmatch(text.formula)
    part, factor = _PARTS_OF_UNITS.get(unit(text.word(match[2])) or "", ("", 0)) if match else ("", 0)
    if not match or not part or unit(text.word(match[4])) != part:
        return None
    return Scalar(str(int(match[1]) * factor + int(match[3])), part)


def read_formula(text: Spelled) -> Scalar | Word:
    """Read whatever is nothing else: a formula, perhaps with a unit; with other words in it, it is a word."""
    formula = text.formula
    unit_name: str | None = ""
    things = ""
    if re.match(WORD, formula) and text.word(formula[0]) in _PREFACES:
        formula = formula[1:].strip()
    formula = re.sub(rf"\\frac\{{({WORD})\}}\{{({WORD})\}}$", r"\1/\2", formula)  # metres over seconds
    ending = _NUMBER_WITH_UNIT.fullmatch(formula)
    if ending and re.search(r"\d|\\pi", ending[1]):
        amount = ending[1]
        phrase = re.sub(r"\\cdot|[{}]", " ", text.part(ending[2]).text()).strip()
        phrase = re.sub(r"^\(([^()]*)\)$", r"\1", phrase)  # 5 (cm)
        multiple, _, counted = phrase.partition(" ")
        if multiple in MULTIPLES:  # 3 million
            amount, phrase = _product(amount, MULTIPLES[multiple]), counted
        unit_name = unit(phrase) if phrase else ""
        if unit_name is not None:
            formula, things = amount, "" if unit_name else phrase
    letter = _NUMBER_AND_LETTER.fullmatch(formula)
    if letter:
        return Scalar(letter[1], unit(letter[2].lower()) or "", formula)
    if re.search(WORD, formula):
        return Word(text.text())
    for sign in ("percent", "degree"):
        if formula.endswith(rf"\{sign}") and not (sign == "degree" and TRIGONOMETRY.search(formula)):
            return Scalar(formula.removesuffix(rf"\{sign}").strip(), sign)
    return Scalar(formula, unit_name or "", things=things)
