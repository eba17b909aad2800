r"""Decide whether two mathematical answers are equal, and find the final answer in a text. See README.md.

>>> import mathequal
>>> mathequal.equal(r"\frac{1}{2}", "0.5"), mathequal.equal("(1,2)", "[1,2]")
(True, False)
"""

import re
from collections import deque
from fractions import Fraction

__all__ = ["MAX_LENGTH", "equal", "final_answer", "instant_verdict", "simple_number"]

MAX_LENGTH = 500
"""Characters. A longer answer is right only if it is the reference letter by letter (the longest of MATH has 159)."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*(\{?)")
# How the content of \boxed 7 and \boxed\frac12 begins, but not that of "in \boxed format", and what it ends before
_WITHOUT_BRACES = re.compile(r"[-+(\[]?\s*(?:\.?\d|\\[a-zA-Z{$]|[a-zA-Z](?![a-zA-Z]))")
_END_WITHOUT_BRACES = re.compile(r"(?<!\\)\$|\n|\\[)\]]")
# In `\\{` the second backslash ends a line break, and does not escape the brace.
_BRACES = re.compile(r"\\[\\{}]|\{+|\}+")
SEARCHED, MAX_BRACES = 120_000, 5_000
"""Characters at the end of a text that are searched for a box, and braces that are looked at to find the end of one, so
that no text takes longer than some milliseconds."""


def final_answer(text: str, tags: bool = False) -> str | None:
    r"""Return the content of the last complete `\boxed{...}` or `\boxed 7` of `text`, stripped; None if there is none.

    With `tags`, only the last complete `<answer>...</answer>` is searched, if there is one; without a box in it, its
    whole content is the answer. Takes milliseconds, however long `text` is and however its braces are nested.

    >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{3}{4}}, not \boxed{5")
    '\\frac{3}{4}'
    >>> final_answer(r"<think>\boxed{1}</think><answer>2</answer>", tags=True)
    '2'
    """
    if tags:
        before, closing_tag, _ = text.rpartition("</answer>")
        _, opening_tag, content = before.rpartition("<answer>")
        if closing_tag and opening_tag:
            return final_answer(content) or content.strip()
    text = text[-SEARCHED:]
    seen, end = 0, len(text)
    for box in reversed(deque(_BOX.finditer(text), maxlen=MAX_BRACES)):
        if not box[1] and not _WITHOUT_BRACES.match(text, box.end()):
            continue
        if not box[1]:
            content = _END_WITHOUT_BRACES.split(text[box.end() : box.end() + MAX_LENGTH], maxsplit=1)[0]
            if content.count("}") > content.count("{"):  # of a box around it
                content = content[: content.rindex("}")]
            return content.strip()
        depth = 1
        for braces in _BRACES.finditer(text, box.end(), end):
            token = braces[0]
            if token[0] == "}" and len(token) >= depth:
                return text[box.end() : braces.start() + depth - 1].strip()
            depth += len(token) if token[0] == "{" else -len(token) if token[0] == "}" else 0
            seen += 1
            if seen == MAX_BRACES:
                return None
        # This box has no end, so a box around it has none either: an earlier box must end before this one begins.
        end = box.start()
    return None


def simple_number(text: str) -> Fraction | None:
    """Return the value of digits with at most a minus sign and a decimal point, None for anything else.

    Uses no regular expression, so that no text takes long.

    >>> simple_number("-1.50"), simple_number("1/2")
    (Fraction(-3, 2), None)
    """
    size = text.removeprefix("-")
    whole, point, decimals = size.partition(".")
    if len(size) > 30 or not (size.isascii() and whole.isdigit() and (decimals.isdigit() or not point)):
        return None
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    return value if size == text else -value


def instant_verdict(reference: str, answer: str) -> bool | None:
    """Whether the two are equal, as long as comparing strings or simple numbers can tell; else None.

    This is safe to call in a training process: it takes microseconds whatever the texts are.
    """
    reference, answer = reference.strip(), answer.strip()
    if not answer or not reference:
        return False
    if reference == answer:
        return True
    if max(len(reference), len(answer)) > MAX_LENGTH:
        return False
    one, other = simple_number(reference), simple_number(answer)
    if one is None or other is None:
        return None
    if one != other and "." in reference and "." in answer:
        return None  # one may be the other rounded
    return one == other


def equal(reference: str, answer: str) -> bool:
    """Whether two answers are equal, whichever of them is the reference. An empty answer equals none.

    Has no limit of time or memory, which a hostile answer may exhaust. `bnpo.grading.grader.Grader` has limits.
    """
    instant = instant_verdict(reference, answer)
    if instant is not None:
        return instant
    from mathequal.compare import verdict  # takes most of a second to import

    return verdict(reference.strip(), answer.strip())
