"""Reproduce the paper's Table 1 or 2: train and evaluate every row, and print our numbers beside
the paper's.

    # all rows that are not finished yet
    python scripts/reproduce.py table1
    python scripts/reproduce.py table2 --rows base AD-bnpo --seeds 0 1 2
    # what it needs; starts nothing
    python scripts/reproduce.py table1 --dry-run --gpus 4 --gpu H20
    # the shell commands, one per row
    python scripts/reproduce.py table1 --print

A row is a model, an algorithm and a seed. A finished row is skipped. An interrupted row continues
where it stopped.
"""

import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from bnpo.config import PRESETS, Positive, flat_settings, settings
from bnpo.environment import run_program
from bnpo.files import ROOT, InputError, short_name
from paper.results import NOT_COMPARED, load_results
from paper.rows import TABLES, Choice, Row, all_rows, chosen_rows
from paper.schedule import Programs, next_rows, run_rows
from paper.tables import make_tables, to_markdown, write_tables
from planner import Planning
from runpage.run_files import open_folder, why_ended

# Settings that identify a row: those by which tables tell rows apart, and those that all runs of
# one row share.
SETTINGS = flat_settings(PRESETS["tiny"]).keys() - NOT_COMPARED | {
    "algo",
    "decompose",
    "seed",
    "epochs",
    "steps",
}

Start = Callable[[Sequence[str], Row, Sequence[str]], int]


@settings
class Args(Planning, Choice):
    dry_run: bool = False
    """Print what the rows need, and start nothing."""
    print: bool = False
    """Print the shell commands of the rows and exit."""
    show: bool = False
    """Print the table of the finished rows and exit."""
    rows_at_once: Positive[int | None] = None
    """Rows to run at the same time, each on an equal share of the GPUs, or of the cores on machines
    without GPUs. The default is what --dry-run finds fastest on these GPUs, and 1 on CPUs."""

    def __post_init__(self) -> None:
        if (self.gpu or self.gpus) and not self.dry_run:
            raise InputError("--gpu and --gpus: need --dry-run")


def is_finished(row: Row) -> bool:
    """Return whether the row has its results. Raises InputError if they belong to another row or
    are cut off.
    """
    path = row.results
    if not path.exists():
        return False
    load_results([path])
    results = json.loads(path.read_text(encoding="utf-8"))
    stored, expected = _identity(results["protocol"]), _identity(row.protocol)
    differences = []
    for name, value in stored.items():
        # A setting that only one of them has was added or removed since.
        if value != expected.get(name, value):
            short = len(str(value)) < 80
            differences.append(
                f"{name} is {value}, not {expected[name]}" if short else f"{name} has changed"
            )
    if differences:
        fix = "use the flags and files of before, or move its folder away"
        raise InputError(
            f"{row.name}: {path} belongs to another row: {', '.join(differences)}; {fix}"
        )
    return True


def _identity(protocol: dict) -> dict:
    """Return what identifies a row in the protocol of its results.json, without folders: they
    may have been moved.
    """
    run, suite = protocol["run"] or {}, protocol["suite"]
    settings = {name: run[name] for name in run if name in SETTINGS}
    trained = "/".join(Path(protocol["ckpt"]).parts[-3:]) if run else "the model"
    paths = {"model": short_name(run.get("model", protocol["ckpt"])), "ckpt": trained}
    evaluated = {f"--{name}": protocol[name] for name in ("seed", "limit", "grader")}
    evaluated["grader_sha256"] = protocol.get("grader_sha256")  # of a function of the user's
    # The number of problems and their hash are in the suite's file only if it limits or pins them
    fields = {f"suite's {name}": suite[name] for name in suite if name != "datasets"}
    for name, dataset in suite["datasets"].items():
        fields |= {f"{key} of {name}": dataset[key] for key in dataset if dataset[key] is not None}
    return {"algo": None} | settings | paths | evaluated | fields


def is_trained(row: Row) -> bool:
    """Return whether the row's training is done. Raises InputError if the folder has another run
    or is damaged.
    """
    if row.train is None:
        return True
    if not (row.run / "config.json").exists():
        return False
    from bnpo.runs.folder import check_changes, code_hashes

    try:
        stored = open_folder(row.run)
        check_changes(row.train, code_hashes(row.train))
    except InputError as error:
        raise InputError(f"{row.name}: {error}") from error
    batch = row.train.batch
    if why_ended(row.run) != "done" or (stored["steps"], stored["epochs"]) != (
        batch.steps,
        batch.epochs,
    ):
        return False
    if not (row.run / "last").exists():
        end = row.run / "end.json"
        raise InputError(
            f"{row.name}: {row.run}/last is missing, but {end} says done; delete that file to "
            "train again"
        )
    return True


