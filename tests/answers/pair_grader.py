"""Verdicts on many pairs, by two child processes at a time."""

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mathequal.child import LimitedGrader


class PairGrader:
    """Grades pairs of a reference and an answer, which is put into a box. `failures` counts missing verdicts."""

    def __init__(self, rule: str = "default"):
        self._graders = [LimitedGrader(rule), LimitedGrader(rule)]

    def __call__(self, pairs: Sequence[tuple[str, str]], wrap: str = r"\boxed{%s}") -> list[bool]:
        def grade(grader: LimitedGrader, share: Sequence[tuple[str, str]]) -> list[bool]:
            return [grader.equal(reference, wrap.replace("%s", answer)) for reference, answer in share]

        verdicts = [False] * len(pairs)
        with ThreadPoolExecutor(2) as threads:
            verdicts[0::2], verdicts[1::2] = threads.map(grade, self._graders, (pairs[0::2], pairs[1::2]))
        return verdicts

    @property
    def failures(self) -> Counter[str]:
        return self._graders[0].failures + self._graders[1].failures

    def close(self) -> None:
        for grader in self._graders:
            grader.close()


def reference_answers(*files: Path) -> list[str]:
    """The different references of data sets that are not empty, in order."""
    answers = set()
    for file in files:
        with file.open(encoding="utf-8") as lines:
            answers |= {json.loads(line)["answer"] for line in lines}
    return sorted(answers - {""})
