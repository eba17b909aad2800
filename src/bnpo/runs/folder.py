"""A run's folder: locked while a process trains in it, and claimed by a new run."""

from pathlib import Path

from filelock import FileLock

from bnpo.config import TrainConfig, json_settings
from bnpo.files import InputError, delete, lock, read_json, write_json, writing

RUN_FILES = ("bad", "best", "checkpoints", "console*.log", "end.json", "evals", "last", "metrics.jsonl")
RUN_FILES += ("report.html", "rollouts", "tokens", "wandb", "watch", "config.json")
"""What a run writes into its folder. --overwrite deletes it in this order: config.json, which shows that the folder is
a run's, comes last, so that an interrupted --overwrite can be repeated."""


def lock_run(folder: Path) -> FileLock:
    """Create a run's folder. Other processes cannot train in it while the returned lock lives. Raises InputError."""
    refusal = f"{folder}: another process is training in it. Stop that process, or choose another --output-dir"
    with writing(folder, "choose another --output-dir"):
        return lock(folder, refusal)


def claim_output_dir(config: TrainConfig, **data_facts: object) -> None:
    """Write config.json of a new run, including `data_facts`. Rank 0 only. Raises InputError."""
    folder = config.folder.output_dir
    with writing(folder, "choose another --output-dir"):
        check_output_dir(config)
        for path in _run_files(folder):
            delete(path)
        write_json(folder / "config.json", json_settings(config, **data_facts))


def check_output_dir(config: TrainConfig) -> None:
    """Raise InputError if the folder of a new run holds a run, without --overwrite, or other files of such names."""
    folder, advice = config.folder.output_dir, "choose another --output-dir"
    if not _run_files(folder):
        return
    if not config.folder.overwrite:
        raise InputError(f"{folder}: holds a run. Delete it with --overwrite, or {advice}")
    # The folder of a model has a config.json, too, but without a preset.
    if not (folder / "config.json").exists() or "preset" not in read_json(folder / "config.json", advice):
        raise InputError(f"{folder}: has no config.json of a run, so nothing is deleted; {advice}")


def check_apart(model: Path, folder: Path) -> None:
    """Raise InputError if a new run in `folder` would delete the `model` that it starts from."""
    if any(model.resolve().is_relative_to(path.resolve()) for path in _run_files(folder)):
        problem = f"--model: {model} belongs to the run in {folder}, which a new run would delete"
        raise InputError(f"{problem}. Choose another --output-dir, or continue the old run with --resume")


def _run_files(folder: Path) -> list[Path]:
    return [path for name in RUN_FILES for path in folder.glob(name)]
