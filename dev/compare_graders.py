r"""Compare the default grader with the rule of the released code on the data sets; docs/grader.md shows the result.

    BNPO_DATA=<folder with the sets> python dev/compare_graders.py

Every reference answer is graded as `The answer is $\boxed{...}$.`, once against itself and once against the answer of
the next problem (left out where the two are spelled alike). Then the references of MATH, rewritten by the rules of
tests/spellings.py and changes.py: into other spellings, which are right, and into other answers, which are wrong.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from bnpo.files import ROOT
from bnpo.grading.rewards import GRADERS, Grader
from bnpo.problems import load_problems

SETS = ("math500", "amc23", "aime2024", "aime2025", "math_train")
EACH = 40
"""Pairs a rule of rewriting is tried on."""


def grade(grader: Grader, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Whether each (reference, answer) is found equal."""
    texts = [f"The answer is $\\boxed{{{answer}}}$." for _, answer in pairs]
    return grader(texts, [reference for reference, _ in pairs])[:, 0] == 1


def rewritten(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Pairs of references of MATH with what the rules make of them: `spellings`, which are equal, and `others`."""
    sys.path.insert(0, str(ROOT / "tests" / "answers"))
    import test_spellings as rules

    problems = [problem for name in ("math_train", "math500") for problem in load_problems(folder / f"{name}.jsonl")]
    references = sorted({problem.answer for problem in problems} - {""})
    pairs: dict[str, list[tuple[str, str]]] = {}
    for name, table in (("spellings", rules.SAME), ("others", rules.DIFFERENT)):
        found = [rules.rewritten(rule, references) for rule in table]
        pairs[name] = [pair for each in found for pair in Random(0).sample(each, min(EACH, len(each)))]
    return pairs


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    graders = {name: Grader(grader=name) for name in GRADERS}
    columns = [f"{name}: {what}" for what in ("equal", "different") for name in GRADERS]
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
            given = [grade(grader, pairs) for grader in graders.values()]
            cells += [f"{sum(right)} of {len(pairs)}" for right in given]
            disagreements += [(name, *row) for row in zip(pairs, *given, strict=True) if row[1] != row[2]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\nDisagreements (default, reference):")
    for name, (reference, answer), ours, theirs in disagreements:
        print(f"{name}: reference {reference!r}, answer {answer!r}: {ours}, {theirs}")
    for rule, grader in graders.items():
        print(f"{rule}: could not grade {dict(grader.take_failures())}")
        grader.close()


if __name__ == "__main__":
    main()
