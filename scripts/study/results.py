"""docs/study/results.md and its figures, from the rows, the noise and the findings in evals/results/study.

The page has the verdicts and the numbers that decide them. tables.md beside the rows has all other tables.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import trim_mean

from bnpo.config import UpdateSettings
from bnpo.files import ROOT
from paper.curves import variation
from paper.tables import Table, to_markdown
from study import comparisons
from study.comparisons import FIRST_FIT, METRICS, MISSING, Pairs, compare, difference_cells
from study.design import ALGORITHMS, BEYOND, FAVOURED, GRID, GRID_OF_TAGS, LEARNING_RATES, REGIMES, Grid
from study.figures import draw_all
from study.paper import paper_table
from study.registry import tagged_methods
from study.rows import NOISE, RESULTS, RowList, area, both_done, chosen_lr, final, middle, select, trained, tuned
from study.statistics import t_interval
from study.verdict import verdict_table
from study.weights import likeness_tables

FINDINGS = RESULTS / "findings.md"
"""What follows from the tables, in words, written by hand."""
ALL_RATES = sorted((*LEARNING_RATES, *BEYOND.values()))


PAGES = ROOT / "docs" / "study"
MADE_BY = "Made by `python scripts/study.py --report`."


def write_results(rows: RowList, pages: Path = PAGES, tables: Path = RESULTS / "tables.md") -> None:
    """Write results.md and figures/ in the folder `pages`, and the file `tables`."""
    figures = draw_all(rows, pages / "figures")
    noise = json.loads(NOISE.read_text())
    measured = sorted({checkpoint["commit"] for checkpoint in noise.values()})
    page = [
        "# Results of the first study",
        f"{MADE_BY} [plan.md](../../evals/results/study/plan.md) has the rules, "
        "[tables.md](../../evals/results/study/tables.md) all other numbers.",
        f"{runs_line(rows)} Noise of the gradient: {len(noise)} checkpoints, at {', '.join(measured)}.",
        to_markdown([verdict_table(rows, noise)]).strip(),
        FINDINGS.read_text(encoding="utf-8").strip(),
        to_markdown([_means(rows), _claimed(rows), _nulls(rows), _noise_in_short(noise)]).strip(),
        "![Every seed, at the end and as area](figures/seeds.png)",
    ]
    (pages / "results.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    found = [*_main(rows), *_claim(rows), *_tags(rows), *_tuning(rows), *_noise(noise), paper_table()]
    images = [f"![{title}](../../../docs/study/figures/{file.name})" for title, file in figures.items()]
    parts = ["# All tables of the first study", MADE_BY, to_markdown(found).strip(), *images]
    tables.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def runs_line(rows: RowList) -> str:
    """Return how many runs there are, at which commits, and which of them failed."""
    commits = sorted({row["commit"] for row in rows})
    failed = [f"{row['name']} ({row['ended']})" for row in rows if row["ended"] != "done"]
    return f"{len(rows)} runs, at the commits {', '.join(commits)}. Failed: {', '.join(failed) or 'none'}."


def _means(rows: RowList) -> Table:
    """Return the mean scores of all methods, a line for each regime and metric."""
    lines: dict[str, list[str]] = {}
    for regime in REGIMES:
        found = [select(rows, "main", regime, name) for name in ALGORITHMS]
        for name, metric in METRICS.items():
            lines[f"{regime}, {name}"] = [interval([metric(row) for row in runs.values()]) for runs in found]
    notes = ["Held-out pass@1 in percent: mean over seeds ± half the 95 % t interval, each at its own learning rate."]
    return Table("Means", list(ALGORITHMS), {"questions, metric": lines}, notes)


def _claimed(rows: RowList) -> Table:
    """Return the differences that decide whether BNPO learns better."""
    rivals = {regime: comparisons.against_others(regime) for regime in REGIMES}
    table = _differences(rows, "BNPO less REINFORCE and GRPO", rivals)
    lines = {f"{regime}, {name}": lines[name] for regime, lines in table.blocks.items() for name in lines}
    kept = {label: cells for label, cells in lines.items() if label.endswith((" reinforce", " grpo"))}
    return replace(table, blocks={"questions, other method": kept})


def _nulls(rows: RowList) -> Table:
    null = _differences(
        rows, "The null: RLOO less REINFORCE, the same but for a factor", {"all regimes": comparisons.nulls()}
    )
    return replace(null, notes=["As above. AdamW with clipping forgets the factor, so the two should not differ."])


def _noise_in_short(found: Mapping[str, Mapping]) -> Table:
    """Return signal over noise of the methods that the claim about noise compares."""
    lines = {}
    for checkpoint, result in found.items():
        methods = result["methods"]
        cells = [_with_error(*methods[name]["ratio"], "") for name in ("reinforce", "grpo", "bnpo")]
        lines[checkpoint] = cells + [_with_error(*methods[name]["bnpo_less"], "+") for name in ("reinforce", "grpo")]
    columns = ["REINFORCE", "GRPO", "BNPO", "BNPO less REINFORCE", "BNPO less GRPO"]
    notes = [
        "|E g|² / tr Cov(g) of the gradient of batches of 32 questions x 16 answers, ± its jackknife standard error."
    ]
    return Table("Signal over noise", columns, {"checkpoint": lines}, notes)


def _main(rows: RowList) -> list[Table]:
    blocks: dict[str, dict[str, list[str]]] = {}
    for regime in REGIMES:
        found = {name: select(rows, "main", regime, name) for name in ALGORITHMS}
        blocks[regime] = {name: _summary(runs) for name, runs in found.items()}
    columns = ["lr", "seeds", "middle", "at the end", "IQM", "area"]
    columns += ["gradient norm", "its CV", "clipped", "tokens a step"]
    notes = [
        "Held-out pass@1 in percent, mean over seeds ± half the 95 % t interval: in the middle, at the end (and its "
        "interquartile mean), and the area under its curve. Gradient norm: before clipping, mean over steps and seeds. "
        "CV: its standard deviation over its mean within a run, mean over seeds. Clipped: share of steps with a norm "
        "above 1. Tokens a step: answers, greedy ones included, median over the steps of a run, mean over seeds."
    ]
    return [
        *likeness_tables(),
        Table("Each method at its own learning rate", columns, blocks, notes),
        _differences(
            rows, "BNPO less each other method", {regime: comparisons.against_others(regime) for regime in REGIMES}
        ),
        _surcharge(rows),
    ]


def _surcharge(rows: RowList) -> Table:
    """What ReMax's greedy answers cost, beside REINFORCE with the same seed."""
    lines, phases = {}, ("generate", "update", "total")
    for regime in REGIMES:
        pairs = both_done(rows, ("main", regime, "remax"), ("main", regime, "reinforce"))
        tokens = np.median([remax["tokens/greedy"] / remax["tokens/sampled"] for remax, _ in pairs])
        seconds = np.array([[row[f"seconds/{phase}"] for phase in phases] for pair in pairs for row in pair])
        remax, reinforce = seconds.reshape(-1, 2, len(phases)).transpose(1, 0, 2)  # [seeds, phases]
        more = np.median(remax / reinforce - 1, axis=0)
        lines[regime] = [str(len(pairs)), f"{tokens:.0%}", *(f"{share:+.0%}" for share in more)]
    lines["the paper"] = ["", "", "", "", "+25%"]
    notes = [
        "Tokens of greedy answers over those of the 16 others, and seconds over REINFORCE's, of sampling, of the "
        "update and of a step: medians over seeds. The update is shorter, since answers that are as good as the greedy "
        "one have advantage 0 and are left out of its passes; the two runs did not have the machine to themselves."
    ]
    columns = ["seeds", "tokens", "seconds to sample", "to update", "a step"]
    return Table("ReMax's surcharge", columns, {"remax": lines}, notes)


