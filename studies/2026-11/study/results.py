"""results.md and its figures, from the rows, the noise and the findings.

The page has the verdicts and the numbers that decide them. tables.md has all other
tables.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import trim_mean

from study import comparisons
from study.comparisons import FIRST_FIT, METRICS, Metrics, Pairs, compare, difference_cells
from study.design import ALGORITHMS, ANSWERS, FAVOURED, RATES, REGIMES, tagged_methods
from study.figures import draw_all
from study.paper import paper_table
from study.rows import ROWS, Place, RowList, area, both_done, final, middle, select, trained
from study.shared import MAX_GRAD_NORM, Table, inverse_density, variation
from study.tables import (
    MADE_BY,
    MISSING,
    PAGES,
    Blocks,
    interval,
    runs_line,
    table,
    with_error,
    write_page,
)
from study.verdict import verdict_table
from study.weights import likeness_tables

NOISE = ROWS.parent / "noise.json"
FINDINGS = PAGES / "findings.md"
"""What follows from the tables, in words, written by hand."""
Noise = Mapping[str, Mapping]
"""Signal and noise of the gradients, by checkpoint."""


def write_results(rows: RowList, pages: Path = PAGES) -> None:
    """Write results.md, tables.md and figures/ in the folder `pages`."""
    figures = draw_all(rows, pages / "figures")
    noise = json.loads(NOISE.read_text())
    measured = sorted({checkpoint["commit"] for checkpoint in noise.values()})
    write_page(
        pages / "results.md",
        "# Results of the first study",
        f"{MADE_BY} [plan.md](plan.md) has the rules, [tables.md](tables.md) all other numbers.",
        f"{runs_line(rows)} Noise of the gradient: {len(noise)} checkpoints, at "
        f"{', '.join(measured)}.",
        [verdict_table(rows, noise)],
        FINDINGS.read_text(encoding="utf-8"),
        [_means(rows), _claimed(rows), _nulls(rows), _noise_in_short(noise), _stability(rows)],
        "![Every seed, at the end and as area](figures/seeds.png)",
    )
    found = [*_main(rows), *_claim(rows), *_tags(rows), _tuning(rows), _noise(noise), paper_table()]
    images = [f"![{title}](figures/{file.name})" for title, file in figures.items()]
    write_page(pages / "tables.md", "# All tables of the first study", MADE_BY, found, *images)


def _means(rows: RowList) -> Table:
    """Return the mean scores of all methods, a line for each regime and metric."""
    lines = {}
    for regime in REGIMES:
        found = [select(rows, "main", regime, name) for name in ALGORITHMS]
        for name, metric in METRICS.items():
            lines[f"{regime}, {name}"] = [
                interval([metric(row) for row in runs.values()]) for runs in found
            ]
    return table("means", {"questions, metric": lines}, columns=ALGORITHMS)


def _claimed(rows: RowList) -> Table:
    """Return the differences that decide whether BNPO learns better."""
    compared = _less_each_other(rows)
    lines = {
        f"{regime}, {name}": lines[name]
        for regime, lines in compared.blocks.items()
        for name in lines
    }
    kept = {
        label: cells for label, cells in lines.items() if label.endswith((" reinforce", " grpo"))
    }
    return replace(
        compared, title="BNPO less REINFORCE and GRPO", blocks={"questions, other method": kept}
    )


def _less_each_other(rows: RowList) -> Table:
    rivals = {regime: comparisons.against_others(regime) for regime in REGIMES}
    return _differences(rows, "BNPO less each other method", rivals)


def _nulls(rows: RowList) -> Table:
    title = "The null: RLOO less REINFORCE, the same but for a factor"
    null = _differences(rows, title, {"all regimes": comparisons.nulls()})
    return replace(
        null,
        notes=["As above. AdamW with clipping forgets the factor, so the two should not differ."],
    )


def _noise_in_short(noise: Noise) -> Table:
    """Return signal over noise of the methods that the claim about noise compares."""
    lines = {}
    for checkpoint, result in noise.items():
        methods = result["methods"]
        cells = [with_error(*methods[name]["ratio"]) for name in ("reinforce", "grpo", "bnpo")]
        lines[checkpoint] = cells + [
            with_error(*methods[name]["bnpo_less"], "+") for name in ("reinforce", "grpo")
        ]
    return table("noise_in_short", {"checkpoint": lines})


def norm_variation(row: Mapping) -> float:
    """Return the coefficient of variation of the gradient norm over the steps of a run."""
    return variation(np.array(row["curves"]["grad_norm"], dtype=float))


def _stability(rows: RowList) -> Table:
    """Return the variation of the gradient norm within a run, beside that of BNPO."""
    blocks: Blocks = {}
    for regime in REGIMES:
        pairs = comparisons.against_others(regime)
        blocks[regime] = {}
        for name, found in compare(rows, pairs, norm_variation).items():
            difference = found.difference
            means = [
                np.mean(
                    [norm_variation(row) for row in select(rows, "main", regime, method).values()]
                )
                for method in ("bnpo", name)
            ]
            blocks[regime][name] = [
                str(difference.seeds),
                *(f"{mean:.2f}" for mean in means),
                f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
                f"{difference.wins:.0%}",
            ]
    return table("stability", blocks)


def _largest_weights(rows: RowList) -> Table:
    """Return how far apart the weights of two questions can be, by the densities of BNPO's runs."""
    p = np.arange(1, ANSWERS) / ANSWERS  # accuracies whose questions have a signal
    lines = {}
    for regime in REGIMES:
        ratios = []  # one per step
        for row in select(rows, "main", regime, "bnpo").values():
            for fit in zip(row["curves"]["alpha"], row["curves"]["beta"], strict=True):
                weights = inverse_density(p, *fit)
                ratios.append(weights.max() / weights.min())
        lines[regime] = [
            f"{np.median(ratios):.1f}",
            f"{np.mean(np.array(ratios) > 100):.0%}",
            f"{max(ratios):,.0f}",
        ]
    return table("largest_weights", {"bnpo": lines})


