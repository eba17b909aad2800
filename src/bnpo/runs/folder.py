"""A run's folder: claimed by a new run; with --resume, where it goes on, whether it is the same run, and rewound."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.config import TrainConfig, json_settings
from bnpo.files import (
    InputError,
    claiming,
    lock,
    read_json,
    step_of,
    whole_json_lines,
    write_json,
    write_json_lines,
    writing,
)
from bnpo.flags import Free, marked
from bnpo.runs.checkpoint import Progress, checkpoint_folder, checkpoints, name_checkpoint, verify_small_files

if TYPE_CHECKING:
    from filelock import FileLock

RUN_FILES = ("bad", "best", "checkpoints", "console*.log", "end.json", "evals", "last", "metrics.jsonl")
RUN_FILES += ("report.html", "rollouts", "tokens", "wandb", "watch", "config.json")
"""What a run writes in its folder, and --overwrite deletes in this order: while config.json is there, it is a run's."""

STEP_FOLDERS = ("bad", "checkpoints", "evals", "rollouts", "tokens", "watch")
"""Those with an entry a step."""


def lock_run(folder: Path) -> "FileLock":
    """Create a run's folder, and keep others from training in it as long as the returned lock lives (rank 0 only).

    Raises InputError when another process does, or the folder cannot be written.
    """
    refusal = "another process is training in it; stop that one, or --output-dir names another folder"
    with claiming(folder):
        return lock(folder, f"{folder}: {refusal}")


def claim_output_dir(config: TrainConfig, **facts: object) -> Path:
    """Write config.json, the `facts` of its data included, into the run's folder (rank 0 only).

    Raises InputError when it holds a run already or, with --overwrite, something else of the same names.
    """
    folder = config.folder.output_dir
    with claiming(folder):
        if _run_files(folder):
            if not config.folder.overwrite:
                raise InputError(
                    f"{folder}: holds a run already; --overwrite deletes it, --output-dir names another folder"
                )
            _delete_run(folder)
        write_json(folder / "config.json", json_settings(config, **facts))
    return folder


def check_apart(model: Path, folder: Path) -> None:
    """Raise InputError where a new run in `folder` would delete the `model` that it starts from."""
    if any(model.resolve().is_relative_to(path.resolve()) for path in _run_files(folder)):
        raise InputError(
            f"--model: {model} belongs to the run in {folder}, which a new one would delete; --output-dir names "
            "another folder, --resume goes on with the old run"
        )


def _run_files(folder: Path) -> list[Path]:
    return [path for name in RUN_FILES for path in folder.glob(name)]


def _delete_run(folder: Path) -> None:
    config = folder / "config.json"
    # A model's folder has a config.json too, but none with a preset.
    cure = "--output-dir names another folder"
    if not config.exists() or "preset" not in read_json(config, cure):
        raise InputError(f"{folder}: has no config.json of a run, so nothing is deleted; {cure}")
    for path in _run_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def find_checkpoint(run: Path, ranks: int) -> tuple[Path | None, Progress]:
    """The newest checkpoint of a run (None: it has none yet) and how far it is.

    Raises InputError when it was damaged, or saved by another number of ranks and not converted.
    """
    if not checkpoints(run):
        return None, Progress()
    folder = checkpoints(run)[-1]
    verify_small_files(folder)
    trainer = folder / "trainer"
    progress = Progress(**json.loads((trainer / "progress.json").read_text(encoding="utf-8")))
    # The converter writes latest_universal last.
    if progress.ranks != ranks and not (trainer / "latest_universal").exists():
        raise InputError(
            f"{folder}: was saved by {progress.ranks} ranks, not {ranks}; start as many, or convert it: python -m "
            f"deepspeed.checkpoint.ds_to_universal --input_folder {trainer / 'zero'} --output_folder "
            f"{trainer / 'universal'}"
        )
    return folder, progress


def check_changes(config: TrainConfig, facts: dict) -> None:
    """Raise InputError where `config`, or data with other `facts`, would alter the run whose config.json the output
    folder holds."""
    path = config.folder.output_dir / "config.json"
    ours = json_settings(config, **facts)
    allowed = {name.replace("-", "_") for name in config.folder.allow_changes}
    if unknown := sorted(allowed - set(ours)):
        raise InputError(f"--allow-changes: there is no setting '{unknown[0]}'")
    theirs = read_json(path, "--resume needs the run's settings")
    free = marked(TrainConfig, Free)
    changed = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    if refused := [name for name in changed if name not in allowed and name not in free]:
        which = ", ".join(
            f"{name} has changed" if isinstance(ours[name], dict) else f"{name} was {theirs[name]}, is {ours[name]}"
            for name in refused
        )
        raise InputError(
            f"{config.folder.output_dir}: other settings would alter the run: {which}; give the old ones, "
            "or --allow-changes " + ",".join(refused)
        )


def rewind(run: Path, progress: Progress) -> None:
    """Take from a run's folder what came after `progress`: it will be written again. For rank 0 alone."""
    kept = progress.step or -1  # without a checkpoint the evaluation of step 0 is done again, too
    with writing(run):
        metrics = run / "metrics.jsonl"
        if metrics.exists():
            # A last line that was cut off is later than any checkpoint.
            write_json_lines(metrics, [line for line in whole_json_lines(metrics) if line["step"] <= kept])
        steps = [path for folder in STEP_FOLDERS for path in (run / folder).glob("step-*")]
        later = [path for path in steps if (step := step_of(path)) is not None and step > kept]
        for path in [*later, *run.glob("checkpoints/.*.unfinished")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, step in (("last", progress.step), ("best", progress.best_step)):
            if checkpoint_folder(run, step).is_dir():
                name_checkpoint(run, name, step)
            else:
                (run / name).unlink(missing_ok=True)
