"""Models on disk: find one to start from, save the policy as a Hugging Face folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from huggingface_hub import save_torch_state_dict, snapshot_download
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from bnpo.problems import InputError, stop_token_ids


def model_folder(model: str) -> Path:
    """The local folder of `model`: itself, the last checkpoint of a run's folder, or a download of a hub name such as
    Qwen/Qwen2.5-Math-1.5B.

    Raises InputError when there is no such folder, it holds no model, or the hub cannot be reached.
    """
    folder = Path(model)
    if (folder / "last").is_dir() and (folder / "checkpoints").is_dir():
        folder = folder / "last"
    if folder.is_dir():
        folder = folder.resolve()  # a run that goes on gives `last` and `best` to other checkpoints
        for part, pattern in (
            ("config.json", "config.json"),
            ("tokenizer", "tokenizer*"),
            ("weights", "*.safetensors"),
        ):
            if not any(folder.glob(pattern)):
                raise InputError(f"{model}: holds no {part} ({pattern}); it is not a Hugging Face model folder")
        return folder
    if model.count("/") != 1 or model.startswith((".", "/", "~")) or model.endswith("/"):
        raise InputError(f"{model}: no such model folder, nor a hub name like Qwen/Qwen2.5-Math-1.5B")
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]))
    except Exception as error:  # the hub client raises a dozen kinds, of its own and of its HTTP library
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"{model}: no such local folder, and the download from the model hub failed ({reason}); "
            "check the name and the network, or give the path of a downloaded copy"
        ) from error


def model_hash(folder: Path) -> str:
    """SHA-256 over names and contents of the files that make the model: weights, configuration, tokenizer."""
    total = hashlib.sha256()
    for path in sorted(p for pattern in ("*.json", "*.safetensors", "*.jinja", "*.txt") for p in folder.glob(pattern)):
        with path.open("rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def training_config(folder: Path) -> dict | None:
    """The config.json of the run that `folder`, a checkpoint, is part of; None if it is of no run."""
    config = folder.resolve().parent.parent / "config.json"
    if folder.resolve().parent.name != "checkpoints" or not config.is_file():
        return None
    return json.loads(config.read_text(encoding="utf-8"))


def load_tokenizer(folder: Path, longest: int):
    """The tokenizer of a model folder. Raises InputError when prompts plus answers of `longest` tokens do not fit."""
    context = AutoConfig.from_pretrained(folder).max_position_embeddings
    if longest > context:
        raise InputError(
            f"prompts and answers of up to {longest} tokens do not fit the context of {folder}, {context} tokens; "
            f"lower --max-prompt-tokens or --max-answer-tokens, or the evaluation suite's, by {longest - context}"
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise InputError(f"{folder}: its tokenizer has no chat template, which renders the prompts")
    return tokenizer


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` is, or would be."""
    return run / "checkpoints" / f"step-{step:06d}"


def save_checkpoint(
    weights: Iterable[tuple[str, torch.Tensor]], model: PreTrainedModel, tokenizer, run: Path, step: int
) -> Path:
    """Write `weights` with the configuration of `model` to run/checkpoints/step-<step>, and have run/last name it.

    Call it on all ranks: drawing from `weights` is a collective. The folder is written under another name and
    renamed when whole, so it is whole or absent.
    """
    folder = checkpoint_folder(run, step)
    rank_0 = dist.get_rank() == 0
    # Every rank takes part in gathering; only the first keeps what was gathered.
    state = {name: tensor.cpu() for name, tensor in weights if rank_0}
    if rank_0:
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_torch_state_dict(state, unfinished)
        model.config.save_pretrained(unfinished)
        # So that whoever loads the folder stops where training did: the base model's config names one end only.
        model.generation_config.eos_token_id = stop_token_ids(tokenizer)
        model.generation_config.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
        name_checkpoint(run, "last", step)
    dist.barrier()
    return folder


def name_checkpoint(run: Path, name: str, step: int) -> None:
    """Have run/<name> be the checkpoint of `step`, from one moment to the next."""
    link = run / f".{name}.unfinished"
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint_folder(run, step).relative_to(run))
    os.replace(link, run / name)
