r"""Find the final answer in a text and decide whether it equals a reference.

`quick_verdict` settles most pairs in microseconds, by spelling and by value. The rest is for symbolic.py, where
math-verify and sympy decide, which can take seconds or gigabytes: rewards.py runs it in processes that can be killed.
No text is ever evaluated as Python.

    python -m bnpo.answers cases.jsonl     # agreement with labelled cases, and every disagreement
"""

import re
from fractions import Fraction
from functools import lru_cache

MAX_LENGTH = 500
"""Characters; a longer answer is right only if it is the reference letter by letter (the longest of MATH has 159)."""

_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!boxed|fbox)|\\[{}]|[{}]")


def final_answer(text: str, tags: bool = False) -> str | None:
    r"""The content of the last complete `\boxed{...}` of `text`, without outer white space; None if there is none.

    With `tags`, only the last complete `<answer>...</answer>` is read, if there is one, and is the answer itself where
    it holds no box. Takes time linear in the length of `text`, however its braces are nested.

    >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{3}{4}}, not \boxed{5")
    '\\frac{3}{4}'
    >>> final_answer(r"<think>\boxed{1}</think><answer>2</answer>", tags=True)
    '2'
    """
    if tags:
        before, closed, _ = text.rpartition("</answer>")
        _, opened, content = before.rpartition("<answer>")
        if closed and opened:
            return final_answer(content) or content.strip()
    open_braces: list[int] = []  # where the content of a box starts, -1 for any other brace
    start, end = -1, -1
    for match in _BOX_OR_BRACE.finditer(text):
        if match[0] == "}":
            opened_at = open_braces.pop() if open_braces else -1
            if opened_at > start:
                start, end = opened_at, match.start()
        elif match[0] == "{":
            open_braces.append(-1)
        elif match[0].endswith("{") and match[0] != r"\{":
            open_braces.append(match.end())
    return text[start:end].strip() if start >= 0 else None


_TEXT = r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\s*"
_SPELLINGS = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?<=\d)\s*(?:\{,\}|,\s*\\!)\s*(?=\d{3}(?!\d))", ""),
        (r"\\phantom\s*(?:\{[^{}]*\}|\\?[^\\{}])|(?<!\\)\\[!,;:> ]|\\q?quad\b|[~\s]", " "),
        (r"^\s*\*\*|\*\*\s*$", ""),
        (r"\\?\$|\\(?:left|right)(?![a-zA-Z])|\\displaystyle\b", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac\s*([0-9a-zA-Z])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9a-zA-Z])", r"\1{\2}"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"([_^])\s*\{\s*(\w)\s*\}", r"\1\2"),
        (r"\^\s*\{?\s*\\circ(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])", r"^\\circ "),
        (r"\{,\}", ","),
        (rf",?\s*(?:{_TEXT}\{{\s*(?:and|or)\s*\}}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))|;", ", "),
    )
]
_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ "}
    | {"≤": r"\le ", "≥": r"\ge ", "∪": r"\cup "}
)
_WORD = (
    r"(?:square|cubic|sq\.?|cu\.?|units?|inch(?:es)?|in\.?|feet|foot|ft\.?|yards?|miles?|mi|(?:centi|milli|kilo)?met(?:er|re)s?"
    r"|[cmk]m|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?|degrees?|dollars?|cents?|pounds?|ounces?"
    r"|(?:kilo|milli)?grams?|kg|lit(?:er|re)s?|gallons?|mph|per|people|students?|ways?|times|percent)"
)
_POWER = r"\s*(?:\^\{?\d\}?)?\s*$"
_UNITS = (
    re.compile(rf"\s*{_TEXT}\{{[^{{}}]*\}}{_POWER}"),
    re.compile(rf"(?<=[\d)}}])\s+{_WORD}(?:\s+{_WORD}){{0,3}}{_POWER}"),
)
# What follows a number as a part of its value.
_NO_UNIT = re.compile(
    r"operatorname|mathbf|\{\s*(?:[iexyz]|ln|pi)\s*\}|!|hal(?:f|ves)|thirds|squared|cubed|factorial|or more|\bpi\b"
    r"|hundred|thousand|illion|dozen|infinity|choose|base|[mM]od|sqrt|theta|alpha|beta|gamma"
)
_ENDING = re.compile(r"(?:\\?%|\.|\s)+$")
_DEGREES = re.compile(r"\s*\^\\circ\s*$")
TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


