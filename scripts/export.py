"""Export a checkpoint as a Hugging Face model, without the files that only --resume needs.

    # the last checkpoint of a run, into a new folder
    python scripts/export.py runs/mine my-model
    # its best one
    python scripts/export.py runs/mine/best my-model
    # to the hub; needs `hf auth login`
    python scripts/export.py runs/mine --hub-repo ME/my-model

Of a LoRA run this is the adapter, with the merged model in the subfolder merged/, which can be
named itself.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import tyro
from huggingface_hub import create_repo, upload_folder

from bnpo.environment import run_program
from bnpo.files import InputError, line_of, writing
from bnpo.policy.folder import local_folder, model_folder

LEFT_OUT = ("trainer", "trainer/*", ".*")
"""Patterns of names in a checkpoint: optimizer and progress of the run, and files that are still
written."""


@dataclass(frozen=True)
class Args:
    checkpoint: tyro.conf.Positional[str]
    """Folder of a run (its last checkpoint is taken), of a checkpoint, or of another model."""
    target: tyro.conf.Positional[Path | None] = None
    """A folder that does not exist yet."""
    hub_repo: str | None = None
    """Upload to this repository of the hub, OWNER/NAME, in place of a folder. A new repository
    is private."""


def main(args: Args) -> None:
    if (args.target is None) == (args.hub_repo is None):
        raise InputError("give a folder to write, or --hub-repo OWNER/NAME")
    if local_folder(args.checkpoint) is None:
        raise InputError(
            f"{args.checkpoint}: no such folder; name a run, one of its checkpoints or another "
            "model"
        )
    model = model_folder(args.checkpoint)
    print(upload(model, args.hub_repo) if args.target is None else copy(model, args.target))


def copy(model: Path, target: Path) -> Path:
    if target.exists():
        raise InputError(f"{target}: exists already; name another folder, or delete it")
    unfinished = target.with_name(f".{target.name}.unfinished")
    with writing(target, "name another folder"):
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            shutil.copytree(model, unfinished, ignore=shutil.ignore_patterns(*LEFT_OUT))
            unfinished.rename(target)
        except shutil.Error as error:  # one line for each file
            raise InputError(
                f"{target}: cannot be copied from {model} ({error.args[0][0][2]}); try again"
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def upload(model: Path, repository: str) -> str:
    """Upload a model in one commit, and return its address."""
    try:
        create_repo(repository, private=True, exist_ok=True)
        return upload_folder(
            repo_id=repository, folder_path=model, ignore_patterns=[*LEFT_OUT, "*/.*"]
        )
    # The hub client raises a dozen kinds, its own and those of its HTTP library
    except Exception as error:
        cure = "check name and network, run `hf auth login`"
        raise InputError(
            f"--hub-repo {repository}: the upload failed ({line_of(error)}); {cure}"
        ) from error


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
