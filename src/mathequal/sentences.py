r"""Leave out the words around an answer that do not change it: `The answer is`, `for all x`."""

import re

# "So the answer is", "Answer:"
_ANNOUNCEMENT = (
    r"(?:(?:(?:so|thus|hence|therefore),?\s)?"
    r"(?:(?:the|there|it|this|we)\s[a-z' ]*?(?:is|are|equals|have|get|obtain)"
    r"(?: (?:located |attained )?at(?: the point)?)?(?:\s*:|(?![a-z]))"
    r"|solutions?\s(?:is|are):?|[a-z' ]*[a-z]{4}:)|(?:so|thus|hence|therefore)\b,?)"
)
# "The smallest such $k$ is", "the point", before a formula
_STATEMENT = (
    r"\\text\s*\{\s*the [a-z' ]*\}\s*\$?\s*[a-z]\s*\$?\s*\\text\s*\{\s*(?:is|are|equals)\s*\}"
    r"|\\text\s*\{\s*(?:it is |they are )?the (?:constant |only )?(?:point|pair|triple|interval|function|value"
    r"|number|set|line|plane|circle|curve|matrix|vector|polynomial)s?\s*\}"
)
_PREFACE = re.compile(
    rf"\s*(?:{_STATEMENT}|\\text\{{\s*{_ANNOUNCEMENT}\s*(?:\}}|(?P<opened>\s))|{_ANNOUNCEMENT}(?=\s))", re.IGNORECASE
)
# "The answer is not" announces something else.
_DENIAL = re.compile(
    r"\b(?:not|no|never|nor|neither|none|if|unless|wrong|incorrect|half|twice|depends|perhaps|except|or)\b|n't",
    re.IGNORECASE,
)

_TEXT = r"(?:\\text\s*\{\s*)?"
_DOMAIN = r"(?:real|positive|non-?negative|natural|rational|complex|integers?|numbers?|reals|values?|of)"
# \mathbb{R}^+, \mathbb{N}^*, \mathbb{Z}_{\ge 0}
_SET = (
    r"(?>\\mathbb\s*\{?\s*[A-Z]\s*\}?"  # atomic: what follows it in _FOR_ALL can match the same signs
    r"(?:\s*[_^]\s*(?:[+*0]|\{\s*(?:[+*0]|\\ast|>\s*0|\\geq?(?:slant)?\s*[01])\s*\}))*)"
)
# "for all real x", "for every x \in \mathbb{R}^+"; with any other word, or a condition, it counts
_FOR_ALL = re.compile(
    rf"\s*[,;(]?\s*{_TEXT},?\s*(?:\\forall|(?:for|where)\s+(?:all|any|every|each))(?![a-zA-Z])"
    rf"(?:\b{_DOMAIN}\b|{_SET}|\\(?:in|text|R|reals)(?![a-zA-Z])|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\s{{}}+*^)]"
    r"|,(?!.*=))*?(?=$|[,;](?=.*=)|(?:\\text\s*\{\s*,?\s*)?(?:and|or)\b)"
    rf"|\s*(?:,|[,;]?\s*\()\s*[a-z]\s*\\in\s*{_SET}\s*\)?$"
)
# n^2 for all integers n
_FORMULA_FOR_ALL = re.compile(r"(?!.*(?:[<>]|\\[gln]e(?![a-z]))).*\bfor (?:all|every)\b")
# 1+5k, k \in \mathbb{Z}
_ENDS_IN_INTEGERS = re.compile(
    r"(?!.*\\(?:[gl]eq?|neq?)(?![a-z]))[^<>]*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?[\s)]*", re.DOTALL
)
# f(x)=1/x "for all x > 0", where the problem has said so
_DOMAIN_OF_FUNCTION = re.compile(
    rf"(\s*[a-zA-Z]\s*\(([a-z])\)\s*=[^=<>]*?)\s*[,;]?\s*"
    rf"(?:{_TEXT},?\s*(?:\\forall|for (?:all|every|any|each)|for(?=\s*\}}?\s*t\b))\s*\}}?|[,;]|\()"
    r"\s*\2\s*(?:>\s*0|(?<=[kmn])\s*\\geq?(?:slant)?\s*[01]|(?<=t)\s*\\geq?(?:slant)?\s*0|\\neq?\s*0|\\in\s*\(0,\s*\+?\\infty\s*\))\s*\)?"
)
# "where c is any constant", "where \lfloor x \rfloor denotes the greatest integer", "(Note: ...)"
_EXPLANATION = re.compile(
    rf"\s*[,;(]?\s*{_TEXT},?\s*(?:where|for some)\s(?:(?![=<>]|\\[gl]e)[^.;])*"
    r"\b(?:denotes?|constants?|arbitrary)\b[^=<>]*$"
    rf"|\s*{_TEXT}\(\s*note\b.*\)\s*\}}?$"
    # "(all sign combinations)", but not "(mod p)" or "(if p is odd)"
    r"|\s*\\text\s*\{\s*\((?![^)]*\b(?:mod|modulo|base|if|not|or|order|than|except|when|where|only|million|thousand)\b)"
    r"[a-z']+(?:[\s,]+[a-z']+)+\)\s*\}$",
    re.IGNORECASE | re.DOTALL,
)
# "All integers n with n > 4", before a condition
_ALL_WITH = re.compile(
    rf"\s*{_TEXT}(?:all|any|every)\s(?:{_DOMAIN}\s|\\text\s*\{{|\}}|\s)*"
    r"(?:[a-zA-Z]\s*,?\s*(?:\\text\s*\{\s*)?(?:with|such that|satisfying|where|for which)(?:\s*\}|\s))?\s*"
    r"(?=(?:\d+\s*(?:<|\\le))?\s*[a-zA-Z]\s*(?:[<>]|\\[gl]e|\\in|\\ne)(?!\s*[a-zA-Z]{3}))",
    re.IGNORECASE,
)


