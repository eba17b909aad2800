"""Read and check everything that a run needs, before a process group or a model exists."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig, check_config, differences
from bnpo.data import (
    Problem,
    asks_for_tags,
    chat_template,
    check_enough,
    content_hash,
    encode_problems,
    load_sources,
)
from bnpo.devices import check_compiler, check_float16
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import load_suite, longest_sequence, override
from bnpo.files import InputError, file_hash
from bnpo.findings import check_format, check_references
from bnpo.grading.grader import Grader
from bnpo.planning.fit import MemoryPlan, plan_here
from bnpo.policy.engine_settings import EngineSettings
from bnpo.policy.folder import MERGED, adapter_base, load_tokenizer, model_folder
from bnpo.policy.model_check import check_model
from bnpo.ranks import check_port, gather
from bnpo.rollouts import Task
from bnpo.runs.console import archive_console
from bnpo.runs.folder import check_apart, claim_output_dir, lock_run
from bnpo.runs.resume import ResumePoint, check_changes, find_checkpoint


@dataclass(frozen=True)
class PreparedRun:
    """Everything that a run has read and checked on this rank."""

    config: TrainConfig
    task: Task
    evaluation: Evaluation | None  # None: no evaluation during training
    model: Path  # folder from which both load: the checkpoint, or the model of a new run or under an adapter
    engine: EngineSettings
    memory_plan: MemoryPlan
    resume_point: ResumePoint
    data_facts: dict  # what config.json says of the data
    lock: FileLock | None  # on the run's folder, held while this object lives; rank 0 only

    @property
    def steps(self) -> int:
        """Number of steps of the whole run."""
        batch = self.config.batch
        return batch.steps or batch.epochs * (len(self.task.problems) // batch.questions_per_step)

    def check_agreement(self) -> None:
        """Raise InputError on all ranks if one has read other data or another checkpoint than rank 0. A collective."""
        everyone = gather((self.resume_point.progress, self.steps, self.data_facts))
        for rank, read in enumerate(everyone):
            if read != everyone[0]:
                problem = f"rank {rank} has other data than rank 0, or another checkpoint"
                folder = self.config.folder.output_dir
                raise InputError(f"{problem} in {folder}. All machines must see the same files")

    def describe(self) -> None:
        """Print the settings that differ from the preset's, and the size of the run."""
        config, batch = self.config, self.config.batch
        for name, value, preset_value in differences(config):
            print(f"  {name:<24} {value!s:<24} preset: {preset_value}")
        print(f"all settings: {config.folder.output_dir / 'config.json'}")
        dropped, longest = self.data_facts["questions_dropped"], config.sampling.max_prompt_tokens
        questions = f"{len(self.task.problems)} questions ({dropped} left out: prompt over {longest} tokens)"
        batches = f"{batch.questions_per_step} questions x {batch.samples_per_question} answers"
        print(f"{questions}, {self.steps} steps of {batches}", flush=True)
        if self.engine.gpu_memory:
            share = f"{self.engine.gpu_memory:.0%} of the GPU's memory"
            print(f"sampler: {share}, {self.engine.sequences} answers at once", flush=True)
        if self.memory_plan.warning:
            print(f"warning: {self.memory_plan.warning}", flush=True)


