"""Metrics and rollout records of one step, as they stand in a run's folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bnpo.batch import Batch, Group, Task, all_wrong_energy, has_signal, right_reward
from bnpo.config import TrainConfig
from bnpo.grading.rewards import reward_name
from bnpo.policy.learner import Update
from bnpo.policy.speed import gpu_name, speed_metrics, training_operations
from bnpo_estimators import BetaFit, trained_rewards

TOKEN_GROUPS = 2  # questions per step whose answers are also written token by token


@dataclass(frozen=True)
class Step:
    """What step `number` (from 1) did."""

    number: int
    batch: Batch
    advantages: np.ndarray  # [q, m]
    fits: list[BetaFit]  # to the accuracies: one, one per reward, or none without ranges
    update: Update
    # Mean |sampler's - learner's log-probability| of one answer after the weight sync
    sync_difference: float
    seconds: dict[str, float]  # by phase

    def metrics(
        self,
        config: TrainConfig,
        ranges: Sequence[tuple[float, float]],
        model: torch.nn.Module,
    ) -> dict[str, float]:
        """Return all metrics of the step itself, as metrics.jsonl names them.

        `ranges` [K] are those of the rewards, `model` is the learner's.
        """
        batch = self.batch
        failures = self.batch.failures
        rewards, lengths = batch.rewards, batch.lengths  # [q, m, K], [q, m]
        # Of all answers, one behind the other: [tokens]
        logprobs = np.concatenate(
            [answer.logprobs for group in batch.groups for answer in group.answers]
        )
        operations = training_operations(model, batch, self.advantages)
        metrics = self.update.metrics | {
            "update/tflop": config.batch.ppo_iterations * operations / 1e12,
            "reward/timeouts": failures["timeout"],
            "reward/errors": failures.total() - failures["timeout"],
            "advantage/std": self.advantages.std(),
            # The mean of -log pi over all sampled tokens: an unbiased estimate that needs no extra
            # pass.
            "entropy": -logprobs.mean(),
            "answers/mean_tokens": lengths.mean(),
            "answers/max_tokens": lengths.max(),
            "answers/truncated": 1 - batch.finished.mean(),
            "tokens/sampled": lengths.sum(),
            "tokens/greedy": sum(
                len(group.greedy.answer.token_ids) for group in batch.groups if group.greedy
            ),
        }
        if config.batch.resample_rounds:
            metrics["groups/drawn"] = len(rewards)
        if batch.failed.any():
            metrics["answers/left_out"] = batch.failed.mean()
        metrics |= {
            f"reward/errors/{kind}": count for kind, count in failures.items() if kind != "timeout"
        }
        metrics |= _reward_metrics(batch, config, ranges)
        metrics |= _signal_metrics(batch, self.advantages, config, ranges)
        for k, fit in enumerate(self.fits):
            prefix = f"beta/{config.data.reward_names[k]}/" if len(self.fits) > 1 else "beta/"
            metrics |= {prefix + "E": fit.mean, prefix + "V": fit.variance}
            for name in ("a", "b", "alpha", "beta"):
                metrics[prefix + name] = getattr(fit, name)
            metrics[prefix + "edge"] = bool(fit.edge)
        metrics = {name: float(value) for name, value in metrics.items()} | {
            "sync/difference": self.sync_difference
        }
        return metrics | speed_metrics(metrics, self.seconds, batch.sampling_seconds, gpu_name())


def _reward_metrics(
    batch: Batch, config: TrainConfig, ranges: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Return the means of the rewards, of the answers that training does not leave out."""
    counted = ~batch.failed  # [q, m]
    # Rewards as they are trained on, weighted and mapped from their ranges: [q, m], nan if left out
    combined = trained_rewards(config.method, batch.rewards, ranges=ranges, failed=batch.failed)
    question_means = np.nanmean(combined[counted.any(axis=1)], axis=1)  # [q], or fewer
    means = {"reward/mean": _mean(combined[counted]), "reward/se": _standard_error(question_means)}
    for k, name in enumerate(config.data.reward_names):
        means[f"reward/{name}"] = _mean(batch.rewards[:, :, k][counted])
    return means


