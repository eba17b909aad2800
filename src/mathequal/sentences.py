r"""Leave out the words around an answer that do not change it: `The answer is`, `for all x`."""

import re

# "So the answer is", "Answer:"
_ANNOUNCEMENT = (
    r"(?:(?:so|thus|hence|therefore),?\s)?"
    r"(?:(?:the|there|it|this)\s[a-z' ]*?(?:is|are|equals):?|[a-z' ]*[a-z]{4}:)"
)
_PREFACE = re.compile(
    rf"\s*(?:\\text\{{\s*{_ANNOUNCEMENT}\s*(?:\}}|(?P<opened>\s))|{_ANNOUNCEMENT}(?=\s))", re.IGNORECASE
)
# "The answer is not" announces something else.
_DENIAL = re.compile(r"\b(?:not|no|never|nor|neither|none|if|unless|wrong|incorrect|half|twice)\b|n't", re.IGNORECASE)

_TEXT = r"(?:\\text\s*\{\s*)?"
_DOMAIN = r"(?:real|positive|non-?negative|natural|rational|complex|integers?|numbers?|reals|values?|of)"
# "for all real x", "for every x \in \mathbb{R}^+"; with any other word, or a condition, it counts
_FOR_ALL = re.compile(
    rf"\s*[,;(]?\s*{_TEXT},?\s*(?:\\forall|(?:for|where)\s+(?:all|any|every|each))(?![a-zA-Z])"
    rf"(?:\b{_DOMAIN}\b|\\(?:in|text|mathbb|R|reals)(?![a-zA-Z])|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\s{{}},+*^)])*$"
)
# "where c is any constant", "where \lfloor x \rfloor denotes the greatest integer", "(Note: ...)"
_EXPLANATION = re.compile(
    rf"\s*[,;(]?\s*{_TEXT},?\s*where\s(?:(?![=<>]|\\[gl]e)[^.;])*\b(?:denotes?|constants?|arbitrary)\b[^=<>]*$"
    rf"|\s*{_TEXT}\(\s*note\b.*\)\s*\}}?$",
    re.IGNORECASE | re.DOTALL,
)
# "All integers n with n > 4", before a condition
_ALL_WITH = re.compile(
    rf"\s*{_TEXT}(?:all|any|every)\s(?:{_DOMAIN}\s|\\text\s*\{{|\}}|\s)*"
    r"(?:[a-zA-Z]\s*,?\s*(?:\\text\s*\{\s*)?(?:with|such that|satisfying|where|for which)(?:\s*\}|\s))?\s*"
    r"(?=(?:\d+\s*(?:<|\\le))?\s*[a-zA-Z]\s*(?:[<>]|\\[gl]e|\\in|\\ne)(?!\s*[a-zA-Z]{3}))",
    re.IGNORECASE,
)


def without_sentence(text: str) -> str:
    r"""Return `7` for `\text{The answer is }7` and `f(x)=2x` for `f(x)=2x \text{ for all } x`."""
    preface = _PREFACE.match(text)
    if preface and not _DENIAL.search(preface[0]):
        rest = text[preface.end() :].strip()
        text = rf"\text{{{rest}" if preface["opened"] else rest
    text = _EXPLANATION.sub("", text)
    if "=" in text:
        text = _FOR_ALL.sub("", text)
    return _ALL_WITH.sub("", text, count=1) or text


_CONDITION = re.compile(
    r"\b(?:if|unless|only|except|but|or|nor|when|whenever|provided|depend\w*|maybe|perhaps|yes|no|true|false"
    r"|for(?! (?:all|any|every|each)))\b|\d"
)


def is_verdict_with_reason(verdict: str, sentence: str) -> bool:
    """Whether `sentence` is `verdict`, which is yes, no, true or false, with a reason and no condition behind it.

    >>> is_verdict_with_reason("yes", "yes, since 2 is even"), is_verdict_with_reason("yes", "yes, because it is even")
    (False, True)
    """
    match = re.fullmatch(r"(yes|no|true|false)\s*[,.;:-]\s*(.*)", sentence)
    return match is not None and match[1] == verdict and not _CONDITION.search(match[2])


NO_SOLUTIONS = re.compile(
    r"(?:there (?:is|are|exists?) )?no (?:such |real |integer |positive |possible |other )*"
    r"(?:solutions?|roots?|values?|numbers?|integers?|pairs?|triples?|functions?|polynomials?|[a-z])(?: exists?)?"
    r"|none|(?:the )?empty set"
)
INFINITELY_MANY = re.compile(
    r"(?:there are )?(?:infinitely many|infinite(?:ly)?|an infinite number)(?: (?:of )?[a-z]+)?"
)
