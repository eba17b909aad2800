"""Algorithm 1 of the paper, top to bottom: `train` holds the loop, the rest serves it."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bnpo.advantages import compute_advantages
from bnpo.arithmetic import open_problems
from bnpo.checkpoint import Progress, save_checkpoint, verify_checkpoint
from bnpo.config import TrainConfig, check_config, to_json
from bnpo.evaluation import Evaluation
from bnpo.files import write_json
from bnpo.interrupt import Interrupt
from bnpo.learner import Experience, Learner
from bnpo.lifeline import Lifeline
from bnpo.live_evaluation import eval_metrics, evaluate_live
from bnpo.models import load_tokenizer, model_folder
from bnpo.problems import InputError, Problem, encode_prompt, questions_of_step
from bnpo.rewards import Grader, reward_name
from bnpo.rollouts import Rollouts, batch_metrics, collect, gather
from bnpo.run_folder import check_changes, claim_output_dir, find_checkpoint, rewind
from bnpo.sampler import Sampler
from bnpo.suites import content_hash, load_suite
from bnpo.tracking import Stopwatch, Tracker, speed_metrics
from bnpo.weight_sync import check_sync, whole_weights


class BadStepsError(RuntimeError):
    """The loss or the gradient norm was not finite in too many steps in a row."""


@dataclass(frozen=True)
class Inputs:
    """Everything a run reads, checked: problems with their encoded prompts, tokenizer, model folder, step count, what
    is evaluated on the way (None: nothing), of both the longest prompt plus answer in tokens and the grader, the
    checkpoint to go on from (None: a start) with its progress, and facts of the data for config.json."""

    problems: list[Problem]
    prompts: list[list[int]]
    tokenizer: object
    model: Path
    steps: int
    evaluation: Evaluation | None
    longest: int
    grader: Grader
    checkpoint: Path | None
    progress: Progress
    facts: dict


def train(config: TrainConfig) -> None:
    """Run Algorithm 1 on the ranks that the DeepSpeed launcher started. Raises InputError before a model is loaded;
    a rank that fails later takes the others with it."""
    inputs = prepare(config)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    with Lifeline():
        run_steps(config, inputs)


def run_steps(config: TrainConfig, inputs: Inputs) -> None:
    """Load learner and sampler and run all steps that are left. Raises InputError for a damaged checkpoint or a disk
    that cannot be written, SyncError, BadStepsError."""
    tokenizer, grader, progress = inputs.tokenizer, inputs.grader, inputs.progress
    if inputs.checkpoint:
        verify_checkpoint(inputs.checkpoint)
    if config.resume and dist.get_rank() == 0:
        rewind(config.output_dir, progress)
        write_json(config.output_dir / "config.json", asdict(config) | inputs.facts)

    converted = inputs.checkpoint is not None and progress.ranks != dist.get_world_size()
    learner = Learner(str(inputs.model), len(tokenizer), config, universal=converted)
    sampler = Sampler(
        str(inputs.model),
        tokenizer,
        max_tokens=inputs.longest,
        dtype=config.dtype,
        seed=config.seed,
        gpu_memory=config.gpu_memory,
        enforce_eager=config.enforce_eager,
    )
    if inputs.checkpoint:
        learner.load(inputs.checkpoint / "trainer")
    tracker = None
    if dist.get_rank() == 0:
        tracker = Tracker(config.output_dir, inputs.steps, progress.step, asdict(config), config.wandb)
        if config.resume:
            tracker.say(f"going on after step {progress.step}")
    names = [reward_name(reward) for reward in config.rewards]
    interrupt = Interrupt()

    if inputs.evaluation and not inputs.checkpoint:
        results = evaluate_live(inputs.evaluation, sampler, grader, config, 0)
        if tracker:
            tracker.write(0, eval_metrics(results))

    for step in range(progress.step, inputs.steps):
        watch = Stopwatch()
        with watch("total"):
            questions = questions_of_step(len(inputs.problems), config.questions_per_step, step, config.seed)
            rollouts = collect(
                sampler, grader, tokenizer, inputs.problems, inputs.prompts, questions, step, config, watch
            )
            advantages, fits = compute_advantages(
                config.algo,
                rollouts.rewards,  # [n, m, K]
                decompose=config.decompose,
                reward_range=config.reward_range,
                greedy_rewards=rollouts.greedy_rewards,
                lengths=rollouts.lengths,
                moments=config.beta_moments,
                max_concentration=config.max_concentration,
            )  # [n, m]
            with watch("update"):
                experience = make_experience(inputs.prompts, rollouts, advantages)
                metrics = learner.update(experience, learning_rate(config, step))
            with watch("sync"):
                sync_weights(learner, sampler)
                difference = measure_sync(learner, sampler, experience, config, step)
        last = step + 1 == inputs.steps
        bad_steps = progress.bad_steps + 1 if metrics["updates/skipped"] else 0
        progress = replace(progress, step=step + 1, bad_steps=bad_steps)
        if inputs.evaluation and (progress.step % config.eval_every == 0 or last):
            with watch("evaluate"):
                results = evaluate_live(inputs.evaluation, sampler, grader, config, progress.step)
            metrics |= eval_metrics(results)
            if results["average"]["pass1"] > progress.best:
                progress = replace(progress, best=results["average"]["pass1"], best_step=progress.step)
        if tracker:
            metrics |= batch_metrics(rollouts, advantages, fits, names)
            metrics |= {"sync/difference": difference, "bad_steps": progress.bad_steps}
            tracker.log(progress.step, metrics | speed_metrics(metrics, watch, dist.get_world_size()))
            if config.rollouts_every and step % config.rollouts_every == 0:
                tracker.save_rollouts(progress.step, rollout_rows(inputs, rollouts, advantages, names))
            if progress.bad_steps:
                rows = rollout_rows(inputs, rollouts, advantages, names, tokens=True)
                tracker.save_bad_batch(progress.step, rows)
        if progress.bad_steps == config.max_bad_steps:
            raise BadStepsError(
                f"the loss or the gradient norm was not finite in step {progress.step}, the last of "
                f"{progress.bad_steps} in a row (--max-bad-steps); the updates were left out, the batches are in "
                f"{config.output_dir / 'bad'}"
            )
        stop = any(gather(interrupt.requested))  # one collective on all ranks, so that they agree
        if progress.step % config.save_every == 0 or last or stop or progress.best_step == progress.step:
            with watch("save"):
                save_checkpoint(learner, tokenizer, config.output_dir, progress, config.keep)
            if tracker:
                tracker.say(f"step {progress.step}: checkpoint saved in {watch.seconds['save']:.2f} s")
        if stop:
            break
    if tracker:
        tracker.close()
        end = "done" if progress.step >= inputs.steps else "stopped (--resume goes on)"
        print(f"{end}: {progress.step} steps; the model is in {config.output_dir / 'last'}", flush=True)
    grader.close()
    sampler.close()


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
    facts = data_facts(problems, dropped, evaluation)
    if resumed:
        check_changes(config, facts)
    # Its processes start while the models load; and it refuses rewards that cannot be called, before --overwrite acts.
    grader = Grader(config.rewards, grader=config.grader, value_range=config.reward_range)
    if rank == 0:
        if not resumed:
            claim_output_dir(config, **facts)
        print(to_json(config, **facts), end="")
        print(
            f"{len(kept)} questions ({dropped} left out: prompt over {config.max_prompt_tokens} tokens), {steps} "
            f"steps of {config.questions_per_step} x {config.samples_per_question} answers",
            flush=True,
        )
    problems, prompts = [p for p, _ in kept], [t for _, t in kept]
    return Inputs(problems, prompts, tokenizer, model, steps, evaluation, longest, grader, checkpoint, progress, facts)


def data_facts(problems: list[Problem], dropped: int, evaluation: Evaluation | None) -> dict:
    """What config.json says of the data: their hashes, whatever the files' names are, and the questions left out."""
    evaluated = evaluation.protocol()["suite"]["datasets"] if evaluation else {}
    return {
        "data_sha256": content_hash(problems),
        "eval_data_sha256": {name: dataset["sha256"] for name, dataset in evaluated.items()},
        "questions_dropped": dropped,
    }


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of `step` (from 0): a linear rise over the warm-up, then constant."""
    return config.lr * min(1.0, (step + 1) / max(1, config.warmup_steps))


def make_experience(prompts: Sequence[list[int]], rollouts: Rollouts, advantages: np.ndarray) -> Experience:
    """What the learner trains on: the answers of all questions in one row, N = n m."""
    answers = list(chain.from_iterable(rollouts.answers))
    return Experience(
        prompts=[prompts[q] for q in rollouts.questions for _ in rollouts.answers[0]],
        answers=[answer.token_ids for answer in answers],
        sampler_logprobs=[answer.logprobs for answer in answers],
        advantages=advantages.ravel(),
    )


def sync_weights(learner: Learner, sampler: Sampler) -> None:
    """Give the sampler the learner's weights; its cache takes memory only after the gathering has given it back."""
    sampler.wake("weights")
    sampler.load_weights(whole_weights(learner.model, tied_too=True))
    sampler.wake("kv_cache")


