"""Resuming a run: find its newest checkpoint, verify it, compare the settings, and rewind the run's folder to it."""

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch.distributed as dist

from bnpo.config import FREE, TrainConfig, json_settings
from bnpo.files import InputError, delete, file_hash, read_json, step_of, whole_json_lines, write_json_lines, writing
from bnpo.ranks import gather
from bnpo.runs.checkpoint import Progress, checkpoint_folder, checkpoints, link_checkpoint

STEP_FOLDERS = ("bad", "checkpoints", "evals", "rollouts", "tokens", "watch")
"""Folders of a run that have one entry per step."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run starts: its newest checkpoint and how far it is. Without a checkpoint it starts at step 0."""

    checkpoint: Path | None = None
    progress: Progress = Progress()


def find_checkpoint(run: Path, ranks: int) -> ResumePoint:
    """Return the newest checkpoint of a run. Raises InputError for damage or another number of ranks."""
    folders = checkpoints(run)
    if not folders:
        return ResumePoint()
    folder = folders[-1]
    # The large files are verified later, by all ranks together.
    hashes = read_manifest(folder)
    small_files = {name: hashes[name] for name in hashes if not name.endswith((".safetensors", ".pt"))}
    refuse_damage(folder, damaged_files(folder, small_files))
    trainer = folder / "trainer"
    progress = Progress(**json.loads((trainer / "progress.json").read_text(encoding="utf-8")))
    # The converter writes the file latest_universal last.
    if progress.ranks != ranks and not (trainer / "latest_universal").exists():
        convert = "python -m deepspeed.checkpoint.ds_to_universal"
        raise InputError(
            f"{folder}: was saved by {progress.ranks} ranks, not {ranks}. Start {progress.ranks} ranks, or convert it: "
            f"{convert} --input_folder {trainer / 'zero'} --output_folder {trainer / 'universal'}"
        )
    return ResumePoint(folder, progress)


def verify_checkpoint(folder: Path) -> None:
    """Raise InputError on all ranks if a file of a checkpoint differs from the manifest. A collective."""
    manifest = read_manifest(folder)
    own_share = dict(list(manifest.items())[dist.get_rank() :: dist.get_world_size()])  # hashing takes long
    # Gathered before anyone raises: a rank that raised alone would leave the others waiting in the next collective.
    damaged_of_ranks = gather(damaged_files(folder, own_share))
    refuse_damage(folder, sorted(chain.from_iterable(damaged_of_ranks)))


def damaged_files(folder: Path, hashes: dict[str, str]) -> list[str]:
    """Return the names in `hashes` whose file in the checkpoint `folder` has another hash."""
    return [name for name, digest in hashes.items() if file_hash(folder / name) != digest]


def refuse_damage(folder: Path, damaged: list[str]) -> None:
    """Raise InputError for the first of the `damaged` files of a checkpoint, if any."""
    if damaged:
        file = folder / damaged[0]
        raise InputError(f"{file}: differs from the manifest: truncated or edited. {_cure(folder)}")


def read_manifest(folder: Path) -> dict[str, str]:
    """Return the hashes of a checkpoint's files by name. Raises InputError."""
    path = folder / "trainer" / "manifest.json"
    manifest = read_json(path, _cure(folder))
    if "trainer/progress.json" not in manifest:
        raise InputError(f"{path}: does not list the checkpoint's files. {_cure(folder)}")
    return manifest


def _cure(folder: Path) -> str:
    """Return what the user can do about a damaged checkpoint."""
    earlier = [other for other in checkpoints(folder.parent.parent) if other < folder]
    start = f"continues from {earlier[-1]}" if earlier else "starts from the beginning"
    return f"Delete {folder}; --resume then {start}"


def check_changes(config: TrainConfig, data_facts: dict) -> None:
    """Raise InputError if settings or data of a resumed run changed, except those in FREE or --allow-changes."""
    folder = config.folder.output_dir
    new = json_settings(config, **data_facts)
    allowed = {name.replace("-", "_") for name in config.folder.allow_changes}
    unknown = sorted(allowed - set(new))
    if unknown:
        raise InputError(f"--allow-changes: there is no setting '{unknown[0]}'")
    old = read_json(folder / "config.json", "--resume needs the run's settings")
    allowed |= FREE
    changes = {}
    for name, value in new.items():
        # A setting that is missing in config.json is newer than the run. train_data was one name, and is a list now.
        if name in old and value not in (old[name], [old[name]]) and name not in allowed:
            changes[name] = f"{name} has changed" if isinstance(value, dict) else f"{name} was {old[name]}, is {value}"
    if changes:
        problem = f"{folder}: other settings would change the run: {', '.join(changes.values())}"
        raise InputError(f"{problem}. Use the old settings, or --allow-changes {','.join(changes)}")


def rewind(run: Path, progress: Progress) -> None:
    """Delete from a run's folder what is later than `progress`, since it will be written again. Rank 0 only."""
    # Without a checkpoint the evaluation before the first step (step 0) is repeated, too.
    last_step = progress.step or -1
    with writing(run):
        metrics = run / "metrics.jsonl"
        if metrics.exists():
            # An incomplete last line is dropped. It is later than any checkpoint, since each line is flushed to disk
            # before the checkpoint of its step is written.
            write_json_lines(metrics, [line for line in whole_json_lines(metrics) if line["step"] <= last_step])
        for folder in STEP_FOLDERS:
            for path in (run / folder).glob("step-*"):
                step = step_of(path)  # None for a user's own file
                if step is not None and step > last_step:
                    delete(path)
        for path in run.glob("checkpoints/.*.unfinished"):
            delete(path)
        # Links are wrong if the run was killed before it set them, or if the user has deleted a damaged checkpoint.
        for name, step in (("last", progress.step), ("best", progress.best_step)):
            if checkpoint_folder(run, step).is_dir():
                link_checkpoint(run, name, step)
            else:
                (run / name).unlink(missing_ok=True)
