"""Run the miniature studies (does adaptive normalisation help? docs/study/ has their plans) and write their reports.

    python scripts/study.py --dry-run          # count the runs of each part that are left, and their hours
    python scripts/study.py                    # run what is left, one run on each core
    python scripts/study.py --only tuning      # run one part
    python scripts/study.py --report           # write the results in docs/study and the tables in evals/results/study

Each run that ends becomes a row of evals/results/study/rows.jsonl, or rows-2.jsonl for the second study. These files
are committed. Failed runs have a row, too. Runs that have a row are not repeated, so the same command continues an
interrupted study. More programs belong to the studies:

    python scripts/study/power.py              # the sample size calculation of the second study
    python scripts/study/gradient_noise.py     # the noise of the gradients, evals/results/study/noise.json
    python scripts/study/make_study_data.py    # the questions in data/study
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
from study.registry import PARTS, PARTS_2, ROWS_2
from study.rows import NOISE, ROWS, Rows, commit

ALL_PARTS = PARTS | PARTS_2


@dataclass
class Args:
    only: tuple[str, ...] = ()
    """Parts to run. The default is all."""
    limit: int | None = None
    """Largest number of runs to start."""
    jobs: int = len(os.sched_getaffinity(0))
    """Number of runs at the same time, each with one thread."""
    work_dir: Path = ROOT / "runs" / "study"
    """Folder for the files of runs until they become rows."""
    dry_run: bool = False
    """Print what is left to do, and start nothing."""
    report: bool = False
    """Write the pages, figures and tables of results from the rows, and run nothing."""


def rows_of(part: str) -> Rows:
    """Return the rows of the study that `part` belongs to."""
    return Rows(ROWS if part in PARTS else ROWS_2)


def runs_left(part: str, rows: Rows) -> list[StudyRun]:
    """Return the runs of a part that have no row. Raises InputError if they need rows of an earlier part."""
    return [run for run in ALL_PARTS[part](rows.all) if run.name not in rows.names]


def print_runs_left(parts: tuple[str, ...], jobs: int) -> None:
    """Print the runs that are left, and their hours: from the rows of the part or, if it has none, from all rows."""
    table = Table("part", "runs left", "rows", "hours left", title=f"{jobs} runs side by side")
    for part in parts:
        rows = rows_of(part)
        done = [row for row in rows.all if row["part"] == part]
        took = [row["seconds_in_all"] for row in done or rows.all or Rows().all]
        try:
            left = len(runs_left(part, rows))
        except InputError:  # earlier parts, which choose its learning rates, are not finished
            left = len(list(ALL_PARTS[part](None)))
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
    parts = args.only or tuple(ALL_PARTS)
    if unknown := set(parts) - ALL_PARTS.keys():
        raise InputError(f"--only: unknown part '{unknown.pop()}'; known: {', '.join(ALL_PARTS)}")
    if args.report:
        from study.results import write_results
        from study.results_2 import write_results_2

        write_results(Rows().all)
        return write_results_2(Rows(ROWS_2).all)
    if args.dry_run:
        return print_runs_left(parts, args.jobs)
    made_by = commit()
    from study.jobs import run_side_by_side

    os.chdir(ROOT)  # the paths of data and models start there
    count = args.limit
    for part in parts:
        rows = rows_of(part)
        # Again after each batch of runs: the results of tuning may add learning rates beyond the grid.
        while runs := runs_left(part, rows)[:count]:
            run_side_by_side(runs, rows, args.work_dir, args.jobs, made_by)
            if count is not None and (count := count - len(runs)) == 0:
                return


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
