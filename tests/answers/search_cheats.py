"""Try every string of cheats.py on references of MATH, and print what is accepted without having the value.

    BNPO_DATA=<folder with math_train.jsonl> python tests/answers/search_cheats.py 300

It takes about 10 seconds of one core a reference.
"""

import os
import sys
from pathlib import Path
from random import Random

from cheats import candidates
from pair_grader import PairGrader, reference_answers
from references import value_of


def main(count: int) -> None:
    answers = reference_answers(Path(os.environ["BNPO_DATA"]) / "math_train.jsonl")
    references = [answer for answer in answers if value_of(answer) is not None]
    grader = PairGrader()
    tried = found = 0
    for reference in Random(1).sample(references, count):
        value = value_of(reference)
        strings = list(candidates(value))
        given = grader([(reference, text) for text, _ in strings])
        cheats = [text for (text, worth), right in zip(strings, given, strict=True) if right and worth != value]
        tried, found = tried + len(strings), found + len(cheats)
        if cheats:
            print(f"{reference}: {cheats}", flush=True)
    print(f"{tried} strings on {count} references: {found} accepted without the value")
    print(f"failures: {dict(grader.failures)}")
    grader.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
