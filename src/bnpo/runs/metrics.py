"""Metrics and rollout records of one step, as they stand in a run's folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.advantages import trained_rewards
from bnpo.algorithm.beta import BetaFit
from bnpo.config import TrainConfig
from bnpo.grading.rewards import reward_name
from bnpo.policy.speed import Stopwatch, gpu_name, speed_metrics
from bnpo.rollouts import Rollouts, Task, has_signal

TOKEN_GROUPS = 2  # questions per step whose answers are also written token by token


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
    # Mean |sampler's - learner's log-probability| of one answer after the weight sync
    sync_difference: float
    stopwatch: Stopwatch

    def metrics(
        self, config: TrainConfig, ranges: Sequence[tuple[float, float]]
    ) -> dict[str, float]:
        """Return all metrics of the step itself, as metrics.jsonl names them.

        `ranges` [K] are those of the rewards.
        """
        rollouts, failures = self.rollouts, self.rollouts.failures
        reward_names = list(map(reward_name, config.data.rewards))
        rewards, lengths = rollouts.rewards, rollouts.lengths  # [n, m, K], [n, m]
        # Of all answers, one behind the other: [tokens]
        logprobs = np.concatenate(
            [answer.logprobs for group in rollouts.answers for answer in group]
        )
        signals = has_signal(rewards, config.method.reward_weights, rollouts.failed)  # [n]
        metrics = self.update_metrics | {
            "reward/timeouts": failures["timeout"],
            "reward/errors": failures.total() - failures["timeout"],
            "groups/all_equal": (~signals).mean(),
            "advantage/std": self.advantages.std(),
            # The mean of -log pi over all sampled tokens: an unbiased estimate that needs no extra
            # pass.
            "entropy": -logprobs.mean(),
            "answers/mean_tokens": lengths.mean(),
            "answers/max_tokens": lengths.max(),
            "answers/truncated": 1 - rollouts.finished.mean(),
            "tokens/sampled": lengths.sum(),
            "tokens/greedy": sum(len(answer.token_ids) for answer in rollouts.greedy_answers),
        }
        if config.batch.resample_rounds:
            metrics["groups/drawn"] = len(rewards)
        if rollouts.failed.any():
            metrics["answers/left_out"] = rollouts.failed.mean()
        metrics |= {
            f"reward/errors/{kind}": count for kind, count in failures.items() if kind != "timeout"
        }
        metrics |= _reward_metrics(rollouts, config, ranges)
        for k, fit in enumerate(self.fits):
            prefix = f"beta/{reward_names[k]}/" if len(self.fits) > 1 else "beta/"
            values = {
                "E": fit.mean,
                "V": fit.variance,
                "a": fit.a,
                "b": fit.b,
                "alpha": fit.alpha,
                "beta": fit.beta,
            }
            metrics |= {
                prefix + name: value for name, value in (values | {"edge": bool(fit.edge)}).items()
            }
        metrics = {name: float(value) for name, value in metrics.items()} | {
            "sync/difference": self.sync_difference
        }
        return metrics | speed_metrics(
            metrics, self.stopwatch, rollouts.sampling_seconds, gpu_name()
        )


def _reward_metrics(
    rollouts: Rollouts, config: TrainConfig, ranges: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Return the means of the rewards, of the answers that training does not leave out."""
    counted = ~rollouts.failed  # [n, m]
    # Rewards as they are trained on, weighted and mapped from their ranges: [n, m], nan if left out
    trained = trained_rewards(
        config.method, rollouts.rewards, ranges=ranges, failed=rollouts.failed
    )
    of_questions = np.nanmean(trained[counted.any(axis=1)], axis=1)  # [n], or fewer
    means = {"reward/mean": _mean(trained[counted]), "reward/se": _standard_error(of_questions)}
    for k, reward in enumerate(config.data.rewards):
        means[f"reward/{reward_name(reward)}"] = _mean(rollouts.rewards[:, :, k][counted])
    return means


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan


def _standard_error(of_questions: np.ndarray) -> float:
    """Return the standard error of the mean of values [n], one for each question."""
    # Only questions are independent, not the answers to one of them
    n = len(of_questions)
    return float(of_questions.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def eval_metrics(results: dict) -> dict[str, float]:
    """Return the scores of an evaluation as metrics.jsonl names them."""
    scores = product(results["results"], ("pass1", "se", "mean_tokens", "truncated"))
    of_datasets = {
        f"eval/{dataset}/{score}": results["results"][dataset][score] for dataset, score in scores
    }
    return {"eval/average": results["average"]["pass1"]} | of_datasets


def rollout_rows(
    task: Task, rollouts: Rollouts, advantages: np.ndarray | None = None
) -> list[dict]:
    """Return one row per answer, with `advantages` [n, m] if given."""
    reward_names, rows = list(map(reward_name, task.grader.rewards)), []
    for i, question in enumerate(rollouts.questions):
        problem, prompt = task.problems[question], task.tokenizer.decode(task.prompts[question])
        for j, answer in enumerate(rollouts.answers[i]):
            row = {
                "id": problem.id,
                "prompt": prompt,
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
            rows.append(row)
    return rows


def token_rows(task: Task, step: Step, learner_logprobs: Mapping[int, np.ndarray]) -> list[dict]:
    """Return TOKEN_GROUPS groups token by token, the first trained ones with a signal, one row per
    answer.

    `learner_logprobs` [tokens] are from before the update, by index of the trained answer. Some
    answers have none.
    """
    rollouts, (_, m) = step.rollouts, step.advantages.shape
    rows, trained = [], enumerate(rollouts.trained.tolist())  # Python's integers, which JSON knows
    with_signal = [(k, group) for k, group in trained if step.advantages[group].any()]
    for k, group in with_signal[:TOKEN_GROUPS]:
        for j, answer in enumerate(rollouts.answers[group]):
            learner = learner_logprobs.get(k * m + j)
            row = {
                "id": task.problems[rollouts.questions[group]].id,
                "sample": j,
                "ids": answer.token_ids,
            }
            row["place"] = group * m + j  # in the file of all answers, as ids need not be unique
            row["texts"] = [_token_text(task.tokenizer, token) for token in answer.token_ids]
            row["sampler"] = answer.logprobs.tolist()
            row["learner"] = None if learner is None else np.nan_to_num(learner).tolist()
            rows.append(row)
    return rows


def _token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text of a token, or its name in the vocabulary where its bytes alone are no
    text.
    """
    text = tokenizer.decode([token])
    return tokenizer.convert_ids_to_tokens(token) if "\ufffd" in text else text
