"""Export a checkpoint as a Hugging Face model, without the files that only --resume needs: to a folder or to the hub.

    python scripts/export.py runs/mine my-model                 # the last checkpoint of a run, into a new folder
    python scripts/export.py runs/mine/best hub:ME/my-model     # its best one, to the hub; needs `hf auth login`

A checkpoint of a LoRA run is exported as the adapter with the merged model in its subfolder merged/; name that
subfolder to export the merged model alone.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from bnpo.environment import parse_command
from bnpo.files import InputError, line_of, writing
from bnpo.policy.folder import local_folder, model_folder

LEFT_OUT = ("trainer", ".*")
"""Patterns of names in a checkpoint: optimizer and progress of the run, and files that are still written."""
HUB = "hub:"


@dataclass(frozen=True)
class Args:
    checkpoint: tyro.conf.Positional[str]
    """Folder of a run (its last checkpoint is taken), of a checkpoint, or of another model."""
    target: tyro.conf.Positional[str]
    """A folder that does not exist yet, or hub:OWNER/NAME."""
    private: bool = False
    """Create the hub's repository as a private one. It is left as it is if it exists."""


def export_to_folder(model: Path, target: Path) -> None:
    """Copy the model in a folder to a new folder. It is complete or absent."""
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


def export_to_hub(model: Path, name: str, private: bool) -> str:
    """Upload the model in a folder to the repository OWNER/NAME of the hub, which is created, and return its address.

    Raises InputError in one line, such as without a network or a login.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
        if "/" not in name:
            raise HFValidationError("the owner is missing")
    except HFValidationError as error:
        raise InputError(f"{HUB}{name}: is no name on the hub ({error}); write hub:OWNER/NAME") from error
    try:
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=model, ignore_patterns=[*LEFT_OUT, "trainer/*"], commit_message="Upload model"
        )
    except Exception as error:  # the hub client raises a dozen kinds, its own and those of its HTTP library
        cure = "check the network, your login (hf auth login) and that you may write there"
        raise InputError(f"{HUB}{name}: the upload failed ({line_of(error)}); {cure}") from error
    return str(address)


def main(args: Args) -> None:
    if local_folder(args.checkpoint) is None:
        raise InputError(f"{args.checkpoint}: no such folder; name a run, one of its checkpoints or another model")
    model = model_folder(args.checkpoint)
    if args.target.startswith(HUB):
        print(export_to_hub(model, args.target.removeprefix(HUB), args.private))
    else:
        target = Path(args.target).expanduser()
        export_to_folder(model, target)
        print(target)


if __name__ == "__main__":
    try:
        main(parse_command(Args, description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
