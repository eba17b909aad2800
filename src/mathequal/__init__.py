r"""Decide whether two mathematical answers are equal, and find the final answer in a text. See README.md.

>>> import mathequal
>>> mathequal.equal(r"\frac{1}{2}", "0.5"), mathequal.equal("(1,2)", "[1,2]")
(True, False)
"""

import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from fractions import Fraction
from typing import Any

__all__ = ["MAX_LENGTH", "equal", "explain", "final_answer", "instant_verdict", "parse", "simple_number", "verify"]

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

    Has no limit of time or memory, which a hostile answer may exhaust. `verify` has limits.
    """
    instant = instant_verdict(reference, answer)
    if instant is not None:
        return instant
    from mathequal.compare import verdict  # takes most of a second to import

    with _LOCK:
        return verdict(reference.strip(), answer.strip())


_LOCK = threading.RLock()
"""mpmath has one precision for all threads, so only one of them may compare."""
_POOLS: dict[float, Any] = {}
"""The worker processes for each limit of processor time."""


def submit(function: str, reference: str, answer: str, seconds: float) -> Future:
    """Call `function`, such as `mathequal:equal`, in a worker process with a limit of processor time."""
    with _LOCK:
        if seconds not in _POOLS:
            from bnpo.grading.workers import Workers

            _POOLS[seconds] = Workers(min(4, os.cpu_count() or 1), seconds, preload="mathequal.warm")
    return _POOLS[seconds].submit(function, reference, answer)


def parse(pred: str, *_: object, **_settings: object) -> list[str]:
    r"""Return the final answer of a text in a list; the whole text if it has no box, an empty list if it is empty.

    Has the signature of `math_verify.parse`, whose settings are accepted and have no effect.

    >>> parse(r"so \boxed{\frac12}"), parse("$1/2$"), parse(" ")
    (['\\frac12'], ['$1/2$'], [])
    """
    answer = final_answer(pred)
    answer = pred.strip() if answer is None else answer
    return [answer] if answer else []


def verify(
    gold: str | Sequence[str],
    target: str | Sequence[str],
    *,
    timeout_seconds: float | None = 5,
    raise_on_error: bool = False,
    **_settings: object,
) -> bool:
    """Whether one of the answers `target` equals one of `gold`. Both are strings or what `parse` returns.

    Has the signature of `math_verify.verify`, whose other settings are accepted and have no effect. Any thread may call
    it. Every pair is compared in a worker process with 2 GB and `timeout_seconds` of processor time; with None it is
    compared here, without limits. A pair that exceeds a limit is different, or a RuntimeError if `raise_on_error`.
    """
    for reference in [gold] if isinstance(gold, str) else gold:
        for answer in [target] if isinstance(target, str) else target:
            verdict = instant_verdict(reference, answer)
            if verdict is None and timeout_seconds is None:
                verdict = equal(reference, answer)
            elif verdict is None:
                verdict = submit("mathequal:equal", reference, answer, timeout_seconds or 0).result()
            if raise_on_error and not isinstance(verdict, bool):
                raise RuntimeError(f"no verdict on {answer[:80]!r}: {verdict.kind}: {verdict.message}")
            if verdict is True:
                return True
    return False


def explain(gold: str | Sequence[str], target: str | Sequence[str], *, timeout_seconds: float = 5) -> str:
    r"""Return "equal", or why the first answer of `target` is different from the first of `gold`, in one sentence.

    The reason is computed as in `verify`. It is for people to read; the verdict does not depend on it.
    """
    reference, answer = ([*answers, ""][0] if not isinstance(answers, str) else answers for answers in (gold, target))
    reason = submit("mathequal.explain:reason", reference, answer, timeout_seconds).result()
    return reason if isinstance(reason, str) else f"no verdict: {reason.kind}"
