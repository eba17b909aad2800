"""results-2.md, its figure and tables-2.md, from the rows of the second study."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from study import design, verdict_2
from study.comparisons import Compared, Pairs, compare, difference_cells
from study.design import CLIFF, CLIFF_METHODS, CLIPS, EVALUATED, PRIOR_METHODS, PRIOR_RATES, REGIMES
from study.results import rate_cells
from study.rows import RowList, area, final, height, heights, select
from study.shared import COLOURS, DASHES, STYLE, WIDTH, Table, variation
from study.statistics import smallest_found, t_interval
from study.tables import MADE_BY, MISSING, PAGES, in_points, interval, runs_line, table, write_page
from study.verdict_2 import CLIFF_FAMILY, FAMILIES, NAMES, PRIOR_FAMILY, Family, verdict_table

FINDINGS_2 = PAGES / "findings-2.md"
"""What follows from the tables, in words, written by hand."""
OTHER_COMMIT_SEED = 24
"""The seed of the cliff that was run at an earlier commit than all others."""
FALL = 0.1
"""A run that falls by more than this share of answers has fallen off the cliff."""


def write_results_2(rows: RowList, pages: Path = PAGES) -> None:
    """Write results-2.md, tables-2.md and figures/cliff.png in the folder `pages`."""
    folder = pages / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    draw_cliff(rows).savefig(folder / "cliff.png", metadata={"Software": None})
    write_page(
        pages / "results-2.md",
        "# Results of the second study",
        f"{MADE_BY} [plan-2.md](plan-2.md) has the rules, "
        "[tables-2.md](tables-2.md) all other numbers.",
        runs_line(rows),
        [verdict_table(rows)],
        FINDINGS_2.read_text(encoding="utf-8"),
        [_cliff(rows), *(_differences(rows, family) for family in FAMILIES)],
        "![pass@1 on the cliff: mean over seeds with its 95 % interval](figures/cliff.png)",
    )
    found = [_counts(rows), _prior(rows), _explored(rows), _tuning(rows)]
    write_page(pages / "tables-2.md", "# All other tables of the second study", MADE_BY, found)


def _counts(rows: RowList) -> Table:
    lines = {}
    for part, count in design.REGISTERED.items():
        done = [row for row in rows if row["part"] == part]
        failed = sum(row["ended"] != "done" for row in done)
        lines[part] = [str(count), str(len(done)), str(failed)]
    return table("counts_2", {"part": lines})


def fall(row: Mapping) -> float:
    """Return the best pass@1 of a run minus the last one."""
    return max(heights(row)) - final(row)


def _cliff(rows: RowList) -> Table:
    places = [("cliff", f"{name} {clip}") for clip in CLIPS for name in CLIFF_METHODS]
    places += [("cliff-controls", name) for name in design.CLIFF_CONTROLS]
    cells = {
        method: _cliff_cells(list(select(rows, part, CLIFF, method).values()))
        for part, method in places
    }
    return table("cliff_2", {"method": cells})


def _cliff_cells(runs: Sequence[Mapping]) -> list[str]:
    ends, falls = [final(row) for row in runs], [fall(row) for row in runs]
    early = np.mean([height(row, 6) for row in runs])
    norms = [
        np.array(row["curves"]["grad_norm"], dtype=float)
        for row in runs
        if "grad_norm" in row["curves"]
    ]
    return [
        str(len(runs)),
        f"{100 * early:.1f}",
        interval(ends),
        f"{100 * np.std(ends, ddof=1):.1f}",
        interval(falls),
        f"{np.mean(np.round(falls, 9) > FALL):.0%}",  # 0.547 - 0.447 is no more than 0.1
        f"{np.nanmean([variation(norm) for norm in norms]):.2f}" if norms else MISSING,
    ]


def _differences(rows: RowList, family: Family) -> Table:
    """Return the registered differences of a family, with the null and the positive control
    below.
    """
    lines = {
        label: _cells(one) for label, one in compare(rows, family.pairs(), family.metric).items()
    }
    checks: Pairs = {"null": family.null, "positive control": family.control}
    for label, pair in checks.items():
        lines[label] = _cells(compare(rows, {label: pair}, family.metric)[label])
        lines[label][3] = MISSING
    metric = "pass@1 at the end" if family is CLIFF_FAMILY else "area"
    return table(
        "differences_2", {family.part: lines}, f"Registered differences: {family.part}, {metric}"
    )


def _cells(one: Compared) -> list[str]:
    difference = one.difference
    # RLOO and REINFORCE may be equal.
    least = smallest_found(difference.sd, difference.seeds, 0.05) if difference.sd else 0.0
    return [*difference_cells(one), f"{100 * difference.sd:.2f}", f"{100 * least:.2f}"]


def _explored(rows: RowList) -> Table:
    """Return differences without a verdict: not registered, or registered as secondary."""
    cliff, grpo = (
        CLIFF_FAMILY.pairs(),
        verdict_2.flat(verdict_2.lines_of(verdict_2.clip_pairs, ("grpo", "reinforce"))),
    )
    prior = verdict_2.flat(
        verdict_2.lines_of(verdict_2.regime_pairs, ("eb", "shrinkage"), ("rloo", "bnpo"))
    )
    same_rate: Pairs = {
        f"{NAMES[name]} less RLOO, spread": (
            ("prior", "spread", name),
            (design.SAME_RATE, "spread", "rloo"),
        )
        for name in PRIOR_METHODS
        if name != "rloo"
    }
    one_commit = [row for row in rows if row["seed"] != OTHER_COMMIT_SEED]
    blocks = {
        "cliff, at the end": compare(rows, grpo, final),
        f"cliff, at the end, without seed {OTHER_COMMIT_SEED}": compare(one_commit, cliff, final),
        "cliff, end less step 6": compare(
            rows, {**cliff, **grpo}, lambda row: final(row) - height(row, 6)
        ),
        "prior, area": compare(rows, prior, area),
        "prior, at the end": compare(rows, {**PRIOR_FAMILY.pairs(), **prior}, final),
        "prior, area, RLOO at the others' rate": compare(rows, same_rate, area),
        "prior, at the end, RLOO at the others' rate": compare(rows, same_rate, final),
    }
    lines = {}
    for block, found in blocks.items():
        differences = {label: one.difference for label, one in found.items()}
        lines[block] = {
            label: [str(d.seeds), in_points(d), f"{100 * d.sd:.2f}"]
            for label, d in differences.items()
        }
    return table("explored_2", lines)


def _prior(rows: RowList) -> Table:
    places = [("prior", name) for name in PRIOR_METHODS] + [
        ("prior-controls", name) for name in design.PRIOR_CONTROLS
    ]
    blocks = {}
    for regime in REGIMES:
        lines = {}
        for part, method in places:
            # The controls have one regime
            if runs := list(select(rows, part, regime, method).values()):
                areas, ends = [area(row) for row in runs], [final(row) for row in runs]
                lines[method] = [
                    f"{runs[0]['lr']:g}",
                    str(len(runs)),
                    interval(areas),
                    interval(ends),
                ]
        blocks[regime] = lines
    return table("prior_2", blocks)


def _tuning(rows: RowList) -> Table:
    blocks = {}
    for regime in REGIMES:
        places = {name: ("prior", regime, name) for name in PRIOR_METHODS}
        cells = {
            name: rate_cells(rows, place, "prior-tuning", PRIOR_RATES, digits=2)
            for name, place in places.items()
        }
        blocks[regime] = cells
    return table("tuning_2", blocks, columns=[f"{lr:g}" for lr in PRIOR_RATES])


def draw_cliff(rows: RowList) -> Figure:
    """Draw pass@1 by step on the cliff: the mean over seeds with its 95 % t interval, a panel
    for each clipping.
    """
    steps = EVALUATED[CLIFF]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
        for axes, clip in zip(figure.subplots(1, len(CLIPS), sharey=True), CLIPS, strict=True):
            for index, name in enumerate(CLIFF_METHODS):
                runs = list(select(rows, "cliff", CLIFF, f"{name} {clip}").values())
                points = [t_interval([height(row, step) for row in runs]) for step in steps]
                mean, half = 100 * np.array(points).T
                axes.errorbar(
                    # Side by side, so that intervals do not hide each other
                    np.array(steps) + 0.25 * (index - 1),
                    mean,
                    yerr=half,
                    label=name,
                    color=COLOURS[index],
                    linestyle=DASHES[index],
                    capsize=2,
                )
            axes.set(xlabel="step", title=clip, xticks=steps)
        figure.axes[0].set_ylabel("held-out pass@1, percent")
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(),
            loc="outside upper center",
            ncols=len(CLIFF_METHODS),
        )
        return figure
