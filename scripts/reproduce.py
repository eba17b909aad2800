"""Reproduce the paper's Table 1 or 2, row by row: train, evaluate, and print our numbers beside the paper's.

    python scripts/reproduce.py table1                                       # all that is not finished yet
    python scripts/reproduce.py table2 --rows base AD-bnpo --seeds 0 1 2
    python scripts/reproduce.py table1 --dry-run --gpus 4 --gpu H20          # what it would take; starts nothing
    python scripts/reproduce.py table1 --print                               # the shell commands, one a row

A row is a model, an algorithm and a seed. A finished row is skipped, an interrupted one goes on where it stopped.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Literal

import tyro

from bnpo.config import PRESETS, TrainConfig, check_config, parse_train_config, to_json
from bnpo.evaluation.config import EvalConfig
from bnpo.files import ROOT, InputError
from bnpo.flags import Planning, check_planning
from bnpo.report.read import NOT_COMPARED, load_results
from bnpo.report.tables import make_tables, to_markdown, write_tables
from bnpo.summary import why_ended

SETTINGS = {item.name for item in fields(TrainConfig)} - NOT_COMPARED | {"algo", "decompose", "seed", "epochs", "steps"}
"""Settings that make a row: those in which tables tell rows apart, and those in which the rows of one agree."""


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


@dataclass(frozen=True, kw_only=True)
class Args(Planning):
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
    print: bool = False
    """Print the shell commands of the rows, and start nothing."""
    show: bool = False
    """Print the table of what is finished, and start nothing."""


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
    def results(self) -> Path:
        return self.folder / "eval" / "results.json"

    @cached_property
    def train(self) -> TrainConfig | None:
        """The settings of its training, None for a model as it is. Raises InputError."""
        if self.method == "base":
            return None
        return parse_train_config([*self.train_flags], has_cuda=True)[0]

    @property
    def protocol(self) -> dict:
        """Its own part of the protocol that results.json must have."""
        run = self.train and json.loads(to_json(self.train))
        return {"ckpt": self.evaluate.ckpt, "suite": {"name": Path(self.evaluate.suite).stem}, "run": run}

    @cached_property
    def evaluate(self) -> EvalConfig:
        return tyro.cli(EvalConfig, args=self.eval_flags)


def all_rows(args: Args, seeds: Sequence[int]) -> list[Row]:
    """Every row of the table, with each of `seeds`."""
    presets = ("tiny",) if args.preset == "tiny" else TABLES[args.table].presets
    methods = [(preset, method) for preset in presets for method in TABLES[args.table].rows]
    return [_row(args, *names, seed) for names in methods for seed in (seeds if names[1] != "base" else (0,))]


def _row(args: Args, preset: str, method: str, seed: int) -> Row:
    model = str(TrainConfig(**PRESETS[preset]).model)
    copies = [copy for copy in args.models if "/" in copy and Path(copy).name == Path(model).name]
    model = copies[0] if copies else model
    output = args.output_dir or Path("runs") / f"{args.table}{'-tiny' * (preset == 'tiny')}"
    name = f"{Path(model).name}-{method}" + f"-seed{seed}" * (method != "base")
    ckpt = model if method == "base" else str(output / name / "train" / "last")
    train = ["--preset", preset, "--algo", method.removeprefix("AD-"), "--seed", str(seed)]
    if args.table == "table2":
        train += ["--rewards", "accuracy,format", "--decompose" if method.startswith("AD-") else "--no-decompose"]
    train += ["--model", model] * bool(copies) + shlex.split(args.train_flags)
    train += ["--output-dir", str(output / name / "train")]
    suite = "arithmetic" if preset == "tiny" else TABLES[args.table].suite
    evaluate = ["--ckpt", ckpt, "--suite", suite, "--output-dir", str(output / name / "eval")]
    return Row(output / name, model, method, tuple(train), (*evaluate, *shlex.split(args.eval_flags)))


def chosen(args: Args) -> list[Row]:
    """The rows that are asked for. Raises InputError for names that the table has not."""
    rows = all_rows(args, args.seeds)
    known = {"rows": {row.method: None for row in rows}, "models": {Path(row.model).name: None for row in rows}}
    wanted = {"rows": args.rows, "models": tuple(Path(model).name for model in args.models)}
    for flag, names in known.items():
        if unknown := [name for name in wanted[flag] if name not in names]:
            raise InputError(f"--{flag}: {args.table} has no '{unknown[0]}'; it has {', '.join(names)}")
    return [
        row
        for row in rows
        if row.method in (args.rows or known["rows"]) and Path(row.model).name in (wanted["models"] or known["models"])
    ]


def is_finished(row: Row) -> bool:
    """Whether the row has its results. Raises InputError that names the row where they are not its own, or damaged."""
    if not row.results.exists():
        return False
    load_results([row.results])
    for name in ("protocol.json", "samples.jsonl"):
        if not (row.results.parent / name).exists():
            raise InputError(f"{row.name}: {row.results.parent} has results.json, but no {name}; move the folder away")
    found, own = _identity(json.loads(row.results.read_text(encoding="utf-8"))["protocol"]), _identity(row.protocol)
    own = found | own  # a setting that only one of them has is newer than the other
    if wrong := [f"{name} is {found[name]}, not {own[name]}" for name in found if found[name] != own[name]]:
        raise InputError(f"{row.name}: {row.results} is of another row: {', '.join(wrong)}; move its folder away")
    return True


def _identity(protocol: dict) -> dict:
    """What makes a row, of the protocol in its results.json. A model may be a copy, in another place."""
    run = protocol["run"] or {}
    settings = {name: run[name] for name in run if name in SETTINGS}
    paths = {"model": Path(run.get("model", protocol["ckpt"])).name, "ckpt": protocol["ckpt"] if run else "the model"}
    return {"algo": None} | settings | paths | {"suite": protocol["suite"]["name"]}


def is_trained(row: Row) -> bool:
    """Whether the row's training is done. Raises InputError where the folder is of another run, or damaged."""
    if row.train is None:
        return True
    if not (row.run / "config.json").exists():
        return False
    from bnpo.runs.folder import check_changes  # imports torch

    try:
        check_changes(row.train, {})
    except InputError as error:
        raise InputError(f"{row.name}: {error}") from error
    was = json.loads((row.run / "config.json").read_text(encoding="utf-8"))
    if why_ended(row.run) != "done" or (was["steps"], was["epochs"]) != (row.train.steps, row.train.epochs):
        return False
    if not (row.run / "last").exists():
        end = row.run / "end.json"
        raise InputError(f"{row.name}: {row.run}/last is missing, though {end} says done; delete that to train again")
    return True


