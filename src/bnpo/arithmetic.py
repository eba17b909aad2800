r"""The built-in task: arithmetic that a tiny model can learn, so that everything runs without downloads.

A question is a sum of integers. About a third of them are divided by a small number:

    37+9-21-45=?            answer -20
    (37+9-21)/6=?           answer \frac{25}{6}

The hash of its text decides to which split a question belongs, so the splits never overlap, whatever the seed.
"""

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bnpo.problems import Problem

DIVISORS = (2, 3, 4, 5, 6, 8)
MAX_TERMS = 6
TRAINING_PROBLEMS = 7500
"""The size of MATH's training set."""
SPLITS = {"test": range(0, 10), "validation": range(10, 20), "train": range(20, 100)}
"""Hash buckets of each split, out of 100."""


@dataclass(frozen=True)
class Question:
    """The sum of `terms`, divided by `divisor` (1: no division)."""

    terms: tuple[int, ...]
    divisor: int

    def __str__(self) -> str:
        chain = str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:])
        return f"{chain}=?" if self.divisor == 1 else f"({chain})/{self.divisor}=?"

    @property
    def answer(self) -> Fraction:
        return Fraction(sum(self.terms), self.divisor)

    @property
    def split(self) -> str:
        bucket = int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:8]) % 100
        return next(split for split, buckets in SPLITS.items() if bucket in buckets)


def draw_question(rng: np.random.Generator, split: str) -> Question:
    """Return a random question of `split`: 2 to MAX_TERMS terms between -49 and 49, of which the first is positive."""
    while True:  # until a question falls into the split
        terms = rng.integers(1, 50, size=rng.integers(2, MAX_TERMS + 1))
        terms[1:] *= rng.choice([-1, 1], size=len(terms) - 1)
        divisor = int(rng.choice(DIVISORS)) if rng.random() < 1 / 3 else 1
        question = Question(tuple(int(term) for term in terms), divisor)
        if question.split == split:
            return question


def latex(value: Fraction) -> str:
    r"""Return `value` as references are written: -30, or -\frac{5}{4}."""
    if value.denominator == 1:
        return str(value)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def arithmetic_problems(split: str, count: int, seed: int = 0) -> list[Problem]:
    """Return `count` different problems of `split`. They depend on the seed only. A larger count appends problems."""
    rng = np.random.default_rng(seed)
    questions: dict[Question, None] = {}  # an ordered set
    while len(questions) < count:
        questions.setdefault(draw_question(rng, split))
    return [Problem(f"arithmetic/{split}/{i}", str(q), latex(q.answer)) for i, q in enumerate(questions)]