def _summary(runs: Mapping[int, Mapping]) -> list[str]:
    finals, areas, middles = ([metric(row) for row in runs.values()] for metric in (final, area, middle))
    done = [row for row in runs.values() if row["ended"] == "done"]
    cells = [f"{next(iter(runs.values()))['lr']:g}", str(len(runs)), f"{100 * np.mean(middles):.1f}", interval(finals)]
    cells += [f"{100 * trim_mean(finals, 0.25):.1f}", interval(areas)]
    norms = [np.array(row["curves"]["grad_norm"], dtype=float) for row in done]
    sampled = [row["tokens/sampled"] + row["tokens/greedy"] for row in done]
    cells += [f"{np.nanmean(norms):.2f}", f"{np.mean([variation(norm) for norm in norms]):.2f}"]
    return [*cells, f"{(np.array(norms) > UpdateSettings.max_grad_norm).mean():.1%}", f"{np.mean(sampled):.0f}"]


def interval(values: Sequence[float]) -> str:
    mean, half = t_interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def _differences(
    rows: RowList,
    title: str,
    compared: Mapping[str, Pairs],
    more: Sequence[str] = (),
    metrics: Mapping[str, Callable[[Mapping], float]] = METRICS,
) -> Table:
    """Paired differences, block by block, and `more` notes."""
    blocks: dict[str, dict[str, list[str]]] = {}
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
    notes = [
        "Differences in points of pass@1, paired by training seed, with the 95 % t interval: over seeds, at these "
        "questions and this base model. p of the exact sign-flip test, and adjusted by Holm over the rows of a block, "
        "when all are there; share of seeds on which the first is better, where ties count half."
    ]
    return Table(title, columns, blocks, [*notes, *more])


