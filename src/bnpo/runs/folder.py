"""A run's folder: locked while a process trains in it, and claimed by a new run. Imports no
torch.
"""

from pathlib import Path

from filelock import FileLock

from bnpo.config import FREE, TrainConfig, flat_settings
from bnpo.files import InputError, delete, lock, read_json, step_name, write_json, writing

# One entry per step; `bad` in old runs
STEP_FOLDERS = ("bad", "checkpoints", "evals", "rollouts", "tokens", "watch")
RUN_FILES = (
    *STEP_FOLDERS,
    "best",
    "end.json",
    "findings.json",
    "last",
    "metrics.jsonl",
    "report.html",
    "wandb",
)
RUN_FILES += ("config.json",)
"""What a run writes into its folder, and --overwrite deletes in this order: a run that is half
deleted still has to look like one for the next --overwrite."""


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`, whether there is one or not."""
    return run / "checkpoints" / step_name(step)


def lock_run(folder: Path) -> FileLock:
    """Create a run's folder. Other processes cannot train in it while the returned lock lives.
    Raises InputError.
    """
    refusal = (
        f"{folder}: another process is training in it. Stop that process, or choose another "
        "--output-dir"
    )
    with writing(folder, "choose another --output-dir"):
        return lock(folder, refusal)


def check_output_dir(config: TrainConfig) -> None:
    """Raise InputError if the folder of a new run holds a run, without --overwrite, or other
    files of such names.
    """
    folder, advice = config.folder.output_dir, "choose another --output-dir"
    if not _run_files(folder):
        return
    if not config.folder.overwrite:
        raise InputError(f"{folder}: holds a run. Delete it with --overwrite, or {advice}")
    # The folder of a model has a config.json, too, but without a preset.
    if not (folder / "config.json").exists() or "preset" not in read_json(
        folder / "config.json", advice
    ):
        raise InputError(f"{folder}: has no config.json of a run, so nothing is deleted; {advice}")


def check_apart(model: Path, folder: Path) -> None:
    """Raise InputError if a new run in `folder` would delete the `model` that it starts from."""
    if any(model.resolve().is_relative_to(path.resolve()) for path in _run_files(folder)):
        problem = f"--model: {model} belongs to the run in {folder}, which a new run would delete"
        raise InputError(
            f"{problem}. Choose another --output-dir, or continue the old run with --resume"
        )


def claim_folder(config: TrainConfig, facts: dict, *, resumed: bool = False) -> None:
    """Delete an earlier run in the folder if this one is new, and write config.json: settings and
    `facts` on the data.

    Rank 0 only. Raises InputError.
    """
    folder = config.folder.output_dir
    with writing(folder, "" if resumed else "choose another --output-dir"):
        if not resumed:
            for path in _run_files(folder):
                delete(path)
        write_json(folder / "config.json", flat_settings(config, **facts))


def check_changes(config: TrainConfig, data_facts: dict) -> None:
    """Raise InputError if settings or data of a resumed run changed, except those in FREE or
    --allow-changes.
    """
    folder = config.folder.output_dir
    new = flat_settings(config, **data_facts)
    allowed = {name.replace("-", "_") for name in config.folder.allow_changes}
    if unknown := sorted(allowed - set(new)):
        raise InputError(f"--allow-changes: there is no setting '{unknown[0]}'")
    old = read_json(folder / "config.json", "--resume needs the run's settings")
    changes = {}
    for name, value in new.items():
        # A setting that is missing in config.json is newer than the run.
        if name in old and value != old[name] and name not in allowed | FREE:
            changes[name] = (
                f"{name} has changed"
                if isinstance(value, dict)
                else f"{name} was {old[name]}, is {value}"
            )
    if changes:
        problem = f"{folder}: other settings would change the run: {', '.join(changes.values())}"
        raise InputError(f"{problem}. Use the old settings, or --allow-changes {','.join(changes)}")


def _run_files(folder: Path) -> list[Path]:
    return [path for name in RUN_FILES for path in folder.glob(name)]
