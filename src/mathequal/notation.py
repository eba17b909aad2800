"""Vocabulary that several modules share: number words, stand-ins for words, and the names of functions."""

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TWENTY_TO_99 = [f"{ten} {digit}".removesuffix(" zero") for ten in _TENS for digit in _DIGITS]

NUMBER_WORDS = (*_DIGITS, *_TEENS, *_TWENTY_TO_99)
"""The numbers from 0 to 99 in words, so that the index of a word is its value: `twenty four` is at 24."""

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
