"""Verdicts on many pairs by a grader."""

from collections import Counter
from collections.abc import Sequence

from bnpo.grading.grader import Grader


class PairGrader:
    """Grades pairs of a reference and an answer, which is put into a box. `failures` counts
    missing verdicts.
    """

    def __init__(self, rule: str = "default"):
        self._grader = Grader(grader=rule, workers=2)
        self.failures: Counter[str] = Counter()

    def __call__(self, pairs: Sequence[tuple[str, str]], wrap: str = r"\boxed{%s}") -> list[bool]:
        texts = [wrap.replace("%s", answer) for _, answer in pairs]
        grades = self._grader(texts, [reference for reference, _ in pairs])
        self.failures += grades.failures
        return [bool(reward == 1) for reward in grades.rewards[:, 0]]

    def close(self) -> None:
        self._grader.close()
