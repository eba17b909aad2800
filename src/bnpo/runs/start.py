"""What a run reads, all of it checked before a process group or a model exists."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.arithmetic import training_problems
from bnpo.config import TrainConfig, check_config, differences
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import content_hash, load_suite
from bnpo.files import InputError, file_hash
from bnpo.grading.grader import Grader
from bnpo.planning.fit import plan_here
from bnpo.policy.folder import check_attention, load_tokenizer, model_folder
from bnpo.policy.settings import SamplerSettings
from bnpo.problems import Problem
from bnpo.ranks import check_port, gather
from bnpo.runs.checkpoint import Progress
from bnpo.runs.console import set_end_aside
from bnpo.runs.folder import check_apart, check_changes, claim_output_dir, find_checkpoint, lock_run
from bnpo.task import Task, encode_problems, longest_sequence

if TYPE_CHECKING:
    from filelock import FileLock


@dataclass(frozen=True)
class Start:
    """Where a run starts: what it was asked for, all that it reads, checked, and how far an earlier start has come.

    `evaluation` is what is evaluated on the way (None: nothing), `checkpoint` the one to go on from (None: a new run),
    `facts` are those of the data for config.json, `lock` is rank 0's on the run's folder, as long as this object lives.
    """

    config: TrainConfig
    task: Task
    steps: int
    model: Path
    sampler: SamplerSettings
    evaluation: Evaluation | None
    checkpoint: Path | None
    progress: Progress
    facts: dict
    lock: "FileLock | None"

    def check_agreement(self) -> None:
        """Raise InputError on all ranks where one has read other data than rank 0, or goes on from another step. A
        collective."""
        everyone = gather((self.progress, self.steps, self.facts))
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise InputError(
                    f"rank {rank} finds other data than rank 0, or another checkpoint in "
                    f"{self.config.folder.output_dir}: all machines must see the same files"
                )

    def describe(self) -> None:
        """Print the settings that are not the preset's, and how much there is to do."""
        config = self.config
        for name, value, standard in differences(config):
            print(f"  {name:<24} {value!s:<24} preset: {standard}")
        print(f"all settings: {config.folder.output_dir / 'config.json'}")
        print(
            f"{len(self.task.problems)} questions ({self.facts['questions_dropped']} left out: prompt over "
            f"{config.sampling.max_prompt_tokens} tokens), {self.steps} steps of {config.batch.questions_per_step} x "
            f"{config.batch.samples_per_question} answers",
            flush=True,
        )
        if self.sampler.gpu_memory:
            share, at_once = self.sampler.gpu_memory, self.sampler.sequences
            print(f"sampler: {share:.0%} of the GPU, {at_once} answers at once", flush=True)


def prepare(config: TrainConfig) -> Start:
    """Check and read everything a run needs, cheapest first, before a process group or a model exists. Raises
    InputError for what is wrong in it."""
    if "RANK" not in os.environ:
        raise InputError("no ranks: start with `deepspeed train.py ...`, which sets up one process a rank")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check_config(config, ranks)
    if rank == 0:
        check_port()
    problems = training_problems(config.data.train_data)
    resumed = config.folder.resume and (config.folder.output_dir / "config.json").exists()
    checkpoint, progress = find_checkpoint(config.folder.output_dir, ranks) if resumed else (None, Progress())
    model = checkpoint or model_folder(config.data.model)
    if not resumed:
        check_apart(model, config.folder.output_dir)
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    longest = longest_sequence(config, suite)
    tokenizer = load_tokenizer(model, longest)
    check_attention(model)
    plan = plan_here(config, model, longest)
    settings = SamplerSettings(
        max_tokens=longest,
        dtype=config.hardware.dtype,
        gpu_memory=plan.gpu_memory,
        sequences=plan.sequences,
        enforce_eager=config.hardware.enforce_eager,
    )
    evaluation = Evaluation.prepare(suite, tokenizer, config.sampling.seed) if suite else None
    kept, prompts = encode_problems(config, problems, tokenizer)
    steps = config.batch.steps or config.batch.epochs * (len(kept) // config.batch.questions_per_step)
    facts = data_facts(config, problems, len(problems) - len(kept), evaluation)
    if resumed:
        check_changes(config, facts)
    # Its processes start while the models load; and it refuses rewards that cannot be called, before --overwrite acts.
    grader = Grader(config.data.rewards, grader=config.data.grader, users_range=config.data.reward_range)
    with ExitStack() as if_refused:
        if_refused.callback(grader.close)
        lock = None
        if rank == 0:
            lock = lock_run(config.folder.output_dir)
            if not resumed:
                claim_output_dir(config, **facts)
            elif find_checkpoint(config.folder.output_dir, ranks) != (checkpoint, progress):
                raise InputError(
                    f"{config.folder.output_dir}: another process trained in it until just now; start again"
                )
            else:
                set_end_aside(config.folder.output_dir)
        if_refused.pop_all()
    task = Task(kept, prompts, tokenizer, grader)
    return Start(config, task, steps, model, settings, evaluation, checkpoint, progress, facts, lock)


def data_facts(config: TrainConfig, problems: list[Problem], dropped: int, evaluation: Evaluation | None) -> dict:
    """What config.json says of the data: hashes of problems and of the user's rewards, whatever the files' names are,
    the questions left out, and what is evaluated."""
    files = {reward: Path(reward.rpartition(":")[0]) for reward in config.data.rewards if ":" in reward}
    return {
        "data_sha256": content_hash(problems),
        "questions_dropped": dropped,
        "reward_sha256": {reward: file_hash(file) for reward, file in files.items()},
        "evaluated": evaluation.hashed_suite() if evaluation else {},
    }
