"""Show runs and evaluations: as one HTML page, or as a summary in the terminal.

Training writes the page of its run at its end, so this is for evaluations, comparisons, and runs
that are going on or were killed.

python -m runpage runs/tiny-bnpo-seed0    # writes report.html into the run's folder

python -m runpage --serve runs/tiny-bnpo-seed0    # a page that follows a run while it lasts

python -m runpage runs/a runs/b -o both.html    # runs and evaluations in the same charts

python -m runpage runs/tiny-bnpo-seed0 --text    # the summary that training prints at its end
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.environment import run_program
from bnpo.files import InputError


@dataclass(frozen=True)
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of train.py or eval.py. Runs that are still going work too. Of long runs, 10,000
    answers are shown."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """File of the page, by default report.html in the first folder."""
    text: bool = False
    """Print a summary instead of writing a page."""
    serve: bool = False
    """Serve the page to a browser on this machine instead of writing it. It is made anew at each
    reload."""
    port: int = 8000
    """Port of --serve. 0 takes a free one."""


def main(args: Args) -> None:
    if not args.runs:
        raise InputError(
            "no folder is given. Name the folder of a run: python -m runpage runs/tiny-bnpo-seed0"
        )
    if args.text:
        from runpage.run_files import summary

        print("\n\n".join(summary(run) for run in args.runs))
    elif args.serve:
        from runpage.serve import serve

        serve(args.runs, args.port)
    else:
        from runpage.page import write_page

        output = args.output or args.runs[0] / "report.html"
        write_page(output, args.runs)
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    run_program(main, Args, prog="python -m runpage", description=__doc__)
