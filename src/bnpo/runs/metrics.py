"""Metrics and rollout records of one step, as they stand in a run's folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.beta import BetaFit
from bnpo.policy.speed import Stopwatch, gpu_name, speed_metrics
from bnpo.rollouts import Rollouts, Task, has_signal

TOKEN_GROUPS = 2
"""Questions per step whose answers are also written token by token."""


@dataclass(frozen=True)
class Step:
    """What step `number` (from 1) did."""

    number: int
    place: int  # behind its last question, in the order of `questions_at`
    rollouts: Rollouts
    advantages: np.ndarray  # [n, m]
    fits: list[BetaFit]  # of BNPO: one, or one per reward
    update_metrics: dict[str, float]  # of `Learner.update`, like the next
    old_logprobs: dict[int, np.ndarray]
    sync_difference: float  # mean |sampler's - learner's log-probability| of one answer after the weight sync
    stopwatch: Stopwatch

    def metrics(self, reward_names: Sequence[str], reward_weights: Sequence[float] | None) -> dict[str, float]:
        """Return all metrics of the step itself, as metrics.jsonl names them."""
        metrics = self.update_metrics | batch_metrics(self, reward_names, reward_weights)
        metrics["sync/difference"] = self.sync_difference
        return metrics | speed_metrics(metrics, self.stopwatch, self.rollouts.sampling_seconds, gpu_name())


def batch_metrics(step: Step, reward_names: Sequence[str], reward_weights: Sequence[float] | None) -> dict[str, float]:
    """Return metrics of what was sampled: rewards, Beta statistics, groups without a signal, lengths in tokens."""
    rollouts, fits = step.rollouts, step.fits
    rewards, lengths = rollouts.rewards, rollouts.lengths  # [n, m, K], [n, m]
    finished = np.array([[answer.finished for answer in group] for group in rollouts.answers])  # [n, m]
    logprobs = np.concatenate([answer.logprobs for group in rollouts.answers for answer in group])  # [tokens]
    timeouts = rollouts.failures["timeout"]
    metrics = {
        "reward/mean": rewards.mean(),
        "reward/se": _standard_error(rewards),
        "reward/timeouts": timeouts,
        "reward/errors": rollouts.failures.total() - timeouts,
        "groups/all_equal": (~has_signal(rewards, reward_weights)).mean(),
        "advantage/std": step.advantages.std(),
        # The mean of -log pi over all sampled tokens: an unbiased estimate that needs no extra pass.
        "entropy": -logprobs.mean(),
        "answers/mean_tokens": lengths.mean(),
        "answers/max_tokens": lengths.max(),
        "answers/truncated": 1 - finished.mean(),
        "tokens/sampled": lengths.sum(),
        "tokens/greedy": sum(len(answer.token_ids) for answer in rollouts.greedy_answers),
    }
    for kind, count in rollouts.failures.items():
        if kind != "timeout":
            metrics[f"reward/errors/{kind}"] = count
    for k, name in enumerate(reward_names):
        metrics[f"reward/{name}"] = rewards[:, :, k].mean()
    for k, fit in enumerate(fits):
        prefix = f"beta/{reward_names[k]}/" if len(fits) > 1 else "beta/"
        values = {"E": fit.mean, "V": fit.variance, "a": fit.a, "b": fit.b, "alpha": fit.alpha, "beta": fit.beta}
        for name, value in values.items():
            metrics[prefix + name] = value
        metrics[f"{prefix}edge"] = bool(fit.edge)
    return {name: float(value) for name, value in metrics.items()}


def _standard_error(rewards: np.ndarray) -> float:
    """Return the standard error of the mean of rewards [n, m, K], of which only the n questions are independent."""
    question_means = rewards.mean(axis=(1, 2))  # [n]
    n = len(question_means)
    return question_means.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan


def eval_metrics(results: dict) -> dict[str, float]:
    """Return the scores of an evaluation as metrics.jsonl names them."""
    metrics = {"eval/average": results["average"]["pass1"]}
    for dataset, result in results["results"].items():
        for score in ("pass1", "se", "mean_tokens", "truncated"):
            metrics[f"eval/{dataset}/{score}"] = result[score]
    return metrics


def rollout_rows(
    task: Task,
    rollouts: Rollouts,
    reward_names: Sequence[str],
    advantages: np.ndarray | None = None,
    *,
    tokens: bool = False,
) -> list[dict]:
    """Return one row per answer, with `advantages` [n, m] if given. `tokens` adds all that the learner was given."""
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


def token_groups(advantages: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Return the first TOKEN_GROUPS questions of `trained` that have a signal, from advantages [questions, m]."""
    return trained[advantages[trained].any(axis=1)][:TOKEN_GROUPS]


def token_rows(task: Task, step: Step, groups: np.ndarray, learner_logprobs: Mapping[int, np.ndarray]) -> list[dict]:
    """Return the groups of `token_groups` token by token, one row per answer, with log-probabilities [tokens].

    `learner_logprobs` are those of the learner before the update, by place among all answers of the step. Answers that
    were not trained on have none.
    """
    rows = []
    for i in groups.tolist():  # Python's integers, which JSON knows
        group = step.rollouts.answers[i]
        for j, answer in enumerate(group):
            learner = learner_logprobs.get(i * len(group) + j)
            row = {"id": task.problems[step.rollouts.questions[i]].id, "sample": j, "ids": answer.token_ids}
            row["place"] = i * len(group) + j  # in the file of all answers, as ids need not be unique
            row["texts"] = [_token_text(task.tokenizer, token) for token in answer.token_ids]
            row["sampler"] = answer.logprobs.tolist()
            row["learner"] = None if learner is None else learner.tolist()
            rows.append(row)
    return rows


def _token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text of a token, or its name in the vocabulary where its bytes alone are no text."""
    text = tokenizer.decode([token])
    return tokenizer.convert_ids_to_tokens(token) if "\ufffd" in text else text
