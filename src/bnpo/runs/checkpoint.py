"""Checkpoints of a run: written, found again, and described; a run's folder is rewound to one."""

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from huggingface_hub import ModelCardData, split_torch_state_dict_into_shards
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerBase

from bnpo.config import TrainConfig, flat_settings
from bnpo.files import (
    InputError,
    delete,
    flush,
    let_others_read,
    read_json,
    short_name,
    split_revision,
    step_of,
    whole_json_lines,
    write_json,
    write_json_lines,
    writing,
)
from bnpo.policy.folder import INDEX, MERGED, check_weights, is_done
from bnpo.policy.learner import Learner
from bnpo.policy.lora import save_adapter
from bnpo.policy.weight_sync import whole_layers
from bnpo.prompts import stop_token_ids
from bnpo.runs.folder import STEP_FOLDERS, checkpoint_folder

FILE_BYTES = 2**30  # of weights in a file of a checkpoint; rank 0 holds as many in its memory


@dataclass(frozen=True)
class Progress:
    """The content of trainer/progress.json, on which later steps depend beside the weights."""

    step: int = 0  # steps that are done; 0: there is no checkpoint
    place: int = 0  # the cursor of `questions_at`, behind the last question
    best: float = -1.0  # score of the best evaluation; -1: no evaluation yet
    best_step: int = -1
    bad_steps: int = 0  # steps in a row, up to this one, with a skipped update
    ranks: int = 0  # ranks that saved the checkpoint


def checkpoints(run: Path) -> list[Path]:
    """Return the folders of the complete checkpoints of a run, oldest first."""
    found = (run / "checkpoints").glob("step-*")
    return sorted((path for path in found if step_of(path)), key=step_of)


def save_checkpoint(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    run: Path,
    progress: Progress,
    card: str,
    keep: int,
) -> None:
    """Write the checkpoint of `progress.step`, update run/last and run/best, and delete old ones.

    The folder is a Hugging Face model or a peft adapter with the model card `card`. Its subfolder
    trainer/ holds each rank's part of the optimizer, and `progress`. A collective. Raises
    InputError on the rank that cannot write; earlier checkpoints then stay as they are.
    """
    rank_0 = dist.get_rank() == 0
    folder = checkpoint_folder(run, progress.step)
    # The folder gets its name when all files are on disk: it is complete or absent.
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    trainer = unfinished / "trainer"
    with writing(unfinished):
        if rank_0:
            delete(unfinished)
            trainer.mkdir(parents=True)
            write_progress(unfinished, replace(progress, ranks=dist.get_world_size()))
            (unfinished / "README.md").write_text(card, encoding="utf-8")
        # Only rank 0 writes here. `learner.save` starts with a barrier of DeepSpeed, so no rank
        # writes into trainer/ before rank 0 has created it.
        save_model(learner, tokenizer, unfinished, merged_too=progress.best_step == progress.step)
        learner.save(trainer)
        # Whoever wrote it: flushing what is on disk costs nothing
        for file in unfinished.rglob("*"):
            flush(file)
        dist.barrier()  # all ranks have flushed their files, and rank 0 may rename the folder
        if rank_0:
            let_others_read(unfinished)
            flush(unfinished)
            unfinished.rename(folder)
            flush(folder.parent)
            link_checkpoints(run, progress)
            delete_old_checkpoints(run, keep)
    # A rank that fails in the next step must not end rank 0 before the checkpoint has its name.
    dist.barrier()


def write_progress(checkpoint: Path, progress: Progress) -> None:
    """Write the progress into a checkpoint, or in place of the one in it."""
    write_json(checkpoint / "trainer" / "progress.json", asdict(progress))


def save_model(
    learner: Learner, tokenizer: PreTrainedTokenizerBase, folder: Path, merged_too: bool
) -> None:
    """Write a Hugging Face model to `folder` or, with LoRA, a peft adapter. A collective.

    With `merged_too` the adapter's subfolder merged/ gets the model with the adapter in its
    weights.
    """
    rank_0 = dist.get_rank() == 0
    if rank_0:
        save_settings(learner, tokenizer, folder)
    if learner.trains_adapter:
        save_adapter(learner.model, folder)
        if not merged_too:
            return
        folder = folder / MERGED
        if rank_0:
            folder.mkdir()
            save_settings(learner, tokenizer, folder)
    save_weights(learner.model, folder)