def _main(rows: RowList) -> list[Table]:
    blocks = {}
    for regime in REGIMES:
        blocks[regime] = {name: _summary(select(rows, "main", regime, name)) for name in ALGORITHMS}
    return [
        *likeness_tables(),
        _largest_weights(rows),
        table("methods", blocks),
        _less_each_other(rows),
        _surcharge(rows),
    ]


def _summary(runs: Mapping[int, Mapping]) -> list[str]:
    finals, areas, middles = (
        [metric(row) for row in runs.values()] for metric in (final, area, middle)
    )
    done = [row for row in runs.values() if row["ended"] == "done"]
    cells = [
        f"{next(iter(runs.values()))['lr']:g}",
        str(len(runs)),
        f"{100 * np.mean(middles):.1f}",
        interval(finals),
    ]
    cells += [f"{100 * trim_mean(finals, 0.25):.1f}", interval(areas)]
    norms = [np.array(row["curves"]["grad_norm"], dtype=float) for row in done]
    sampled = [row["tokens/sampled"] + row["tokens/greedy"] for row in done]
    varied = np.mean([norm_variation(row) for row in done])
    cells += [f"{np.nanmean(norms):.2f}", f"{varied:.2f}"]
    return [
        *cells,
        f"{(np.array(norms) > MAX_GRAD_NORM).mean():.1%}",
        f"{np.mean(sampled):.0f}",
    ]


def _surcharge(rows: RowList) -> Table:
    """Return what ReMax's greedy answers cost, beside REINFORCE with the same seed."""
    lines, phases = {}, ("generate", "update", "total")
    for regime in REGIMES:
        pairs = both_done(rows, ("main", regime, "remax"), ("main", regime, "reinforce"))
        tokens = np.median([remax["tokens/greedy"] / remax["tokens/sampled"] for remax, _ in pairs])
        seconds = np.array(
            [[row[f"seconds/{phase}"] for phase in phases] for pair in pairs for row in pair]
        )
        remax, reinforce = seconds.reshape(-1, 2, len(phases)).transpose(1, 0, 2)  # [seeds, phases]
        more = np.median(remax / reinforce - 1, axis=0)
        lines[regime] = [str(len(pairs)), f"{tokens:.0%}", *(f"{share:+.0%}" for share in more)]
    lines["the paper"] = ["", "", "", "", "+25%"]
    return table("surcharge", {"remax": lines})


def _differences(
    rows: RowList, title: str, compared: Mapping[str, Pairs], metrics: Metrics = METRICS
) -> Table:
    """Return paired differences, block by block."""
    blocks: Blocks = {}
    for block, pairs in compared.items():
        lines: dict[str, list[str]] = {}
        for metric in metrics.values():
            for label, found in compare(rows, pairs, metric).items():
                seeds, *cells = difference_cells(found)
                lines.setdefault(label, [seeds]).extend(cells)
        blocks[block] = lines
    columns = ["seeds"]
    for name in metrics:
        columns += [f"{name}: points (95 %)", "p", "Holm", "better on"]
    return table("differences", blocks, title, columns)


