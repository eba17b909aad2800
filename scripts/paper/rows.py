"""Tables 1 and 2 of the paper, and a table of all methods, as rows to reproduce, each with its
folder and the flags of its two programs.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import tyro

from bnpo.config import PRESETS, TrainConfig, flat_settings, parse_train_config
from bnpo.environment import parse_command
from bnpo.evaluation.program import EvalConfig, chosen_suite
from bnpo.evaluation.protocol import grader_identity
from bnpo.files import ROOT, InputError, short_name


@dataclass(frozen=True)
class Ground:
    """What the rows of a table train on and are evaluated on."""

    presets: tuple[str, ...]  # one per model
    suite: str
    train_flags: str = ""


@dataclass(frozen=True)
class RowTable:
    """A table of the paper, or one with more methods."""

    title: str  # as in data/paper_tables.json
    rows: tuple[str, ...]  # base, <algorithm> or AD-<algorithm>
    grounds: dict[str, Ground]  # by --preset
    folder: str  # of its rows in runs/, and of their records


TINY = Ground(("tiny",), "arithmetic")
UNWATCHED = "--dtype float32 --eval-every 0 --watch-questions 0"
"""Flags of SmolLM2's rows. The evaluations in the course of a run would take a tenth of the time,
and change nothing that it learns."""
TABLES = {
    "table1": RowTable(
        title="Table 1",
        folder="table1",
        rows=("base", "reinforce", "remax", "grpo", "reinforce_pp", "bnpo"),
        grounds={
            "paper": Ground(("paper-1.5b", "paper-7b"), "paper"),
            "smollm2": Ground(("smollm2",), "word-problems-three", UNWATCHED),
            "tiny": TINY,
        },
    ),
    "table2": RowTable(
        title="Table 2",
        folder="table2",
        rows=("base", "grpo", "reinforce_pp", "AD-grpo", "AD-reinforce_pp", "AD-bnpo"),
        grounds={
            "paper": Ground(("paper-format",), "paper-format"),
            # The prompt has two answers as examples. SmolLM2 does not follow a sentence about tags.
            "smollm2": Ground(
                ("smollm2",),
                "word-problems-format",
                f"{UNWATCHED} --template evals/word-problems-format.jinja "
                "--max-prompt-tokens 256 --max-answer-tokens 64",
            ),
            "tiny": TINY,
        },
    ),
}
# Without `gdpo`, which with one reward is GRPO up to one factor per step, and without `beta` and
# `weight`, which are families.
TABLES["methods"] = replace(
    TABLES["table1"],
    rows=(
        *TABLES["table1"].rows,
        "rloo",
        "reinforce_pp_baseline",
        "opo",
        "maxrl",
        "pass_at_k",
        "eb",
        "shrinkage",
        "curverl",
    ),
)
METHOD_FLAGS = {"pass_at_k": ("--k", "4")}
"""Flags that a method needs, by algorithm."""
# Flags of train.py and eval.py that follow from a row's name and folder.
ROW_FLAGS = (
    "--preset",
    "--algo",
    "--seed",
    "--model",
    "--decompose",
    "--no-decompose",
    "--ckpt",
    "--output-dir",
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Rows of a table, and how to make them."""

    table: tyro.conf.Positional[Literal["table1", "table2", "methods"]]
    """Table of the paper, or `methods`: Table 1 with a row for each further method that needs only
    the accuracy, and no parameters of one's own choice. It shares its rows with table1."""
    rows: tuple[str, ...] = ()
    """Rows to make: base and algorithms, AD-<algorithm> in Table 2. The default is all."""
    models: tuple[str, ...] = ()
    """Models to use, such as Qwen2.5-Math-1.5B, folders of that name with a copy, or hub names with
    a revision: OWNER/NAME@REVISION. The default is all."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to train with. Runs with several seeds become one row of the table."""
    preset: Literal["paper", "smollm2", "tiny"] = "paper"
    """`smollm2` makes the same rows with SmolLM2-135M-Instruct on word problems, in hours on a CPU,
    and `tiny` with the tiny model, in minutes."""
    train_flags: str = ""
    """More flags for every train.py, as one text after an equals sign: --train-flags="--keep 1"."""
    eval_flags: str = ""
    """More flags for every eval.py, as one text after an equals sign."""
    shard: str = "1/1"
    """Part of the rows to make, such as 2/4: every fourth row, from the second on. So four machines
    with a common file system share a table."""
    output_dir: Path | None = None
    """Folder of the rows. The default is runs/<table>, or runs/<table>-<preset>, where `methods`
    stands for table1."""

    @property
    def folder(self) -> Path:
        name = TABLES[self.table].folder
        name = name if self.preset == "paper" else f"{name}-{self.preset}"
        return self.output_dir or Path("runs") / name

    @property
    def records(self) -> Path:
        """The repository's own results of these rows, if it has some."""
        return ROOT / "studies" / self.preset / TABLES[self.table].folder

    @property
    def ground(self) -> Ground:
        return TABLES[self.table].grounds[self.preset]


