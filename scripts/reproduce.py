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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from bnpo.config import TrainConfig, check_config
from bnpo.environment import setup_environment
from bnpo.files import ROOT, InputError, read_json_lines
from bnpo.flags import Planning, check_planning, settings_of
from bnpo.report.read import NOT_COMPARED, load_results, open_folder, read_results
from bnpo.report.tables import make_tables, to_markdown, write_tables
from bnpo.summary import why_ended
from reproduction.table import TABLES, Choice, Row, all_rows, chosen_rows

SETTINGS = settings_of(TrainConfig).keys() - NOT_COMPARED | {"algo", "decompose", "seed", "epochs", "steps"}
"""Settings that make a row: those in which tables tell rows apart, and those in which the rows of one agree."""


@dataclass(frozen=True, kw_only=True)
class Args(Planning, Choice):
    print: bool = False
    """Print the shell commands of the rows, and start nothing."""
    show: bool = False
    """Print the table of what is finished, and start nothing."""


def is_finished(row: Row) -> bool:
    """Whether the row has its results. Raises InputError that names the row where they are not its own, or damaged."""
    path = row.evaluation / "results.json"
    if not path.exists():
        return False
    load_results([path])
    results = read_results(row.evaluation)
    found, own = _identity(results["protocol"]), _identity(row.protocol)
    own = found | own  # a setting that only one of them has is newer than the other
    if wrong := [f"{name} is {found[name]}, not {own[name]}" for name in found if found[name] != own[name]]:
        cure = "give --train-flags and --eval-flags as before, or move its folder away"
        raise InputError(f"{row.name}: {path} is of another row: {', '.join(wrong)}; {cure}")
    _check_beside(row, results)
    return True


def _identity(protocol: dict) -> dict:
    """What makes a row, of the protocol in its results.json. Models and rows may have been moved."""
    run, suite = protocol["run"] or {}, protocol["suite"]
    settings = {name: run[name] for name in run if name in SETTINGS}
    trained = "/".join(Path(protocol["ckpt"]).parts[-3:]) if run else "the model"
    paths = {"model": Path(run.get("model", protocol["ckpt"])).name, "ckpt": trained}
    evaluated = {f"--{name}": protocol[name] for name in ("seed", "limit", "grader")}
    runs = {f"runs of {name}": dataset["runs"] for name, dataset in suite["datasets"].items()}
    return {"algo": None} | settings | paths | evaluated | {"suite": suite["name"]} | runs


def _check_beside(row: Row, results: dict) -> None:
    """Raise InputError where what results.json was made from is gone, or is not what lies beside it."""
    for name, belongs in (("protocol.json", _has_protocol), ("samples.jsonl", _has_verdicts)):
        path = row.evaluation / name
        if not path.exists():
            raise InputError(f"{row.name}: {row.evaluation} has results.json, but no {name}; move the folder away")
        if not belongs(path, results):
            raise InputError(f"{row.name}: {path} is not that of its results.json; move the folder away")


def _has_protocol(path: Path, results: dict) -> bool:
    try:
        return json.loads(path.read_text(encoding="utf-8")) == results["protocol"]
    except ValueError:
        return False


def _has_verdicts(path: Path, results: dict) -> bool:
    """Whether the samples have as many right answers as were scored."""
    right = Counter(record.get("dataset") for _, record in read_json_lines(path) if record.get("correct"))
    scores = results["results"].items()
    return all(right[name] == round(s["pass1"] * s["problems"] * s["runs"]) for name, s in scores)


def is_trained(row: Row) -> bool:
    """Whether the row's training is done. Raises InputError where the folder is of another run, or damaged."""
    if row.train is None:
        return True
    if not (row.run / "config.json").exists():
        return False
    from bnpo.runs.resume import check_changes  # imports torch

    try:
        was = open_folder(row.run)
        check_changes(row.train, {})
    except InputError as error:
        raise InputError(f"{row.name}: {error}") from error
    if why_ended(row.run) != "done" or (was["steps"], was["epochs"]) != (row.train.batch.steps, row.train.batch.epochs):
        return False
    if not (row.run / "last").exists():
        end = row.run / "end.json"
        raise InputError(f"{row.name}: {row.run}/last is missing, though {end} says done; delete that to train again")
    return True


def check_room(row: Row) -> None:
    """Raise InputError where the row's checkpoints, as many as are there at once, cannot be written."""
    from bnpo.planning.dry_run import no_room, training_plan  # imports torch
    from bnpo.planning.inputs import training_inputs

    found = training_plan(row.train, training_inputs(row.train), Planning())
    files = (row.run / "checkpoints").rglob("*")
    there = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    if problem := no_room(row.run, found.most_checkpoints * found.checkpoint - there):
        cure = 'make room, or give --train-flags="--keep 1", or another --output-dir'
        raise InputError(f"{row.name}: {problem}; {cure}")


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
    found = {int(match[1]) for path in args.folder.glob("*-seed*") if (match := re.search(r"-seed(\d+)$", path.name))}
    rows = all_rows(args, sorted(found | set(args.seeds)))
    finished = [row for row in rows if is_finished(row)]
    papers = TABLES[args.table].title if args.preset == "paper" else ""
    tables = make_tables(load_results([row.evaluation / "results.json" for row in finished]), always=papers)
    print(to_markdown(tables), end="")
    if missing := [row.name for row in rows if row not in finished]:
        print(f"\nNot finished: {', '.join(missing)}.")
    if finished:
        print(*write_tables(tables, args.folder), sep="\n")
    else:
        print("Nothing is finished yet: no number is ours.")


def main(args: Args, start: Callable[[Sequence[str]], int] = start) -> None:
    """Raises InputError, one line, for bad input and for a row that fails; rows that are finished stay as they are."""
    check_planning(args)
    rows = chosen_rows(args)
    for row in rows:
        check_planning(row.evaluate.planning)
        if row.method != "base":
            check_config(row.train, ranks=1)
    if args.print:
        print(*(" && ".join(shlex.join(command) for command in row.commands) for row in rows), sep="\n")
    elif args.dry_run:
        from reproduction.rows import plan_rows  # imports torch

        plan_rows(rows, args)
    else:
        unfinished = [] if args.show else [row for row in rows if not is_finished(row)]
        for row in unfinished:
            is_trained(row)  # a folder of another run is refused before any row starts
        for row in unfinished:
            reproduce(row, start)
        show(args)


if __name__ == "__main__":
    setup_environment()
    arguments = tyro.cli(Args, description=__doc__)
    os.chdir(ROOT)  # where the commands, and the paths in them, start
    try:
        main(arguments)
    except InputError as error:
        sys.exit(f"error: {error}")
