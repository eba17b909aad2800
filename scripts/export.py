"""Export a checkpoint as a Hugging Face model, without the files that only --resume needs.

    python scripts/export.py runs/mine my-model           # the last checkpoint of a run, into a new folder
    python scripts/export.py runs/mine/best my-model      # its best one
    hf upload ME/my-model my-model                        # to the hub; needs `hf auth login`

A checkpoint of a LoRA run is exported as the adapter with the merged model in its subfolder merged/; name that
subfolder to export the merged model alone.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from bnpo.environment import parse_command
from bnpo.files import InputError, writing
from bnpo.policy.folder import local_folder, model_folder

LEFT_OUT = ("trainer", ".*")
"""Patterns of names in a checkpoint: optimizer and progress of the run, and files that are still written."""


@dataclass(frozen=True)
class Args:
    checkpoint: tyro.conf.Positional[str]
    """Folder of a run (its last checkpoint is taken), of a checkpoint, or of another model."""
    target: tyro.conf.Positional[Path]
    """A folder that does not exist yet."""


def main(args: Args) -> None:
    """Copy the model to the new folder. It is complete or absent."""
    if local_folder(args.checkpoint) is None:
        raise InputError(f"{args.checkpoint}: no such folder; name a run, one of its checkpoints or another model")
    model, target = model_folder(args.checkpoint), args.target
    if target.exists():
        raise InputError(f"{target}: exists already; name another folder, or delete it")
    unfinished = target.with_name(f".{target.name}.unfinished")
    with writing(target, "name another folder"):
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            shutil.copytree(model, unfinished, ignore=shutil.ignore_patterns(*LEFT_OUT))
            unfinished.rename(target)
        except shutil.Error as error:  # one line for each file
            raise InputError(f"{target}: cannot be copied from {model} ({error.args[0][0][2]}); try again") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    print(target)


if __name__ == "__main__":
    try:
        main(parse_command(Args, description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
