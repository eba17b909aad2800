"""What a run reads, all of it checked before a process group or a model exists."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.answers.rewards import Grader
from bnpo.arithmetic import open_problems
from bnpo.config import TrainConfig, check_config, to_json
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import content_hash, load_suite
from bnpo.files import InputError, file_hash
from bnpo.policy.fit import Plan, plan_here
from bnpo.policy.folder import load_tokenizer, model_folder
from bnpo.problems import Problem, encode_prompt
from bnpo.ranks import gather
from bnpo.runs.checkpoint import Progress
from bnpo.runs.folder import check_changes, claim_output_dir, find_checkpoint, lock_run

if TYPE_CHECKING:
    from filelock import FileLock
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Inputs:
    """Everything a run reads, checked: problems with their encoded prompts, tokenizer, model folder, step count, what
    is evaluated on the way (None: nothing), of both the longest prompt plus answer in tokens, the plan of the GPU's
    memory, the grader, the checkpoint to go on from (None: a start) with its progress, facts of the data for
    config.json, and rank 0's lock of the run's folder, which lasts as long as this object."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: "PreTrainedTokenizerBase"
    model: Path
    steps: int
    evaluation: Evaluation | None
    longest: int
    plan: Plan
    grader: Grader
    checkpoint: Path | None
    progress: Progress
    facts: dict
    lock: "FileLock | None"


def prepare(config: TrainConfig) -> Inputs:
    """Check and read everything a run needs, cheapest first, before a process group or a model exists."""
    if "RANK" not in os.environ:
        raise InputError("no ranks: start with `deepspeed train.py ...`, which sets up one process a rank")
    check_config(config, ranks=int(os.environ["WORLD_SIZE"]))
    problems = open_problems(config.train_data, "train")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    resumed = config.resume and (config.output_dir / "config.json").exists()
    checkpoint, progress = find_checkpoint(config.output_dir, ranks) if resumed else (None, Progress())
    model = checkpoint or model_folder(config.model)
    suite = load_suite(config.eval_suite) if config.eval_every else None
    longest = config.max_prompt_tokens + config.max_answer_tokens
    if suite:
        longest = max(longest, suite.max_prompt_tokens + suite.max_answer_tokens)
    tokenizer = load_tokenizer(model, longest)
    plan = plan_here(config, model, longest)
    evaluation = Evaluation.prepare(suite, tokenizer, config.seed) if suite else None
    encoded = [(problem, encode_prompt(tokenizer, problem.problem, config.template)) for problem in problems]
    kept = [(problem, prompt) for problem, prompt in encoded if len(prompt) <= config.max_prompt_tokens]
    if not kept:
        raise InputError(
            f"{config.train_data}: every prompt is longer than --max-prompt-tokens {config.max_prompt_tokens}"
        )
    if len(kept) < config.questions_per_step:
        raise InputError(
            f"--questions-per-step: {config.questions_per_step} different questions are needed, {config.train_data} "
            f"has {len(kept)}; lower it"
        )
    steps = config.steps or config.epochs * (len(kept) // config.questions_per_step)
    dropped = len(encoded) - len(kept)
    facts = data_facts(config, problems, dropped, evaluation)
    if resumed:
        check_changes(config, facts)
    # Its processes start while the models load; and it refuses rewards that cannot be called, before --overwrite acts.
    grader = Grader(config.rewards, grader=config.grader, value_range=config.reward_range)
    lock = lock_run(config.output_dir) if rank == 0 else None
    if rank == 0:
        if not resumed:
            claim_output_dir(config, **facts)
        print(to_json(config, **facts), end="")
        print(
            f"{len(kept)} questions ({dropped} left out: prompt over {config.max_prompt_tokens} tokens), {steps} "
            f"steps of {config.questions_per_step} x {config.samples_per_question} answers",
            flush=True,
        )
        if plan.gpu_memory:
            print(f"sampler: {plan.gpu_memory:.0%} of the GPU, {plan.sequences} answers at once", flush=True)
    problems, prompts = [p for p, _ in kept], [t for _, t in kept]
    return Inputs(
        problems, prompts, tokenizer, model, steps, evaluation, longest, plan, grader, checkpoint, progress, facts, lock
    )


def data_facts(config: TrainConfig, problems: list[Problem], dropped: int, evaluation: Evaluation | None) -> dict:
    """What config.json says of the data: hashes of problems and of the user's rewards, whatever the files' names are,
    the questions left out, and what is evaluated."""
    files = {reward: Path(reward.rpartition(":")[0]) for reward in config.rewards if ":" in reward}
    return {
        "data_sha256": content_hash(problems),
        "questions_dropped": dropped,
        "reward_sha256": {reward: file_hash(file) for reward, file in files.items()},
        "evaluated": evaluation.hashed_suite() if evaluation else {},
    }


def check_agreement(config: TrainConfig, inputs: Inputs) -> None:
    """Raise InputError on all ranks where one has read other data than rank 0, or goes on from another step. A
    collective."""
    everyone = gather((inputs.progress, inputs.steps, inputs.facts))
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise InputError(
                f"rank {rank} finds other data than rank 0, or another checkpoint in {config.output_dir}: all machines "
                "must see the same files"
            )
