"""The answers of one step: sampled and graded by every rank for its share of the questions, then gathered."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch.distributed as dist

from bnpo.algorithm.beta import BetaFit
from bnpo.answers.rewards import Grader
from bnpo.config import TrainConfig
from bnpo.policy.sampler import Answer, Sampler
from bnpo.problems import Problem, asks_for_tags, sampling_seeds
from bnpo.ranks import gather
from bnpo.speed import Stopwatch


@dataclass(frozen=True)
class Rollouts:
    """n questions with m answers and K rewards each, the same on all ranks.

    questions [n] indexes the training problems; answers [n][m]; rewards [n, m, K]; greedy [n] and greedy_rewards
    [n, K] belong to ReMax (else [] and None); failures counts the answers that could not be graded, by
    kind.
    """

    questions: np.ndarray
    answers: list[list[Answer]]
    rewards: np.ndarray
    greedy: list[Answer]
    greedy_rewards: np.ndarray | None
    failures: Counter[str]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every answer [n, m]."""
        return np.array([[len(answer.token_ids) for answer in group] for group in self.answers])


def collect(
    sampler: Sampler,
    grader: Grader,
    tokenizer,
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    questions: np.ndarray,
    step: int,
    config: TrainConfig,
    watch: Stopwatch,
) -> Rollouts:
    """Sample and grade answers to `questions`, indices [n] of `problems`; a collective on all ranks."""
    mine = np.split(questions, dist.get_world_size())[dist.get_rank()]
    groups: dict[int, list[Answer]] = {}
    grading, tags = {}, asks_for_tags(config.template)
    with watch("generate"):
        for number, answers in sampler.sample(
            [prompts[q] for q in mine],
            sampling_seeds(config.seed, step, mine),
            n=config.samples_per_question,
            max_tokens=config.max_answer_tokens,
            temperature=config.temperature,
            logprobs=True,
            greedy_too=config.algo == "remax",
        ):
            # Graded while the others are still sampled; what takes math-verify long does so in other processes.
            texts = tokenizer.batch_decode([answer.token_ids for answer in answers], skip_special_tokens=True)
            reference = problems[mine[number % len(mine)]].answer
            groups[number], grading[number] = answers, grader.start(texts, [reference] * len(texts), tags)
        sampler.sleep()
    with watch("reward"):
        graded = [grader.finish(grading[number]) for number in range(len(grading))]
        rewards, greedy_rewards = np.stack(graded[: len(mine)]), np.array(graded[len(mine) :])  # [n, m, K], [n, 1, K]
        sampled = [groups[number] for number in range(len(mine))]
        greedy = [groups[number][0] for number in range(len(mine), len(groups))]
    with watch("gather"):  # and wait for the slowest rank
        parts = gather((sampled, rewards, greedy, greedy_rewards, grader.take_failures()))
    samples, rewards, greedies, greedy_rewards, failures = zip(*parts, strict=True)
    return Rollouts(
        questions=questions,
        answers=list(chain.from_iterable(samples)),
        rewards=np.concatenate(rewards),
        greedy=list(chain.from_iterable(greedies)),
        greedy_rewards=np.concatenate(greedy_rewards)[:, 0] if greedy else None,
        failures=sum(failures, Counter()),
    )


def batch_metrics(
    rollouts: Rollouts, advantages: np.ndarray, fits: list[BetaFit], reward_names: Sequence[str]
) -> dict[str, float]:
    """Metrics of what was sampled: rewards, Beta statistics, groups without a signal, lengths in tokens."""
    rewards, lengths = rollouts.rewards, rollouts.lengths
    finished = np.array([[answer.finished for answer in group] for group in rollouts.answers])
    metrics = {
        "reward/mean": rewards.mean(),
        "reward/timeouts": rollouts.failures["timeout"],
        "reward/errors": rollouts.failures.total() - rollouts.failures["timeout"],
        "groups/all_equal": (rewards == rewards[:, :1]).all(axis=(1, 2)).mean(),
        "advantage/std": advantages.std(),
        # The mean of -log pi over all sampled tokens: an unbiased estimate that needs no extra pass.
        "entropy": -np.concatenate([answer.logprobs for group in rollouts.answers for answer in group]).mean(),
        "answers/mean_tokens": lengths.mean(),
        "answers/max_tokens": lengths.max(),
        "answers/truncated": 1 - finished.mean(),
        "tokens/sampled": lengths.sum(),
        "tokens/greedy": sum(len(answer.token_ids) for answer in rollouts.greedy),
    }
    metrics |= {f"reward/errors/{kind}": n for kind, n in rollouts.failures.items() if kind != "timeout"}
    metrics |= {f"reward/{name}": rewards[:, :, k].mean() for k, name in enumerate(reward_names)}
    for k, fit in enumerate(fits):
        prefix = f"beta/{reward_names[k]}/" if len(fits) > 1 else "beta/"
        values = {"E": fit.mean, "V": fit.variance, "a": fit.a, "b": fit.b, "alpha": fit.alpha, "beta": fit.beta}
        metrics |= {prefix + name: value for name, value in values.items()} | {f"{prefix}edge": bool(fit.edge)}
    return {name: float(value) for name, value in metrics.items()}
