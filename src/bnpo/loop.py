"""Algorithm 1 of the paper, top to bottom: `train` holds the loop, the rest serves it."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bnpo.advantages import compute_advantages
from bnpo.arithmetic import open_problems
from bnpo.beta import BetaFit
from bnpo.checkpoint import load_tokenizer, model_folder, save_checkpoint
from bnpo.config import TrainConfig, check_config, claim_output_dir, to_json
from bnpo.learner import Experience, Learner
from bnpo.problems import InputError, Problem, encode_prompt, questions_of_step, stop_token_ids
from bnpo.rewards import Grader
from bnpo.sampler import Answer, Sampler, sampling_seeds
from bnpo.tracking import Stopwatch, Tracker
from bnpo.weight_sync import check_sync, whole_weights


@dataclass(frozen=True)
class Inputs:
    """Everything a run reads, checked: problems with their encoded prompts, tokenizer, model folder, step count."""

    problems: list[Problem]
    prompts: list[list[int]]
    dropped: int
    tokenizer: object
    model: Path
    steps: int


def train(config: TrainConfig) -> None:
    """Run Algorithm 1 on the ranks that the DeepSpeed launcher started. Raises InputError before a model is loaded."""
    inputs = prepare(config)
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokenizer = inputs.tokenizer

    learner = Learner(str(inputs.model), len(tokenizer), config)
    sampler = Sampler(
        str(inputs.model),
        max_tokens=config.max_prompt_tokens + config.max_answer_tokens,
        vocab_size=len(tokenizer),
        stop_token_ids=stop_token_ids(tokenizer),
        dtype=config.dtype,
        seed=config.seed,
        gpu_memory=config.gpu_memory,
        enforce_eager=config.enforce_eager,
    )
    grader = Grader(config.rewards)
    tracker = Tracker(config.output_dir, inputs.steps, asdict(config), config.wandb) if rank == 0 else None

    for step in range(inputs.steps):
        watch = Stopwatch()
        with watch("total"):
            # n questions of the batch, of which this rank samples its share.
            batch = questions_of_step(len(inputs.problems), config.questions_per_step, step, config.seed)
            mine = np.split(batch, ranks)[rank]
            with watch("generate"):
                sampled, greedy = sampler.sample(
                    [inputs.prompts[q] for q in mine],
                    sampling_seeds(config.seed, step, mine),
                    n=config.samples_per_question,
                    max_tokens=config.max_answer_tokens,
                    temperature=config.temperature,
                    greedy_too=config.algo == "remax",
                )
                sampler.sleep()
            with watch("reward"):
                problems = [inputs.problems[q] for q in mine]
                own_rewards = grade(grader, tokenizer, problems, sampled)  # [n / ranks, m, K]
                own_greedy = grade(grader, tokenizer, problems, [[answer] for answer in greedy]) if greedy else None
            with watch("gather"):
                answers = list(chain.from_iterable(gather(sampled)))  # [n][m]
                rewards = np.concatenate(gather(own_rewards))  # [n, m, K]
                greedy_rewards = np.concatenate(gather(own_greedy))[:, 0] if greedy else None  # [n, K]
                failures = sum(gather(sum(grader.failures.values())))
            lengths = np.array([[len(answer.token_ids) for answer in group] for group in answers])  # [n, m]
            advantages, fits = compute_advantages(
                config.algo,
                rewards,
                decompose=config.decompose,
                reward_range=config.reward_range,
                greedy_rewards=greedy_rewards,
                lengths=lengths,
                moments=config.beta_moments,
                max_concentration=config.max_concentration,
            )
            with watch("update"):
                flat = list(chain.from_iterable(answers))
                experience = Experience(
                    prompts=[inputs.prompts[q] for q in batch for _ in range(config.samples_per_question)],
                    answers=[answer.token_ids for answer in flat],
                    sampler_logprobs=[answer.logprobs for answer in flat],
                    advantages=advantages.ravel(),
                )
                metrics = learner.update(experience, config.lr * min(1.0, (step + 1) / config.warmup_steps))
            with watch("sync"):
                sync_weights(learner, sampler)
                difference = measure_sync(learner, sampler, inputs.prompts[mine[0]], sampled[0][0], config, step)
        if tracker:
            metrics |= batch_metrics(config, rewards, advantages, fits, answers, lengths)
            metrics |= {"sync/max_difference": difference, "reward/grading_failures": failures}
            metrics |= {"tokens/greedy": sum(len(answer.token_ids) for answer in greedy) * ranks} if greedy else {}
            metrics |= {f"seconds/{phase}": seconds for phase, seconds in watch.seconds.items()}
            tracker.log(step + 1, metrics | {"tokens/per_second": lengths.sum() / watch.seconds["total"]})
            if config.rollouts_every and step % config.rollouts_every == 0:
                tracker.save_rollouts(step + 1, rollout_rows(inputs, config, batch, answers, rewards, advantages))
        if (step + 1) % config.save_every == 0 or step + 1 == inputs.steps:
            weights = whole_weights(learner.model, tied_too=False)
            save_checkpoint(weights, learner.model, tokenizer, config.output_dir, step + 1)
    if tracker:
        tracker.close()
        print(f"done: {inputs.steps} steps; the model is in {config.output_dir / 'last'}", flush=True)
    grader.close()
    sampler.close()


def prepare(config: TrainConfig) -> Inputs:
    """Check and read everything a run needs, cheapest first, before a process group or a model exists."""
    if "RANK" not in os.environ:
        raise InputError("no ranks: start with `deepspeed train.py ...`, which sets up one process a rank")
    check_config(config, ranks=int(os.environ["WORLD_SIZE"]))
    problems = open_problems(config.train_data, "train")
    model = model_folder(config.model)
    tokenizer = load_tokenizer(model, config.max_prompt_tokens + config.max_answer_tokens)
    encoded = [(problem, encode_prompt(tokenizer, problem.problem, config.template)) for problem in problems]
    kept = [(problem, prompt) for problem, prompt in encoded if len(prompt) <= config.max_prompt_tokens]
    if not kept:
        raise InputError(
            f"{config.train_data}: every prompt is longer than --max-prompt-tokens {config.max_prompt_tokens}"
        )
    steps = config.steps or config.epochs * max(1, len(kept) // config.questions_per_step)
    dropped = len(encoded) - len(kept)
    if int(os.environ["RANK"]) == 0:
        claim_output_dir(config)
        print(to_json(config), end="")
        print(
            f"{len(kept)} questions ({dropped} left out: prompt over {config.max_prompt_tokens} tokens), {steps} "
            f"steps of {config.questions_per_step} x {config.samples_per_question} answers"
        )
        print(
            "The loss in the metrics is near 0 by construction (the ratios are 1): watch the reward and grad_norm.",
            flush=True,
        )
    return Inputs([p for p, _ in kept], [t for _, t in kept], dropped, tokenizer, model, steps)


def grade(grader: Grader, tokenizer, problems: Sequence[Problem], answers: Sequence[Sequence[Answer]]) -> np.ndarray:
    """Rewards [questions, answers, K] of sampled answers."""
    texts = tokenizer.batch_decode([a.token_ids for group in answers for a in group], skip_special_tokens=True)
    references = [problem.answer for problem, group in zip(problems, answers, strict=True) for _ in group]
    return grader(texts, references).reshape(len(problems), len(answers[0]), -1)


def gather(own: object) -> list:
    """The objects of all ranks, in their order."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def sync_weights(learner: Learner, sampler: Sampler) -> None:
    """Give the sampler the learner's weights; its cache takes memory only after the gathering has given it back."""
    sampler.wake("weights")
    sampler.load_weights(whole_weights(learner.model, tied_too=True))
    sampler.wake("kv_cache")


