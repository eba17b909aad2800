"""Draw the paper's figures from training runs, as PDF and PNG.

    # figures 1, 2 and 3, and the estimators
    python scripts/figures.py runs/table1/Qwen2.5-Math-1.5B-*/train

Figure 1 and the figure of the estimators need no runs. Figure 2 shows gradient norms, with a dot
for each run. Figure 3 shows the fitted Beta densities. Further figures show the rewards, and the
scores of the runs that eval.py has evaluated. Runs that differ only in their seeds share a line:
the mean over a window of steps and all seeds, with a band that holds at least 80 % of the values:
all of them, if there are fewer than ten.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bnpo.environment import run_program
from bnpo.files import InputError
from paper.curves import group_runs, read_run
from paper.figures import (
    draw_densities,
    draw_estimators,
    draw_fits,
    draw_norms,
    draw_rewards,
    draw_scores,
    save,
)


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of training runs. They may still be going."""
    output_dir: Path = Path("runs/figures")
    """Folder for figure1, figure2, figure3, estimators, rewards and scores, each as PDF and PNG."""
    window: int | None = None
    """Number of steps that each point of a line averages. The default is a fiftieth of the
    longest run."""


def main(args: Args) -> None:
    if args.window is not None and args.window < 1:
        raise InputError(f"--window: is {args.window}, must be above 0")
    figures = {"figure1": draw_densities(), "estimators": draw_estimators()}
    if args.runs:
        runs = [read_run(folder) for folder in args.runs]
        window = args.window or max(1, max(len(run.metrics["step"]) for run in runs) // 50)
        groups = group_runs(runs)
        figures["rewards"] = draw_rewards(groups, window)
        figures["figure2"] = draw_norms(groups, window)
        # These two need metrics or scores that not every run has.
        optional = {
            "figure3": lambda: draw_fits(groups, window),
            "scores": lambda: draw_scores(groups),
        }
        for name, draw in optional.items():
            try:
                figures[name] = draw()
            except ValueError as error:
                print(f"{name} is left out: {error}")
    for name, figure in sorted(figures.items()):
        print(*save(figure, args.output_dir / name))


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
