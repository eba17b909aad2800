"""See runs and evaluations: one page that opens by a double click, or a summary for a terminal.

python -m bnpo.report runs/tiny-bnpo-seed0                     # writes report.html there

python -m bnpo.report runs/a runs/b -o compared.html           # runs overlaid; folders of eval.py too

python -m bnpo.report runs/tiny-bnpo-seed0 --text              # what the run said at its end
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.files import InputError
from bnpo.flags import COMMA_SEPARATED


@dataclass(frozen=True)
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of train.py, finished or not, and of eval.py."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The page; by default report.html in the first folder."""
    steps: tuple[int, int] | None = None
    """The first and the last step whose answers are shown; by default all, as far as the page stays under 30 MB."""
    questions: Annotated[tuple[str, ...], COMMA_SEPARATED] = ()
    """Ids of the questions whose answers are shown, separated by commas; by default all."""
    text: bool = False
    """Print a summary, and write no page."""


def main(args: Args) -> None:
    if not args.runs:
        sys.exit("error: name a run's folder: python -m bnpo.report runs/tiny-bnpo-seed0")
    try:
        if args.text:
            from bnpo.summary import summary

            print("\n\n".join(summary(run) for run in args.runs))
            return
        from bnpo.report.page import write_page

        output = args.output or args.runs[0] / "report.html"
        write_page(output, args.runs, args.steps, args.questions)
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(tyro.cli(Args, prog="python -m bnpo.report", description=__doc__))
