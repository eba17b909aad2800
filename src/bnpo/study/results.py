"""docs/results.md and its figures, from what is committed in evals/results/study: rows, noise, findings in words."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from bnpo.files import ROOT
from bnpo.report.read import PAPER_DATASETS
from bnpo.report.tables import PAPER_TABLES, Table, make_tables, to_markdown
from bnpo.study.design import ALGORITHMS, LEARNING_RATES, REGIMES, TAGGED, TUNING_SEEDS
from bnpo.study.figures import draw_all
from bnpo.study.rows import NOISE, RESULTS, RowList, area, chosen_lr, final, select
from bnpo.study.statistics import holm, interquartile_mean, paired, t_interval

METRICS: dict[str, Callable[[Mapping], float]] = {"at the end": final, "area": area}
FINDINGS = RESULTS / "findings.md"
"""What follows from the tables, in words, written by hand."""
MISSING = "—"
Place = tuple[str, str, str]
"""Part, regime and method."""


def write_results(rows: RowList, path: Path = ROOT / "docs" / "results.md") -> None:
    """Write `path`, and figures in study/ beside it."""
    figures = draw_all(rows, path.parent / "study")
    commits = sorted({row["commit"] for row in rows})
    failed = [f"{row['name']} ({row['ended']})" for row in rows if row["ended"] != "done"]
    parts = [
        "# Results",
        "Made by `python scripts/study.py --report` from `evals/results/study/`; what is registered is in `study.md`.",
        f"{len(rows)} runs, at the commits {', '.join(commits)}. Failed: {', '.join(failed) or 'none'}.",
        FINDINGS.read_text(encoding="utf-8").strip(),
        to_markdown(_filled(chain(_main(rows), _claim(rows), _tags(rows), _tuning(rows), _noise()))).strip(),
        *(f"![{title}](study/{file.name})" for title, file in figures.items()),
        to_markdown([*make_tables([], "Table 1"), *make_tables([], "Table 2"), _paper_errors()]).strip(),
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _filled(tables: Iterable[Table]) -> list[Table]:
    """The tables that have rows, without blocks that have none."""
    filled = []
    for table in tables:
        if blocks := {name: lines for name, lines in table.blocks.items() if lines}:
            filled.append(replace(table, blocks=blocks))
    return filled


def _main(rows: RowList) -> list[Table]:
    blocks: dict[str, dict[str, list[str]]] = {}
    for regime in REGIMES:
        found = {name: select(rows, "main", regime, name) for name in ALGORITHMS}
        blocks[regime] = {name: _summary(runs) for name, runs in found.items() if len(runs) > 1}
    columns = [
        "lr",
        "seeds",
        "at the end",
        "IQM",
        "area",
        "gradient norm",
        "its variation",
        "s a step",
        "tokens a step",
    ]
    notes = [
        "Held-out pass@1 in percent, mean over seeds ± half the 95 % t interval: at the end (and its interquartile "
        "mean), and the area under its curve. Variation: standard deviation over mean of the gradient's norm within a "
        "run, mean over seeds. Seconds were taken beside another run and are good for comparison in this table only.",
    ]
    others = [name for name in ALGORITHMS if name not in ("bnpo", "rloo")]
    compared = {r: [(name, ("main", r, "bnpo"), ("main", r, name)) for name in others] for r in REGIMES}
    nulls = [(regime, ("main", regime, "rloo"), ("main", regime, "reinforce")) for regime in REGIMES]
    nulls.append(("rescaled", ("scale", "concentrated", "rloo"), ("scale", "concentrated", "reinforce")))
    return [
        Table("Each method at its own learning rate", columns, blocks, notes),
        _differences(rows, "BNPO less each other method", compared),
        _differences(rows, "The null: RLOO less REINFORCE, the same but for a factor", {"all regimes": nulls}),
    ]


def _summary(runs: Mapping[int, Mapping]) -> list[str]:
    finals, areas = ([metric(row) for row in runs.values()] for metric in METRICS.values())
    done = [row for row in runs.values() if row["ended"] == "done"]
    norms = [np.array(row["curves"]["grad_norm"], dtype=float) for row in done]
    variation = np.mean([np.nanstd(norm, ddof=1) / np.nanmean(norm) for norm in norms])
    sampled = [row["tokens/sampled"] + row["tokens/greedy"] for row in done]
    seconds = [row["seconds/total"] for row in done]
    cells = [f"{next(iter(runs.values()))['lr']:g}", str(len(runs)), _interval(finals)]
    cells += [f"{100 * interquartile_mean(finals):.1f}", _interval(areas)]
    cells += [f"{np.nanmean(norms):.2f}", f"{variation:.2f}"]
    return [*cells, f"{np.median(seconds):.2f}", f"{np.mean(sampled):.0f}"]


def _interval(values: Sequence[float]) -> str:
    mean, half = t_interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def _differences(rows: RowList, title: str, compared: Mapping[str, Sequence[tuple[str, Place, Place]]]) -> Table:
    """Paired differences, block by block: a label, and where the first method is and the second."""
    blocks: dict[str, dict[str, list[str]]] = {}
    for block, pairs in compared.items():
        lines: dict[str, list[str]] = {}
        for metric in METRICS.values():
            found = {}
            for label, first, second in pairs:
                ours, theirs = select(rows, *first), select(rows, *second)
                if len(seeds := sorted(ours.keys() & theirs.keys())) > 1:
                    values = ([metric(runs[seed]) for seed in seeds] for runs in (ours, theirs))
                    found[label] = paired(*values)
            adjusted = holm([difference.p for difference in found.values()]) if found else []
            for (label, d), p in zip(found.items(), adjusted, strict=True):
                cells = [f"{100 * d.mean:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})", f"{d.p:.3f}"]
                cells += [f"{p:.3f}" if len(found) == len(pairs) else MISSING, f"{d.wins:.0%}"]
                lines.setdefault(label, [str(d.seeds)]).extend(cells)
        blocks[block] = lines
    columns = ["seeds"]
    for name in METRICS:
        columns += [f"{name}: points (95 %)", "p", "Holm", "better on"]
    notes = [
        "Differences in points of pass@1, paired by training seed, with the 95 % t interval: over seeds, at these "
        "questions and this base model. p of the exact sign-flip test, and adjusted by Holm over the rows of a block, "
        "when all are there; share of seeds on which the first is better."
    ]
    return Table(title, columns, blocks, notes)


def _claim(rows: RowList) -> list[Table]:
    frozen, moments = {}, []
    for regime in ("concentrated", "rare"):
        ours = ("main", regime, "bnpo")
        names = sorted({row["method"] for row in rows if (row["part"], row["regime"]) == ("adaptive", regime)})
        frozen[regime] = [("reinforce: 1 1", ours, ("main", regime, "reinforce"))]
        frozen[regime].append(("grpo: 1.5 1.5", ours, ("main", regime, "grpo")))
        frozen[regime] += [(name, ours, ("adaptive", regime, name)) for name in names]
    scale = [(name, ("scale", "concentrated", name), ("main", "concentrated", name)) for name in ALGORITHMS]
    for regime in REGIMES:
        moments.append((regime, ("moments", regime, "bnpo"), ("main", regime, "bnpo")))
    return [
        _differences(
            rows, "Adaptive or not: BNPO less fixed densities (`beta` ones at BNPO's rate, not tuned)", frozen
        ),
        _differences(rows, "Shape or scale: rescaled to unit root mean square less as it is", {"concentrated": scale}),
        _differences(rows, "Corrected moments less the paper's", {"BNPO": moments}),
    ]


def _tags(rows: RowList) -> list[Table]:
    lines = {}
    for name in (*TAGGED, *(f"ad-{name}" for name in TAGGED)):
        runs = select(rows, "tags", "tags", name)
        if len(runs) > 1:
            scores = ([metric(row) for row in runs.values()] for metric in METRICS.values())
            lines[name] = [f"{next(iter(runs.values()))['lr']:g}", str(len(runs)), *map(_interval, scores)]
    notes = ["The second tiny model; rewards accuracy and format; scores as above. `ad-` decomposes (Eq. 17)."]
    pairs = [(name, ("tags", "tags", f"ad-{name}"), ("tags", "tags", name)) for name in TAGGED]
    return [
        Table("Table 2 in miniature", ["lr", "seeds", *METRICS], {"tags": lines}, notes),
        _differences(rows, "Decomposed less plain", {"tags": pairs}),
    ]


def _tuning(rows: RowList) -> list[Table]:
    blocks: dict[str, dict[str, list[str]]] = {}
    for part, regimes in {"tuning": REGIMES, "tags-tuning": ("tags",)}.items():
        for regime in regimes:
            names = dict.fromkeys(row["method"] for row in rows if (row["part"], row["regime"]) == (part, regime))
            blocks[regime] = {name: _rates(rows, part, regime, name) for name in names}
    notes = ["Area under the validation curve, percent, mean over the tuning seeds; in bold the rate that was taken."]
    return [Table("Sensitivity to the learning rate", [f"{lr:g}" for lr in LEARNING_RATES], blocks, notes)]


def _rates(rows: RowList, part: str, regime: str, method: str) -> list[str]:
    cells, tried = [], []
    found = [row for row in rows if (row["part"], row["regime"], row["method"]) == (part, regime, method)]
    for lr in LEARNING_RATES:
        areas = [area(row) for row in found if row["lr"] == lr]
        tried.append(len(areas) == len(TUNING_SEEDS))
        cells.append(f"{100 * np.mean(areas):.1f}" if areas else MISSING)
    if all(tried):
        best = LEARNING_RATES.index(chosen_lr(rows, regime, method))
        cells[best] = f"*{cells[best]}"
    return cells


NOISE_COLUMNS = ("signal / noise", "BNPO's less it", "noise over REINFORCE's", "by Theorem 1")


def noise_cells(result: Mapping) -> dict[str, list[str]]:
    """The rows of one checkpoint of noise.json, as texts. Noise is compared where a density, which integrates to one,
    sets the scale."""
    reference, rows = result["methods"]["reinforce"]["noise"][0], {}
    for name, row in result["methods"].items():
        cells = [f"{value:+.4f} ± {error:.4f}" for value, error in (row["ratio"], row["bnpo_less"])]
        theorem = row["theorem"]
        has_scale = name in ("reinforce", "bnpo") or name.startswith("beta")
        cells.append(f"{row['noise'][0] / reference:.3f}" if has_scale else MISSING)
        rows[name] = [*cells, MISSING if theorem is None else f"{theorem:.3f}"]
    return rows


def _noise() -> list[Table]:
    found = json.loads(NOISE.read_text()) if NOISE.exists() else {}
    blocks = {f"{title} (E {r['E']:.2f}, Var {r['V']:.3f})": noise_cells(r) for title, r in found.items()}
    notes = [
        "For batches of 32 questions x 16 answers: |E g|² / tr Cov(g) ± its jackknife standard error over questions, "
        "and BNPO's less each other's, from the same batches. Noise tr Cov(g) beside Theorem 1's for the Beta "
        "distribution that fits the accuracies (corrected moments); the theorem is about single answers, and "
        "leaves out what batches of different questions teach. `python scripts/gradient_noise.py` measures it again."
    ]
    return [Table("The noise of the gradient", list(NOISE_COLUMNS), blocks, notes)]


def _paper_errors() -> Table:
    """The standard error of the paper's averages, as far as its sampling of answers and of problems goes."""
    blocks = {}
    for models in PAPER_TABLES.values():
        for model, methods in models.items():
            blocks[model] = {}
            for method, numbers in methods.items():
                shares = [float(number.lstrip("*")) / 100 for number in numbers.split()[:-1]]
                variances = []
                for share, (problems, _) in zip(shares, PAPER_DATASETS.values(), strict=True):
                    variances.append(share * (1 - share) / problems)
                error = 100 * np.sqrt(sum(variances)) / len(variances)
                blocks[model][method] = [numbers.split()[-1].lstrip("*"), f"{error:.1f}"]
    notes = [
        "The most that the standard error over problems can be: sqrt(sum of p (1 - p) / problems) / 4, reached where "
        "each problem is always or never solved. Methods answer the same problems, so that a difference between two "
        "has less than √2 times this; that of sampling answers alone is about 0.6 points for an average of 500 x 1, "
        "40 x 16, 30 x 16 and 30 x 16 answers, 0.8 for a difference, and one training run a row adds its own."
    ]
    return Table("What the paper's own averages can bear", ["average", "standard error, at most"], blocks, notes)
