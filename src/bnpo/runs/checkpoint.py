"""Checkpoints: each a Hugging Face model and what training goes on with, whole or absent."""

import json
import os
import shutil
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerBase

from bnpo.files import InputError, file_hash, flush, step_name, step_of, write_json, writing
from bnpo.policy import weight_sync
from bnpo.policy.learner import Learner
from bnpo.policy.weight_sync import whole_weights
from bnpo.problems import stop_token_ids
from bnpo.ranks import gather


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` is, or would be."""
    return run / "checkpoints" / step_name(step)


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    found = [path for path in (run / "checkpoints").glob("step-*") if step_of(path) is not None and not path.suffix]
    return sorted(found, key=step_of)


@dataclass(frozen=True)
class Progress:
    """How far a run has come: steps done, score and step of the best evaluation (-1: none yet), steps in a row whose
    update was skipped, number of ranks. What follows depends on this, the weights, the optimizer and torch's random
    state: order of data and seeds of sampling are functions of the step."""

    step: int = 0
    best: float = -1.0
    best_step: int = -1
    bad_steps: int = 0
    ranks: int = 0


def save_checkpoint(
    learner: Learner, tokenizer: PreTrainedTokenizerBase, run: Path, progress: Progress, keep: int
) -> None:
    """Write run/checkpoints/step-<step>, have run/last (and run/best) name it, then delete all but the newest `keep`.

    A Hugging Face model, and in trainer/ each rank's part of the optimizer, `progress` and a manifest of hashes. It is
    written under another name and renamed when all is on disk, so it is whole or absent. A collective; raises
    InputError on the rank that cannot write, and leaves earlier checkpoints as they are.
    """
    rank_0 = dist.get_rank() == 0
    folder = checkpoint_folder(run, progress.step)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    trainer = unfinished / "trainer"
    with writing(unfinished):
        if rank_0:
            shutil.rmtree(unfinished, ignore_errors=True)
            trainer.mkdir(parents=True)
            write_json(trainer / "progress.json", asdict(replace(progress, ranks=dist.get_world_size())))
            learner.model.config.save_pretrained(unfinished)
            # Whoever loads the folder stops where training did; the base model's file names one end only, and settings
            # of sampling that are not training's and that transformers may refuse to write.
            special = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
            GenerationConfig(eos_token_id=stop_token_ids(tokenizer), **special).save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
        save_weights(whole_weights(learner.model, tied_too=False), unfinished)
        learner.save(trainer)  # waits for the folders
        names = [str(path.relative_to(unfinished)) for path in unfinished.rglob("*") if path.is_file()]
        part = f"zero_pp_rank_{dist.get_rank()}_"
        own = [name for name in names if part in name or (rank_0 and "zero_pp_rank_" not in name)]
        for name in own:
            flush(unfinished / name)
        everyone = gather({name: file_hash(unfinished / name) for name in own})
        if rank_0:
            write_json(trainer / "manifest.json", dict(ChainMap(*everyone)))
            for path in (trainer / "zero", unfinished):
                flush(path)
            unfinished.rename(folder)
            flush(folder.parent)
            name_checkpoint(run, "last", progress.step)
            if progress.best_step == progress.step:
                name_checkpoint(run, "best", progress.step)
            named = [(run / name).resolve() for name in ("last", "best")]
            for old in checkpoints(run)[:-keep] if keep else []:
                if old.resolve() not in named:
                    # First renamed: a checkpoint that is half deleted must not look like one.
                    shutil.rmtree(old.rename(old.with_name(f".{old.name}.unfinished")))
    dist.barrier()


def save_weights(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    """Write `weights` as the safetensors files of a Hugging Face model, each as soon as a group is full.

    Drawing from `weights` is a collective; rank 0 writes, and never holds more than a group and what has just come.
    """
    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    total = 0

    def write() -> None:
        shards.append(list(shard))
        save_file(shard, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        shard.clear()

    for name, tensor in weights:
        if dist.get_rank() == 0:
            shard[name] = tensor.cpu()
            total += tensor.nbytes
            if sum(part.nbytes for part in shard.values()) >= weight_sync.GROUP_BYTES:
                write()
    if shard:
        write()
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        files = ["model.safetensors"]
    elif shards:
        index = {name: file for names, file in zip(shards, files, strict=True) for name in names}
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    for i, file in enumerate(files, 1):
        (folder / f"shard-{i}").rename(folder / file)


def verify_checkpoint(folder: Path) -> None:
    """Compare a checkpoint with its manifest, each rank a share of it; raises InputError on all. A collective."""
    manifest = read_manifest(folder)
    mine = list(manifest)[dist.get_rank() :: dist.get_world_size()]
    everyone = gather([name for name in mine if file_hash(folder / name) != manifest[name]])
    if broken := sorted(chain.from_iterable(everyone)):
        raise InputError(damaged(folder, folder / broken[0], "is not what the manifest says: truncated or edited"))


def verify_small_files(folder: Path) -> None:
    """Compare all but weights and optimizer with the manifest: what is read before models are loaded."""
    for name, digest in read_manifest(folder).items():
        if not name.endswith((".safetensors", ".pt")) and file_hash(folder / name) != digest:
            raise InputError(damaged(folder, folder / name, "is not what the manifest says: truncated or edited"))


def read_manifest(folder: Path) -> dict[str, str]:
    """File names and hashes of a checkpoint. Raises InputError."""
    path = folder / "trainer" / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(damaged(folder, path, f"cannot be read ({error})")) from error
    if "trainer/progress.json" not in manifest:
        raise InputError(damaged(folder, path, "does not list the checkpoint's files"))
    return manifest


def damaged(folder: Path, file: Path, what: str) -> str:
    """The message for a checkpoint that cannot be trusted, with what to do."""
    earlier = [other for other in checkpoints(folder.parent.parent) if other < folder]
    cure = f"--resume then goes on from {earlier[-1]}" if earlier else "--resume then starts from the beginning"
    return f"{file}: {what}; delete {folder}, {cure}"


def name_checkpoint(run: Path, name: str, step: int) -> None:
    """Have run/<name> be the checkpoint of `step`, from one moment to the next."""
    link = run / f".{name}.unfinished"
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint_folder(run, step).relative_to(run))
    os.replace(link, run / name)
    flush(run)
