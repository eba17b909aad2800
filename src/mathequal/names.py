r"""Names of functions and letters; which sides of an equation only name a value (`x = 5`) or have no variables."""

import re

# The words "and" and "or" between formulas become these two commands of LaTeX.
AND, OR = r"\land ", r"\lor "

# Any other word becomes one character of Unicode's private area: the first word of a text U+E000, the next U+E001.
FIRST_WORD = 0xE000
WORD = "[\ue000-\uf8ff]"
"""The part of a regular expression that matches the stand-in for a word."""

TRIGONOMETRIC = "arcsin|arccos|arctan|arccot|cis|sinh|cosh|tanh|sech|csch|coth|sin|cos|tan|cot|sec|csc"
FUNCTIONS = rf"{TRIGONOMETRIC}|ln|log|exp|gcd|lcm"
GREEK = (
    "(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi"
    "|omega|var(?:epsilon|theta|rho|sigma|phi)|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|hbar)(?![a-zA-Z])"
)
PLAIN_GREEK = "pi|theta|alpha|beta|phi|lambda|omega"
"""Greek letters that are also read without a backslash: `2pi` is `2\\pi`."""

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
            rf"m?\s*\\(?:measured)?(?:angle|triangle)\s*(?:\{{[A-Z\s]+\}}|(?:[A-Z]\s*(?:_\d)?\s*)+|\d|{LETTER})",
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
# Only one way to match white space: COMBINATION repeats this, and two ways each time would be 2^n in all.
_JOINT = r"\s*(?:(?:[-+]|\\cdot\s)\s*)?"
COMBINATION = re.compile(
    rf"{_TERM}(?:{_JOINT}{_TERM})+|{_TERM}\^(?P<power>\d)(?:{_JOINT}{_TERM}\^(?P=power))+"
    rf"|{_FUNCTION}\s*(?:\^\d)?\s*(?:\d?\s*{LETTER}|\\frac\{{{LETTER}\}}\{{\d\}})"
)
"""What problems ask for: `m+n` and `\\sin 2x`. A sum of `x`, `y` and `z` would be a line or a plane."""

# Commands and letters that are no variables
_CONSTANT = re.compile(
    rf"{_FUNCTION}|\\(?:frac|sqrt|cdot|pi|binom|ln|log|exp|gcd|lcm|max|min|[lr]floor|[lr]ceil|degree|percent|infty|pm|mp)"
    r"(?![a-zA-Z])|[ei](?![a-zA-Z])"
)
_UNIT_AFTER_NUMBER = re.compile(rf"(?<=\d)\s*{WORD}+$")


def is_constant(formula: str) -> bool:
    """Whether `formula` has no variable, that is, no letters but those of functions, `e` and `i`."""
    without_unit = _UNIT_AFTER_NUMBER.sub("", formula)
    letters = re.search(rf"[a-zA-Z]|{WORD}", _CONSTANT.sub(" ", without_unit))
    return letters is None
