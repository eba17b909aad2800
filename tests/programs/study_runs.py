"""Runs of the study, cut short: `study_runs.py FOLDER RUN...`, a run as JSON; rows go to FOLDER/rows.jsonl.

In a program of its own: the fork server of run_side_by_side is one for a process, and has other imports elsewhere.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from study.design import StudyRun
from study.rows import Rows


@dataclass(frozen=True)
class Short(StudyRun):
    """A run that stops after `steps`: until then it computes what the whole one does."""

    steps: int

    def command(self) -> tuple[str, ...]:
        words = list(super().command())
        words[words.index("--steps") + 1] = str(self.steps)
        words[words.index("--eval-every") + 1] = "0"
        return tuple(words)


if __name__ == "__main__":
    from study.jobs import run_side_by_side

    folder = Path(sys.argv[1])
    runs = [Short(**json.loads(run)) for run in sys.argv[2:]]
    run_side_by_side(runs, Rows(folder / "rows.jsonl"), folder / "work", jobs=2, made_by="test")