def check_room(row: Row) -> None:
    """Raise InputError where the row's checkpoints, as many as are there at once, cannot be written."""
    from bnpo.plan.dry_run import no_room, training_plan  # imports torch
    from bnpo.plan.inputs import training_inputs

    found = training_plan(row.train, training_inputs(row.train), Planning())
    there = sum(file.stat().st_size for file in row.run.rglob("*") if file.is_file() and not file.is_symlink())
    if problem := no_room(row.run, found.most_checkpoints * found.checkpoint - there):
        raise InputError(f"{row.name}: {problem}; make room, or --train-flags with a lower --keep, or --output-dir")


def start(command: Sequence[str]) -> int:
    """The exit status of a command of a row, which gets the signals that this process gets."""
    # In a session of its own: Ctrl-C reaches this process alone, and from here the command, once.
    program = subprocess.Popen([sys.executable, *command[1:]], cwd=ROOT, start_new_session=True)

    def pass_on(number: int, _frame) -> None:
        program.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    status = program.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    return status


def reproduce(row: Row, start: Callable[[Sequence[str]], int]) -> None:
    """Train and evaluate, as far as that is not done. Raises InputError where a command fails or is stopped."""
    for command in row.commands:
        training = "train.py" in command
        if training:
            if is_trained(row):
                continue
            check_room(row)
        print(f"{row.name}: {shlex.join(command)}", flush=True)
        status = start(command)
        if status or not (is_trained(row) if training else is_finished(row)):
            what = f"ended with status {status}" if status else "was stopped"
            raise InputError(f"{row.name}: {shlex.join(command)} {what}; started again, this script goes on with it")


def show(args: Args) -> None:
    """Print the table of all rows that are finished, those of earlier calls too, and write it beside them."""
    folder = all_rows(args, (0,))[0].folder.parent
    found = {int(match[1]) for path in folder.glob("*-seed*") if (match := re.search(r"-seed(\d+)$", path.name))}
    rows = all_rows(args, sorted(found | set(args.seeds)))
    finished = [row for row in rows if is_finished(row)]
    papers = TABLES[args.table].title if args.preset == "paper" else ""
    tables = make_tables(load_results([row.results for row in finished]), always=papers)
    print(to_markdown(tables), end="")
    if missing := [row.name for row in rows if row not in finished]:
        print(f"\nNot finished: {', '.join(missing)}.")
    if finished:
        print(*write_tables(tables, folder), sep="\n")
    else:
        print("Nothing is finished yet: no number is ours.")


def main(args: Args, start: Callable[[Sequence[str]], int] = start) -> None:
    """Raises InputError, one line, for bad input and for a row that fails; rows that are finished stay as they are."""
    check_planning(args)
    rows = chosen(args)
    for row in rows:
        check_planning(row.evaluate)
        if row.method != "base":
            check_config(row.train, ranks=1)
    if args.print:
        print(*(" && ".join(shlex.join(command) for command in row.commands) for row in rows), sep="\n")
    elif args.dry_run:
        from bnpo.plan.rows import PlannedRow, Rows

        planned = Rows([PlannedRow(row.name, row.model, row.train, row.evaluate) for row in rows])
        planned.describe(args)
        planned.table(args) if args.gpu else planned.overview(args)
    else:
        unfinished = [] if args.show else [row for row in rows if not is_finished(row)]
        for row in unfinished:
            is_trained(row)  # a folder of another run is refused before any row starts
        for row in unfinished:
            reproduce(row, start)
        show(args)


if __name__ == "__main__":
    arguments = tyro.cli(Args, description=__doc__)
    os.chdir(ROOT)  # where the commands, and the paths in them, start
    try:
        main(arguments)
    except InputError as error:
        sys.exit(f"error: {error}")
