r"""Which sides of an equation are no more than a name for a value, and which have no variables."""

import re

from mathequal.spelling import TRIGONOMETRIC, WORD

_FUNCTION = rf"\\(?:{TRIGONOMETRIC})(?![a-zA-Z])"
TRIGONOMETRY = re.compile(_FUNCTION)
_CONSTANT = re.compile(
    rf"{_FUNCTION}|\\(?:frac|sqrt|cdot|pi|binom|ln|log|exp|gcd|lcm|max|min|[lr]floor|[lr]ceil|degree|percent|infty|pm|mp)"
    r"(?![a-zA-Z])|[ei](?![a-zA-Z])"
)
_GREEK = "alpha|beta|gamma|delta|theta|phi|varphi|lambda|mu|omega|rho|sigma|tau|ell|Delta"
LETTER = rf"(?:[a-zA-Z]|\\(?:{_GREEK})(?![a-zA-Z]))"
_POINTS = r"[A-Z](?:\s*[A-Z]){1,3}'?"
NAME = re.compile(
    rf"{LETTER}'*\s*(?:_(?:\w|\{{[^{{}}]+\}}))?'*(?:\^\{{-1\}})?\s*(?:\((?:[^()]|\([^()]*\))+\))?"
    rf"|(?![xyz]+(?![a-zA-Z]))[a-zA-Z]{{2,}}'?|\|(?:{_POINTS}|[uvwz])\||\[{_POINTS}\]"
    rf"|\({LETTER}(?:,\s*{LETTER})+\)|m?\s*\\(?:measured)?(?:angle|triangle)\s*(?:\{{[A-Z\s]+\}}|[A-Z\s]+|\d|{LETTER})"
    rf"|\\frac\{{(?:{_POINTS}|d?[a-z])\}}\{{(?:{_POINTS}|d?[a-z])\}}"
    rf"|{_FUNCTION}\s*(?:[A-Z]|\\angle\s*[A-Z]+|\\(?:{_GREEK}))"
    rf"|(?:{WORD}\s*)+(?:[A-Z]|\([^()=]*\)|(?:\\triangle\s*)?{_POINTS})?"
)
_TERM = r"(?:[a-wA-W]|[xyz](?=_))(?:_(?:\w|\{\w+\}))?(?:\^\d)?"
COMBINATION = re.compile(rf"{_TERM}(?:\s*(?:[-+]|\\cdot\s)?\s*{_TERM})+")
"""What problems ask for by such a name as `m+n`. In `x`, `y` and `z` it would be a line or a plane."""


def is_constant(formula: str) -> bool:
    """Whether it has no variable: no letters but those of functions, `e` and `i`."""
    return not re.search(rf"[a-zA-Z]|{WORD}", _CONSTANT.sub(" ", re.sub(rf"(?<=\d)\s*{WORD}+$", "", formula)))