def measure_sync(
    learner: Learner, sampler: Sampler, prompt: list[int], answer: Answer, config: TrainConfig, step: int
) -> float:
    """Largest difference of any rank between sampler and learner on one answer; SyncError past the tolerance."""
    difference = check_sync(
        sampler.score(prompt, answer.token_ids),
        learner.score(prompt, answer.token_ids),
        config.sync_tolerance,
        step + 1,
    )
    return max(gather(difference))


def batch_metrics(
    config: TrainConfig,
    rewards: np.ndarray,
    advantages: np.ndarray,
    fits: list[BetaFit],
    answers: list[list[Answer]],
    lengths: np.ndarray,
) -> dict[str, float]:
    """Metrics of what was sampled: rewards, Beta statistics, groups without a signal, lengths."""
    finished = np.array([[answer.finished for answer in group] for group in answers])
    metrics = {
        "reward/mean": rewards.mean(),
        "groups/all_equal": (rewards == rewards[:, :1]).all(axis=(1, 2)).mean(),
        "advantage/std": advantages.std(),
        "answers/mean_tokens": lengths.mean(),
        "answers/max_tokens": lengths.max(),
        "answers/truncated": 1 - finished.mean(),
        "tokens/sampled": lengths.sum(),
    }
    metrics |= {f"reward/{name}": rewards[:, :, k].mean() for k, name in enumerate(config.rewards)}
    for k, fit in enumerate(fits):
        prefix = f"beta/{config.rewards[k]}/" if len(fits) > 1 else "beta/"
        values = {"E": fit.mean, "V": fit.variance, "a": fit.a, "b": fit.b, "alpha": fit.alpha, "beta": fit.beta}
        metrics |= {prefix + name: value for name, value in values.items()} | {f"{prefix}edge": float(bool(fit.edge))}
    return {name: float(value) for name, value in metrics.items()}


def rollout_rows(
    inputs: Inputs,
    config: TrainConfig,
    batch: np.ndarray,
    answers: list[list[Answer]],
    rewards: np.ndarray,
    advantages: np.ndarray,
) -> list[dict]:
    """One row an answer, for people to read."""
    return [
        {
            "id": inputs.problems[question].id,
            "prompt": inputs.tokenizer.decode(inputs.prompts[question]),
            "reference": inputs.problems[question].answer,
            "answer": inputs.tokenizer.decode(answer.token_ids),
            "rewards": dict(zip(config.rewards, rewards[i, j].tolist(), strict=True)),
            "advantage": advantages[i, j],
        }
        for i, question in enumerate(batch)
        for j, answer in enumerate(answers[i])
    ]
