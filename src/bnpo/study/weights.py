"""What tells the methods apart: their advantages on the same answers, before any update."""

import json

import numpy as np

from bnpo.algorithm.advantages import compute_advantages
from bnpo.files import ROOT

WEIGHING = ("reinforce", "grpo", "maxrl", "bnpo")
"""Methods whose advantage is w(p) (R - p), p the accuracy of the question."""
SAMPLED = 32
"""Answers to each question from which scripts/make_study_data.py took its accuracy."""


def base_advantages(regime: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Advantages [n, m] by method of answers as right as the base model's to the n training questions of a regime,
    taken as one batch, and the accuracies [n]."""
    lines = (ROOT / "data" / "study" / f"{regime}-train.jsonl").read_text(encoding="utf-8").splitlines()
    right = np.round([json.loads(line)["accuracy"] * SAMPLED for line in lines])
    rewards = (np.arange(SAMPLED) < right[:, None]).astype(float)  # [n, m]
    lengths = np.ones(rewards.shape)
    names = (*WEIGHING, "reinforce_pp")
    return {name: compute_advantages(name, rewards[:, :, None], lengths=lengths)[0] for name in names}, right / SAMPLED


def base_weights(regime: str) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """By method, accuracies that occur strictly between 0 and 1 and the weights w(p) there, scaled to advantages of
    root mean square 1 in the regime, and the accuracies of all questions [n]."""
    advantages, accuracies = base_advantages(regime)
    p, first = np.unique(accuracies, return_index=True)
    inside = (p > 0) & (p < 1)
    p, first = p[inside], first[inside]
    weights = {}
    for name in WEIGHING:
        scale = np.sqrt((advantages[name] ** 2).mean())
        weights[name] = (p, advantages[name][first, 0] / (1 - p) / scale)  # the first answer is right
    return weights, accuracies


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Of two arrays of one shape, as vectors."""
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))
