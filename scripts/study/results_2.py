"""docs/study/results-2.md and its figure, from the rows of the second study, and tables-2.md beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from paper.curves import variation
from paper.figures import COLOURS, DASHES, STYLE, WIDTH
from paper.tables import Table, to_markdown
from study import registry
from study.comparisons import MISSING, Compared, Pairs, compare, difference_cells, in_points
from study.design import EVALUATED, REGIMES
from study.registry import CLIFF, CLIFF_METHODS, CLIPS, PRIOR_GRID, PRIOR_METHODS
from study.results import MADE_BY, PAGES, interval, rate_cells, runs_line
from study.rows import RESULTS, RowList, area, final, select
from study.statistics import Paired, smallest_found, t_interval
from study.verdict_2 import CLIFF_FAMILY, FAMILIES, NAMES, PRIOR_FAMILY, Family, verdict_table

FINDINGS_2 = RESULTS / "findings-2.md"
"""What follows from the tables, in words, written by hand."""
OTHER_COMMIT_SEED = 24
"""The seed of the cliff that was run at an earlier commit than all others."""
FALL = 0.1
"""A run that falls by more than this share of answers has fallen off the cliff."""


def write_results_2(rows: RowList, pages: Path = PAGES, tables: Path = RESULTS / "tables-2.md") -> None:
    """Write results-2.md and its figure in figures/ in the folder `pages`, and the file `tables`."""
    page = [
        "# Results of the second study",
        f"{MADE_BY} [plan-2.md](../../evals/results/study/plan-2.md) has the rules, "
        "[tables-2.md](../../evals/results/study/tables-2.md) all other numbers.",
        runs_line(rows),
        to_markdown([verdict_table(rows)]).strip(),
        FINDINGS_2.read_text(encoding="utf-8").strip(),
        to_markdown([_cliff(rows), *(_differences(rows, family) for family in FAMILIES)]).strip(),
        "![pass@1 on the cliff: mean over seeds with its 95 % interval](figures/cliff.png)",
    ]
    folder = pages / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    draw_cliff(rows).savefig(folder / "cliff.png", metadata={"Software": None})
    (pages / "results-2.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    found = [_counts(rows), _prior(rows), _explored(rows), _tuning(rows)]
    parts = ["# All other tables of the second study", MADE_BY, to_markdown(found).strip()]
    tables.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _counts(rows: RowList) -> Table:
    lines = {}
    for part, count in registry.REGISTERED.items():
        done = [row for row in rows if row["part"] == part]
        failed = sum(row["ended"] != "done" for row in done)
        lines[part] = [str(count), str(len(done)), str(failed)]
    notes = [
        "Registered: without the rates that tuning may add at the ends of the grid. `prior-same-rate` was added later, "
        "for comparisons without a verdict."
    ]
    return Table("Runs", ["registered", "rows", "failed"], {"part": lines}, notes)


def fall(row: Mapping) -> float:
    """Return the best pass@1 of a run minus the last one."""
    heights = [row["evals"].get(str(step), 0.0) for step in EVALUATED[row["regime"]]]
    return max(heights) - heights[-1]


def _cliff(rows: RowList) -> Table:
    places = [("cliff", f"{name} {clip}") for clip in CLIPS for name in CLIFF_METHODS]
    places += [("cliff-controls", name) for name in registry.CLIFF_CONTROLS]
    lines = {}
    for part, method in places:
        lines[method] = _cliff_cells(list(select(rows, part, CLIFF, method).values()))
    columns = ["seeds", "step 6", "at the end", "sd", "fall", "fall > 10 points", "CV of the norm"]
    notes = [
        "Held-out pass@1 in percent, mean over seeds (± half the 95 % t interval): after 6 steps, at the end, and the "
        "standard deviation of the end over seeds. Fall: the best of five evaluations minus the last one, in points, "
        "and the share of runs that fall by more than 10 points. CV: standard deviation over mean of the gradient norm "
        "before clipping within a run (divisor n - 1), mean over seeds."
    ]
    return Table("The cliff", columns, {"method": lines}, notes)


def _cliff_cells(runs: Sequence[Mapping]) -> list[str]:
    ends, falls = [final(row) for row in runs], [fall(row) for row in runs]
    early = np.mean([row["evals"].get("6", 0.0) for row in runs])
    norms = [np.array(row["curves"]["grad_norm"], dtype=float) for row in runs if "grad_norm" in row["curves"]]
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
    """Return the registered differences of a family, with the null and the positive control below."""
    lines = {label: _cells(one) for label, one in compare(rows, family.pairs(), family.metric).items()}
    checks: Pairs = {"null": family.null, "positive control": family.control}
    for label, pair in checks.items():
        lines[label] = _cells(compare(rows, {label: pair}, family.metric)[label])
        lines[label][3] = MISSING
    notes = [
        "Differences in points, paired by training seed, with the 95 % t interval; p of the exact sign-flip test, and "
        "adjusted by Holm over the registered comparisons when all rows are there; share of seeds on which the first "
        "is better, where ties count half. sd: of the differences over seeds. Found: the true difference that a test "
        "without Holm's correction finds with a probability of 80 % at this sd, with all registered seeds. p-values "
        "are shown when all rows are there."
    ]
    columns = ["seeds", "points (95 %)", "p", "Holm", "better on", "sd", "found"]
    metric = "pass@1 at the end" if family is CLIFF_FAMILY else "area"
    return Table(f"Registered differences: {family.part}, {metric}", columns, {family.part: lines}, notes)


def _explored(rows: RowList) -> Table:
    """Return differences without a verdict: not registered, or registered as secondary."""
    cliff = CLIFF_FAMILY.pairs()
    grpo: Pairs = {
        f"GRPO less REINFORCE, {clip}": (("cliff", CLIFF, f"grpo {clip}"), ("cliff", CLIFF, f"reinforce {clip}"))
        for clip in CLIPS
    }
    prior: Pairs = {
        f"{NAMES[first]} less {NAMES[second]}, {regime}": (("prior", regime, first), ("prior", regime, second))
        for first, second in (("eb", "shrinkage"), ("rloo", "bnpo"))
        for regime in REGIMES
    }
    same_rate: Pairs = {
        f"{NAMES[name]} less RLOO, spread": (("prior", "spread", name), (registry.SAME_RATE, "spread", "rloo"))
        for name in PRIOR_METHODS
        if name != "rloo"
    }
    one_commit = [row for row in rows if row["seed"] != OTHER_COMMIT_SEED]
    blocks = {
        "cliff, at the end": compare(rows, grpo, final),
        f"cliff, at the end, without seed {OTHER_COMMIT_SEED}": compare(one_commit, cliff, final),
        "cliff, end less step 6": compare(rows, {**cliff, **grpo}, lambda row: final(row) - row["evals"].get("6", 0.0)),
        "prior, area": compare(rows, prior, area),
        "prior, at the end": compare(rows, {**PRIOR_FAMILY.pairs(), **prior}, final),
        "prior, area, RLOO at the others' rate": compare(rows, same_rate, area),
        "prior, at the end, RLOO at the others' rate": compare(rows, same_rate, final),
    }
    lines = {
        block: {label: _explored_cells(one.difference) for label, one in found.items()}
        for block, found in blocks.items()
        if found
    }
    notes = [
        "Differences in points, paired by training seed, with the 95 % t interval, and their standard deviation. None "
        "has a verdict or a correction for the number of comparisons. The registered comparisons of the part prior at "
        "the end are secondary ones of the registration. `eb less shrinkage` in area was added before the first run of "
        "that part. All others were chosen after results were seen. The last two blocks have runs of RLOO that were "
        "added when the part prior was complete, with the rate that all other methods have on spread questions."
    ]
    return Table("Without a verdict", ["seeds", "points (95 %)", "sd"], lines, notes)


def _explored_cells(difference: Paired) -> list[str]:
    return [str(difference.seeds), in_points(difference), f"{100 * difference.sd:.2f}"]


def _cells(one: Compared) -> list[str]:
    """Return the cells of a difference."""
    difference = one.difference
    # RLOO and REINFORCE may be equal.
    least = smallest_found(difference.sd, difference.seeds, 0.05) if difference.sd else 0.0
    return [*difference_cells(one), f"{100 * difference.sd:.2f}", f"{100 * least:.2f}"]


def _prior(rows: RowList) -> Table:
    blocks: dict[str, dict[str, list[str]]] = {}
    for regime in REGIMES:
        places = [("prior", name) for name in PRIOR_METHODS]
        places += [("prior-controls", name) for name in registry.PRIOR_CONTROLS]
        lines = {}
        for part, method in places:
            if runs := list(select(rows, part, regime, method).values()):  # the controls have one regime
                areas, ends = [area(row) for row in runs], [final(row) for row in runs]
                lines[method] = [f"{runs[0]['lr']:g}", str(len(runs)), interval(areas), interval(ends)]
        blocks[regime] = lines
    notes = [
        "Held-out pass@1 in percent, mean over seeds ± half the 95 % t interval: area under its curve, and at the end."
    ]
    return Table("Beta as a prior", ["lr", "seeds", "area", "at the end"], blocks, notes)


def _tuning(rows: RowList) -> Table:
    rates = sorted((*PRIOR_GRID.rates, *PRIOR_GRID.beyond.values()))
    blocks: dict[str, dict[str, list[str]]] = {}
    for regime in REGIMES:
        cells = {name: rate_cells(rows, regime, name, PRIOR_GRID, rates, digits=2) for name in PRIOR_METHODS}
        blocks[regime] = cells
    notes = [
        "Area under the validation curve, percent, mean over the four tuning seeds. In bold the rate that was taken."
    ]
    return Table("Sensitivity to the learning rate", [f"{lr:g}" for lr in rates], blocks, notes)


def draw_cliff(rows: RowList) -> Figure:
    """Draw pass@1 by step on the cliff: the mean over seeds with its 95 % t interval, a panel for each clipping."""
    steps = EVALUATED[CLIFF]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
        for axes, clip in zip(figure.subplots(1, len(CLIPS), sharey=True), CLIPS, strict=True):
            for index, name in enumerate(CLIFF_METHODS):
                runs = list(select(rows, "cliff", CLIFF, f"{name} {clip}").values())
                points = [t_interval([row["evals"].get(str(step), 0.0) for row in runs]) for step in steps]
                mean, half = 100 * np.array(points).T
                axes.errorbar(
                    np.array(steps) + 0.25 * (index - 1),  # side by side, so that intervals do not hide each other
                    mean,
                    yerr=half,
                    label=name,
                    color=COLOURS[index],
                    linestyle=DASHES[index],
                    capsize=2,
                )
            axes.set(xlabel="step", title=clip, xticks=steps)
        figure.axes[0].set_ylabel("held-out pass@1, percent")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(CLIFF_METHODS))
        return figure