@lru_cache(maxsize=4096)  # references and frequent answers come again and again
def normal_form(text: str) -> str:
    r"""LaTeX with one spelling for what means the same: white space, fractions, lists, signs; no unit at the end.

    >>> normal_form(r"$\dfrac12\text{ cm}^2$."), normal_form(r"10 square units"), normal_form(r"60^{\circ}")
    ('\\frac{1}{2}', '10', '60')
    """
    text = text.translate(_CHARACTERS)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = _ENDING.sub("", text)
    if not TRIGONOMETRY.search(text):
        text = _DEGREES.sub("", text)
    for pattern in _UNITS:
        unit = pattern.search(text)
        if unit and re.search(r"\d|\\pi", text[: unit.start()]) and not _NO_UNIT.search(unit[0]):
            text = text[: unit.start()]
    text = re.sub(rf"{_TEXT}\{{([^{{}}]*)\}}", r"\1", text)
    return " ".join(_ENDING.sub("", text).split())


_DECIMAL = r"-?(?:\d{1,30}|\d{1,3}(?:,\d{3}){1,9})?(?:\.\d{1,30})?"
_NUMBER = re.compile(rf"[+]?({_DECIMAL})(?:\s*\\times\s*10\^\{{?(-?\d{{1,2}})\}}?)?", re.ASCII)
_FRACTION = re.compile(
    r"([+-]?)(?:(\d{1,30})(?=[\s\\])\s*)?(?:\\frac\{(-?\d{1,30})\}\{(-?\d{1,30})\}|(-?\d{1,30})\s*/\s*(\d{1,30}))",
    re.ASCII,
)


def number(text: str) -> Fraction | None:
    r"""The value of a plain integer, decimal, fraction, mixed number or power of ten in `normal_form`; else None.

    >>> [str(number(text)) for text in (r"-\frac{5}{4}", "-1.25", "1 1/2", r"1\frac{1}{2}", "1,500", "x", "1/0")]
    ['-5/4', '-5/4', '3/2', '3/2', '1500', 'None', 'None']
    """
    if match := _FRACTION.fullmatch(text):
        sign, whole, *parts = match.groups()
        numerator, denominator = (int(part) for part in parts if part)
        if denominator == 0 or (whole and min(numerator, denominator) < 0):  # 1 -1/2 is a difference
            return None
        return (-1 if sign == "-" else 1) * (int(whole or 0) + Fraction(numerator, denominator))
    if (match := _NUMBER.fullmatch(text)) and any(map(str.isdigit, match[1])):
        return Fraction(match[1].replace(",", "")) * Fraction(10) ** int(match[2] or 0)
    return None


_BASED = re.compile(r"(-?[0-9a-zA-Z]+)_\{?(\d+)\}?")
_NAME = re.compile(r"\\?[a-zA-Z]+'?(?:_\w|_\{\w+\})?(?:\([a-zA-Z\d,\s-]+\))?|[^a-zA-Z]*")


def right_side(text: str) -> str:
    """What a name, or an expression without letters, is said to equal: `5` of `x = 5`, `f(x) = 5` and `2 + 3 = 5`."""
    left, equals, right = text.rpartition("=")
    return right.strip() if equals and _NAME.fullmatch(left.split("=")[0].strip()) and "," not in text else text


def comparable(reference: str, answer: str) -> list[str]:
    """Both in normal form; where only one is an equation, its right side."""
    pair = [normal_form(text) for text in (reference, answer)]
    return [right_side(text) for text in pair] if ("=" in pair[0]) != ("=" in pair[1]) else pair


def quick_verdict(reference: str, answer: str) -> bool | None:
    r"""Whether the two are equal where that is cheap to see, None where it takes symbolic.py. Symmetric.

    An empty answer is wrong whatever the reference.
    """
    reference, answer = reference.strip(), answer.strip()
    if not answer or not reference:
        return False
    if reference == answer:
        return True
    if max(len(reference), len(answer)) > MAX_LENGTH:
        return False
    pair = comparable(reference, answer)
    # A space matters between digits alone: 1 1/2 is not 11/2.
    if len({re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text) for text in pair}) == 1:
        return pair[0] != ""
    first, second = values = [number(text) for text in pair]
    if first is not None and second is not None:
        if first == second:
            return True
        # One may be the other to six decimals, which math-verify allows.
        return None if abs(first - second) <= 1e-5 else False
    if any(value is not None and "=" in text for value, text in zip(values, reversed(pair), strict=True)):
        return False  # a number, and an equation that is more than a name for one
    if "" in pair:
        return False
    if any(one.startswith(r"\{") and other.startswith("(") for one, other in (pair, pair[::-1])):
        return False  # a set is no tuple and no interval
    based = [match.groups() for match in map(_BASED.fullmatch, pair) if match]
    if len(based) == 2:  # math-verify reads over the base
        return based[0] == based[1]
    return None