def _claim(rows: RowList) -> list[Table]:
    fixed = {regime: comparisons.against_fixed(rows, regime) for regime in FAVOURED}
    fits = {regime: pairs[FIRST_FIT][1][2] for regime, pairs in fixed.items()}
    known = [f"{regime} {fit.removeprefix('beta ')}" for regime, fit in fits.items()]
    notes = [f"Alpha and beta of the first fit: {', '.join(known)}."]
    title = "Adaptive or not: BNPO less fixed densities (`beta` ones and the first fit at BNPO's rate, not tuned)"
    return [
        _differences(rows, title, fixed, notes),
        _differences(
            rows,
            "Shape or scale: rescaled to unit root mean square less as it is",
            {"concentrated": comparisons.rescaled()},
        ),
        _clipped(rows),
        _differences(rows, "Corrected moments less the paper's", {"BNPO": comparisons.corrected()}),
    ]


def _clipped(rows: RowList) -> Table:
    """How often clipping alone sets the length of a step, of each method and its rescaled twin."""
    lines = {}
    for label, places in comparisons.rescaled().items():
        pairs = both_done(rows, *places)
        norms = np.array([[row["curves"]["grad_norm"] for row in pair] for pair in pairs], float)
        above = norms > UpdateSettings.max_grad_norm  # [seeds, 2, steps]
        lines[label] = [f"{s:.0%}" for s in (above[:, 1].mean(), above[:, 0].mean(), above.all(1).mean())]
    notes = ["Share of steps whose gradient was clipped: such a step forgets the scale of the advantages."]
    return Table("How often scale can matter", ["as it is", "rescaled", "both"], {"concentrated": lines}, notes)


