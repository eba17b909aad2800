"""The built-in task `word-problems`: sums and differences in plain words, for models that were
taught to speak.

    Tom has 5 apples and buys 7 more. How many apples does Tom have now?
    Anna has 9 pens, loses 2 and then finds 4 more. How many pens does Anna have now?

The answers are 12 and 11.

`word-problems:LARGEST:STEPS` sets the difficulty: the largest number in a problem and the number of
steps, 1 or 2. The default is `word-problems:9:1`. Training never sees a pair of numbers that a step
of a test problem adds or subtracts, in either order: the hash of a pair decides to which split it
belongs.
"""

import hashlib
from collections.abc import Iterator
from itertools import accumulate, combinations, starmap

import numpy as np

from bnpo.files import InputError

NAME = "word-problems"
SMALLEST_RANGE = 9  # below this, too few pairs of numbers are left for the test set
TEST_SHARE = 0.2  # share of all pairs that only test problems have
PEOPLE = ("Tom", "Anna", "Ben", "Lucy", "Max", "Emma", "Sam", "Nora")
THINGS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "marbles")
GAINS = ("buys", "finds", "gets")
LOSSES = ("gives away", "loses", "sells")


def draw_word_problems(
    source: str, rng: np.random.Generator
) -> Iterator[tuple[str, str, str | None]]:
    """Yield text, answer and split of random problems without end, as difficult as `source`
    says. Raises InputError.
    """
    largest, _, steps = source.removeprefix(NAME).removeprefix(":").partition(":")
    if (
        not (largest or "9").isdecimal()
        or int(largest or "9") < SMALLEST_RANGE
        or steps not in ("", "1", "2")
    ):
        form = f"{NAME}:LARGEST:STEPS, such as {NAME}:20:2"
        raise InputError(
            f"{source}: write {form}, with LARGEST of at least {SMALLEST_RANGE} and STEPS 1 or 2"
        )
    while True:
        # Numbers begin at 2: "1 apples" is no English.
        start, *numbers = rng.integers(
            2, int(largest or "9") + 1, size=int(steps or "1") + 1
        ).tolist()
        verbs = [str(rng.choice(GAINS if rng.random() < 0.5 else LOSSES)) for _ in numbers]
        person, thing = rng.choice(PEOPLE), rng.choice(THINGS)
        changes = [
            number if verb in GAINS else -number
            for verb, number in zip(verbs, numbers, strict=True)
        ]
        values = list(accumulate(changes, initial=start))
        parts = [
            f"{verb} {abs(n)}{' more' if n > 0 else ''}"
            for verb, n in zip(verbs, changes, strict=True)
        ]
        story = f" and {parts[0]}" if len(parts) == 1 else f", {' and then '.join(parts)}"
        question = f"How many {thing} does {person} have {'now' if changes[-1] > 0 else 'left'}?"
        text = f"{person} has {start} {thing}{story}. {question}"
        yield text, str(values[-1]), split_of(values, numbers)


def split_of(values: list[int], numbers: list[int]) -> str | None:
    """Return the split of a problem with the `numbers` of its changes, and `values` at the start
    and after each.

    `test` if all its steps have pairs of the test set, `train` if no two of its numbers are such a
    pair. None for all others, and if a step leaves less than one thing.
    """
    steps = list(zip(values[:-1], numbers, strict=True))
    if min(values) < 1:
        return None
    if all(starmap(is_test_pair, steps)):
        return "test"
    return (
        None
        if any(starmap(is_test_pair, [*steps, *combinations([values[0], *numbers], 2)]))
        else "train"
    )


def is_test_pair(a: int, b: int) -> bool:
    """Return whether only test problems may add or subtract these two numbers."""
    digest = hashlib.sha256(f"{min(a, b)} {max(a, b)}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64 < TEST_SHARE
