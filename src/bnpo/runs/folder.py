"""A run's folder: locked while a process trains in it, claimed by a new run. Imports no torch."""

from pathlib import Path

from filelock import FileLock

from bnpo.config import FREE, REMOVED, TrainConfig, flat_settings
from bnpo.files import InputError, lock, read_json, step_name, write_json, writing
from bnpo.imports import source_hashes

# One entry per step
STEP_FOLDERS = ("checkpoints", "evals", "rollouts", "tokens", "watch")
# What a new run would write over, or add to
RUN_FILES = ("config.json", "metrics.jsonl", "last", "best", "wandb", *STEP_FOLDERS)
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
    folder = config.folder.output_dir
    found = [name for name in RUN_FILES if (folder / name).exists()]
    settings = folder / "config.json"
    # The folder of a model has a config.json, too, but without a preset.
    if settings.exists() and "preset" in read_json(settings, OTHER_FOLDER):
        raise InputError(
            f"{folder}: holds a run. Continue it with --resume, delete the folder, or "
            f"{OTHER_FOLDER}"
        )
    if found:
        raise InputError(f"{folder}: has {found[0]}, which a run would write over; {OTHER_FOLDER}")


def claim_folder(config: TrainConfig, facts: dict) -> None:
    """Write config.json with `facts` on the data. Rank 0 only. Raises InputError."""
    folder = config.folder.output_dir
    with writing(folder):
        write_json(folder / "config.json", flat_settings(config, **facts))


def code_hashes(config: TrainConfig) -> dict:
    """Return the hashes of the user's rewards and estimator, as config.json has them."""
    rewards = [reward for reward in config.data.rewards if ":" in reward]
    estimators = [config.method.algo] if ":" in config.method.algo else []
    return {
        "reward_sha256": {reward: source_hashes(reward) for reward in rewards},
        "algo_sha256": {estimator: source_hashes(estimator) for estimator in estimators},
    }


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
            values = f"was {old[name]}, is {value}"
            if isinstance(value, dict):
                parts = [part for part in value if value[part] != old[name].get(part)]
                values = f"has changed ({', '.join(parts) or 'it has fewer parts'})"
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
