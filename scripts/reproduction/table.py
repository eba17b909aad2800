"""Tables 1 and 2 of the paper as rows to reproduce, each with its folder and the flags of its two programs."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import tyro

from bnpo.config import TrainConfig, json_settings, parse_train_config, preset_config
from bnpo.evaluation.config import EvalConfig
from bnpo.evaluation.program import chosen_suite
from bnpo.files import InputError


@dataclass(frozen=True)
class Table:
    """A table of the paper: its presets, one a model, its rows, and the suite that evaluates them."""

    title: str
    presets: tuple[str, ...]
    rows: tuple[str, ...]
    suite: str


TABLE_1_ROWS = ("base", "reinforce", "remax", "grpo", "reinforce_pp", "bnpo")
TABLE_2_ROWS = ("base", "grpo", "reinforce_pp", "AD-grpo", "AD-reinforce_pp", "AD-bnpo")
TABLES = {
    "table1": Table("Table 1", ("paper-1.5b", "paper-7b"), TABLE_1_ROWS, "paper"),
    "table2": Table("Table 2", ("paper-format",), TABLE_2_ROWS, "paper-format"),
}
OF_A_ROW = ("--preset", "--algo", "--seed", "--model", "--decompose", "--no-decompose", "--ckpt", "--output-dir")
"""Flags of train.py and eval.py that a row has by its name and place."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Rows of a table, and how they are made."""

    table: tyro.conf.Positional[Literal["table1", "table2"]]
    """Which table of the paper."""
    rows: tuple[str, ...] = ()
    """Some of its rows: base and algorithms, AD-<algorithm> in Table 2; all by default."""
    models: tuple[str, ...] = ()
    """Some of its models, such as Qwen2.5-Math-1.5B, or folders of that name with a copy; all by default."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to train with; runs of several seeds are one row of the table."""
    preset: Literal["paper", "tiny"] = "paper"
    """`tiny`: the same rows with the tiny model, in minutes, on any machine."""
    train_flags: str = ""
    """More flags for every train.py, as one text after a sign of equality: --train-flags="--keep 1"."""
    eval_flags: str = ""
    """More flags for every eval.py, likewise."""
    output_dir: Path | None = None
    """Folder of the rows; by default runs/<table>, or runs/<table>-tiny."""

    @property
    def folder(self) -> Path:
        return self.output_dir or Path("runs") / f"{self.table}{'-tiny' * (self.preset == 'tiny')}"


@dataclass(frozen=True)
class Row:
    """One row: its name, which is that of its folder, model and method, and the flags of its two programs."""

    folder: Path
    model: str
    method: str
    train_flags: tuple[str, ...]
    eval_flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def commands(self) -> list[list[str]]:
        evaluate = ["python", "eval.py", *self.eval_flags]
        if self.method == "base":
            return [evaluate]
        return [["python", "scripts/launch.py", "train.py", *self.train_flags, "--resume"], evaluate]

    @property
    def run(self) -> Path:
        return self.folder / "train"

    @property
    def evaluation(self) -> Path:
        return self.folder / "eval"

    @cached_property
    def train(self) -> TrainConfig | None:
        """The settings of its training, None for a model as it is. Raises InputError."""
        if self.method == "base":
            return None
        return parse_train_config([*self.train_flags], has_cuda=True)[0]

    @cached_property
    def evaluate(self) -> EvalConfig:
        return tyro.cli(EvalConfig, args=self.eval_flags, prog="eval.py")

    @property
    def protocol(self) -> dict:
        """Its own part of the protocol that results.json must have. Raises InputError for an unknown suite."""
        config, suite = self.evaluate, chosen_suite(self.evaluate, Path())
        return {
            "ckpt": config.ckpt,
            "run": self.train and json_settings(self.train),
            "suite": {"name": suite.name, "datasets": {name: {"runs": d.runs} for name, d in suite.datasets.items()}},
            "seed": config.seed,
            "limit": config.limit,
            "grader": config.grader,
        }


def all_rows(choice: Choice, seeds: Sequence[int]) -> list[Row]:
    """Every row of the table, with each of `seeds`. Raises InputError for flags that a row has itself."""
    presets = ("tiny",) if choice.preset == "tiny" else TABLES[choice.table].presets
    methods = [(preset, method) for preset in presets for method in TABLES[choice.table].rows]
    return [_row(choice, *names, seed) for names in methods for seed in (seeds if names[1] != "base" else (0,))]


def chosen_rows(choice: Choice) -> list[Row]:
    """The rows that are asked for. Raises InputError for names that the table has not."""
    rows = all_rows(choice, choice.seeds)
    known = {"rows": {row.method: None for row in rows}, "models": {Path(row.model).name: None for row in rows}}
    wanted = {"rows": choice.rows, "models": tuple(Path(model).name for model in choice.models)}
    for flag, names in known.items():
        if unknown := [name for name in wanted[flag] if name not in names]:
            raise InputError(f"--{flag}: {choice.table} has no '{unknown[0]}'; it has {', '.join(names)}")
    methods, models = (wanted[flag] or known[flag] for flag in ("rows", "models"))
    return [row for row in rows if row.method in methods and Path(row.model).name in models]


def _row(choice: Choice, preset: str, method: str, seed: int) -> Row:
    model = str(preset_config(preset).data.model)
    copies = [copy for copy in choice.models if "/" in copy and Path(copy).name == Path(model).name]
    model = copies[0] if copies else model
    folder = choice.folder / (f"{Path(model).name}-{method}" + f"-seed{seed}" * (method != "base"))
    ckpt = model if method == "base" else str(folder / "train" / "last")
    train = ["--preset", preset, "--algo", method.removeprefix("AD-"), "--seed", str(seed)]
    if choice.table == "table2":
        train += ["--rewards", "accuracy,format", "--decompose" if method.startswith("AD-") else "--no-decompose"]
    train += ["--model", model] * bool(copies) + _more("--train-flags", choice.train_flags)
    train += ["--output-dir", str(folder / "train")]
    suite = "arithmetic" if preset == "tiny" else TABLES[choice.table].suite
    evaluate = ["--ckpt", ckpt, "--suite", suite, "--output-dir", str(folder / "eval")]
    return Row(folder, model, method, tuple(train), (*evaluate, *_more("--eval-flags", choice.eval_flags)))


def _more(flag: str, text: str) -> list[str]:
    """The flags in `text`. Raises InputError where it is cut off, or says what the row's name does."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{flag}: cannot be read ({error})") from error
    if taken := [word for word in words if word.partition("=")[0].replace("_", "-") in OF_A_ROW]:
        raise InputError(f"{flag}: {taken[0]} is the row's own; --rows, --models, --seeds and --output-dir choose rows")
    return words
