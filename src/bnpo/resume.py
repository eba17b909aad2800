"""--resume: where a run goes on, whether it is the same run, and its folder as it was at that moment."""

import json
import shutil
from pathlib import Path

from bnpo.checkpoint import Progress, checkpoint_folder, checkpoints, name_checkpoint, read_manifest
from bnpo.config import TrainConfig, to_json
from bnpo.files import flush, writing
from bnpo.problems import InputError

FREE = ("preset", "output_dir", "overwrite", "resume", "allow_changes", "steps", "epochs", "save_every", "keep")
FREE += ("rollouts_every", "wandb", "sync_tolerance")
"""Flags that change nothing of what is computed up to a step."""


def find_checkpoint(run: Path, ranks: int) -> tuple[Path | None, Progress]:
    """The newest checkpoint of a run (None: it has none yet) and how far it is.

    Raises InputError when it was damaged, or saved by another number of ranks and not converted.
    """
    if not checkpoints(run):
        return None, Progress()
    folder = checkpoints(run)[-1]
    read_manifest(folder)
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
    path = config.output_dir / "config.json"
    ours = json.loads(to_json(config, **facts))
    allowed = {name.replace("-", "_") for name in config.allow_changes}
    if unknown := sorted(allowed - set(ours)):
        raise InputError(f"--allow-changes: there is no setting '{unknown[0]}'")
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); --resume needs the run's settings") from error
    changed = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    if refused := [name for name in changed if name not in allowed and name not in FREE]:
        which = ", ".join(f"{name} was {theirs[name]}, is {ours[name]}" for name in refused)
        raise InputError(
            f"{config.output_dir}: other settings would alter the run: {which}; give the old ones, or --allow-changes "
            + ",".join(refused)
        )


def rewind(run: Path, progress: Progress) -> None:
    """Take from a run's folder what came after `progress`: it will be written again. For rank 0 alone."""
    kept = progress.step or -1  # without a checkpoint the evaluation of step 0 is done again, too
    with writing(run):
        metrics = run / "metrics.jsonl"
        if metrics.exists():
            lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
            unfinished = metrics.with_name(".metrics.jsonl.unfinished")
            # A last line that was cut off is later than any checkpoint.
            whole = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= kept]
            unfinished.write_text("".join(whole), encoding="utf-8")
            flush(unfinished)
            unfinished.replace(metrics)
        later = [path for path in run.glob("*/step-*") if int(path.stem.removeprefix("step-")) > kept]
        for path in [*later, *run.glob("checkpoints/.*.unfinished")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, step in (("last", progress.step), ("best", progress.best_step)):
            if checkpoint_folder(run, step).is_dir():
                name_checkpoint(run, name, step)
            else:
                (run / name).unlink(missing_ok=True)