def save_settings(learner: Learner, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the model's config, its generation config, and the tokenizer."""
    learner.model.config.save_pretrained(folder)
    # Not the generation config of the base model, since transformers refuses to write some of its
    # settings. But the tokens that end answers of the base model in vLLM must end these, too.
    own = learner.model.generation_config.eos_token_id
    ends = {*stop_token_ids(tokenizer), *(own if isinstance(own, list) else [own])} - {None}
    GenerationConfig(
        eos_token_id=sorted(ends),
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def whole_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, whole tensor) of a partitioned `model`, a layer at a time. A collective."""
    for _, tensors in whole_layers(model, tied_too=False):
        yield from tensors.items()
        del tensors  # before the next layer is gathered


def save_weights(model: torch.nn.Module, folder: Path) -> None:
    """Write the weights as safetensors files of at most FILE_BYTES, or one tensor each.

    A collective. Rank 0 writes, and holds no more than a file and a tensor at once.
    """
    # Names of files contain their number, so all weights are gathered once before, for their sizes.
    sizes = {name: tensor.to("meta") for name, tensor in whole_weights(model)}
    plan = split_torch_state_dict_into_shards(sizes, max_shard_size=FILE_BYTES)
    files: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)  # that are not complete yet
    for name, tensor in whole_weights(model):
        file = plan.tensor_to_filename[name]
        if dist.get_rank() == 0:
            files[file][name] = tensor.cpu()
            if len(files[file]) == len(plan.filename_to_tensors[file]):
                save_file(files.pop(file), folder / file, metadata={"format": "pt"})
    if plan.is_sharded and dist.get_rank() == 0:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(folder / INDEX, index)


def delete_old_checkpoints(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints (0: none), and run/last and run/best."""
    linked = [(run / name).resolve() for name in ("last", "best")]
    for folder in checkpoints(run)[:-keep] if keep else []:
        if folder.resolve() not in linked:
            # Renamed first: a checkpoint that is half deleted must not look like one.
            delete(folder.rename(folder.with_name(f".{folder.name}.unfinished")))


def link_checkpoints(run: Path, progress: Progress) -> None:
    """Let run/last and run/best link to their checkpoints, if there are, each atomically."""
    for name, step in (("last", progress.step), ("best", progress.best_step)):
        link = run / f".{name}.unfinished"
        folder = checkpoint_folder(run, step)
        (link if folder.is_dir() else run / name).unlink(missing_ok=True)
        if folder.is_dir():
            link.symlink_to(folder.relative_to(run))
            os.replace(link, run / name)
    flush(run)


def find_checkpoint(run: Path, ranks: int) -> Progress:
    """Return the progress of a run's newest checkpoint, which `ranks` ranks can load."""
    for link in (run / "last", run / "best"):
        if link.is_dir() and not link.is_symlink():
            raise InputError(
                f"{link}: is a folder where a run has a link, as in a copy that followed links; "
                "delete it, and --resume makes the link again"
            )
    folders = checkpoints(run)
    if not folders:
        _check_not_done(run)
        return Progress()
    folder = folders[-1]
    trainer = folder / "trainer"
    try:
        check_weights(folder)
        progress = Progress(**read_json(trainer / "progress.json", "it was edited"))
        if progress.step != step_of(folder):
            raise InputError(f"{trainer / 'progress.json'}: is of step {progress.step}")
    except (InputError, TypeError) as error:
        raise InputError(
            f"{error}. Delete {folder}; --resume then continues from the checkpoint before it"
        ) from error
    # The converter writes the file latest_universal last.
    if progress.ranks != ranks and not (trainer / "latest_universal").exists():
        convert = ["python", "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder"]
        convert += [str(trainer / "zero"), "--output_folder", str(trainer / "universal")]
        raise InputError(
            f"{folder}: was saved by {progress.ranks} ranks, not {ranks}. Start {progress.ranks} "
            f"ranks, or convert it: {shlex.join(convert)}"
        )
    return progress


def _check_not_done(run: Path) -> None:
    """Raise InputError if a run without checkpoints is done: to start it anew would delete all that
    it has written.
    """
    if is_done(run):
        raise InputError(
            f"{run}: this run is done, but its checkpoints are gone, so it cannot be continued; "
            f"name another --output-dir, or delete {run / 'end.json'} to start anew, which deletes "
            "its records"
        )


def rewind(run: Path, progress: Progress) -> None:
    """Delete what is later than `progress`, since it will be written again. Rank 0 only."""
    # Without a checkpoint the evaluation before the first step (step 0) is repeated, too.
    last_step = progress.step or -1
    with writing(run):
        (run / "end.json").unlink(missing_ok=True)
        metrics = run / "metrics.jsonl"
        # An incomplete last line, which is dropped, is later than any checkpoint: lines are
        # flushed to disk before the checkpoint of their step is written.
        lines = [line for line in whole_json_lines(metrics) if line["step"] <= last_step]
        write_json_lines(metrics, lines)
        for folder in STEP_FOLDERS:
            for path in (run / folder).glob("step-*"):
                step = step_of(path)  # None for a user's own file
                if step is not None and step > last_step:
                    delete(path)
        for path in run.glob("checkpoints/.*.unfinished"):
            delete(path)
        # Links are wrong after a kill before they were set, or if the user has deleted a checkpoint
        link_checkpoints(run, progress)


def model_card(config: TrainConfig, sources: dict[str, dict], step: int) -> str:
    """Return the model card: base model, method, data `sources` and command of the run."""
    base = config.data.model
    settings = flat_settings(config)
    # The hub refuses paths and revisions here
    on_hub = None if os.path.isdir(base) else split_revision(base)[0]
    metadata = ModelCardData(
        base_model=on_hub, pipeline_tag="text-generation", tags=["reinforcement-learning", "bnpo"]
    )
    method = ("algo", "questions_per_step", "samples_per_question", "lr", "rewards", "seed")
    arguments = [argument for argument in sys.argv if not argument.startswith("--local_rank")]
    lines = [
        f"# {short_name(base)} after {step} steps of reinforcement learning\n",
        f"- **Base model**: {base}",
        f"- **Method**: {', '.join(f'{name} {settings[name]}' for name in method)}",
        f"- **Command**: `deepspeed --num_gpus {dist.get_world_size()} {shlex.join(arguments)}`",
    ]
    for name, facts in sources.items():
        described = ", ".join(f"{fact} {value}" for fact, value in facts.items())
        lines.append(f"- **Data**: {name}, {described}")
    return f"---\n{metadata.to_yaml()}\n---\n\n" + "\n".join(lines) + "\n"