def prepare_run(config: TrainConfig) -> PreparedRun:
    """Check and read all that a run needs, cheapest first, and claim its folder. No collective. Raises InputError."""
    if "RANK" not in os.environ:
        raise InputError("RANK is not set. Launch with: deepspeed train.py ...")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check_config(config, ranks)
    if rank == 0:
        check_port()
    check_compiler()
    check_float16(config.hardware.dtype)
    problems, source_facts = load_sources(config.data.train_data, config.columns)
    folder = config.folder.output_dir
    # A job that is queued with --resume from its first start on finds no run then.
    resumed = config.folder.resume and (folder / "config.json").exists()
    resume_point = find_checkpoint(folder, ranks) if resumed else ResumePoint()
    model = resume_point.checkpoint or model_folder(config.data.model, weights=False)
    base = adapter_base(model)
    if base and not resume_point.checkpoint:
        raise InputError(f"--model: {model} is a LoRA adapter; name its subfolder {MERGED}/, or merge it first")
    model = base or model
    if not resumed:
        check_apart(model, folder)
    suite = None
    if config.logging.eval_every:  # its scores are by the rule of the training
        suite = override(load_suite(config.logging.eval_suite), (), None, config.data.grader)
    longest = longest_sequence(config, suite)
    tokenizer = prepare_tokenizer(config, model, longest)
    if not resume_point.checkpoint:
        model_folder(config.data.model)  # only now, since weights may be downloaded
    plan = plan_here(config, model, longest)
    engine = EngineSettings(
        max_tokens=longest,
        dtype=config.hardware.dtype,
        gpu_memory=plan.gpu_memory,
        sequences=plan.sequences,
        enforce_eager=config.hardware.enforce_eager,
        tensor_parallel=config.hardware.sampler_ranks,
    )
    evaluation = Evaluation.prepare(suite, tokenizer, config.sampling.seed) if suite else None
    kept_problems, prompts = encode_problems(problems, tokenizer, config.sampling.max_prompt_tokens)
    check_enough(kept_problems, config.batch.questions_per_step, config.data.train_data)
    check_references(kept_problems, config.data.train_data, config.data.rewards, config.data.grader)
    check_format(config.data.rewards, tokenizer.decode(prompts[0]))
    facts = data_facts(config, problems, len(problems) - len(kept_problems), evaluation)
    template_hash = hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()
    facts |= {"data_sources": source_facts, "chat_template_sha256": template_hash}
    facts["answer_tags"] = asks_for_tags(tokenizer, problems=kept_problems)
    if resumed:
        check_changes(config, facts)
    # Before the folder is claimed: rewards that cannot be called are refused before --overwrite deletes a run.
    grader = Grader(
        config.data.rewards,
        grader=config.data.grader,
        users_range=config.data.reward_range,
        example=kept_problems[0].answer,
    )
    try:
        lock = claim_folder(config, facts, resumed, resume_point, ranks) if rank == 0 else None
    except BaseException:
        grader.close()  # its processes would keep this one from ending
        raise
    task = Task(kept_problems, prompts, tokenizer, grader, facts["answer_tags"])
    return PreparedRun(config, task, evaluation, model, engine, plan, resume_point, facts, lock)


def prepare_tokenizer(config: TrainConfig, model: Path, longest: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the folder `model`, with the template of the run.

    Raises InputError if a model of this kind cannot be trained on texts of up to `longest` tokens. Reads no weights.
    """
    check_model(model, longest)
    tokenizer, data = load_tokenizer(model, longest), config.data
    # Checkpoints get this template, so that an evaluation of them renders the same prompts.
    tokenizer.chat_template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
    return tokenizer


def claim_folder(config: TrainConfig, facts: dict, resumed: bool, resume_point: ResumePoint, ranks: int) -> FileLock:
    """Lock the run's folder. Make it a new run's, or check that its checkpoint is still the same. Rank 0 only."""
    folder = config.folder.output_dir
    lock = lock_run(folder)
    if not resumed:
        claim_output_dir(config, **facts)
    # The checkpoint was read without the lock, when another process could still train in the folder.
    elif find_checkpoint(folder, ranks) != resume_point:
        raise InputError(f"{folder}: another process trained in it until now. Start again")
    else:
        archive_console(folder)
    return lock


def data_facts(config: TrainConfig, problems: list[Problem], dropped: int, evaluation: Evaluation | None) -> dict:
    """Return what config.json says of the data, so that --resume notices other data under the same names."""
    reward_files = {reward: Path(reward.rpartition(":")[0]) for reward in config.data.rewards if ":" in reward}
    return {
        "data_sha256": content_hash(problems),
        "questions_dropped": dropped,
        "reward_sha256": {reward: file_hash(file) for reward, file in reward_files.items()},
        "evaluated": evaluation.hashed_suite() if evaluation else {},
    }