# "When $n=2$, the number is 7; when $n \\ge 3$, the number is $n^2+2$", after dollar signs and \( are gone
_CASE = re.compile(
    r"\s*(?:and\s)?(?:for|when|if)\s+([^,.;]*?[=<>\\][^,.;]*?),\s+([^,.;]*?)\b(?:is|are|equals|we have)\s+([^,;]*?)"
    r"\s*(?:[.;,]|$)",
    re.IGNORECASE,
)


def _in_cases(text: str) -> str:
    """Return the cases of a sentence as LaTeX has them."""
    cases = _CASE.findall(text)
    if len(cases) < 2 or _CASE.sub("", text).strip() or any(_DENIAL.search(words) for _, words, _ in cases):
        return text
    rows = (f"{value} & {condition}" for condition, _, value in cases)
    return r"\begin{cases}" + r"\\".join(rows) + r"\end{cases}"


def without_sentence(text: str) -> str:
    r"""Return `7` for `\text{The answer is }7` and `f(x)=2x` for `f(x)=2x \text{ for all } x`."""
    preface = _PREFACE.match(text)
    if preface and not _DENIAL.search(preface[0]):
        rest = text[preface.end() :].strip()
        text = rf"\text{{{rest}" if preface["opened"] else rest
    text = _restatement(_EXPLANATION.sub("", _in_cases(text)))
    function = _DOMAIN_OF_FUNCTION.fullmatch(text)
    text = function[1] if function else text
    if "=" in text or r"\pi" in text or _ENDS_IN_INTEGERS.fullmatch(text) or _FORMULA_FOR_ALL.match(text):
        text = _FOR_ALL.sub("", text)
    return _ALL_WITH.sub("", text, count=1) or text


_ABOUT = r"(?<![a-zA-Z\\])(?:about|approximately|approx\.?|roughly|around|\\approx)(?![a-z])"
_THAT_IS = r"(?:which is|which equals|that is|i\.e\.|equivalently|equal to),?"
# 2^5 (or 32); 2^5, i.e. 32; 6\pi, which is about 18.8
_RESTATED = re.compile(
    rf"(?P<value>[^\s].*?)\s*,?\s*(?:\\text\s*\{{\s*,?\s*|\(\s*){{0,2}}"
    rf"(?:(?:(?:or|{_THAT_IS})\s*)?(?P<about>{_ABOUT})|{_THAT_IS}|(?:(?<=\()|(?<=\(\\text{{))or\b),?\s*\}}?\s*(?P<other>.*\d.*)",
    re.IGNORECASE | re.DOTALL,
)


def _restatement(text: str) -> str:
    r"""Return `2^5 = 32` for `2^5 \text{ (or 32)}` and `6\pi \approx 18.8` for `6\pi \text{ (about 18.8)}`."""
    match = _RESTATED.fullmatch(text)
    value = match["value"] if match else ""
    if not match or re.search(r"(?<!\\)\b[a-zA-Z]{3}", value) or value.count("{") != value.count("}"):
        return text
    other = re.sub(r"\\text\s*\{\s*\)\s*\}$", ")", match["other"].strip(" ."))
    while (other.endswith(")") and other.count(")") > other.count("(")) or other.count("}") > other.count("{"):
        other = other[:-1].strip(" .")
    return f"{value} = {other}" if match["about"] is None else rf"{value} \approx {other}"


_CONDITION = re.compile(
    r"\b(?:if|unless|only|except|but|or|nor|when|whenever|provided|depend\w*|maybe|perhaps|yes|true|false"
    r"|for(?! (?:all|any|every|each)))\b"
)


def verdict_of(sentence: str) -> str | None:
    """Return yes, no, true or false for the word alone, or with a reason and no condition behind it; else None.

    >>> verdict_of("yes, because 2 is even"), verdict_of("yes, if 2 is even"), verdict_of("yes, 2")
    ('yes', None, None)
    """
    match = re.fullmatch(r"(yes|no|true|false)(?:\s*([,.;:(-])\s*(.*))?", sentence, re.DOTALL)
    verdict, sign, reason = match.groups(default="") if match else ("", "", "")
    # "yes, no" is no reason, "no, there is no such number" is one
    contradicts = verdict != "no" and re.search(r"\bnot?\b", reason)
    # "yes, 2" says more than yes, "yes. the sum is 2" and "no, it is odd, since 2 is prime" give reasons
    claim = re.split(r"\b(?:because|since) ", reason)[0]
    more = re.search(r"\d", claim) and not (sign == "." and len(re.findall("[a-z]{2}", reason)) > 2)
    if (contradicts or more) and not reason.startswith(("because ", "since ", "as ")):
        return None
    return verdict if verdict and not _CONDITION.search(reason) else None


NO_SOLUTIONS = re.compile(
    r"(?:(?:(?:there (?:is|are|exists?)|(?:the )?(?:equation|system|problem) has) )?no "
    r"(?:(?:such|real|integer|positive|natural|possible|other|valid) )*"
    r"(?:solutions?|roots?|values?|numbers?|integers?|pairs?|triples?|functions?|polynomials?|[a-z])"
    r"(?: exists?| (?:is|are) possible)?|there (?:does|do) not exist (?:any )?such [a-z]+|none(?: exists?)?"
    r"|(?:the )?empty set|(?:it )?does not exist|dne|(?:the system is )?inconsistent)(?:,? (?:because|since|as)\b.*)?"
)
INFINITELY_MANY = re.compile(
    r"(?:there are )?(?:infinitely many|infinite(?:ly)?|an infinite number)"
    r"(?: (?!but|not|except|if|or\b)[a-z]+){0,5}"
)