@dataclass(frozen=True)
class Row:
    """One row of a table. Its folder is named after its model, method and seed."""

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
        return [
            ["python", "scripts/launch.py", "train.py", *self.train_flags, "--resume"],
            evaluate,
        ]

    @property
    def run(self) -> Path:
        return self.folder / "train"

    @property
    def evaluation(self) -> Path:
        return self.folder / "eval"

    @property
    def results(self) -> Path:
        return self.evaluation / "results.json"

    @cached_property
    def train(self) -> TrainConfig | None:
        """The settings of its training; None for a base model, which is not trained. Raises
        InputError.
        """
        if self.method == "base":
            return None
        return parse_train_config([*self.train_flags], has_cuda=True)[0]

    @cached_property
    def evaluate(self) -> EvalConfig:
        return parse_command(EvalConfig, self.eval_flags, prog="eval.py")

    @property
    def protocol(self) -> dict:
        """The part of the protocol in results.json that identifies the row. Raises InputError
        for an unknown suite.
        """
        config, suite = self.evaluate, chosen_suite(self.evaluate, Path())
        return {
            "ckpt": config.ckpt,
            "run": self.train and flat_settings(self.train),
            "suite": suite.without_rules(),
            "seed": config.seed,
            "limit": config.limit,
            **grader_identity(suite),
        }


def all_rows(choice: Choice, seeds: Sequence[int]) -> list[Row]:
    """Return every row of the table with each of `seeds`. Raises InputError for flags that
    follow from a row.
    """
    table = TABLES[choice.table]
    rows = []
    for preset in choice.ground.presets:
        for method in table.rows:
            for seed in (0,) if method == "base" else seeds:  # nothing is trained for base
                rows.append(_row(choice, preset, method, seed))
    return rows


def chosen_rows(choice: Choice) -> list[Row]:
    """Return the rows to make. Raises InputError for names that the table does not have."""
    rows = all_rows(choice, choice.seeds)
    methods, models = choice.rows, [short_name(model) for model in choice.models]
    _check_names("--rows", methods, [row.method for row in rows], choice.table)
    _check_names("--models", models, [short_name(row.model) for row in rows], choice.table)
    chosen = []
    for row in rows:
        if (not methods or row.method in methods) and (
            not models or short_name(row.model) in models
        ):
            chosen.append(row)
    part, parts = _shard(choice.shard)
    # Trained rows are dealt first: a base row is only evaluated, which takes far less
    dealt = sorted(chosen, key=lambda row: row.method == "base")[part - 1 :: parts]
    return [row for row in chosen if row in dealt]


def _shard(text: str) -> tuple[int, int]:
    """Return 2 and 4 for 2/4. Raises InputError."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise InputError(f"--shard {text}: is not a part such as 2/4, counted from 1")
    return int(part), int(parts)


def _check_names(flag: str, wanted: Sequence[str], known: Sequence[str], table: str) -> None:
    for name in wanted:
        if name not in known:
            raise InputError(
                f"{flag}: {table} has no '{name}'; it has {', '.join(dict.fromkeys(known))}"
            )


def _row(choice: Choice, preset: str, method: str, seed: int) -> Row:
    model = str(PRESETS[preset].data.model)
    copies = [
        copy for copy in choice.models if "/" in copy and short_name(copy) == short_name(model)
    ]
    model = copies[0] if copies else model
    folder = choice.folder / (f"{short_name(model)}-{method}" + f"-seed{seed}" * (method != "base"))
    algo = method.removeprefix("AD-")
    train = ["--preset", preset, "--algo", algo, *METHOD_FLAGS.get(algo, ())]
    train += ["--seed", str(seed)]
    if choice.table == "table2":
        train += [
            "--rewards",
            "accuracy,format",
            "--decompose" if method.startswith("AD-") else "--no-decompose",
        ]
    if copies:
        train += ["--model", model]
    train += [
        *choice.ground.train_flags.split(),
        *_more_flags("--train-flags", choice.train_flags),
        "--output-dir",
        str(folder / "train"),
    ]
    ckpt = model if method == "base" else str(folder / "train" / "last")
    evaluate = [
        "--ckpt",
        ckpt,
        "--suite",
        choice.ground.suite,
        "--output-dir",
        str(folder / "eval"),
    ]
    evaluate += _more_flags("--eval-flags", choice.eval_flags)
    return Row(folder, model, method, tuple(train), tuple(evaluate))


def _more_flags(option: str, text: str) -> list[str]:
    """Return the words of `text`. Raises InputError if a quote is open or a flag follows from
    the row.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{option}: cannot be read ({error})") from error
    for word in words:
        if word.partition("=")[0].replace("_", "-") in ROW_FLAGS:
            choosing = "choose rows with --rows, --models, --seeds and --output-dir"
            raise InputError(f"{option}: {word} follows from the row; {choosing}")
    return words
