"""Models on disk: find one to start from, save the policy as a Hugging Face folder."""

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
    """The local folder of `model`: itself, or a download when it is a hub name such as Qwen/Qwen2.5-Math-1.5B.

    Raises InputError when there is no such folder, it holds no model, or the hub cannot be reached.
    """
    folder = Path(model)
    if folder.is_dir():
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


def load_tokenizer(folder: Path, longest: int):
    """The tokenizer of a model folder. Raises InputError when prompts plus answers of `longest` tokens do not fit."""
    context = AutoConfig.from_pretrained(folder).max_position_embeddings
    if longest > context:
        raise InputError(
            f"--max-prompt-tokens plus --max-answer-tokens is {longest}, but the context of {folder} is {context} "
            f"tokens; lower one of them by {longest - context}"
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise InputError(f"{folder}: its tokenizer has no chat template, which renders the prompts")
    return tokenizer


def save_checkpoint(
    weights: Iterable[tuple[str, torch.Tensor]], model: PreTrainedModel, tokenizer, run: Path, step: int
) -> Path:
    """Write `weights` with the configuration of `model` to run/checkpoints/step-<step>, then point run/last at it.

    Call it on all ranks: drawing from `weights` is a collective. The folder is written under another name and
    renamed when whole, so it is whole or absent.
    """
    folder = run / "checkpoints" / f"step-{step:06d}"
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
        link = run / ".last.unfinished"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.relative_to(run))
        os.replace(link, run / "last")
    dist.barrier()
    return folder
