r"""Decide whether two mathematical answers are equal, and find the final answer in a text. See
README.md.

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
from unicodedata import normalize

__all__ = ["MAX_LENGTH", "accuracy_reward", "compute_score", "equal", "explain", "final_answer"]
__all__ += ["instant_verdict", "parse", "start_equal", "submit", "verify"]

MAX_LENGTH = 500
"""Characters. A longer answer is right only if it is the reference letter by letter (the longest
of MATH has 159)."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*(\{?)")
# How the content of \boxed 7 and \boxed\frac12 begins, but not that of "in \boxed format", and what
# it ends before
_WITHOUT_BRACES = re.compile(r"[-+(\[]?\s*(?:\.?\d|\\[a-zA-Z{$]|[a-zA-Z](?![a-zA-Z]))")
_END_WITHOUT_BRACES = re.compile(r"(?<!\\)\$|\n|\\[)\]]")
# In `\\{` the second backslash ends a line break, and does not escape the brace.
_BRACES = re.compile(r"\\[\\{}]|\{+|\}+")
SEARCHED, MAX_BRACES = 120_000, 5_000
"""Characters at the end of a text that are searched for a box, and braces that are looked at to
find the end of one, so that no text takes longer than some milliseconds."""


def final_answer(text: str, tags: bool = False) -> str | None:
    r"""Return the content of the last complete `\boxed{...}` or `\boxed 7` of `text`, stripped;
    None if there is none.

    With `tags`, only the last complete `<answer>...</answer>` is searched, if there is one; without
    a box in it, its whole content is the answer. Takes milliseconds, however long `text` is and
    however its braces are nested.

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
        if not box[1]:
            if not _WITHOUT_BRACES.match(text, box.end()):
                continue
            content = _END_WITHOUT_BRACES.split(
                text[box.end() : box.end() + MAX_LENGTH], maxsplit=1
            )[0]
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
        # This box has no end, so a box around it has none either: an earlier box must end before
        # this one begins.
        end = box.start()
    return None


# Digits with at most a minus sign and a decimal point
_SIMPLE_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)", re.ASCII)


def instant_verdict(reference: str, answer: str) -> bool | None:
    """Whether the two are equal, as long as comparing strings or simple numbers can tell; else
    None.

    This is safe to call in a training process: it takes microseconds whatever the texts are.
    """
    reference, answer = _composed(reference), _composed(answer)
    if (
        reference == answer
        or max(len(reference), len(answer)) > MAX_LENGTH
        or not (reference and answer)
    ):
        return reference == answer != ""
    if not (_SIMPLE_NUMBER.fullmatch(reference) and _SIMPLE_NUMBER.fullmatch(answer)):
        return None
    is_same = Fraction(reference) == Fraction(answer)
    # One may be the other rounded
    return None if not is_same and "." in reference and "." in answer else is_same


def equal(reference: str, answer: str) -> bool:
    """Whether two answers are equal, whichever of them is the reference. An empty answer equals
    none.

    Has no limit of time or memory, which a hostile answer may exhaust. `verify` has limits.
    """
    instant = instant_verdict(reference, answer)
    if instant is not None:
        return instant
    from mathequal.compare import verdict  # takes most of a second to import

    with _LOCK:
        return verdict(_composed(reference), _composed(answer))


def _composed(text: str) -> str:
    """Return the text without white space at its ends, where a letter and its accent are one
    character: files of macOS have two.
    """
    text = text.strip()
    return text if text.isascii() or len(text) > MAX_LENGTH else normalize("NFC", text)


# mpmath has one precision for all threads, so only one of them may compare
_LOCK = threading.RLock()


def _new_lock() -> None:
    """Give a forked process another lock: it lacks the thread that may hold this one."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)
TIME_LIMIT = 5.0  # seconds of processor time for one verdict


def submit(function: str, reference: str, answer: str, seconds: float = TIME_LIMIT) -> Future:
    """Call a function of this package in a worker process with a limit of processor time. Any
    thread may do so.
    """
    from mathequal.workers import shared_workers  # here, since workers import this module

    return shared_workers(seconds).submit(function, reference, answer)


def start_equal(reference: str, answer: str, seconds: float = TIME_LIMIT) -> Future:
    """Return the future of whether two answers are equal, or of a Failure."""
    future: Future = Future()
    future.set_result(instant_verdict(reference, answer))
    return (
        submit("mathequal:equal", reference, answer, seconds) if future.result() is None else future
    )


def result_of(call: Future) -> Any:
    """Wait for a call that `submit` or `start_equal` has begun, and return its result or a Failure.

    Raises RuntimeError if no worker process could be started, which says nothing of the answers.
    """
    result = call.result()
    if getattr(result, "kind", None) == "no_worker":
        raise RuntimeError(result.message)
    return result


def parse(pred: str, *_: object, **_settings: object) -> list[str]:
    r"""Return the final answer of a text in a list; the whole text if it has no box, an empty list
    if it is empty.

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
    timeout_seconds: float | None = TIME_LIMIT,
    raise_on_error: bool = False,
    **_settings: object,
) -> bool:
    """Whether one of the answers `target` equals one of `gold`, by worker processes, so that any
    thread may ask.

    Has the signature of `math_verify.verify`, whose other settings are accepted and have no effect.
    A pair that takes more processor time or memory is different, or a RuntimeError if
    `raise_on_error`. With None there are no limits. Raises RuntimeError if no worker process can be
    started.
    """
    for reference in [gold] if isinstance(gold, str) else gold:
        for answer in [target] if isinstance(target, str) else target:
            if timeout_seconds is None:
                verdict: Any = equal(reference, answer)
            else:
                verdict = result_of(start_equal(reference, answer, timeout_seconds))
            if raise_on_error and not isinstance(verdict, bool):
                raise RuntimeError(
                    f"no verdict on {answer[:80]!r}: {verdict.kind}: {verdict.message}"
                )
            if verdict is True:
                return True
    return False


def explain(
    gold: str | Sequence[str], target: str | Sequence[str], *, timeout_seconds: float = TIME_LIMIT
) -> str:
    """Return "equal", or how the first answers of both are read, which shows why they are
    different.
    """
    reference, answer = (
        answers if isinstance(answers, str) else [*answers, ""][0] for answers in (gold, target)
    )
    reason = result_of(submit("mathequal.compare:reason", reference, answer, timeout_seconds))
    return reason if isinstance(reason, str) else f"no verdict: {reason.kind}"


def accuracy_reward(completions: Sequence, solution: Sequence[str], **_: object) -> list[float]:
    """Return 1.0 for each completion with the right answer in a box:
    `reward_funcs=mathequal.accuracy_reward` of TRL.

    `solution` is a column of the data set: answers, or solutions with the answer in a box.
    """
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    pairs = zip(map(parse, solution), map(final_answer, texts), strict=True)
    verdicts = [start_equal("".join(reference), answer or "") for reference, answer in pairs]
    return [float(result_of(verdict) is True) for verdict in verdicts]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: object = None
) -> float:
    """Return 1.0 for the right answer in a box: verl's `reward.custom_reward_function` with the
    path pkg://mathequal.
    """
    return accuracy_reward([solution_str], [ground_truth])[0]