def _claim(rows: RowList) -> list[Table]:
    fixed = {regime: comparisons.against_fixed(rows, regime) for regime in FAVOURED}
    fits = [
        f"{regime} {pairs[FIRST_FIT][1][2].removeprefix('beta ')}"
        for regime, pairs in fixed.items()
    ]
    title = (
        "Adaptive or not: BNPO less fixed densities (`beta` ones and the first fit at BNPO's rate, "
        "not tuned)"
    )
    adaptive = _differences(rows, title, fixed)
    adaptive.notes.append(f"Alpha and beta of the first fit: {', '.join(fits)}.")
    title = "Shape or scale: rescaled to unit root mean square less as it is"
    scale = _differences(rows, title, {"concentrated": comparisons.rescaled()})
    moments = _differences(
        rows, "Corrected moments less the paper's", {"BNPO": comparisons.corrected()}
    )
    return [adaptive, scale, _clipped(rows), moments]


def _clipped(rows: RowList) -> Table:
    """Return how often clipping alone sets the length of a step, of each method and its rescaled
    twin.
    """
    lines = {}
    for label, places in comparisons.rescaled().items():
        pairs = both_done(rows, *places)
        norms = np.array([[row["curves"]["grad_norm"] for row in pair] for pair in pairs], float)
        above = norms > MAX_GRAD_NORM  # [seeds, 2, steps]
        lines[label] = [
            f"{s:.0%}" for s in (above[:, 1].mean(), above[:, 0].mean(), above.all(1).mean())
        ]
    return table("clipped", {"concentrated": lines})


def _tags(rows: RowList) -> list[Table]:
    lines = {}
    for name in tagged_methods():
        runs = select(rows, "tags", "tags", name)
        scores = (
            [metric(row) for row in runs.values()] for metric in (middle, final, area, trained)
        )
        lines[name] = [
            f"{next(iter(runs.values()))['lr']:g}",
            str(len(runs)),
            *map(interval, scores),
        ]
    decomposed = _differences(rows, "Decomposed less plain", {"tags": comparisons.decomposed()})
    title = "Not registered: normalising methods and REINFORCE in Table 2 in miniature"
    explored = _differences(
        rows, title, {"tags": comparisons.explored()}, METRICS | {"reward": trained}
    )
    explored.notes.append(
        "Chosen after the means of the registered rows were seen; REINFORCE was run then. Reward: "
        "as above."
    )
    return [table("tags", {"tags": lines}), decomposed, explored]


def _tuning(rows: RowList) -> Table:
    blocks = {}
    for regime in (*REGIMES, "tags"):
        part, tuning = ("tags", "tags-tuning") if regime == "tags" else ("main", "tuning")
        names = dict.fromkeys(
            row["method"] for row in rows if (row["part"], row["regime"]) == (tuning, regime)
        )
        blocks[regime] = {
            name: rate_cells(rows, (part, regime, name), tuning, RATES, digits=1) for name in names
        }
    return table("tuning", blocks, columns=[f"{lr:g}" for lr in RATES])


def rate_cells(
    rows: RowList, place: Place, tuning: str, rates: Sequence[float], digits: int
) -> list[str]:
    """Return the mean areas of a method at all `rates` in the part `tuning`. The rate of its
    place is in bold.
    """
    _, *method = place
    tried = [
        row for row in rows if [row["part"], row["regime"], row["method"]] == [tuning, *method]
    ]
    taken = {row["lr"] for row in select(rows, *place).values()}
    cells = []
    for lr in rates:
        areas = [area(row) for row in tried if row["lr"] == lr]
        cells.append(
            ("*" if lr in taken else "")
            + (f"{100 * np.mean(areas):.{digits}f}" if areas else MISSING)
        )
    return cells


def _noise(noise: Noise) -> Table:
    """Return signal and noise of all methods. Noise is compared where a density, which integrates
    to one, sets the scale.
    """
    blocks = {}
    for checkpoint, result in noise.items():
        lines, has_fit = {}, result["methods"]["reinforce"]["theorem"] is not None
        for name, row in result["methods"].items():
            cells = [
                with_error(*row["ratio"]),
                with_error(*row["bnpo_less"], "+"),
                f"{row['cosine']:.3f}",
            ]
            if has_fit and (name in ("reinforce", "bnpo") or name.startswith("beta")):
                predicted = "∞" if row["theorem"] is None else f"{row['theorem']:.3f}"
                cells += [with_error(*row["noise_ratio"]), predicted]
            lines[name] = cells + [MISSING] * (5 - len(cells))
        blocks[f"{checkpoint} (E {result['E']:.2f}, Var {result['V']:.3f})"] = lines
    return table("noise", blocks)
