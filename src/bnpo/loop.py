"""Algorithm 1 of the paper, top to bottom: `train` holds the loop, the rest serves it."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist

from bnpo.algorithm.advantages import compute_advantages
from bnpo.answers.rewards import reward_name
from bnpo.config import TrainConfig
from bnpo.evaluation.live import eval_metrics, evaluate_live
from bnpo.files import write_json, writing
from bnpo.policy.learner import Experience, Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import check_equal, check_sync, compared_names, whole_weights
from bnpo.problems import questions_of_step
from bnpo.ranks import Interrupt, Lifeline, gather
from bnpo.rollouts import Rollouts, batch_metrics, collect
from bnpo.runs.checkpoint import checkpoint_folder, save_checkpoint, verify_checkpoint
from bnpo.runs.folder import rewind
from bnpo.runs.start import Inputs, check_agreement, prepare
from bnpo.runs.tracking import Tracker
from bnpo.speed import Stopwatch, gpu_name, speed_metrics


class BadStepsError(RuntimeError):
    """The loss or the gradient norm was not finite in too many steps in a row."""


def train(config: TrainConfig) -> None:
    """Run Algorithm 1 on the ranks that the DeepSpeed launcher started. Raises InputError before a model is loaded;
    a rank that fails later takes the others with it."""
    inputs = prepare(config)
    interrupt = Interrupt()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    with Lifeline():
        check_agreement(config, inputs)
        run_steps(config, inputs, interrupt)


def run_steps(config: TrainConfig, inputs: Inputs, interrupt: Interrupt) -> None:
    """Load learner and sampler and run all steps that are left. Raises InputError for a damaged checkpoint or a disk
    that cannot be written, SyncError, BadStepsError."""
    tokenizer, grader, progress = inputs.tokenizer, inputs.grader, inputs.progress
    if inputs.checkpoint:
        verify_checkpoint(inputs.checkpoint)
    if config.resume and dist.get_rank() == 0:
        rewind(config.output_dir, progress)
        with writing(config.output_dir):
            write_json(config.output_dir / "config.json", asdict(config) | inputs.facts)

    converted = inputs.checkpoint is not None and progress.ranks != dist.get_world_size()
    learner = Learner(str(inputs.model), len(tokenizer), config, universal=converted)
    sampler = Sampler(
        str(inputs.model),
        tokenizer,
        max_tokens=inputs.longest,
        dtype=config.dtype,
        seed=config.seed,
        gpu_memory=inputs.plan.gpu_memory,
        sequences=inputs.plan.sequences,
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

    def interrupted() -> bool:
        return any(gather(interrupt.requested))  # one collective on all ranks, so that they agree

    stop = interrupted()
    if inputs.evaluation and not inputs.checkpoint and not stop:
        checkpoint = checkpoint_folder(config.output_dir, 0)
        results = evaluate_live(inputs.evaluation, sampler, grader, config, checkpoint)
        if tracker:
            tracker.write(0, eval_metrics(results))
        stop = interrupted()

    while progress.step < inputs.steps and not stop:
        step, watch = progress.step, Stopwatch()
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
                sync_weights(learner, sampler, step)
                difference = measure_sync(learner, sampler, experience, config, step)
        last = step + 1 == inputs.steps
        bad_steps = progress.bad_steps + 1 if metrics["updates/skipped"] else 0
        progress = replace(progress, step=step + 1, bad_steps=bad_steps)
        if inputs.evaluation and (progress.step % config.eval_every == 0 or last):
            with watch("evaluate"):
                checkpoint = checkpoint_folder(config.output_dir, progress.step)
                results = evaluate_live(inputs.evaluation, sampler, grader, config, checkpoint)
            metrics |= eval_metrics(results)
            if results["average"]["pass1"] > progress.best:
                progress = replace(progress, best=results["average"]["pass1"], best_step=progress.step)
        if tracker:
            metrics |= batch_metrics(rollouts, advantages, fits, names)
            metrics |= {"sync/difference": difference, "bad_steps": progress.bad_steps}
            tracker.log(progress.step, metrics | speed_metrics(metrics, watch, dist.get_world_size(), gpu_name()))
            if config.rollouts_every and step % config.rollouts_every == 0:
                tracker.save_rollouts(progress.step, rollout_rows(inputs, rollouts, advantages, names))
            if progress.bad_steps:
                rows = rollout_rows(inputs, rollouts, advantages, names, tokens=True)
                tracker.save_bad_batch(progress.step, rows)
        if progress.bad_steps >= config.max_bad_steps:
            raise BadStepsError(
                f"the loss or the gradient norm was not finite in step {progress.step}, the last of "
                f"{progress.bad_steps} in a row (--max-bad-steps); the updates were left out, the batches are in "
                f"{config.output_dir / 'bad'}"
            )
        stop = interrupted()
        if progress.step % config.save_every == 0 or last or stop or progress.best_step == progress.step:
            with watch("save"):
                asleep = sampler.sleep()
                save_checkpoint(learner, tokenizer, config.output_dir, progress, config.keep)
                if asleep:
                    sync_weights(learner, sampler, step)
            if tracker:
                tracker.say(f"step {progress.step}: checkpoint saved in {watch.seconds['save']:.2f} s")
    if tracker:
        tracker.close()
        end = "done" if progress.step >= inputs.steps else "stopped (--resume goes on)"
        where = f"; the model is in {config.output_dir / 'last'}" if progress.step else ""
        print(f"{end}: {progress.step} steps{where}", flush=True)
    grader.close()
    sampler.close()


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


def sync_weights(learner: Learner, sampler: Sampler, step: int) -> None:
    """Give the sampler the learner's weights, and raise SyncError on all ranks if a few of them are not the same to the
    last bit; its cache takes memory only after the gathering has given it back."""
    sampler.wake("weights")
    sampler.load_weights(whole_weights(learner.model, tied_too=True))
    check_equal(learner.model, sampler.parameters(compared_names(learner.model)), step + 1)
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
