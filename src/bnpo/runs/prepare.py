"""Read and check everything that a run needs, before a process group or a model exists."""

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from bnpo.batch import Task
from bnpo.config import PRESETS, TrainConfig, changed_settings, check_config, flat_settings
from bnpo.data import content_hash, describe_gaps, load_sources
from bnpo.environment import become_only_rank
from bnpo.errors import keep_tracebacks_in
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import (
    Suite,
    check_references,
    load_suite,
    longest_sequence,
    override,
    own_settings,
)
from bnpo.files import InputError, read_json, writing
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import forms_of, inline_rewards
from bnpo.policy.folder import (
    adapter_base,
    check_model,
    check_prompts,
    load_tokenizer,
    model_folder,
    model_hash,
)
from bnpo.policy.memory import ModelShape, check_memory
from bnpo.prompts import (
    SYSTEM_PROMPTS,
    asks_for_tags,
    chat_template,
    describe_problems,
    encode_problems,
    stop_token_ids,
)
from bnpo.ranks import check_bfloat16, gather, trains_in_float16
from bnpo.runs.checkpoint import Progress, find_checkpoint
from bnpo.runs.folder import (
    check_changes,
    check_output_dir,
    checkpoint_folder,
    code_hashes,
    lock_run,
)
from bnpo.tasks import Problem


