"""A run's folder: locked while a process trains in it, and claimed by a new run. Imports no torch.

With --overwrite, the earlier run moves to the subfolder EARLIER, and is deleted when the first step
of the new run is recorded. A start that fails before moves it back; one that is killed leaves it
there. config.json moves there first and comes back last, so EARLIER without it holds nothing of
value, and a folder without it holds files of the earlier run only.
"""

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from bnpo.config import FREE, REMOVED, TrainConfig, flat_settings
from bnpo.files import InputError, delete, lock, read_json, step_name, write_json, writing

# One entry per step; `bad` in old runs
STEP_FOLDERS = ("bad", "checkpoints", "evals", "rollouts", "tokens", "watch")
# What a run writes into its folder, and --overwrite replaces. config.json is the last: a run that
# is half deleted still has to look like one.
RUN_FILES = (
    *STEP_FOLDERS,
    "best",
    "end.json",
    "error.txt",
    "findings.json",
    "last",
    "metrics.jsonl",
    "report.html",
    "wandb",
    "config.json",
)
EARLIER = "overwritten-run"  # subfolder for the run that --overwrite replaces
OTHER_FOLDER = "choose another --output-dir"


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`, whether there is one or not."""
    return run / "checkpoints" / step_name(step)


def lock_run(folder: Path) -> FileLock:
    """Create a run's folder. No other process can train in it while the returned lock lives."""
    refusal = f"{folder}: another process is training in it. Stop that process, or {OTHER_FOLDER}"
    with writing(folder, OTHER_FOLDER):
        return lock(folder, refusal)


def check_output_dir(config: TrainConfig) -> None:
    """Raise InputError if the folder of a new run holds a run, or other files of such names."""
    folder, earlier = config.folder.output_dir, config.folder.output_dir / EARLIER
    found = [*_run_files(folder), *_run_files(earlier)]
    # A start that failed before it claimed the folder may have left an error.txt
    if all(path.name == "error.txt" for path in found):
        return
    settings = [path / "config.json" for path in (folder, earlier)]
    # The folder of a model has a config.json, too, but without a preset.
    if not any(path.exists() and "preset" in read_json(path, OTHER_FOLDER) for path in settings):
        raise InputError(
            f"{folder}: has no config.json of a run, so nothing is replaced; {OTHER_FOLDER}"
        )
    if config.folder.overwrite:
        return
    if not settings[0].exists():
        raise InputError(
            f"{folder}: its earlier run is in {earlier}, because a start with --overwrite was "
            f"killed. Repeat that start, or move the files back; or {OTHER_FOLDER}"
        )
    raise InputError(
        f"{folder}: holds a run. Continue it with --resume, replace it with --overwrite, or "
        f"{OTHER_FOLDER}"
    )


def check_apart(model: Path, folder: Path) -> None:
    """Raise InputError if a new run in `folder` would delete the `model` that it starts from."""
    files = [*_run_files(folder), *_run_files(folder / EARLIER)]
    if any(model.resolve().is_relative_to(path.resolve()) for path in files):
        raise InputError(
            f"--model: {model} belongs to the run in {folder}, which a new run would delete. "
            "Choose another --output-dir, or continue the old run with --resume"
        )


def claim_folder(config: TrainConfig, facts: dict, *, resumed: bool = False) -> None:
    """Move an earlier run aside if this one is new, and write config.json with `facts` on the data.

    Rank 0 only. If it raises InputError, the earlier run is in its place.
    """
    folder = config.folder.output_dir
    with writing(folder, "" if resumed else OTHER_FOLDER):
        try:
            if not resumed:
                _move_aside(folder)
            write_json(folder / "config.json", flat_settings(config, **facts))
        except OSError:
            with suppress(OSError):
                if not resumed:
                    put_back(folder)
            raise


def _move_aside(folder: Path) -> None:
    earlier = folder / EARLIER
    if not (earlier / "config.json").exists():
        delete_earlier(folder)  # what is left of an earlier deletion
    elif (folder / "config.json").exists():
        # The files are of a start with --overwrite that was killed before its first step
        _delete_all(folder)
    for path in reversed(_run_files(folder)):
        earlier.mkdir(exist_ok=True)
        path.rename(earlier / path.name)


def put_back(folder: Path) -> bool:
    """Move the earlier run back, in place of the new one. Return whether there was one."""
    earlier = folder / EARLIER
    if not (earlier / "config.json").exists():
        return False
    if (folder / "config.json").exists():
        _delete_all(folder)
    for path in _run_files(earlier):
        path.rename(folder / path.name)
    _remove_if_empty(earlier)
    return True


def delete_earlier(folder: Path) -> None:
    """Delete the earlier run in the subfolder EARLIER, if there is one. Raises OSError."""
    earlier = folder / EARLIER
    for path in reversed(_run_files(earlier)):
        delete(path)
    _remove_if_empty(earlier)


def _delete_all(folder: Path) -> None:
    for path in _run_files(folder):
        delete(path)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it is not there, or has files of the user
        folder.rmdir()


def _run_files(folder: Path) -> list[Path]:
    """Return the files of a run in `folder`, config.json last, also links that lead nowhere."""
    return [folder / name for name in RUN_FILES if os.path.lexists(folder / name)]


def check_changes(config: TrainConfig, data_facts: dict) -> None:
    """Raise InputError if settings or data of a resumed run changed that may not."""
    folder = config.folder.output_dir
    new = flat_settings(config, **data_facts)
    allowed = {name.replace("-", "_") for name in config.folder.allow_changes}
    old = read_json(folder / "config.json", "--resume needs the run's settings")
    if "preset" not in old:
        raise InputError(f"{folder}: its config.json is of no run; {OTHER_FOLDER}")
    if unknown := sorted(allowed - set(new) - set(old)):
        raise InputError(f"--allow-changes: there is no setting '{unknown[0]}'")
    changes = {}
    for name, value in new.items():
        # A setting that is missing in config.json is newer than the run.
        if name in old and value != old[name] and name not in allowed | FREE:
            values = "has changed" if isinstance(value, dict) else f"was {old[name]}, is {value}"
            changes[name] = f"{name} {values}"
    for name, value in REMOVED.items():
        if old.get(name, value) != value:
            raise InputError(
                f"{folder}: has {name} {old[name]}, and this version has {value} only. Continue "
                "the run with the version that started it"
            )
    if changes:
        raise InputError(
            f"{folder}: other settings would change the run: {', '.join(changes.values())}. Use "
            f"the old settings, or --allow-changes {','.join(changes)}"
        )
