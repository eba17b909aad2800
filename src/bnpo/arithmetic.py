r"""The built-in task: arithmetic that a tiny model can learn, so that everything runs without downloads.

A question is a chain of sums over integers, in about a third of the cases divided by a small number:

    37+9-21-45=?            answer -20
    (37+9-21)/6=?           answer \frac{25}{6}

A question belongs to one split for ever: the hash of its text says which, so training, validation and test
questions cannot overlap, whatever seed or count draws them.
"""

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bnpo.problems import Problem, load_problems

DIVISORS = (2, 3, 4, 5, 6, 8)
MAX_TERMS = 6
TRAINING_PROBLEMS = 7500
"""As many as MATH has."""
SPLITS = {"test": range(0, 10), "validation": range(10, 20), "train": range(20, 100)}
"""Hash bucket (of 100) of a question's text -> split."""


@dataclass(frozen=True)
class Question:
    """`terms` summed, then divided by `divisor` (1: no division)."""

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

    def worked(self) -> str:
        """The chain of steps that leads to the answer: `37+9=46 46-21=25 25/6=25/6`."""
        steps, total = [], self.terms[0]
        for term in self.terms[1:]:
            steps.append(f"{total}{term:+d}={total + term}")
            total += term
        if self.divisor > 1:
            steps.append(f"{total}/{self.divisor}={self.answer}")
        return " ".join(steps)


def draw_question(rng: np.random.Generator, split: str) -> Question:
    """A random question of `split`, with 2 to MAX_TERMS terms between -49 and 49 (the first positive)."""
    while True:
        terms = rng.integers(1, 50, size=rng.integers(2, MAX_TERMS + 1))
        terms[1:] *= rng.choice([-1, 1], size=len(terms) - 1)
        divisor = int(rng.choice(DIVISORS)) if rng.random() < 1 / 3 else 1
        question = Question(tuple(int(term) for term in terms), divisor)
        if question.split == split:
            return question


def spellings(value: Fraction) -> list[str]:
    r"""Ways to write `value`; the first is the reference.

    >>> spellings(Fraction(-5, 4)), spellings(Fraction(1, 3)), spellings(Fraction(-30))
    (['-\\frac{5}{4}', '-5/4', '-1.25'], ['\\frac{1}{3}', '1/3'], ['-30'])
    """
    if value.denominator == 1:
        return [str(value)]
    sign = "-" if value < 0 else ""
    ways = [f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}", str(value)]
    decimal = f"{float(value):.3f}".rstrip("0")
    return [*ways, decimal] if Fraction(decimal) == value else ways


def arithmetic_problems(split: str, count: int, seed: int = 0) -> list[Problem]:
    """`count` different problems of `split`, the same for the same seed; a larger count only appends."""
    rng = np.random.default_rng(seed)
    questions: dict[Question, None] = {}
    while len(questions) < count:
        questions.setdefault(draw_question(rng, split))
    return [
        Problem(f"arithmetic/{split}/{i}", str(question), spellings(question.answer)[0])
        for i, question in enumerate(questions)
    ]


def training_problems(data: str) -> list[Problem]:
    """The problems of `data`: `arithmetic`, the built-in task, or the path of a JSON-lines file.

    Raises InputError as `load_problems` does.
    """
    return arithmetic_problems("train", TRAINING_PROBLEMS) if data == "arithmetic" else load_problems(data)
