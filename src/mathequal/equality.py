r"""Find the final answer in a text and decide whether it equals a reference.

reading.py reads both as typed values, and rules.py says when two are equal, by their types (docs/grader.md).
`quick_verdict` settles most pairs in microseconds. Where formulas must be parsed and evaluated, which can take seconds
or gigabytes, symbolic.py decides, and rewards.py runs it in processes that can be killed. No text is ever evaluated as
Python.

    python -m mathequal cases.jsonl     # agreement with labelled cases, and every disagreement
"""

import re

from mathequal.numbers import is_rounded, number, places
from mathequal.reading import read
from mathequal.rules import Judge, equal, same_letters
from mathequal.values import Scalar

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


def normal_form(text: str) -> str:
    r"""One text for answers that read alike, whatever their spelling and unit; different values may still be equal.

    >>> normal_form(r"$\dfrac12\text{ cm}^2$.") == normal_form("1/2")
    True
    """
    value = read(text)
    exact = number(value.latex) if isinstance(value, Scalar) else None
    return repr(value) if exact is None else str(exact)


def _quick_scalars(first: Scalar, second: Scalar) -> bool | None:
    # A space matters between digits alone: 1 1/2 is not 11/2.
    texts = [re.sub(r"(?<!\d)\s+|\s+(?![\d.])", "", scalar.latex) for scalar in (first, second)]
    if texts[0] == texts[1]:
        return texts[0] != ""
    if "" in texts:
        return False
    one, other = [number(text) for text in (first.latex, second.latex)]
    if one is not None and other is not None:
        decimals = [digits for digits in map(places, (first.latex, second.latex)) if digits]
        return one == other or (bool(decimals) and is_rounded(one, other, min(decimals)))
    if all(re.fullmatch("[a-zA-Z]{1,4}", text) for text in texts) and same_letters(*texts):
        return True
    if any(re.fullmatch("[a-df-hj-zA-HJ-Z]", text) for text in texts) and (one is not None or other is not None):
        return False
    return None


QUICK = Judge(_quick_scalars, lambda *_: None, lambda *_: None, lambda *_: None)


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
    return equal(read(reference), read(answer), QUICK)
