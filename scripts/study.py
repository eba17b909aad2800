"""The miniature study: does adaptive normalisation help? Every run of docs/study.md, and the report on them.

    python scripts/study.py --dry-run          # runs of every part, how many have a row, hours that are left
    python scripts/study.py                    # all of it, a run on each core; goes on where it was stopped
    python scripts/study.py --only tuning      # a part of it
    python scripts/study.py --report           # docs/results.md and its figures, from the rows

Every run that ends becomes a row of evals/results/study/rows.jsonl, which is committed; a run that failed has one, too.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from bnpo.files import ROOT, InputError
from study.design import EVALUATED, REGIMES, StudyRun
from study.registry import PARTS
from study.rows import NOISE, Rows, commit


@dataclass
class Args:
    only: tuple[str, ...] = ()
    """Parts to run; by default all."""
    limit: int | None = None
    """At most so many runs more."""
    jobs: int = len(os.sched_getaffinity(0))
    """Runs side by side, each with one thread."""
    work_dir: Path = ROOT / "runs" / "study"
    """Folder for what runs leave until they are rows."""
    dry_run: bool = False
    """Say what there is to do, and start nothing."""
    report: bool = False
    """Write docs/results.md from the rows, and run nothing."""


def runs_left(part: str, rows: Rows) -> list[StudyRun]:
    """The runs of a part that have no row. Raises InputError where they need rows of an earlier part."""
    return [run for run in PARTS[part](rows.all) if run.name not in rows.names]


def tell(parts: tuple[str, ...], rows: Rows, jobs: int) -> None:
    """Print what there is to do: hours by the rows of a part or, while it has none, by those of all."""
    table = Table("part", "runs left", "rows", "hours left", title=f"{jobs} runs side by side")
    for part in parts:
        done = [row for row in rows.all if row["part"] == part]
        took = [row["seconds_in_all"] for row in done or rows.all]
        try:
            left = len(runs_left(part, rows))
        except InputError:  # earlier parts have not yet chosen its learning rates
            left = len(list(PARTS[part](None)))
        hours = f"{left * np.mean(took) / jobs / 3600:.1f}" if took else "?"
        table.add_row(part, str(left), str(len(done)), hours)
    Console(width=120).print(table)
    measured = json.loads(NOISE.read_text()) if NOISE.exists() else {}
    left = sum(len(EVALUATED[regime]) for regime in REGIMES) - len(measured)
    seconds = [checkpoint["seconds"] for checkpoint in measured.values()]
    hours = f"{left * np.mean(seconds) / 3600:.1f}" if seconds else "?"
    print(
        f"noise (python scripts/study/gradient_noise.py): {left} checkpoints left of {left + len(measured)}, "
        f"{hours} hours"
    )


def main(args: Args) -> None:
    parts = args.only or tuple(PARTS)
    if unknown := set(parts) - PARTS.keys():
        raise InputError(f"--only: unknown part '{unknown.pop()}'; known: {', '.join(PARTS)}")
    rows = Rows()
    if args.report:
        from study.results import write_results

        return write_results(rows.all)
    if args.dry_run:
        return tell(parts, rows, args.jobs)
    made_by = commit()
    from study.jobs import run_side_by_side

    os.chdir(ROOT)  # data and models are told from there
    count = args.limit
    for part in parts:
        while runs := runs_left(part, rows)[:count]:  # tuning may go on beyond its grid
            run_side_by_side(runs, rows, args.work_dir, args.jobs, made_by)
            if count is not None and (count := count - len(runs)) == 0:
                return


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