@dataclass(frozen=True)
class PreparedRun:
    """Everything that a run has read and checked on this rank."""

    config: TrainConfig
    task: Task
    evaluation: Evaluation | None  # None: no evaluation during training
    # Folder from which both load: the checkpoint, or the model of a new run or under an adapter
    model: Path
    shape: ModelShape
    longest_with_evaluations: int  # tokens of a prompt plus answer, at most
    resumed: bool  # the folder holds the run already, with or without a checkpoint
    checkpoint: Path | None  # the newest one; None: the run starts at step 0
    progress: Progress
    data_facts: dict  # what config.json says of the data
    lock: FileLock | None  # on the run's folder, held while this object lives; rank 0 only

    @property
    def steps(self) -> int:
        batch = self.config.batch
        if batch.steps:
            return batch.steps
        count = len(self.task.problems)
        n = batch.questions_per_step
        if batch.resample_rounds:  # a step that resamples counts as n questions, whatever it draws
            return batch.epochs * (count // n)
        # Counted from here: a resumed run may have made its first steps with another n
        epoch, asked = divmod(self.progress.place, count)
        return self.progress.step + (count - asked) // n + (batch.epochs - epoch - 1) * (count // n)

    def check_agreement(self) -> None:
        """Raise InputError on all ranks if one has read other data or another checkpoint than
        rank 0. A collective.
        """
        everyone = gather((self.progress, self.steps, self.data_facts))
        for rank, read in enumerate(everyone):
            if read != everyone[0]:
                raise InputError(
                    f"rank {rank} has other data than rank 0, or another checkpoint in "
                    f"{self.config.folder.output_dir}. All machines must see the same files"
                )
        check_shared(self.config.folder.output_dir)

    def describe(self) -> None:
        """Print the settings that differ from the preset's, and the size of the run."""
        config, batch = self.config, self.config.batch
        for line in changed_settings(config):
            print(line)
        dropped = self.data_facts["questions_dropped"]
        longest = config.sampling.max_prompt_tokens
        questions = (
            f"{len(self.task.problems)} questions ({dropped} left out: prompt over {longest} "
            "tokens)"
        )
        batches = f"{batch.questions_per_step} questions x {batch.samples_per_question} answers"
        print(f"{questions}, {self.steps} steps of {batches}", flush=True)
        data, problems = config.data, self.task.problems
        system = data.system_prompt or SYSTEM_PROMPTS.get(data.template)
        for line in (
            *describe_gaps(problems, forms_of(data.rewards)),
            *describe_problems(problems, self.task.tokenizer, system),
        ):
            print(line, flush=True)


def check_shared(folder: Path, patience: float = 60.0) -> None:
    """Raise InputError on all ranks if one does not see the files that rank 0 writes to the run's
    folder: every rank writes its part of a checkpoint there. A collective.

    The caches of a network file system may hide a new file for some seconds, at most `patience`.
    """
    rank_0 = dist.get_rank() == 0
    [name, *_] = gather(f".shared-{uuid4().hex}" if rank_0 else "")
    probe = folder / name
    try:
        if rank_0:
            with writing(probe):
                probe.touch()
        dist.barrier()
        deadline = time.monotonic() + patience
        while not probe.exists() and time.monotonic() < deadline:
            time.sleep(0.5)
        everyone = gather(probe.exists())
    finally:
        if rank_0:
            probe.unlink(missing_ok=True)
    for rank, sees in enumerate(everyone):
        if not sees:
            raise InputError(
                f"{folder}: rank {rank} does not see the files of rank 0 there; name an "
                "--output-dir that all machines share"
            )


def prepare_run(config: TrainConfig, *, trains: bool = True) -> PreparedRun:
    """Check and read all that a run needs, cheapest first, and lock its folder. Without `trains`,
    the learner, which is then not loaded, need not fit. No collective. Raises InputError.
    """
    if "RANK" not in os.environ:  # called from Python, without a launcher
        become_only_rank()
    check_complete(config)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check_config(config, ranks)
    data = config.data
    folder = config.folder.output_dir
    check_dtype(config.hardware.dtype)
    resumed = is_resumed(config)
    problems, source_facts = load_sources(data.train_data, config.columns, forms_of(data.rewards))
    progress = find_checkpoint(folder, ranks) if resumed else Progress()
    checkpoint = checkpoint_folder(folder, progress.step) if progress.step else None
    model = model_to_load(config, checkpoint)
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    longest = longest_sequence(config, suite)
    tokenizer = prepare_tokenizer(config, model, longest)
    evaluation = prepare_evaluation(config, suite, tokenizer) if suite else None
    kept_problems, prompts = encode_problems(
        problems, tokenizer, config.sampling.max_prompt_tokens, config.batch.questions_per_step
    )
    check_data(config, model, tokenizer, kept_problems, prompts, evaluation)
    if not checkpoint:
        model_folder(data.model)  # after the data, since weights may be downloaded
    shape = ModelShape(model)
    if trains:
        check_memory(shape, config)
    tags = asks_for_tags(tokenizer, problems=kept_problems)
    facts = {
        "data_sha256": content_hash(problems),
        "questions_dropped": len(problems) - len(kept_problems),
        "data_sources": source_facts,
        "answer_tags": tags,
        "stop_token_ids": stop_token_ids(tokenizer),
    }
    facts |= input_hashes(config, model, prompts, evaluation)
    if resumed:
        check_changes(config, facts)
    lock = lock_unchanged(config, ranks, progress, resumed) if rank == 0 else None
    if resumed and other_evaluation(config, facts):  # by --allow-changes
        progress = replace(progress, best=Progress.best)  # scores of the other one say nothing here
    grader = make_grader(config, kept_problems[0])
    keep_tracebacks_in(folder)
    return PreparedRun(
        config=config,
        task=Task(kept_problems, prompts, tokenizer, grader, tags),
        evaluation=evaluation,
        model=model,
        shape=shape,
        longest_with_evaluations=longest,
        resumed=resumed,
        checkpoint=checkpoint,
        progress=progress,
        data_facts=facts,
        lock=lock,
    )


def check_complete(config: TrainConfig) -> None:
    """Raise InputError for settings of a call from Python that lack what the command line adds."""
    if config.preset not in PRESETS or config.folder.output_dir is None:
        raise InputError(
            "the settings need a preset and an output_dir: "
            'with_settings(PRESETS["tiny"], output_dir=Path("runs/mine"))'
        )


def is_resumed(config: TrainConfig) -> bool:
    """Return whether the run's folder holds the run already. Raises InputError if it holds another
    one.
    """
    # A job that is queued with --resume from its first start on finds no run then.
    if config.folder.resume and (config.folder.output_dir / "config.json").exists():
        check_changes(config, {})  # the settings; `prepare_run` also compares what they name
        return True
    check_output_dir(config)  # again with the lock, but before anything is downloaded
    return False


def make_grader(config: TrainConfig, example: Problem) -> Grader:
    """Return the grader of a run, which tries the user's rewards with the reference of `example`.
    Raises InputError.
    """
    return Grader(
        config.data.rewards,
        grader=config.data.grader,
        users_range=config.users_range,
        example=example.answer,
        fields=example.fields,
    )


def model_to_load(config: TrainConfig, checkpoint: Path | None) -> Path:
    """Return the folder from which learner and sampler load: the run's checkpoint, or the base
    model of a new run or an adapter. Weights of a new run's model need not be there yet.
    """
    if checkpoint:  # of a whole model, or of an adapter
        return adapter_base(checkpoint) or checkpoint
    return model_folder(config.data.model, weights=False, adapters=False)


def check_data(
    config: TrainConfig,
    model: Path,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[Problem],
    prompts: list[list[int]],
    evaluation: Evaluation | None,
) -> None:
    """Raise InputError for prompts that the model cannot read, and for references and a format
    that no answer could match.
    """
    data = config.data
    of_suite = evaluation.prompts.values() if evaluation else ()
    check_prompts(model, tokenizer, list(chain(prompts, *of_suite)))
    check_references(problems, data.train_data, data.rewards, data.grader)
    check_format(data.rewards, tokenizer.decode(prompts[0]), data.grader)


def other_evaluation(config: TrainConfig, facts: dict) -> bool:
    """Return whether the run that is resumed was evaluated on other problems or by another rule,
    and is evaluated again.
    """
    new = flat_settings(config, **facts)
    if not new["evaluated"]:
        return False
    old = read_json(config.folder.output_dir / "config.json", "--resume needs the run's settings")
    return any(old.get(name, new[name]) != new[name] for name in ("evaluated", "grader"))


def check_dtype(dtype: str) -> None:
    """Raise InputError if this machine cannot train in --dtype."""
    if dtype == "float16" and not trains_in_float16():
        raise InputError(
            "--dtype: this CPU has no float16 arithmetic (AVX512-FP16); use float32 or bfloat16"
        )
    if dtype == "bfloat16" and torch.cuda.is_available():
        check_bfloat16()


def lock_unchanged(config: TrainConfig, ranks: int, progress: Progress, resumed: bool) -> FileLock:
    """Lock the run's folder, and check what could have changed while it was read without the lock.
    Raises InputError.
    """
    folder = config.folder.output_dir
    lock = lock_run(folder)
    if not resumed:
        check_output_dir(config)
    elif find_checkpoint(folder, ranks) != progress:
        raise InputError(f"{folder}: another process trained in it until now. Start again")
    return lock


def prepare_tokenizer(config: TrainConfig, model: Path, longest: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `model` with the run's template. Raises InputError if the model
    cannot be trained.
    """
    check_model(model, longest)
    tokenizer = load_tokenizer(model, longest)
    data = config.data
    # Checkpoints get this template, so that an evaluation of them renders the same prompts.
    tokenizer.chat_template = chat_template(
        tokenizer, data.template, data.system_prompt, data.thinking
    )
    return tokenizer


def prepare_evaluation(
    config: TrainConfig, suite: Suite, tokenizer: PreTrainedTokenizerBase
) -> Evaluation:
    """Return the evaluation by `suite` during training, and print on rank 0 where the suite differs
    from the training. Raises InputError.
    """
    rule = config.data.grader
    if os.environ["RANK"] == "0":
        for line in own_settings(suite, rule, tokenizer):
            print(line, flush=True)
    # The scores are by the rule of the training
    return Evaluation.prepare(override(suite, (), None, rule), tokenizer, config.sampling.seed)


# An answer that a prompt shows, such as <think> reasoning here </think><answer> answer </answer>
EXAMPLE = re.compile(r"<think>[^<]*</think>\s*<answer>[^<]*</answer>")


def check_format(rewards: Sequence[str], prompt: str, rule: str = "default") -> None:
    """Raise InputError if the reward `format` by `rule` looks for a tag that `prompt` has written
    already, or rejects the example that `prompt` gives.
    """
    if "format" not in rewards:
        return
    judge = inline_rewards(rule)["format"]
    examples = EXAMPLE.findall(prompt)
    if examples and not any(judge(example, "") for example in examples):
        raise InputError(
            f"--rewards format: the prompt shows {examples[0]!r}, which --grader paper rejects; "
            "leave nothing between the tags in the prompt, or take --grader default"
        )
    if prompt.rstrip().endswith("<think>"):
        problem = (
            "--rewards format: the chat template opens <think> itself, so no answer has that tag"
        )
        raise InputError(f"{problem}; take --thinking off, another --template, or your own reward")


def input_hashes(
    config: TrainConfig, model: Path, prompts: list, evaluation: Evaluation | None
) -> dict:
    """Return hashes of what a run reads by a name, so that --resume notices other content under
    the same names.
    """
    hashes = {
        # They depend on the chat template, which may write the date, and on the tokenizer.
        "prompts_sha256": _sha256(json.dumps(prompts)),
        **code_hashes(config),
        "evaluated": {},
    }
    if evaluation:
        hashes["evaluated"] = evaluation.hashed_suite() | {
            "prompts_sha256": _sha256(json.dumps(evaluation.prompts))
        }
    if config.update.lora_rank:  # checkpoints hold the adapter only
        hashes["base_sha256"] = model_hash(model)
    return hashes


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
