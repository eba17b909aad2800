"""Checkpoints of a run: what they contain, where they are, and how they are written."""

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerBase

from bnpo.data import stop_token_ids
from bnpo.files import file_hash, flush, step_name, step_of, write_json, writing
from bnpo.policy.folder import MERGED
from bnpo.policy.learner import Learner
from bnpo.policy.lora import save_adapter
from bnpo.policy.weight_sync import GROUP_BYTES, whole_weights
from bnpo.ranks import gather


@dataclass(frozen=True)
class Progress:
    """How far a run is: the file trainer/progress.json of a checkpoint."""

    # Later steps depend on this, the weights, the optimizer, and torch's random state. The order of the data and the
    # seeds of sampling are functions of the step.

    step: int = 0  # steps that are done
    best: float = -1.0  # score of the best evaluation; -1: no evaluation yet
    best_step: int = -1
    bad_steps: int = 0  # skipped updates in a row, up to this step
    ranks: int = 0  # ranks that saved the checkpoint


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`."""
    return run / "checkpoints" / step_name(step)


def checkpoints(run: Path) -> list[Path]:
    """Return the folders of the complete checkpoints of a run, oldest first."""
    folders = (run / "checkpoints").glob("step-*")
    return sorted((path for path in folders if step_of(path) is not None and not path.suffix), key=step_of)


def save_checkpoint(
    learner: Learner, tokenizer: PreTrainedTokenizerBase, run: Path, progress: Progress, card: str, keep: int
) -> None:
    """Write the checkpoint of `progress.step`, update the links run/last and run/best, and delete old checkpoints.

    The folder is a Hugging Face model, or a peft adapter (see `save_model`). Its subfolder trainer/ holds each rank's
    part of the optimizer, `progress`, and a manifest with the hash of every file but the model card `card`, which users
    may edit.

    A collective. Raises InputError on the rank that cannot write. Earlier checkpoints then stay as they are.
    """
    rank_0 = dist.get_rank() == 0
    folder = checkpoint_folder(run, progress.step)
    # The folder gets its name when all files are on disk. A checkpoint is therefore complete or absent.
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    trainer = unfinished / "trainer"
    with writing(unfinished):
        if rank_0:
            shutil.rmtree(unfinished, ignore_errors=True)
            trainer.mkdir(parents=True)
            write_json(trainer / "progress.json", asdict(replace(progress, ranks=dist.get_world_size())))
            (unfinished / "README.md").write_text(card, encoding="utf-8")
        is_best = progress.best_step == progress.step
        # Two collectives. Only rank 0 writes in the first. The second starts with a barrier of DeepSpeed, so that no
        # rank writes into trainer/ before rank 0 has created it.
        save_model(learner, tokenizer, unfinished, is_best or learner.config.folder.save_merged)
        learner.save(trainer)
        # Each rank hashes the files that it has written, since one rank would take too long.
        hashes = {}
        for file in files_of_rank(unfinished, dist.get_rank()):
            flush(file)
            hashes[str(file.relative_to(unfinished))] = file_hash(file)
        hashes.pop("README.md", None)
        # A collective: when it returns, all ranks have flushed their files, and rank 0 may rename the folder.
        hashes_of_ranks = gather(hashes)
        if rank_0:
            manifest = {name: digest for rank_hashes in hashes_of_ranks for name, digest in rank_hashes.items()}
            write_json(trainer / "manifest.json", manifest)
            flush(trainer / "zero")
            flush(unfinished)
            unfinished.rename(folder)
            flush(folder.parent)
            link_checkpoint(run, "last", progress.step)
            if is_best:
                link_checkpoint(run, "best", progress.step)
            delete_old_checkpoints(run, keep)
    # Other ranks wait here: one that failed in the next step would end rank 0 before the checkpoint has its name.
    dist.barrier()


def save_model(learner: Learner, tokenizer: PreTrainedTokenizerBase, folder: Path, merged_too: bool) -> None:
    """Write a Hugging Face model to `folder`. With LoRA, write a peft adapter.

    With `merged_too` the adapter's subfolder merged/ gets the model with the adapter in its weights. A collective.
    """
    rank_0 = dist.get_rank() == 0
    if rank_0:
        save_settings(learner, tokenizer, folder)
    if learner.config.update.lora_rank:
        save_adapter(learner.model, folder)
        if not merged_too:
            return
        folder = folder / MERGED
        if rank_0:
            folder.mkdir()
            save_settings(learner, tokenizer, folder)
    save_weights(whole_weights(learner.model, tied_too=False), folder)


def save_settings(learner: Learner, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the model's config, its generation config, and the tokenizer."""
    learner.model.config.save_pretrained(folder)
    # Not the generation config of the base model, since transformers refuses to write some of its sampling settings.
    # But the tokens at which vLLM ends answers of the base model must end those of the checkpoint, too.
    own = learner.model.generation_config.eos_token_id
    ends = {*stop_token_ids(tokenizer), *(own if isinstance(own, list) else [own])} - {None}
    start_and_padding = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    GenerationConfig(eos_token_id=sorted(ends), **start_and_padding).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_weights(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    """Write `weights` as safetensors files of a Hugging Face model, a new file after every GROUP_BYTES.

    Every rank must iterate over `weights`, a collective. Rank 0 writes, and never holds more than one group.
    """
    names_of_shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    total_bytes = 0

    def write_shard() -> None:
        names_of_shards.append(list(shard))
        save_file(shard, folder / f"shard-{len(names_of_shards)}", metadata={"format": "pt"})
        shard.clear()

    for name, tensor in weights:
        if dist.get_rank() == 0:
            shard[name] = tensor.cpu()
            total_bytes += tensor.nbytes
            if sum(part.nbytes for part in shard.values()) >= GROUP_BYTES:
                write_shard()
    if shard:
        write_shard()
    # Hugging Face's file names contain the number of files, which is known only now.
    count = len(names_of_shards)
    file_of_weight: dict[str, str] = {}
    for i, names in enumerate(names_of_shards, 1):
        file = "model.safetensors" if count == 1 else f"model-{i:05}-of-{count:05}.safetensors"
        (folder / f"shard-{i}").rename(folder / file)
        file_of_weight |= dict.fromkeys(names, file)
    if count > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": file_of_weight}
        write_json(folder / "model.safetensors.index.json", index)


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Return the files that `rank` has written: its part of the optimizer, and on rank 0 all that are no such part."""
    files = []
    for path in folder.rglob("*"):
        part = re.search(r"zero_pp_rank_(\d+)_", path.name)  # DeepSpeed's file name
        writer = int(part[1]) if part else 0
        if writer == rank and path.is_file():
            files.append(path)
    return files


def delete_old_checkpoints(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints (0: none), except those that run/last and run/best link to."""
    linked = [(run / name).resolve() for name in ("last", "best")]
    for folder in checkpoints(run)[:-keep] if keep else []:
        if folder.resolve() not in linked:
            # Renamed first: a checkpoint that is half deleted must not look like one.
            shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.unfinished")))


def link_checkpoint(run: Path, name: str, step: int) -> None:
    """Make run/<name> a link to the checkpoint of `step`, or replace the link, atomically."""
    link = run / f".{name}.unfinished"
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint_folder(run, step).relative_to(run))
    os.replace(link, run / name)
    flush(run)
