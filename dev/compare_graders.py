r"""Compare the default grader with the rules of the authors' released code. docs/grader.md shows the result.

    BNPO_DATA=<folder with the sets> python dev/compare_graders.py

<<<<<<< HEAD
Every reference answer is graded as `The answer is $\boxed{...}$.`, once against itself and once against the answer of
the next problem (left out where the two are spelled alike). Then the references of MATH are rewritten by the rules of
tests/answers: by spellings.py into other spellings, which are right, and by changes.py into other answers.
=======
Each reference answer is graded as `The answer is $\boxed{...}$.` twice: against itself, and against the answer of the
next problem if that is spelled differently. Then the references of MATH are rewritten by the rules of
tests/answers/test_spellings.py: into other spellings, which are right, and into other answers, which are wrong.
>>>>>>> scripts
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "answers"))

<<<<<<< HEAD
import test_spellings as rules
from pair_grader import PairGrader, reference_answers

from mathequal.child import RULES

SETS = ("math500", "amc23", "aime2024", "aime2025", "math_train")
PAIRS_PER_RULE = 40
"""Pairs that a rule of rewriting is tried on."""

Pairs = list[tuple[str, str]]


def own_and_next(file: Path) -> tuple[Pairs, Pairs]:
    """Return each reference of a data set with itself, and with that of the next problem."""
    references = [json.loads(line)["answer"] for line in file.read_text(encoding="utf-8").split("\n") if line]
    neighbours = zip(references, references[1:] + references[:1], strict=True)
    different = [pair for pair in neighbours if pair[0] != pair[1]]
    return list(zip(references, references, strict=True)), different


def rewritten(folder: Path) -> tuple[Pairs, Pairs]:
    """Return references of MATH in other spellings, and changed into other answers."""
    references = reference_answers(folder / "math_train.jsonl", folder / "math500.jsonl")
    tables: list[Pairs] = []
    for table in (rules.SAME, rules.DIFFERENT):
        pairs: Pairs = []
        for rule in table:
            pairs += rules.sample(rules.rewritten(rule, references), PAIRS_PER_RULE)
        tables.append(pairs)
    return tables[0], tables[1]
=======
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
>>>>>>> scripts


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
<<<<<<< HEAD
    graders = {rule: PairGrader(rule) for rule in RULES}
    columns = [f"{rule}: {expected}" for expected in ("equal", "different") for rule in RULES]
=======
    graders = {name: Grader(grader=name) for name in GRADERS}
    columns = [f"{name}: {truth}" for truth in ("equal", "different") for name in GRADERS]
>>>>>>> scripts
    print(f"| pairs | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    tests = {name: own_and_next(folder / f"{name}.jsonl") for name in SETS}
    tests["MATH, rewritten"] = rewritten(folder)
    disagreements = []
    for name, tables in tests.items():
        cells = []
        for pairs in tables:
<<<<<<< HEAD
            verdicts = [grader(pairs, wrap=r"The answer is $\boxed{%s}$.") for grader in graders.values()]
            cells += [f"{sum(accepted)} of {len(pairs)}" for accepted in verdicts]
            for pair, ours, theirs in zip(pairs, *verdicts, strict=True):
                if ours != theirs:
                    disagreements.append((name, pair, ours, theirs))
=======
            verdicts = [grade(grader, pairs) for grader in graders.values()]  # [2][pairs]
            cells += [f"{sum(equal)} of {len(pairs)}" for equal in verdicts]
            disagreements += [(name, *row) for row in zip(pairs, *verdicts, strict=True) if row[1] != row[2]]
>>>>>>> scripts
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\nDisagreements (default, reference):")
    for name, (reference, answer), ours, theirs in disagreements:
        print(f"{name}: reference {reference!r}, answer {answer!r}: {ours}, {theirs}")
<<<<<<< HEAD
    for rule, grader in graders.items():
        print(f"{rule}: could not grade {dict(grader.failures)}")
=======
    for grader in graders.values():
>>>>>>> scripts
        grader.close()


if __name__ == "__main__":
    main()
