"""Draw accuracy against step of SmolLM2-135M-Instruct on word problems, and print a table of it.

    python studies/2026-11/real_curves.py    # figures/smollm2.png, from rows/smollm2

The runs are those of `train.py --preset smollm2 --eval-every 5` and of `benchmarks/trl_step.py`,
several seeds of each method. A file of rows is a run, and a row is a step:

- greedy: accuracy of greedy answers to the held-out problems after this step, where it was measured
- sampled: accuracy of the answers that the next step sampled with these weights, to its own
  training problems
"""

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from study.shared import COLOURS, DASHES, HERE, STYLE, WIDTH, json_lines

ROWS = HERE / "rows" / "smollm2"
FIGURE = HERE / "figures" / "smollm2.png"
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


def read() -> dict[str, Runs]:
    """Return the runs by method."""
    return {
        method: [json_lines(path) for path in sorted(ROWS.glob(f"{method}-seed*"))]
        for method in METHODS
    }


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


def main() -> None:
    runs = read()
    Console(width=140).print(table(runs))
    draw(runs).savefig(FIGURE, metadata={"Software": None})
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