def _tags(rows: RowList) -> list[Table]:
    lines = {}
    for name in tagged_methods():
        runs = select(rows, "tags", "tags", name)
        scores = ([metric(row) for row in runs.values()] for metric in (middle, final, area, trained))
        lines[name] = [f"{next(iter(runs.values()))['lr']:g}", str(len(runs)), *map(interval, scores)]
    notes = [
        "The second tiny model; scores, as above, are accuracy alone. Reward: the mean of accuracy and format that is "
        "trained on, in percent, over all steps. `ad-` decomposes (Eq. 17)."
    ]
    return [
        Table(
            "Table 2 in miniature", ["lr", "seeds", "middle", "at the end", "area", "reward"], {"tags": lines}, notes
        ),
        _differences(rows, "Decomposed less plain", {"tags": comparisons.decomposed()}),
        _differences(
            rows,
            "Not registered: normalising methods and REINFORCE in Table 2 in miniature",
            {"tags": comparisons.explored()},
            ["Chosen after the means of the registered rows were seen; REINFORCE was run then. Reward: as above."],
            METRICS | {"reward": trained},
        ),
    ]


def _tuning(rows: RowList) -> list[Table]:
    blocks: dict[str, dict[str, list[str]]] = {}
    for regime in (*REGIMES, "tags"):
        grid = GRID_OF_TAGS if regime == "tags" else GRID
        names = dict.fromkeys(row["method"] for row in rows if (row["part"], row["regime"]) == (grid.part, regime))
        blocks[regime] = {name: rate_cells(rows, regime, name, grid, ALL_RATES, digits=1) for name in names}
    notes = [
        "Area under the validation curve, percent, mean over the tuning seeds; in bold the rate that was taken. The "
        "first and the last are tried where the best of the others is beside them."
    ]
    return [Table("Sensitivity to the learning rate", [f"{lr:g}" for lr in ALL_RATES], blocks, notes)]


def rate_cells(rows: RowList, regime: str, method: str, grid: Grid, rates: Sequence[float], digits: int) -> list[str]:
    """Return the areas of a method at all `rates`. That of the rate that was taken is in bold."""
    areas = tuned(rows, regime, method, grid)
    cells = [f"{100 * np.mean(areas[lr]):.{digits}f}" if lr in areas else MISSING for lr in rates]
    best = rates.index(chosen_lr(rows, regime, method, grid))
    cells[best] = f"*{cells[best]}"
    return cells


NOISE_COLUMNS = ("signal / noise", "BNPO's less it", "cosine with BNPO's", "noise over REINFORCE's", "by Theorem 1")


def noise_cells(result: Mapping) -> dict[str, list[str]]:
    """The rows of one checkpoint of noise.json, as texts. Noise is compared where a density, which integrates to one,
    sets the scale."""
    rows, has_fit = {}, result["methods"]["reinforce"]["theorem"] is not None
    for name, row in result["methods"].items():
        cells = [_with_error(*row["ratio"], ""), _with_error(*row["bnpo_less"], "+"), f"{row['cosine']:.3f}"]
        if has_fit and (name in ("reinforce", "bnpo") or name.startswith("beta")):
            predicted = "∞" if row["theorem"] is None else f"{row['theorem']:.3f}"
            cells += [_with_error(*row["noise_ratio"], ""), predicted]
        rows[name] = cells + [MISSING] * (len(NOISE_COLUMNS) - len(cells))
    return rows


def _with_error(value: float, error: float, sign: str) -> str:
    return f"{value:{sign}.3f} ± {error:.3f}"


def _noise(found: Mapping[str, Mapping]) -> list[Table]:
    blocks = {f"{title} (E {r['E']:.2f}, Var {r['V']:.3f})": noise_cells(r) for title, r in found.items()}
    notes = [
        "For batches of 32 questions x 16 answers: |E g|² / tr Cov(g) ± its jackknife standard error over questions, "
        "along each method's own mean gradient; BNPO's less each other's; the mean cosine between its gradients and "
        "BNPO's. All from the same batches.",
        "tr Cov(g) over REINFORCE's, beside Theorem 1's for the Beta distribution that fits the accuracies (corrected "
        "moments). The theorem is about single answers and leaves out what batches of different questions teach; it "
        "takes one fit of all questions for BNPO, which is measured with a fit of every batch. "
        "`gradient_noise.py` of commit 1b97aac measured it.",
    ]
    return [Table("The noise of the gradient", list(NOISE_COLUMNS), blocks, notes)]
