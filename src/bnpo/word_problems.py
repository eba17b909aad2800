"""The built-in task `word-problems`: sums and differences in plain words, for models that were taught to speak.

    Tom has 5 apples and buys 7 more. How many apples does Tom have now?                          answer 12
    Anna has 9 pens, loses 2 and then finds 4 more. How many pens does Anna have now?             answer 11

`word-problems:LARGEST:STEPS` sets the difficulty: the largest number in a problem and the number of steps, 1 or 2. The
default is `word-problems:9:1`. Training never sees a pair of numbers that a step of a test problem adds or subtracts,
in either order: the hash of a pair decides to which split it belongs.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, combinations, starmap

import numpy as np

from bnpo.files import InputError

NAME = "word-problems"
FORM = f"{NAME}:LARGEST:STEPS, such as {NAME}:20:2"
SMALLEST_RANGE = 9
"""Below this, too few pairs of numbers are left for the test set."""
TEST_SHARE = 0.2
"""Share of all pairs that only test problems have."""
PEOPLE = ("Tom", "Anna", "Ben", "Lucy", "Max", "Emma", "Sam", "Nora")
THINGS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "marbles")
GAINS = ("buys", "finds", "gets")
LOSSES = ("gives away", "loses", "sells")


@dataclass(frozen=True)
class WordProblem:
    """`person` has `start` of `thing`, then each change of `changes` happens, one after the other."""

    person: str
    thing: str
    start: int
    changes: tuple[tuple[str, int], ...]  # a verb of GAINS or LOSSES, and how many

    def __str__(self) -> str:
        parts = [f"{verb} {number}{' more' if verb in GAINS else ''}" for verb, number in self.changes]
        end = "now" if self.changes[-1][0] in GAINS else "left"
        question = f"How many {self.thing} does {self.person} have {end}?"
        has = f"{self.person} has {self.start} {self.thing}"
        story = f"{has} and {parts[0]}" if len(parts) == 1 else f"{has}, {' and then '.join(parts)}"
        return f"{story}. {question}"

    @property
    def values(self) -> list[int]:
        """How many there are at the start and after each change."""
        signed = [number if verb in GAINS else -number for verb, number in self.changes]
        return list(accumulate(signed, initial=self.start))

    @property
    def answer(self) -> str:
        return str(self.values[-1])

    @property
    def split(self) -> str | None:
        """`test` if all its steps have pairs of the test set, `train` if no two of its numbers are such a pair.

        None for all others, and if a step leaves less than one thing.
        """
        numbers = [number for _, number in self.changes]
        steps = list(zip(self.values[:-1], numbers, strict=True))
        if min(self.values) < 1:
            return None
        if all(is_test_pair(*step) for step in steps):
            return "test"
        return None if any(starmap(is_test_pair, [*steps, *combinations([self.start, *numbers], 2)])) else "train"


def is_test_pair(a: int, b: int) -> bool:
    """Return whether only test problems may add or subtract these two numbers."""
    digest = hashlib.sha256(f"{min(a, b)} {max(a, b)}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 < TEST_SHARE


def draw_word_problems(source: str, rng: np.random.Generator) -> Iterator[WordProblem]:
    """Yield random problems of all splits without end, as difficult as the name `source` says. Raises InputError."""
    largest, _, steps = source.removeprefix(NAME).removeprefix(":").partition(":")
    if not (largest or "9").isdecimal() or int(largest or "9") < SMALLEST_RANGE or steps not in ("", "1", "2"):
        raise InputError(f"{source}: write {FORM}, with LARGEST of at least {SMALLEST_RANGE} and STEPS 1 or 2")
    while True:
        # From 2: "1 apples" is no English.
        start, *numbers = rng.integers(2, int(largest or "9") + 1, size=int(steps or "1") + 1).tolist()
        verbs = [str(rng.choice(GAINS if rng.random() < 0.5 else LOSSES)) for _ in numbers]
        changes = tuple(zip(verbs, numbers, strict=True))
        yield WordProblem(str(rng.choice(PEOPLE)), str(rng.choice(THINGS)), start, changes)
