r"""Find the final answer in a text and decide whether it equals a reference."""

import logging
import re
from fractions import Fraction

from math_verify import parse, verify

# It warns on every call that its own time limits are off, which is the intention (see slow_verdict).
logging.getLogger("math_verify").setLevel(logging.ERROR)

_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d{1,30})\}\{(-?\d{1,30})\}")
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?|-?\.\d{1,30}|-?\d{1,30}/\d{1,30}", re.ASCII)


def final_answer(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}` of `text`, without outer white space; None if there is none.

    >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{3}{4}}, not \boxed{5")
    '\\frac{3}{4}'
    """
    end = len(text)
    while (start := text.rfind(r"\boxed{", 0, end)) >= 0:
        depth = 0
        for match in re.finditer(r"[{}]", text[start:]):
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return text[start + len(r"\boxed{") : start + match.start()].strip()
        end = start
    return None


def number(text: str) -> Fraction | None:
    r"""The value of a plainly written integer, decimal or fraction; None for anything else.

    >>> number(r"-\frac{5}{4}") == number("-1.25") == number("-5/4") == Fraction(-5, 4)
    True
    >>> number("1/0"), number("x")
    (None, None)
    """
    text = text.strip()
    if fraction := _FRACTION.fullmatch(text):
        text = f"{fraction[2]}/{fraction[3]}"
        if fraction[1]:
            text = text.removeprefix("-") if text.startswith("-") else f"-{text}"
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def quick_verdict(reference: str, answer: str) -> bool | None:
    """Whether the two are equal where that is cheap to see, None where it takes `slow_verdict`.

    Equal strings are equal and numbers are compared by value; an empty answer is wrong whatever the reference.
    """
    if not answer:
        return False
    if reference.strip() == answer.strip():
        return True
    values = number(reference), number(answer)
    return None if None in values else values[0] == values[1]


def slow_verdict(reference: str, answer: str) -> bool:
    """Whether math-verify finds the two equal. It can hang or run out of memory: call it in a process of its own.

    Its own time limits are off, since they need signals in a main thread and score 0 in silence elsewhere.
    """
    limits = {"parsing_timeout": None, "raise_on_error": True}
    parsed = [parse(f"\\boxed{{{text}}}", **limits) for text in (reference, answer)]
    return verify(*parsed, timeout_seconds=None, raise_on_error=True)
