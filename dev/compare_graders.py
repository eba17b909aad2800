r"""Compare the default grader with the rule of the released code on the data sets; docs/grader.md
shows the result.

    BNPO_DATA=<folder with the sets> python dev/compare_graders.py
    python dev/compare_graders.py labelled    # the second table only, which needs no data

Every reference answer is graded as `The answer is $\boxed{...}$.`, once against itself and once
against the answer of the next problem (left out where the two are spelled alike). Then the
references of MATH are graded against those in tests/answers/rewritten.jsonl: other spellings, which
are right, and other answers. A second table has the labelled pairs of tests/answers, also by
math-verify as its README calls it.
"""

import json
import os
import sys
from pathlib import Path

import math_verify

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "answers"))

from pair_grader import PairGrader

from bnpo.grading.rewards import BOTH_RULES as RULES

SETS = ("math500", "amc23", "aime2024", "aime2025", "math_train")

Pairs = list[tuple[str, str]]


def own_and_next(file: Path) -> tuple[Pairs, Pairs]:
    """Return each reference of a data set with itself, and with that of the next problem."""
    references = [
        json.loads(line)["answer"] for line in file.read_text(encoding="utf-8").split("\n") if line
    ]
    neighbours = zip(references, references[1:] + references[:1], strict=True)
    different = [pair for pair in neighbours if pair[0] != pair[1]]
    return list(zip(references, references, strict=True)), different


def rewritten() -> tuple[Pairs, Pairs]:
    """Return references of MATH in other spellings, and changed into other answers."""
    lines = (
        (ROOT / "tests" / "answers" / "rewritten.jsonl").read_text(encoding="utf-8").splitlines()
    )
    cases = [json.loads(line) for line in lines]
    equal, different = (
        [case for case in cases if case["equal"] == label] for label in (True, False)
    )
    return tuple(
        [(case["gold"], case["prediction"]) for case in part] for part in (equal, different)
    )


def by_math_verify(pairs: Pairs) -> list[bool]:
    """Return the verdicts of math-verify as its README calls it, within its own time limits."""
    verdicts = []
    for reference, answer in pairs:
        gold = math_verify.parse(f"${reference}$")
        given = math_verify.parse(rf"The answer is $\boxed{{{answer}}}$.")
        verdicts.append(bool(math_verify.verify(gold, given)))
    return verdicts


def print_labelled(graders: dict[str, PairGrader]) -> None:
    """Print how each rule agrees with the labels of grader_cases.jsonl."""
    lines = (
        (ROOT / "tests" / "answers" / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines()
    )
    cases = [json.loads(line) for line in lines]
    pairs = [(case["gold"], case["prediction"]) for case in cases]
    verdicts = {
        rule: grader(pairs, wrap=r"The answer is $\boxed{%s}$.") for rule, grader in graders.items()
    }
    verdicts["math-verify"] = by_math_verify(pairs)
    print(
        "\n| rule | agrees with the label | accepts wrongly | refuses wrongly |\n| --- | --- | --- "
        "| --- |"
    )
    for rule, accepted in verdicts.items():
        wrong = [right and not case["equal"] for case, right in zip(cases, accepted, strict=True)]
        missed = [case["equal"] and not right for case, right in zip(cases, accepted, strict=True)]
        agreement = 1 - (sum(wrong) + sum(missed)) / len(cases)
        print(f"| {rule} | {agreement:.1%} | {sum(wrong)} | {sum(missed)} |")


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    graders = {rule: PairGrader(rule) for rule in RULES}
    if sys.argv[1:] == ["labelled"]:
        print_labelled(graders)
        return
    columns = [f"{rule}: {expected}" for expected in ("equal", "different") for rule in RULES]
    print(f"| pairs | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    tests = {name: own_and_next(folder / f"{name}.jsonl") for name in SETS}
    tests["MATH, rewritten"] = rewritten()
    disagreements = []
    for name, tables in tests.items():
        cells = []
        for pairs in tables:
            verdicts = [
                grader(pairs, wrap=r"The answer is $\boxed{%s}$.") for grader in graders.values()
            ]
            cells += [f"{sum(accepted)} of {len(pairs)}" for accepted in verdicts]
            for pair, ours, theirs in zip(pairs, *verdicts, strict=True):
                if ours != theirs:
                    disagreements.append((name, pair, ours, theirs))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print_labelled(graders)
    print("\nDisagreements (default, reference):")
    for name, (reference, answer), ours, theirs in disagreements:
        print(f"{name}: reference {reference!r}, answer {answer!r}: {ours}, {theirs}")
    for rule, grader in graders.items():
        print(f"{rule}: could not grade {dict(grader.failures)}")
        grader.close()


if __name__ == "__main__":
    main()
