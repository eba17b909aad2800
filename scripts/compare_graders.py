r"""Compare the default grader with the rule of the released code on the data sets; docs/grader.md shows the result.

    BNPO_DATA=<folder with the sets> python scripts/compare_graders.py

Every reference answer is graded as `The answer is $\boxed{...}$.`, once against itself and once against the answer of
the next problem (left out where the two are spelled alike).
"""

import os
from pathlib import Path

from bnpo.answers.rewards import GRADERS, Grader
from bnpo.files import ROOT
from bnpo.problems import load_problems

SETS = ("math500", "amc23", "aime2024", "aime2025", "math_train")


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    graders = {name: Grader(grader=name) for name in GRADERS}
    print("| data set | " + " | ".join(f"{name}: itself, another's" for name in GRADERS) + " |")
    print("| --- |" + " --- |" * len(GRADERS))
    disagreements = []
    for name in SETS:
        references = [problem.answer for problem in load_problems(folder / f"{name}.jsonl")]
        texts = [f"The answer is $\\boxed{{{reference}}}$." for reference in references]
        others = texts[1:] + texts[:1]
        cells, verdicts = [], {}
        for rule, grader in graders.items():
            right = grader(texts, references)[:, 0] == 1
            alike = [text == other for text, other in zip(texts, others, strict=True)]
            wrong = [v and not a for v, a in zip(grader(others, references)[:, 0], alike, strict=True)]
            cells.append(f"{sum(right)} of {len(right)}, {sum(wrong)} of {len(wrong) - sum(alike)}")
            verdicts[rule] = [*zip(references, references, right, strict=True)]
            verdicts[rule] += zip(references, references[1:] + references[:1], wrong, strict=True)
        print(f"| {name} | {' | '.join(cells)} |")
        for ours, theirs in zip(*verdicts.values(), strict=True):
            if ours[2] != theirs[2]:
                disagreements.append(f"{name}: reference {ours[0]!r}, answer {ours[1]!r}: {ours[2]}, {theirs[2]}")
    print("\nDisagreements (verdicts: default, reference):\n" + "\n".join(disagreements))
    for rule, grader in graders.items():
        print(f"{rule}: could not grade {dict(grader.take_failures())}")
        grader.close()


if __name__ == "__main__":
    main()
