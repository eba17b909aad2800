"""Draw one training step over time, and what a GPU holds meanwhile: docs/figures/one_step.png.

python dev/draw_step.py
"""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

TARGET = Path(__file__).resolve().parents[1] / "docs" / "figures" / "one_step.png"
# Okabe and Ito's colours for the colour-blind.
SAMPLER, GRADER, SHARED, LEARNER, ASLEEP = "#56B4E9", "#E69F00", "#CCCCCC", "#009E73", "#F2F2F2"
Box = tuple[float, float, str, str]
"""Start, end, colour and text."""
LANES: dict[str, list[Box]] = {
    "sampler (vLLM)": [
        (0.0, 3.4, SAMPLER, "sample m answers\nto each of n questions"),
        (4.0, 7.4, ASLEEP, "asleep"),
        (7.5, 9.4, SAMPLER, "load weights,\nscore an answer"),
    ],
    "grader (workers)": [(0.7, 3.9, GRADER, "grade finished answers\n[q, m, K]")],
    "all ranks together": [(4.0, 5.3, SHARED, "advantages\n[q, m]")],
    "learner (ZeRO-3)": [
        (5.4, 7.4, LEARNER, "loss, gradients,\nAdamW"),
        (7.5, 9.4, LEARNER, "gather weights,\nscore an answer"),
    ],
}
MEMORY: dict[str, list[Box]] = {
    "GPU memory": [
        (0.0, 3.4, SAMPLER, "sampler: weights and cache"),
        (5.4, 7.4, LEARNER, "activations"),
        (7.5, 9.4, SAMPLER, "weights, then cache"),
    ],
    "": [(0.0, 9.4, LEARNER, "learner: weights, gradients, optimizer, divided among the ranks")],
}
PHASES = {
    "sample_batch": 1.95,
    "compute_advantages": 4.65,
    "update": 6.4,
    "refresh,\nmeasure_difference": 8.45,
}
"""Functions that `one_step` in loop.py calls, and where they stand."""


def draw_lanes(axes: Axes, lanes: dict[str, list[Box]], height: float) -> None:
    """Draw one row of boxes per lane, from top to bottom."""
    for row, boxes in enumerate(lanes.values()):
        for start, end, colour, text in boxes:
            corner, style = (start, -row - height / 2), "round,pad=0,rounding_size=0.1"
            box = FancyBboxPatch(corner, end - start, height, boxstyle=style)
            box.set(
                facecolor=colour,
                edgecolor="black",
                linewidth=0.6,
                hatch="///" if text == "asleep" else None,
            )
            axes.add_patch(box)
            background = (
                {"facecolor": "white", "edgecolor": "none", "pad": 1} if text == "asleep" else None
            )
            axes.text((start + end) / 2, -row, text, ha="center", va="center", bbox=background)
    axes.set(xlim=(-0.1, 9.5), ylim=(0.5 - len(lanes), 0.5), xticks=[])
    axes.set_yticks([-row for row in range(len(lanes))], list(lanes))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw() -> Figure:
    """Return the drawing: who works when, above what is in the memory of a GPU."""
    with matplotlib.rc_context({"font.size": 8, "hatch.linewidth": 0.4, "hatch.color": "#999999"}):
        figure = Figure(figsize=(8, 3.6), dpi=150, layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=(4, 1.7))
        draw_lanes(above, LANES, height=0.8)
        draw_lanes(below, MEMORY, height=0.75)
        for name, place in PHASES.items():
            above.text(
                place, 0.65, name, ha="center", va="bottom", family="monospace", fontweight="bold"
            )
        below.annotate(
            "", (9.5, -1.65), (0, -1.65), annotation_clip=False, arrowprops={"arrowstyle": "->"}
        )
        below.set_xlabel("time of one step", labelpad=8)
        return figure


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    draw().savefig(TARGET, metadata={"Software": None})
    print(TARGET)
