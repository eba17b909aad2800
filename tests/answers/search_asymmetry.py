r"""Grade mutated answers both ways, and print the pairs whose verdict depends on which of the two is the reference.

    BNPO_DATA=<folder with math_train.jsonl> python tests/answers/search_asymmetry.py 10000

A pair is a reference of MATH or an answer of grader_cases.jsonl, and the same with a few pieces changed. References
with a tolerance (`9.9 \pm 0.1`, "about 18.9") are left out, since only they may be inexact.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from pair_grader import PairGrader, reference_answers

PIECES = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+|.", re.DOTALL)
INEXACT = re.compile(r"\\pm|about|approx|around|roughly|≈")
AT_ONCE = 500
"""Pairs between two lines of progress."""


def mutated(random: Random, text: str, pieces: list[str]) -> str:
    """Return `text` with one to three pieces left out, doubled, exchanged, or replaced by those of other answers."""
    parts = PIECES.findall(text)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(parts) + 1)
        change = random.choice(("drop", "insert", "replace", "double", "swap"))
        if change == "insert":
            parts.insert(place, random.choice(pieces))
        elif place < len(parts):
            if change == "replace":
                parts[place] = random.choice(pieces)
            elif change == "swap":
                other = random.randrange(len(parts))
                parts[place], parts[other] = parts[other], parts[place]
            else:
                parts[place : place + 1] = [parts[place]] * (0 if change == "drop" else 2)
    return "".join(parts)


def pairs(random: Random, answers: list[str]) -> Iterator[tuple[str, str]]:
    pieces = [piece for answer in answers for piece in PIECES.findall(answer)]
    while True:
        answer = random.choice(answers)
        if not INEXACT.search(other := mutated(random, answer, pieces)):
            yield answer, other


def main(count: int) -> None:
    cases = (Path(__file__).parent / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines()
    answers = reference_answers(Path(os.environ["BNPO_DATA"]) / "math_train.jsonl")
    answers += [json.loads(case)["prediction"] for case in cases]
    source = pairs(Random(1), [answer for answer in answers if answer and not INEXACT.search(answer)])
    grader, equal, found = PairGrader(), 0, 0
    for done in range(0, count, AT_ONCE):
        tried = [next(source) for _ in range(AT_ONCE)]
        given = grader(tried, wrap="%s")
        back = grader([(other, answer) for answer, other in tried], wrap="%s")
        equal += sum(given)
        for pair, verdict in zip(tried, map(tuple, zip(given, back, strict=True)), strict=True):
            if verdict[0] != verdict[1]:
                found += 1
                print(pair, verdict, flush=True)
        print(f"{done + AT_ONCE} pairs, {equal} equal, {found} depend on the order", flush=True)
    print(f"failures: {dict(grader.failures)}")
    grader.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
