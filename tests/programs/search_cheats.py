"""Try every string of tests/cheats.py on references of MATH, and print what is accepted without having the value.

    BNPO_DATA=<folder with math_train.jsonl> PYTHONPATH=src:tests python tests/programs/search_cheats.py 300

It takes about 10 seconds of one core a reference.
"""

import os
import sys
from collections import Counter
from pathlib import Path
from random import Random

from cheats import candidates
from references import value_of

from bnpo.grading.grader import Grader
from bnpo.problems import load_problems


def main(count: int) -> None:
    problems = load_problems(Path(os.environ["BNPO_DATA"]) / "math_train.jsonl")
    values = {problem.answer: value_of(problem.answer) for problem in problems}
    references = sorted(reference for reference, value in values.items() if value is not None)
    grader = Grader()
    tried = found = 0
    failures: Counter[str] = Counter()
    for reference in Random(1).sample(references, count):
        value = values[reference]
        strings = list(candidates(value))
        grades = grader([f"\\boxed{{{text}}}" for text, _ in strings], [reference] * len(strings))
        failures += grades.failures
        given = grades.rewards[:, 0] == 1
        cheats = [text for (text, worth), right in zip(strings, given, strict=True) if right and worth != value]
        tried, found = tried + len(strings), found + len(cheats)
        if cheats:
            print(f"{reference}: {cheats}", flush=True)
    print(f"{tried} strings on {count} references: {found} accepted without the value")
    print(f"failures: {dict(failures)}")
    grader.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
