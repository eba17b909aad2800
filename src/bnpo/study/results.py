"""docs/results.md and its figures, from the committed rows of the study and nothing else."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from bnpo.files import ROOT
from bnpo.report.read import PAPER_DATASETS
from bnpo.report.tables import PAPER_TABLES, Table, make_tables, to_markdown
from bnpo.study.figures import draw_all
from bnpo.study.registry import ALGORITHMS, LEARNING_RATES, REGIMES, TAGGED, TUNING_SEEDS, tuned_as
from bnpo.study.rows import NOISE, RESULTS, area, chosen_lr, final
from bnpo.study.statistics import holm, interquartile_mean, paired, t_interval

Rows = Sequence[Mapping]
METRICS: dict[str, Callable[[Mapping], float]] = {"at the end": final, "area": area}
FINDINGS = RESULTS / "findings.md"
"""What follows from the tables, in words, written by hand."""
MISSING = "—"


def write_results(rows: Rows, path: Path = ROOT / "docs" / "results.md") -> None:
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


def select(rows: Rows, part: str, regime: str, method: str) -> dict[int, Mapping]:
    """The rows of one method by seed."""
    wanted = (part, regime, method)
    return {row["seed"]: row for row in rows if (row["part"], row["regime"], row["method"]) == wanted}


def _main(rows: Rows) -> list[Table]:
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
    compared = {regime: [(name, ("main", regime, name)) for name in others] for regime in REGIMES}
    tables = [Table("Each method at its own learning rate", columns, blocks, notes)]
    tables.append(_differences(rows, "BNPO less each other method", ("main", "bnpo"), compared))
    null = {regime: [("reinforce", ("main", regime, "reinforce"))] for regime in REGIMES}
    tables.append(
        _differences(rows, "The null: RLOO less REINFORCE, the same but for a factor", ("main", "rloo"), null)
    )
    return tables


def _summary(runs: Mapping[int, Mapping]) -> list[str]:
    finals, areas = ([metric(row) for row in runs.values()] for metric in METRICS.values())
    done = [row for row in runs.values() if row["ended"] == "done"]
    norms = [np.array(row["curves"]["grad_norm"], dtype=float) for row in done]
    variation = np.mean([norm.std(ddof=1) / norm.mean() for norm in norms])
    sampled = [row["tokens/sampled"] + row["tokens/greedy"] for row in done]
    seconds = [row["seconds/total"] for row in done]
    cells = [f"{next(iter(runs.values()))['lr']:g}", str(len(runs)), _interval(finals)]
    cells += [f"{100 * interquartile_mean(finals):.1f}", _interval(areas), f"{np.mean(norms):.2f}", f"{variation:.2f}"]
    return [*cells, f"{np.median(seconds):.2f}", f"{np.mean(sampled):.0f}"]


def _interval(values: Sequence[float]) -> str:
    mean, half = t_interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def _differences(
    rows: Rows, title: str, first: tuple[str, str], compared: Mapping[str, list[tuple[str, tuple]]]
) -> Table:
    """Paired differences of method `first` (part, method) and the others of each regime (label, where they are)."""
    blocks: dict[str, dict[str, list[str]]] = {}
    for regime, others in compared.items():
        ours = select(rows, first[0], regime, first[1])
        lines: dict[str, list[str]] = {}
        for metric in METRICS.values():
            found = {}
            for label, place in others:
                theirs = select(rows, *place)
                if len(seeds := sorted(ours.keys() & theirs.keys())) > 1:
                    values = ([metric(runs[seed]) for seed in seeds] for runs in (ours, theirs))
                    found[label] = paired(*values)
            adjusted = holm([difference.p for difference in found.values()]) if found else []
            for (label, d), p in zip(found.items(), adjusted, strict=True):
                cells = [f"{100 * d.mean:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})", f"{d.p:.3f}", f"{p:.3f}"]
                lines.setdefault(label, [str(d.seeds)]).extend([*cells, f"{d.wins:.0%}"])
        blocks[regime] = lines
    columns = ["seeds"]
    for name in METRICS:
        columns += [f"{name}: points (95 %)", "p", "Holm", "better on"]
    notes = [
        "Differences in points of pass@1, paired by seed, with the 95 % t interval; p of the exact sign-flip test, and "
        "adjusted by Holm over the rows of a block; share of seeds on which the first is better."
    ]
    return Table(title, columns, blocks, notes)


def _claim(rows: Rows) -> list[Table]:
    frozen = {}
    for regime in ("concentrated", "rare"):
        names = sorted({row["method"] for row in rows if (row["part"], row["regime"]) == ("adaptive", regime)})
        frozen[regime] = [(name, ("adaptive", regime, name)) for name in names]
    scale = {"concentrated": [(name, ("scale", "concentrated", name)) for name in ALGORITHMS]}
    rescaled_null = {"concentrated": [("reinforce, rescaled", ("scale", "concentrated", "reinforce"))]}
    moments = {regime: [("the paper's moments", ("main", regime, "bnpo"))] for regime in REGIMES}
    tables = [_differences(rows, "Adaptive or not: BNPO less fixed densities", ("main", "bnpo"), frozen)]
    same = [_same_method(rows, name, place) for name, place in scale["concentrated"]]
    lines = {name: cells for name, cells in same if cells}
    notes = ["Rescaled to unit root mean square over the batch less as it is, paired by seed (95 % t interval)."]
    tables.append(Table("Shape or scale", ["seeds", *METRICS], {"concentrated": lines}, notes))
    title = "The null, rescaled: RLOO less REINFORCE"
    tables.append(_differences(rows, title, ("scale", "rloo"), rescaled_null))
    tables.append(_differences(rows, "Corrected moments less the paper's", ("moments", "bnpo"), moments))
    return tables


def _same_method(rows: Rows, name: str, place: tuple[str, str, str]) -> tuple[str, list[str]]:
    """A method rescaled less itself."""
    ours, theirs = select(rows, *place), select(rows, "main", place[1], name)
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return name, []
    found = [paired(*([metric(runs[s]) for s in seeds] for runs in (ours, theirs))) for metric in METRICS.values()]
    return name, [str(len(seeds)), *(f"{100 * d.mean:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})" for d in found)]


def _tags(rows: Rows) -> list[Table]:
    names = [*TAGGED, *(f"ad-{name}" for name in TAGGED)]
    found = {name: select(rows, "tags", "tags", name) for name in names}
    lines = {}
    for name, runs in found.items():
        if len(runs) > 1:
            scores = ([metric(row) for row in runs.values()] for metric in METRICS.values())
            lines[name] = [f"{next(iter(runs.values()))['lr']:g}", str(len(runs)), *map(_interval, scores)]
    notes = ["The second tiny model; rewards accuracy and format; scores as above. `ad-` decomposes (Eq. 17)."]
    tables = [Table("Table 2 in miniature", ["lr", "seeds", *METRICS], {"tags": lines}, notes)]
    for name in TAGGED:
        compared = {"tags": [(name, ("tags", "tags", name))]}
        tables.append(_differences(rows, f"Decomposed less plain: {name}", ("tags", f"ad-{name}"), compared))
    return tables


def _tuning(rows: Rows) -> list[Table]:
    blocks: dict[str, dict[str, list[str]]] = {}
    for part, regimes in {"tuning": REGIMES, "tags-tuning": ("tags",)}.items():
        for regime in regimes:
            names = dict.fromkeys(row["method"] for row in rows if (row["part"], row["regime"]) == (part, regime))
            blocks[regime] = {name: _rates(rows, part, regime, name) for name in names}
    notes = ["Area under the validation curve, percent, mean over the tuning seeds; in bold the rate that was taken."]
    return [Table("Sensitivity to the learning rate", [f"{lr:g}" for lr in LEARNING_RATES], blocks, notes)]


def _rates(rows: Rows, part: str, regime: str, method: str) -> list[str]:
    cells, tried = [], []
    for lr in LEARNING_RATES:
        found = [row for row in rows if (row["part"], row["regime"], row["method"]) == (part, regime, method)]
        areas = [area(row) for row in found if row["lr"] == lr]
        tried.append(len(areas) == len(TUNING_SEEDS))
        cells.append(f"{100 * np.mean(areas):.1f}" if areas else MISSING)
    if all(tried):
        best = LEARNING_RATES.index(chosen_lr(rows, regime, tuned_as(method)))
        cells[best] = f"*{cells[best]}"
    return cells


def _noise() -> list[Table]:
    found = json.loads(NOISE.read_text()) if NOISE.exists() else {}
    blocks = {}
    for title, result in found.items():
        reference = result["methods"]["reinforce"]["noise"][0]
        blocks[f"{title} (E {result['E']:.2f}, Var {result['V']:.3f})"] = {
            name: [
                f"{row['ratio'][0]:.4f} ± {row['ratio'][1]:.4f}",
                f"{row['noise'][0] / reference:.3f}",
                MISSING if row["theorem"] is None else f"{row['theorem']:.3f}",
            ]
            for name, row in result["methods"].items()
        }
    columns = ["signal / noise", "noise over REINFORCE's", "by Theorem 1"]
    notes = [
        "For batches of 32 questions x 16 answers: |E g|² / tr Cov(g) ± its jackknife standard error over questions. "
        "Noise tr Cov(g) where densities integrate to one, beside Theorem 1's for the Beta distribution that fits the "
        "accuracies (corrected moments). `python scripts/gradient_noise.py` measures it again."
    ]
    return [Table("The noise of the gradient", columns, blocks, notes)]


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
        "each problem is always or never solved. Methods answer the same problems, so that differences between them "
        "have a smaller error; that of sampling answers alone is about 0.6 points for an average of 500 x 1, "
        "40 x 16, 30 x 16 and 30 x 16 answers, 0.8 for a difference, and one training run a row adds its own."
    ]
    return Table("What the paper's own averages can bear", ["average", "standard error, at most"], blocks, notes)
