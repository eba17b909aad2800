r"""Problems, and the two tasks that need no download.

`arithmetic` has sums of integers, which a tiny model can learn. A third are divided:

    37+9-21-45=?     answer -20
    (37+9-21)/6=?    answer \frac{25}{6}

`word-problems:LARGEST:STEPS` has sums and differences in plain words, for models that were taught
to speak. LARGEST is the largest number of a problem, STEPS its number of changes, 1 or 2. The
default is `word-problems:9:1`.

    Tom has 5 apples and buys 7 more. How many apples does Tom have now?                 12
    Anna has 9 pens, loses 2 and then finds 4 more. How many pens does Anna have now?    11

Splits never overlap, whatever the seed, because a hash decides to which one a problem belongs: of
the text or, for word problems, of the pairs of numbers that are added or subtracted.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, combinations

import numpy as np

from bnpo.files import InputError

# A chat, as chat templates take it: dicts with `role` and `content`
Messages = list[dict[str, str]]
TRAINING_PROBLEMS = 7500  # the size of MATH's training set
WORD_PROBLEMS = "word-problems"


@dataclass(frozen=True)
class Problem:
    """A problem with its reference answer. `id` is unique within its data set."""

    id: str
    problem: str | Messages  # a question, or the whole chat up to the answer
    answer: str
    # Columns of the data set that a reward asks for, by name
    fields: dict[str, object] = field(default_factory=dict, compare=False)

    @property
    def text(self) -> str:
        """All that the prompt takes from the data set, as one text."""
        if isinstance(self.problem, str):
            return self.problem
        return "\n".join(message["content"] for message in self.problem)


def is_built_in(source: str) -> bool:
    return source == "arithmetic" or source.partition(":")[0] == WORD_PROBLEMS


MAX_DRAWS_IN_VAIN = 100_000


def built_in_problems(source: str, split: str, count: int, seed: int = 0) -> list[Problem]:
    """Return `count` different problems of a split of a built-in task. Of other sources, none.
    Raises InputError if the task has fewer.
    """
    if not is_built_in(source):
        return []
    rng = np.random.default_rng(seed)
    drawn: Iterator[tuple[str, str, str | None]]
    drawn = draw_arithmetic(rng) if source == "arithmetic" else draw_word_problems(source, rng)
    answers: dict[str, str] = {}  # by text
    in_vain = 0  # draws since the last new problem
    while len(answers) < count:
        text, answer, its_split = next(drawn)
        in_vain += 1
        if its_split == split and text not in answers:
            answers[text] = answer
            in_vain = 0
        if in_vain > MAX_DRAWS_IN_VAIN:
            raise InputError(
                f"{source}: has about {len(answers)} different problems for {split}, not {count}; "
                "ask for fewer"
            )
    return [
        Problem(f"{source}/{split}/{i}", text, answer)
        for i, (text, answer) in enumerate(answers.items())
    ]


DIVISORS = (2, 3, 4, 5, 6, 8)
MAX_TERMS = 6
# Hash buckets, of 100
SPLITS = {"test": range(0, 10), "validation": range(10, 20), "train": range(20, 100)}


def draw_arithmetic(rng: np.random.Generator) -> Iterator[tuple[str, str, str]]:
    """Yield text, answer and split of random sums, of terms from -49 to 49, without end."""
    while True:
        terms = rng.integers(1, 50, size=rng.integers(2, MAX_TERMS + 1))
        terms[1:] *= rng.choice([-1, 1], size=len(terms) - 1)
        divisor = int(rng.choice(DIVISORS)) if rng.random() < 1 / 3 else 1
        chain = f"{terms[0]}" + "".join(f"{term:+d}" for term in terms[1:])
        text = f"{chain}=?" if divisor == 1 else f"({chain})/{divisor}=?"
        bucket = _hash(text) % 100
        split = next(split for split, buckets in SPLITS.items() if bucket in buckets)
        yield text, latex(Fraction(int(terms.sum()), divisor)), split


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def latex(value: Fraction) -> str:
    r"""Return `value` as references are written: -30, or -\frac{5}{4}."""
    return re.sub(r"(\d+)/(\d+)", r"\\frac{\1}{\2}", str(value))


SMALLEST_RANGE = 9  # below this, too few pairs of numbers are left for the test set
TEST_SHARE = 0.2  # share of all pairs that only test problems have
PEOPLE = ("Tom", "Anna", "Ben", "Lucy", "Max", "Emma", "Sam", "Nora")
THINGS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "marbles")
GAINS = ("buys", "finds", "gets")
LOSSES = ("gives away", "loses", "sells")


def draw_word_problems(
    source: str, rng: np.random.Generator
) -> Iterator[tuple[str, str, str | None]]:
    """Yield text, answer and split (None: neither) of random word problems without end."""
    form = re.fullmatch(rf"{WORD_PROBLEMS}(?::(\d{{0,9}})(?::([12]?))?)?", source)
    largest = int((form and form[1]) or SMALLEST_RANGE)
    if form is None or largest < SMALLEST_RANGE:
        raise InputError(
            f"{source}: write {WORD_PROBLEMS}:LARGEST:STEPS, such as {WORD_PROBLEMS}:20:2, with "
            f"LARGEST from {SMALLEST_RANGE} to 999999999 and STEPS 1 or 2"
        )
    steps = int(form[2] or 1)
    while True:
        # Numbers begin at 2: "1 apples" is no English.
        start, *numbers = rng.integers(2, largest + 1, size=steps + 1).tolist()
        verbs = [str(rng.choice(GAINS if rng.random() < 0.5 else LOSSES)) for _ in numbers]
        person, thing = rng.choice(PEOPLE), rng.choice(THINGS)
        changes, parts = [], []
        for verb, number in zip(verbs, numbers, strict=True):
            gains = verb in GAINS
            changes.append(number if gains else -number)
            parts.append(f"{verb} {number}{' more' if gains else ''}")
        values = list(accumulate(changes, initial=start))
        story = f" and {parts[0]}" if len(parts) == 1 else f", {' and then '.join(parts)}"
        question = f"How many {thing} does {person} have {'now' if changes[-1] > 0 else 'left'}?"
        text = f"{person} has {start} {thing}{story}. {question}"
        yield text, str(values[-1]), _word_problem_split(values, numbers)


def _word_problem_split(values: list[int], numbers: list[int]) -> str | None:
    """Return `test` if the pairs of all steps are test pairs, `train` if no two numbers are one.

    `numbers` are those of the changes; `values` are those at the start and after each change.
    """
    steps = list(zip(values[:-1], numbers, strict=True))
    if min(values) < 1:
        return None
    if all(_is_test_pair(a, b) for a, b in steps):
        return "test"
    pairs = [*steps, *combinations([values[0], *numbers], 2)]
    return None if any(_is_test_pair(a, b) for a, b in pairs) else "train"


def _is_test_pair(a: int, b: int) -> bool:
    return _hash(f"{min(a, b)} {max(a, b)}") / 2**64 < TEST_SHARE
