"""Kept batches of a run: whether a Beta distribution fits them, and what every estimator would have made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import ALGORITHMS, Method
from bnpo.algorithm.goodness import beta_p_value
from bnpo.files import whole_json_lines
from bnpo.grading.rewards import BUILT_IN, reward_name

NOT_KNOWN = ("remax", "beta")
"""Estimators that need what is not kept (greedy answers) or not set (alpha and beta)."""
RESAMPLES = 99
"""Draws of the parametric bootstrap for each batch of a page."""


@dataclass(frozen=True)
class Batch:
    """The batch of a training step, as it was kept: n questions with m answers each, and K rewards for an answer."""

    ids: list[str]  # [n]
    rewards: np.ndarray  # [n, m, K]
    lengths: np.ndarray  # [n, m], in tokens
    advantages: np.ndarray  # [n, m], those that were trained on


def read_batch(path: Path, answers: int) -> Batch | None:
    """Return the batch in a file of rollouts with `answers` = m answers to each question; None: it is not whole."""
    rows = whole_json_lines(path)
    if not rows or len(rows) % answers:
        return None
    rewards = np.array([list(row["rewards"].values()) for row in rows], float).reshape(
        -1, answers, len(rows[0]["rewards"])
    )
    lengths = np.array([row["tokens"] for row in rows]).reshape(-1, answers)
    advantages = np.array([row["advantage"] for row in rows], float).reshape(-1, answers)
    return Batch([row["id"] for row in rows[::answers]], rewards, lengths, advantages)


def reward_ranges(config: Mapping) -> np.ndarray:
    """Return the lowest and the highest value [K, 2] of each reward of a run."""
    return np.array([(0, 1) if reward in BUILT_IN else config["reward_range"] for reward in config["rewards"]])


def beta_p_values(batch: Batch, config: Mapping, resamples: int) -> dict[str, float | None]:
    """Return the p-value that the accuracies have a Beta distribution, for each reward that is 0 or 1, by its name.

    A single reward has the name "", as its density has on the page.
    """
    values = {}
    for k, reward in enumerate(config["rewards"]):
        right = batch.rewards[:, :, k]  # [n, m]
        if np.isin(right, (0, 1)).all():
            name = reward_name(reward) if len(config["rewards"]) > 1 else ""
            values[name] = beta_p_value(right.sum(axis=1).astype(int), right.shape[1], resamples)
    return values


def counterfactual(batch: Batch, config: Mapping) -> dict:
    """Return the advantages of a batch by every estimator, and their cosines with those that were trained on.

    `questions` has a row for each kind of answer to a question, as [id, rewards, number of such answers, advantages by
    estimator]. Answers with the same rewards to one question have the same advantage.
    """
    estimates = {}
    for algo in ALGORITHMS.keys() - set(NOT_KNOWN):
        settings = {name: config[name] for name in ("beta_moments", "max_concentration")}
        method = Method(algo, decompose=config["decompose"] and algo != "gdpo", **settings)
        ranges = reward_ranges(config)
        estimates[algo] = compute_advantages(method, batch.rewards, ranges=ranges, lengths=batch.lengths).values
    names = sorted(estimates)
    by_answer = np.stack([estimates[name] for name in names], axis=2)  # [n, m, estimators]
    norms = np.linalg.norm(by_answer, axis=(0, 1)) * np.linalg.norm(batch.advantages)  # [estimators]
    products = (by_answer * batch.advantages[:, :, None]).sum(axis=(0, 1))  # [estimators]
    cosines = [product / norm if norm else None for product, norm in zip(products, norms, strict=True)]
    questions = []
    for question, rewards, advantages in zip(batch.ids, batch.rewards, by_answer, strict=True):
        kinds, first, counts = np.unique(rewards, axis=0, return_index=True, return_counts=True)
        for kind, index, count in zip(kinds, first, counts, strict=True):
            shown = [float(f"{value:.3g}") for value in advantages[index]]
            questions.append([question, kind.tolist(), int(count), shown])
    return {"estimators": names, "cosines": cosines, "questions": questions}
