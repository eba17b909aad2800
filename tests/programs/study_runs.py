"""Runs of the study, cut short: `study_runs.py FOLDER RUN...`, with each run as JSON. Rows go to FOLDER/rows.jsonl.

This is a program of its own, because a process has one fork server, and the tests start theirs with other imports.
"""

import json
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from study.design import StudyRun
from study.rows import Rows


@dataclass(frozen=True)
class Short(StudyRun):
    """A run that stops after `steps` steps. Until then it computes what the whole run computes."""

    steps: int

    def command(self) -> tuple[str, ...]:
        words = list(super().command())
        words[words.index("--steps") + 1] = str(self.steps)
        words[words.index("--eval-every") + 1] = "0"
        return tuple(words)


def write_imports(file: Path) -> None:
    """Write the names of the modules that a process of the fork server starts with."""
    file.write_text("\n".join(sys.modules), encoding="utf-8")


if __name__ == "__main__":
    from study.jobs import run_side_by_side

    folder = Path(sys.argv[1])
    runs = [Short(**json.loads(run)) for run in sys.argv[2:]]
    run_side_by_side(runs, Rows(folder / "rows.jsonl"), folder / "work", jobs=2, made_by="test")
    process = get_context("forkserver").Process(target=write_imports, args=(folder / "imports.txt",))
    process.start()
    process.join()
