"""Make the paper's Tables 1 and 2 with our scores next to the paper's, from the results.json files
of eval.py.

python scripts/make_tables.py evals/results/*/results.json --output-dir tables

Notes below each table list how protocol and training differ from the paper's, and between the rows.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bnpo.environment import run_program
from bnpo.files import InputError
from paper.results import load_results
from paper.tables import make_tables, to_markdown, write_tables


@dataclass
class Args:
    results: tyro.conf.Positional[tuple[Path, ...]]
    """results.json files of checkpoints and of untrained models (row Base). Runs that differ only
    in their seeds share a row."""
    output_dir: Path | None = None
    """Folder for tables.md. Without it the tables are printed."""


def main(args: Args) -> None:
    if not args.results:
        raise InputError("no results.json files are given. eval.py writes them to evals/results/*/")
    tables = make_tables(load_results(args.results))
    if args.output_dir is None:
        print(to_markdown(tables), end="")
        return
    print(write_tables(tables, args.output_dir / "tables.md"))


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
