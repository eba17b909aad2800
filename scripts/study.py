"""Write the reports of the miniature studies from their recorded runs, and train recorded runs
again.

    # the results in docs/study/, and tables with the rows
    python scripts/study.py --report
    # a run, and those of a prefix
    python scripts/study.py --again main/rare-bnpo-lr0.0002-seed0 main/rare-grpo

docs/study/ has the plans. Each run is a row of evals/results/study/rows.jsonl, or rows-2.jsonl for
the second study. On the type of processor that a row was computed on, a run that is trained again
is equal bit for bit. Elsewhere it is another draw. The commit that a row names has the programs
that made the list of all runs, chose the learning rates, and ran them side by side, and measured
the noise of the gradients.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from bnpo.environment import run_program
from bnpo.files import InputError, whole_json_lines
from study.results import write_results
from study.results_2 import write_results_2
from study.rows import ROWS, ROWS_2, compare_with, train_again
from study.truncated import write_truncated


@dataclass
class Args:
    report: bool = False
    """Write the pages, figures and tables of results."""
    again: tuple[str, ...] = ()
    """Names of recorded runs, or beginnings of names, to train again: half a minute to two
    minutes each."""


def main(args: Args) -> None:
    rows, rows_2 = whole_json_lines(ROWS), whole_json_lines(ROWS_2)
    if args.report:
        write_results(rows)
        write_results_2(rows_2)
        write_truncated()
    chosen = [row for row in (*rows, *rows_2) if row["name"].startswith(args.again)]
    if not chosen and not args.report:
        raise InputError(
            "use --report, or --again with the beginning of the name of a recorded run"
        )
    for row in chosen:
        with tempfile.TemporaryDirectory() as folder:
            print(compare_with(row, train_again(row, Path(folder) / "run")), flush=True)


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
