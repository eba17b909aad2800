"""Draw accuracy against step of SmolLM2-135M-Instruct on word problems, and print a table of it.

    python scripts/real_curves.py                    # docs/figures/smollm2.png, from the rows in
    evals/results/smollm2 python scripts/real_curves.py --add RUN [RUN..]  # first make rows of the
    folders of finished runs

The runs are those of `train.py --preset smollm2 --eval-every 5` and of `benchmarks/trl_step.py`,
several seeds of each method. A file of rows is a run, and a row is a step:

- greedy: accuracy of greedy answers to the held-out problems after this step, where it was measured
- sampled: accuracy of the answers that the next step sampled with these weights, to its own
  training problems
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bnpo.errors import error_line
from bnpo.files import ROOT, InputError, read_json, whole_json_lines, write_json_lines
from paper.figures import COLOURS, DASHES, STYLE, WIDTH

ROWS = ROOT / "evals" / "results" / "smollm2"
FIGURE = ROOT / "docs" / "figures" / "smollm2.png"
METHODS = {
    "reinforce": "REINFORCE",
    "grpo": "GRPO",
    "reinforce_pp": "REINFORCE++",
    "bnpo": "BNPO",
    "trl-grpo": "GRPO of TRL",
}
"""Methods in the order of the figure, by the first part of a file's name."""
KINDS = {"greedy": "greedy, held-out problems", "sampled": "sampled, training problems"}
Runs = list[list[dict]]
"""Rows of runs that differ only in their seeds."""


def add(folder: Path) -> Path:
    """Write the rows of the run in `folder`, and return their file. Raises InputError."""
    config = read_json(folder / "config.json", "name the folder of a run")
    method = f"{config.get('trainer', '')}-{config['algo']}".removeprefix("-")
    if method not in METHODS:
        raise InputError(f"{folder}: is a run of {method}; known: {', '.join(METHODS)}")
    steps: dict[int, dict] = {}
    for line in whole_json_lines(folder / "metrics.jsonl"):
        if "eval/average" in line:
            steps.setdefault(line["step"], {})["greedy"] = round(line["eval/average"], 4)
        if "reward/mean" in line:  # of answers that were sampled before the step's update
            steps.setdefault(line["step"] - 1, {})["sampled"] = round(line["reward/mean"], 4)
    path = ROWS / f"{method}-seed{config['seed']}.jsonl"
    write_json_lines(path, ({"step": step} | steps[step] for step in sorted(steps)))
    return path


def read() -> dict[str, Runs]:
    """Return the runs by method, those that have rows. Raises InputError if there are none."""
    runs = {
        method: [whole_json_lines(path) for path in sorted(ROWS.glob(f"{method}-seed*"))]
        for method in METHODS
    }
    if not any(runs.values()):
        raise InputError(f"{ROWS}: has no rows; make them with --add")
    return {method: found for method, found in runs.items() if found}


def curve(runs: Runs, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps [s] at which all runs have an accuracy of this kind, and the accuracies
    [runs, s].
    """
    values = [{row["step"]: row[kind] for row in run if kind in row} for run in runs]
    steps = sorted(set.intersection(*map(set, values)))
    return np.array(steps), np.array([[value[step] for step in steps] for value in values])


def table(runs: dict[str, Runs]) -> Table:
    """Return accuracies before and after the training in percent, mean (least to most), a line
    for each method.
    """
    columns = [f"{kind}, {when}" for kind in KINDS for when in ("before", "after")]
    found = Table("method", "seeds", *columns)
    for method, of_method in runs.items():
        cells = []
        for kind in KINDS:
            steps, values = curve(of_method, kind)
            for column, step in zip(values.T[[0, -1]], steps[[0, -1]], strict=True):
                low, mean, high = 100 * column.min(), 100 * column.mean(), 100 * column.max()
                cells.append(f"{mean:.1f} ({low:.1f} to {high:.1f}) at {step}")
        found.add_row(METHODS[method], str(len(of_method)), *cells)
    return found


def draw(runs: dict[str, Runs]) -> Figure:
    """Return the figure: a panel for each kind, and for each method a thin line per run and one
    of their mean.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        for axes, (kind, title) in zip(
            figure.subplots(1, len(KINDS), sharey=True), KINDS.items(), strict=True
        ):
            for method, of_method in runs.items():
                place = list(METHODS).index(method)
                steps, values = curve(of_method, kind)
                style = {"color": COLOURS[place], "linestyle": DASHES[place]}
                axes.plot(steps, 100 * values.T, **style, alpha=0.3, linewidth=0.6)
                axes.plot(steps, 100 * values.mean(0), **style, label=METHODS[method])
            axes.set(xlabel="step", title=title, ylim=(0, 100))
        figure.axes[0].set_ylabel("accuracy in percent")
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(runs)
        )
        return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--add", nargs="+", type=Path, default=(), metavar="RUN", help="folders of runs"
    )
    parser.add_argument("--output", type=Path, default=FIGURE, help="file of the figure")
    args = parser.parse_args(arguments)
    for folder in args.add:
        print(f"{folder}: rows in {add(folder)}")
    runs = read()
    Console(width=140).print(table(runs))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(runs).savefig(args.output, metadata={"Software": None})
    print(f"wrote {args.output}")


if __name__ == "__main__":
    with error_line():
        main()