def measure_sync(learner: Learner, sampler: Sampler, experience: Experience, config: TrainConfig, step: int) -> float:
    """Mean difference between sampler and learner over the tokens of one answer a rank, the largest of the ranks.

    Each rank takes the longest answer of its own part. Raises SyncError on all ranks past the tolerance.
    """
    mine = np.array_split(np.arange(len(experience.answers)), dist.get_world_size())[dist.get_rank()]
    longest = max(mine, key=lambda i: len(experience.answers[i]))
    prompt = experience.prompts[longest]
    # The sampler scores a prompt only if it can go on by one token.
    room = config.max_prompt_tokens + config.max_answer_tokens - len(prompt) - 1
    answer = experience.answers[longest][:room]
    own = np.abs(sampler.score(prompt, answer) - learner.score(prompt, answer)).mean()
    difference = float(np.max(gather(own)))  # the largest, or nan: all ranks raise, or none
    check_sync(difference, config.sync_tolerance, step + 1)
    return difference


def rollout_rows(
    inputs: Inputs, rollouts: Rollouts, advantages: np.ndarray, reward_names: Sequence[str], tokens: bool = False
) -> list[dict]:
    """One row an answer, for people to read; with `tokens` also all that the learner was given."""
    return [
        {
            "id": inputs.problems[question].id,
            "prompt": inputs.tokenizer.decode(inputs.prompts[question]),
            "reference": inputs.problems[question].answer,
            "answer": inputs.tokenizer.decode(answer.token_ids),
            "tokens": len(answer.token_ids),
            "rewards": dict(zip(reward_names, rollouts.rewards[i, j].tolist(), strict=True)),
            "advantage": advantages[i, j],
            **({"prompt_ids": inputs.prompts[question], "answer_ids": answer.token_ids} if tokens else {}),
            **({"sampler_logprobs": answer.logprobs.tolist()} if tokens else {}),
        }
        for i, question in enumerate(rollouts.questions)
        for j, answer in enumerate(rollouts.answers[i])
    ]
