r"""Compare the default grader with the rules of the authors' released code. docs/grader.md shows the result.

    BNPO_DATA=<folder with the sets> python dev/compare_graders.py

Each reference answer is graded as `The answer is $\boxed{...}$.` twice: against itself, and against the answer of the
next problem if that is spelled differently. Then the references of MATH are rewritten by the rules of
tests/answers/test_spellings.py: into other spellings, which are right, and into other answers, which are wrong.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from bnpo.files import ROOT
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS
from bnpo.problems import load_problems

SETS = ("math500", "amc23", "aime2024", "aime2025", "math_train")
PAIRS_PER_RULE = 40
"""Largest number of references that each rule rewrites."""


def grade(grader: Grader, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return [pairs] of bool: whether `grader` finds each (reference, answer) equal. Print the calls that fail."""
    texts = [f"The answer is $\\boxed{{{answer}}}$." for _, answer in pairs]
    grades = grader(texts, [reference for reference, _ in pairs])
    if grades.failures:
        print(f"{grader.grader}: could not grade {dict(grades.failures)}", file=sys.stderr)
    return grades.rewards[:, 0] == 1


def rewritten(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return pairs of a reference of MATH and its rewritten form: `spellings`, which are equal, and `others`."""
    sys.path.insert(0, str(ROOT / "tests" / "answers"))
    import test_spellings as rules

    problems = [problem for name in ("math_train", "math500") for problem in load_problems(folder / f"{name}.jsonl")]
    references = sorted({problem.answer for problem in problems} - {""})
    pairs: dict[str, list[tuple[str, str]]] = {}
    for name, table in (("spellings", rules.SAME), ("others", rules.DIFFERENT)):
        pairs[name] = []
        for rule in table:
            of_rule = rules.rewritten(rule, references)
            pairs[name] += Random(0).sample(of_rule, min(PAIRS_PER_RULE, len(of_rule)))
    return pairs


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    graders = {name: Grader(grader=name) for name in GRADERS}
    columns = [f"{name}: {truth}" for truth in ("equal", "different") for name in GRADERS]
    print(f"| pairs | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    tests = {}
    for name in SETS:
        references = [problem.answer for problem in load_problems(folder / f"{name}.jsonl")]
        others = list(zip(references, references[1:] + references[:1], strict=True))
        tests[name] = [(r, r) for r in references], [pair for pair in others if pair[0] != pair[1]]
    tests["MATH, rewritten"] = tuple(rewritten(folder).values())
    disagreements = []
    for name, tables in tests.items():
        cells = []
        for pairs in tables:
            verdicts = [grade(grader, pairs) for grader in graders.values()]  # [2][pairs]
            cells += [f"{sum(equal)} of {len(pairs)}" for equal in verdicts]
            disagreements += [(name, *row) for row in zip(pairs, *verdicts, strict=True) if row[1] != row[2]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\nDisagreements (default, reference):")
    for name, (reference, answer), ours, theirs in disagreements:
        print(f"{name}: reference {reference!r}, answer {answer!r}: {ours}, {theirs}")
    for grader in graders.values():
        grader.close()


if __name__ == "__main__":
    main()
