"""What is told of a step: its metrics and its answers, as they stand in a run's folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.beta import BetaFit
from bnpo.rollouts import Rollouts
from bnpo.speed import Stopwatch, gpu_name, speed_metrics
from bnpo.task import Task

TOKEN_GROUPS = 2
"""Questions of a step whose answers are also kept token by token."""


@dataclass(frozen=True)
class Step:
    """What step `number` (from 1) made: rollouts, advantages [n, m], the Beta fits of BNPO, the learner's metrics, the
    mean difference of log-probabilities between sampler and learner after the sync, and the time it took."""

    number: int
    rollouts: Rollouts
    advantages: np.ndarray
    fits: list[BetaFit]
    update: dict[str, float]
    sync_difference: float
    watch: Stopwatch

    def metrics(self, reward_names: Sequence[str]) -> dict[str, float]:
        """All of it but what the run around the step adds."""
        metrics = self.update | batch_metrics(self.rollouts, self.advantages, self.fits, reward_names)
        metrics["sync/difference"] = self.sync_difference
        sampling = self.rollouts.sampling_seconds
        return metrics | speed_metrics(metrics, self.watch, sampling, dist.get_world_size(), gpu_name())


def batch_metrics(
    rollouts: Rollouts, advantages: np.ndarray, fits: list[BetaFit], reward_names: Sequence[str]
) -> dict[str, float]:
    """Metrics of what was sampled: rewards, Beta statistics, groups without a signal, lengths in tokens."""
    rewards, lengths = rollouts.rewards, rollouts.lengths
    finished = np.array([[answer.finished for answer in group] for group in rollouts.answers])
    metrics = {
        "reward/mean": rewards.mean(),
        "reward/se": _standard_error(rewards),
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


def _standard_error(rewards: np.ndarray) -> float:
    """Of the mean of rewards [n, m, K]: its n independent draws are the questions."""
    groups = rewards.mean(axis=(1, 2))
    return groups.std(ddof=1) / np.sqrt(len(groups)) if len(groups) > 1 else np.nan


def eval_metrics(results: dict) -> dict[str, float]:
    """The scores of an evaluation."""
    metrics = {"eval/average": results["average"]["pass1"]}
    for name, result in results["results"].items():
        metrics |= {f"eval/{name}/{score}": result[score] for score in ("pass1", "se", "mean_tokens", "truncated")}
    return metrics


def rollout_rows(
    task: Task,
    rollouts: Rollouts,
    reward_names: Sequence[str],
    advantages: np.ndarray | None = None,
    *,
    tokens: bool = False,
) -> list[dict]:
    """One row an answer, for people to read, with `advantages` [n, m] if there are; with `tokens` also all that the
    learner was given."""
    rows = []
    for i, question in enumerate(rollouts.questions):
        problem, prompt = task.problems[question], task.prompts[question]
        for j, answer in enumerate(rollouts.answers[i]):
            row = {
                "id": problem.id,
                "prompt": task.tokenizer.decode(prompt),
                "reference": problem.answer,
                "answer": task.tokenizer.decode(answer.token_ids),
                "tokens": len(answer.token_ids),
                "rewards": dict(zip(reward_names, rollouts.rewards[i, j].tolist(), strict=True)),
                "cut_off": not answer.finished,
            }
            if rollouts.failed[i, j]:
                row["failed"] = True
            if advantages is not None:
                row["advantage"] = advantages[i, j]
            if tokens:
                row |= {"prompt_ids": prompt, "answer_ids": answer.token_ids}
                row["sampler_logprobs"] = answer.logprobs.tolist()
            rows.append(row)
    return rows


def token_groups(advantages: np.ndarray) -> np.ndarray:
    """The first TOKEN_GROUPS questions that have a signal, from advantages [n, m]."""
    return np.flatnonzero(advantages.any(axis=1))[:TOKEN_GROUPS]


def token_rows(task: Task, step: Step, learner_logprobs: Mapping[int, np.ndarray]) -> list[dict]:
    """The groups of `token_groups` token by token, a row an answer: id of the question, place in its group, token ids,
    the text of each, and log-probabilities under the sampler and, from `learner_logprobs` by place in the experience,
    under the learner before the update (None where the answer did not pass it)."""
    rows = []
    for i in token_groups(step.advantages):
        group = step.rollouts.answers[i]
        for j, answer in enumerate(group):
            learner = learner_logprobs.get(i * len(group) + j)
            row = {"id": task.problems[step.rollouts.questions[i]].id, "sample": j, "ids": answer.token_ids}
            row["texts"] = [_token_text(task.tokenizer, token) for token in answer.token_ids]
            row["sampler"] = answer.logprobs.tolist()
            row["learner"] = None if learner is None else learner.tolist()
            rows.append(row)
    return rows


def _token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Its text or, where its bytes are no text by themselves, what the vocabulary calls it."""
    text = tokenizer.decode([token])
    return tokenizer.convert_ids_to_tokens(token) if "\ufffd" in text else text
