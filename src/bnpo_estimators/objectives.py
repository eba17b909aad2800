"""What training maximises with m answers to each question, exactly, for rewards of 0 and 1.

With m answers, the accuracy p is only known as k / m, where k answers are right. docs/theory.md
derives the formulas.
"""

import numpy as np
import scipy  # `scipy.stats` is loaded on first use
from numpy.typing import ArrayLike

from bnpo_estimators.estimators import Method, RewardBatch
from bnpo_estimators.registry import SettingError
from bnpo_estimators.weights import shares


def gains(right: np.ndarray) -> np.ndarray:
    """Return u(b) [m]: how much more advantage an answer has if it is right, where b of the m - 1
    others are right, for advantages (R - p) w(p).

    `right` [m - 1] is w at the accuracies `shares(m)`. A right answer has the advantage (1 - k/m)
    w(k/m) with k = b + 1, a wrong one -k/m w(k/m) with k = b.
    """
    values = np.zeros(len(right) + 1)
    values[:-1] = (1 - shares(len(values))) * right
    values[1:] += shares(len(values)) * right
    return values


def method_gains(method: Method | str, answers: int, questions: int = 32) -> np.ndarray:
    """Return the gains [m] of any method (or its `algo`) that sees one question at a time, from its
    advantages themselves, with m = `answers` per question and `questions` per batch.

    Raises SettingError for other methods: they need more than the rewards, or depend on the other
    questions. For BNPO, take `beta` with the parameters of a fit. Raises ValueError for fewer than
    1 question or answer.
    """
    method = Method(method) if isinstance(method, str) else method
    if min(questions, answers) < 1:
        raise ValueError("`questions` and `answers` must be at least 1")
    method.check(questions, answers, 1)
    estimator = method.estimator
    problem = f"`algo`: {method.algo} has no objective of its own"
    if needs := estimator.needs - {"range"}:
        named = ", ".join(sorted(needs)).replace("_", " ")
        raise SettingError(f"{problem}: it needs {named}, beside one reward for each answer")
    # [m + 1, m]: in row k, the first k of m answers are right
    rewards = np.tril(np.ones((answers + 1, answers)), k=-1)
    advantages = np.empty(rewards.shape)
    for k in range(answers + 1):
        alike = np.tile(rewards[k], (questions, 1))  # [n, m]
        advantages[k] = estimator.function(RewardBatch(alike, method))[0]
        # The same first question, and others behind it with more right answers, or with fewer
        for step in (1, -1):
            mixed = rewards[(k + step * np.arange(questions)) % (answers + 1)]  # [n, m]
            among_others = estimator.function(RewardBatch(mixed, method))[0]
            if not np.allclose(advantages[k], among_others):
                raise SettingError(f"{problem}: it depends on the other questions of the batch")
    # u(b) is the advantage of a right answer less that of a wrong one, if b of the m - 1 others are
    # right: of the first answer in row b + 1, and of the last one in row b
    return advantages[1:, 0] - advantages[:-1, -1]


def exact_weight(p: ArrayLike, gain: np.ndarray) -> np.ndarray:
    """Return w_m(p), of the shape of `p`: the expected gradient of a question over the gradient of
    p, E[u(B)] with B ~ Bin(m - 1, p). Raises ValueError for p outside [0, 1].

    >>> exact_weight([0.1, 0.9], gains(np.array([4.0])))  # with m = 2 half the weight
    array([2., 2.])
    """
    m, p = len(gain), _accuracies(p)
    return scipy.stats.binom.pmf(np.arange(m), m - 1, p[..., None]) @ gain


def exact_objective(p: ArrayLike, gain: np.ndarray) -> np.ndarray:
    """Return J_m(p), of the shape of `p`: the integral of w_m from 0 to p, which is the sum over b
    of u(b) P(B > b) / m with B ~ Bin(m, p). Raises ValueError for p outside [0, 1].

    Pass@2 at p = 1/2 is 3/4:

    >>> exact_objective([0.5], method_gains(Method("pass_at_k", k=2), answers=8))
    array([0.75])
    """
    m, p = len(gain), _accuracies(p)
    return scipy.stats.binom.sf(np.arange(m), m, p[..., None]) @ gain / m


def _accuracies(p: ArrayLike) -> np.ndarray:
    values = np.asarray(p, dtype=float)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("accuracies p must be numbers from 0 to 1")
    return values