def reproduce(row: Row, start: Callable[[Sequence[str]], int], stopped: Callable[[], bool]) -> None:
    """Train and evaluate a row, skipping what is done. Raises InputError if a command fails or
    is stopped.
    """
    for command in row.commands:
        training = "train.py" in command
        if training and is_trained(row):
            continue
        if stopped():
            raise InputError(f"{row.name}: was stopped")
        print(f"{row.name}: {shlex.join(command)}", flush=True)
        status = start(command)
        if status or not (is_trained(row) if training else is_finished(row)):
            end = f"ended with status {status}" if status else "was stopped"
            raise InputError(f"{row.name}: {shlex.join(command)} {end}")


def reproduce_all(rows: Sequence[Row], args: Args, start: Start | None) -> list[str]:
    """Reproduce `rows`, several at once if there are devices for it. Returns the errors of rows.

    `start(command, row, names of devices)` runs a command and returns its status.
    """
    for row in rows:
        is_trained(row)  # refuses a folder of another run before any row starts
    from paper.planning import plan_devices  # imports torch

    devices, sizes = plan_devices(rows, args.rows_at_once)
    several = len(next_rows(rows, sizes, len(devices.names))) > 1
    programs = Programs(devices, prefixed=several)
    start = start or programs.start

    def run(row: Row, names: Sequence[str]) -> None:
        print(f"{rows.index(row) + 1} of {len(rows)}: {row.name}", flush=True)
        reproduce(row, lambda command: start(command, row, names), lambda: programs.stopped)

    handlers = {
        number: signal.signal(number, programs.stop)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    errors = run_rows(rows, sizes, devices, run, lambda: programs.stopped)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return errors


def _rows_in(args: Args, folder: Path) -> list[Row]:
    """Return all rows of the table with the seeds in `folder` and those of `args`."""
    found = (re.search(r"-seed(\d+)$", path.name) for path in folder.glob("*-seed*"))
    return all_rows(args, sorted({*args.seeds, *(int(match[1]) for match in found if match)}))


def show(args: Args) -> None:
    """Print the table of all finished rows, including those of earlier calls, and write it
    beside them. If none is finished here, print the table of the repository's rows.
    """
    rows = _rows_in(args, args.folder)
    own = {row.name: row.results for row in rows if is_finished(row)}
    recorded = {}
    if not own:
        rows = _rows_in(args, args.records)
        records = {row.name: args.records / row.name / "results.json" for row in rows}
        recorded = {name: record for name, record in records.items() if record.exists()}
        print(f"No row is finished in {args.folder}.", end=" ")
        if recorded:
            print(f"These are from {os.path.relpath(args.records)}:", end="")
        elif args.preset == "paper":
            print("All numbers are from the paper:", end="")
        print("\n")
    found = own or recorded
    papers = TABLES[args.table].title if args.preset == "paper" else ""
    tables = make_tables(load_results(found.values()), always=papers)
    print(to_markdown(tables), end="")
    missing = [row.name for row in rows if row.name not in found]
    if missing:
        print(f"\nNot finished: {', '.join(missing)}.")
    if own:
        print(write_tables(tables, args.folder / f"{args.table}.md"))


def main(args: Args, start: Start | None = None) -> None:
    """Reproduce the rows that `args` choose. Raises InputError for bad input and for a row that
    fails.
    """
    rows = chosen_rows(args)
    for row in rows:
        _ = row.evaluate, row.train  # refuses wrong flags
    if args.print:
        for row in rows:
            print(" && ".join(shlex.join(command) for command in row.commands))
    elif args.show:
        show(args)
    else:
        unfinished = [row for row in rows if not is_finished(row)]
        if args.dry_run:
            if finished := len(rows) - len(unfinished):
                print(f"{finished} of {len(rows)} rows are finished, and are not counted below")
            if unfinished:
                from paper.planning import plan_rows  # imports torch

                plan_rows(unfinished, args, args.rows_at_once)
            return
        errors = reproduce_all(unfinished, args, start) if unfinished else []
        show(args)
        if errors:
            raise InputError(
                f"{len(errors)} of {len(unfinished)} rows failed or were stopped; run this script "
                f"again to continue them: {'; '.join(errors)}"
            )


if __name__ == "__main__":
    os.chdir(ROOT)  # the commands and the paths in them are relative to it
    run_program(main, Args, description=__doc__)
