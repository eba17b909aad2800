"""No text may take long in a training process, and no pattern may take exponential time anywhere."""

import time
from itertools import chain

import pytest
from hostile import hostile_answers
from repeated import repeated_tokens

from bnpo.grading.rewards import REWARDS
from bnpo.grading.workers import Failure, Workers
from mathequal import final_answer, instant_verdict

LONGEST_IN_RANK = 0.05
"""Seconds of processor time."""


def in_rank_seconds(text: str, reference: str) -> float:
    """Return how long everything takes that a grader computes of one answer in the process that calls it."""
    started = time.thread_time()
    instant_verdict(reference, final_answer(text, tags=True) or "")
    for reward in REWARDS.values():
        reward(text, reference)
    return time.thread_time() - started


def test_no_text_takes_long_in_a_rank():
    repeated = ((text, "x=5") for text in repeated_tokens(0, 30_000))
    boxed = ((r"\boxed{" + text, "5") for text in repeated_tokens(1, 5_000, longest=100_000))
    hostile = ((text, reference) for reference, text in hostile_answers(1, 10_000))
    slow = [
        (text[:60], len(text))
        for text, reference in chain(repeated, boxed, hostile)
        # Time is linear in the length. An answer of 3,072 tokens has about 15,000 characters.
        if in_rank_seconds(text, reference) > LONGEST_IN_RANK * max(1, len(text) / 20_000)
    ]
    assert slow == []


@pytest.mark.program
def test_no_pattern_takes_exponential_time():
    """A second suffices a hundred times over for texts of any form, so that a limit of 5 seconds is never decisive."""
    workers = Workers(2, time_limit=1.0, preload="mathequal.warm")
    texts = [*repeated_tokens(2, 10_000), *("m " * n + "x=5" for n in range(20, 60))]
    calls = [workers.submit("mathequal.read:normal_form", text) for text in texts]
    slow = [text for text, call in zip(texts, calls, strict=True) if isinstance(call.result(), Failure)]
    workers.close()
    assert slow == []