def _signal_metrics(
    batch: Batch,
    advantages: np.ndarray,  # [q, m]
    config: TrainConfig,
    ranges: Sequence[tuple[float, float]],
) -> dict[str, float]:
    """Return the shares of questions without a signal, the lengths of right and of wrong answers
    and, with several rewards, how much of the advantages lies in groups without a right answer.
    """
    rewards, failed = batch.rewards, batch.failed  # [q, m, K], [q, m]
    metrics = {"groups/all_equal": _equal_share(batch, config.signal_rewards)}
    several = rewards.shape[2] > 1
    for k, name in enumerate(config.data.reward_names if several else ()):
        metrics[f"groups/all_equal/{name}"] = _equal_share(batch, [k])
    first = config.signal_rewards[0]
    values = rewards[:, :, first]  # [q, m]
    right = right_reward(values, failed, ranges[first][1])
    metrics["answers/mean_tokens/right"] = _mean(batch.lengths[(values == right) & ~failed])
    metrics["answers/mean_tokens/wrong"] = _mean(batch.lengths[(values < right) & ~failed])
    if several:
        trained = batch.trained_groups
        metrics["advantage/energy_all_wrong"] = all_wrong_energy(
            advantages[trained], values[trained], failed[trained], right
        )
    return metrics


def _equal_share(batch: Batch, rewards: Sequence[int]) -> float:
    return float((~has_signal(batch.rewards[:, :, rewards], batch.failed)).mean())


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan


def _standard_error(question_means: np.ndarray) -> float:
    """Return the standard error of the mean of values [q], one for each question."""
    # Only questions are independent, not the answers to one of them
    q = len(question_means)
    return float(question_means.std(ddof=1) / np.sqrt(q)) if q > 1 else np.nan


def eval_metrics(results: dict) -> dict[str, float]:
    """Return the scores of an evaluation as metrics.jsonl names them."""
    scores = product(results["results"], ("pass1", "se", "mean_tokens", "truncated"))
    of_datasets = {
        f"eval/{dataset}/{score}": results["results"][dataset][score] for dataset, score in scores
    }
    return {"eval/average": results["average"]["pass1"]} | of_datasets


def rollout_rows(
    task: Task, groups: Sequence[Group], advantages: np.ndarray | None = None
) -> list[dict]:
    """Return one row per answer of the `groups` [q], with `advantages` [q, m] if given."""
    reward_names = list(map(reward_name, task.grader.rewards))
    rows = []
    for i, group in enumerate(groups):
        problem = task.problems[group.question]
        prompt = task.tokenizer.decode(group.prompt)
        for j, answer in enumerate(group.answers):
            rewards = group.grades.rewards[j].tolist()
            row = {
                "id": problem.id,
                "prompt": prompt,
                "reference": problem.answer,
                "answer": task.tokenizer.decode(answer.token_ids),
                "tokens": len(answer.token_ids),
                "rewards": dict(zip(reward_names, rewards, strict=True)),
                "cut_off": not answer.finished,
            }
            if group.failed[j]:
                row["failed"] = True
            if advantages is not None:
                row["advantage"] = advantages[i, j]
            rows.append(row)
    return rows


def token_rows(task: Task, step: Step, learner_logprobs: Mapping[int, np.ndarray]) -> list[dict]:
    """Return TOKEN_GROUPS groups token by token, the first trained ones with a signal, one row per
    answer.

    `learner_logprobs` [tokens] are from before the update, by index of the trained answer. Some
    answers have none.
    """
    _, m = step.advantages.shape
    trained = enumerate(step.batch.trained_groups.tolist())  # Python's integers, which JSON knows
    with_signal = [(k, i) for k, i in trained if step.advantages[i].any()]
    rows = []
    for k, i in with_signal[:TOKEN_GROUPS]:
        group = step.batch.groups[i]
        for j, answer in enumerate(group.answers):
            learner = learner_logprobs.get(k * m + j)
            rows.append(
                {
                    "id": task.problems[group.question].id,
                    "sample": j,
                    "ids": answer.token_ids,
                    # In the file of all answers, as ids need not be unique
                    "place": i * m + j,
                    "texts": [_token_text(task.tokenizer, token) for token in answer.token_ids],
                    "sampler": _for_json(answer.logprobs),
                    "learner": None if learner is None else _for_json(learner),
                }
            )
    return rows


def _for_json(values: np.ndarray) -> list[float | None]:
    """Return the values as a list, with None for those that JSON does not know."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text of a token, or its name in the vocabulary where its bytes alone are no
    text.
    """
    text = tokenizer.decode([token])
    return tokenizer.convert_ids_to_tokens(token) if "\ufffd" in text else text
