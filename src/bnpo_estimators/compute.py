"""Advantages of a whole batch: check the rewards, map them to [0, 1], sum or separate them, call
the estimator.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnpo_estimators.beta import BetaFit
from bnpo_estimators.estimators import Method, RewardBatch
from bnpo_estimators.registry import ESTIMATORS, SettingError

# Advantages up to this size are rounding errors, as where all rewards are 0.1: they are not
# rescaled
ROUNDING = 1e-6
# Sums of rewards that differ by no more are equal: 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1
EQUAL = 1e-12
AS_THEY_ARE = (-np.inf, np.inf)  # the range of a reward that is not mapped to [0, 1]


class Advantages(NamedTuple):
    values: np.ndarray  # [n, m] float64
    # BNPO's fit to the accuracies, whatever the method is: one, or one per reward with `decompose`.
    # Empty if a reward has no finite range.
    fits: list[BetaFit]


def advantages(
    method: Method | str,  # or its `algo`
    rewards: ArrayLike,  # [n, m], or [n, m, K]
    *,
    ranges: ArrayLike = (0.0, 1.0),  # [2], or [K, 2]
    greedy_rewards: ArrayLike | None = None,  # [n], or [n, K]
    lengths: ArrayLike | None = None,  # [n, m]
    failed: ArrayLike | None = None,  # [n, m]
) -> np.ndarray:
    """Return the advantages [n, m] of a batch of n questions with m answers each.

    - `ranges`: the lowest and the highest value of the rewards. Only some methods, such as bnpo,
      need one; the others also take AS_THEY_ARE.
    - `lengths`: the tokens of each answer, for opo and the two reinforce_pp.
    - `greedy_rewards`: the reward of one greedy answer to each question, for remax.
    - `failed`: answers without a reward. They get the advantage 0, and count in no statistics.

    Raises ValueError. `compute_advantages` returns BNPO's fit, too.

    >>> advantages("grpo", [[1, 0, 0, 0], [1, 1, 1, 1]]).round(3)
    array([[ 1.5, -0.5, -0.5, -0.5],
           [ 0. ,  0. ,  0. ,  0. ]])
    """
    return compute_advantages(
        Method(method) if isinstance(method, str) else method,
        rewards,
        ranges=ranges,
        greedy_rewards=greedy_rewards,
        lengths=lengths,
        failed=failed,
    ).values


def compute_advantages(
    method: Method,
    rewards: ArrayLike,  # [n, m, K], or [n, m] if K is 1
    *,
    ranges: ArrayLike = (0.0, 1.0),  # [K, 2], or [2] for all rewards
    greedy_rewards: ArrayLike | None = None,  # [n, K], or [n] if K is 1
    lengths: ArrayLike | None = None,  # [n, m]
    failed: ArrayLike | None = None,  # [n, m]
) -> Advantages:
    """Return the advantages [n, m] of a batch of n questions with m answers each. Each answer has K
    rewards, which are mapped from their `ranges` to [0, 1] (`mapped_rewards`). BNPO's fit to the
    batch is returned for every method, as a description of the accuracies.

    An answer that has `failed`, since one of its rewards could not be computed, gets the advantage
    0, and all statistics are those of the other answers. So does a question of which fewer than two
    answers are left, and it does not count in the batch.

    >>> # One question has two answers, which differ in the first of two rewards.
    >>> rewards = [[[1, 1], [0, 1]]]
    >>> compute_advantages(Method("reinforce", decompose=True), rewards).values
    array([[ 0.25, -0.25]])

    Raises ValueError for wrong rewards and missing arguments, and SettingError, which is one, for
    wrong settings and faults of a user's estimator.
    """
    algo, estimator = method.algo, method.estimator
    has_range = bool(np.isfinite(np.asarray(ranges, dtype=float)).all())
    if estimator.needs_range and not has_range:
        raise ValueError(f"{algo} needs rewards in a finite range; pass it as `ranges`")
    rewards = mapped_rewards(rewards, ranges, failed)  # [n, m, K]
    n, m, k = rewards.shape
    method.check(n, m, k)
    known = ~np.isnan(rewards[:, :, 0])  # [n, m]
    # One answer has a signal only where every question has one
    kept = known.sum(axis=1) >= min(2, m)  # [n], questions that count
    greedy = tokens = None
    if "greedy_rewards" in estimator.needs:
        shapes = [(n, k), (n,)] if k == 1 else [(n, k)]
        if greedy_rewards is None or np.shape(greedy_rewards) not in shapes:
            cure = "grade one greedy answer per question"
            raise ValueError(f"{algo} needs greedy_rewards [n, K] = {(n, k)}: {cure}")
        without_answers = ~known.any(axis=1, keepdims=True)  # [n, 1]
        greedy = np.reshape(greedy_rewards, (n, 1, k))
        greedy = mapped_rewards(greedy, ranges, without_answers, "greedy answer")[kept]
    if "lengths" in estimator.needs:
        tokens = _checked_lengths(algo, lengths, known)[kept]

    values, fits = np.zeros((n, m)), list[BetaFit]()
    if kept.any():
        values[kept], fits = _combine(method, rewards[kept], greedy, tokens, has_range)
    counted = known & kept[:, None]  # [n, m]
    values[~counted] = 0
    largest = np.abs(values).max()
    if method.rescale_advantages and largest > ROUNDING:
        values = values / largest  # first, so that no square overflows
        values = values / np.sqrt((values**2).sum() / counted.sum())
    return Advantages(values, fits)


def _checked_lengths(algo: str, lengths: ArrayLike | None, known: np.ndarray) -> np.ndarray:
    """Return the lengths [n, m] as an array. Raises ValueError for another shape than that of
    `known`, and for numbers that are no lengths.
    """
    if lengths is None or np.shape(lengths) != known.shape:
        raise ValueError(f"{algo} needs lengths [n, m] = {known.shape}: the tokens of each answer")
    tokens = np.asarray(lengths)
    if not (np.isfinite(tokens) & (tokens >= 0))[known].all():
        raise ValueError(f"{algo} needs lengths that are finite and not negative")
    return tokens


def _combine(
    method: Method,
    rewards: np.ndarray,  # [n, m, K] in [0, 1] if they have a range, nan for failed answers
    greedy: np.ndarray | None,  # [n, 1, K]
    lengths: np.ndarray | None,  # [n, m]
    has_range: bool,
) -> Advantages:
    """Combine the rewards of an answer to one, and call the estimator: with `method.decompose`
    for each reward, and average the advantages (Eq. 17).
    """
    k = rewards.shape[2]
    reward_weights = method.weights_of_rewards(k)  # [K]

    def estimate(columns: list[int], weights: np.ndarray) -> Advantages:
        its_greedy = None if greedy is None else greedy[:, :, columns]
        return _estimate(method, rewards[:, :, columns], weights, its_greedy, lengths, has_range)

    if not method.decompose:
        values, fits = estimate(list(range(k)), reward_weights)
        return Advantages(values + 0.0, fits)  # -0.0 becomes 0.0
    weighted, fits = [], []  # weighted: K x [n, m]
    for i, reward_weight in enumerate(reward_weights):
        values, fits_of_reward = estimate([i], np.ones(1))
        weighted.append(reward_weight * values)
        fits += fits_of_reward
    return Advantages(np.sum(weighted, axis=0) / sum(reward_weights), fits)


def _estimate(
    method: Method,
    rewards: np.ndarray,  # [n, m, K], as for `_combine`, or one of them
    weights: np.ndarray,  # [K]
    greedy: np.ndarray | None,  # [n, 1, K]
    lengths: np.ndarray | None,  # [n, m]
    has_range: bool,
) -> Advantages:
    """Return the estimator's advantages [n, m] of the weighted rewards, and the fit to their means
    if they have a range.
    """
    estimator = method.estimator
    divisor = weights.sum() if estimator.unit_interval else 1.0
    combined = (rewards * weights).sum(axis=2) / divisor  # [n, m]
    # Where the rewards of a group are nearly equal, all get the lowest one
    lowest = np.nanmin(combined, axis=1, keepdims=True)  # [n, 1]
    spread = np.nanmax(combined, axis=1, keepdims=True) - lowest  # [n, 1]
    np.copyto(combined, lowest, where=(spread <= EQUAL) & ~np.isnan(combined))
    # The fit is of means, which lie in [0, 1]. It comes before the estimator, since a user's may
    # change the rewards in place.
    means = combined if estimator.unit_interval else combined / weights.sum()
    fits = [RewardBatch(means, method, weights).fit] if has_range else []
    batch = RewardBatch(combined, method, weights, lengths=lengths)
    if greedy is not None:
        batch.greedy_rewards = ((greedy * weights).sum(axis=2) / divisor)[:, 0]  # [n]
    if "separate_rewards" in estimator.needs:
        batch.separate_rewards = rewards
    return Advantages(estimator.function(batch), fits)


def try_users_estimator(method: Method, m: int, k: int) -> None:
    """Call a user's estimator for a small batch with m answers per question and K rewards, in which
    one answer has failed. Raises SettingError if it fails, or if a second call gives other
    advantages, since every rank calls it by itself.
    """
    if method.algo in ESTIMATORS:
        return
    answers = np.arange(m)[:, None]
    graded = np.repeat((answers + 1) / (m + 1), k, axis=1)
    # Some answers are right, all, none, and graded rewards: [4, m, K]
    rewards = np.stack([(answers + np.arange(k)) % 2, np.ones((m, k)), np.zeros((m, k)), graded])
    failed = np.zeros((4, m), dtype=bool)
    failed[0, -1] = m > 2
    lengths = np.arange(1, 4 * m + 1).reshape(4, m)
    arguments = {"greedy_rewards": rewards[:, 0], "lengths": lengths, "failed": failed}
    first, second = (compute_advantages(method, rewards, **arguments).values for _ in range(2))
    if not np.array_equal(first, second):
        problem = "two calls for one batch gave different advantages"
        raise SettingError(f"{method.algo}: {problem}; let it depend on the batch only")


def trained_rewards(
    method: Method,
    rewards: np.ndarray,  # [n, m, K]
    *,
    ranges: ArrayLike,  # [K, 2]
    failed: np.ndarray,  # [n, m]
) -> np.ndarray:
    """Return the weighted mean [n, m] of the mapped rewards of each answer, nan if it failed."""
    mapped = mapped_rewards(rewards, ranges, failed)  # [n, m, K]
    weights = method.weights_of_rewards(mapped.shape[2])
    return (mapped * weights).sum(axis=2) / weights.sum()


def mapped_rewards(
    rewards: ArrayLike,  # [n, m, K], or [n, m] if K is 1
    ranges: ArrayLike,  # [K, 2] or [2]
    failed: ArrayLike | None,  # [n, m]
    kind: str = "answer",
) -> np.ndarray:
    """Return rewards [n, m, K] mapped from their ranges [lowest, highest] to [0, 1], as the paper's
    section on limitations allows. AS_THEY_ARE, or another range without both ends, changes nothing.
    Answers that have failed get nan. Raises ValueError for other shapes and values outside their
    range.
    """
    try:
        rewards = np.asarray(rewards, dtype=np.float64)
    except ValueError:  # ragged lists
        rewards = np.empty(0)
    if rewards.ndim == 2:
        rewards = rewards[:, :, None]
    if rewards.ndim != 3 or 0 in rewards.shape:
        cure = "sample the same number of answers to every question, or drop the question"
        shapes = "[questions, answers] or [questions, answers, rewards]"
        raise ValueError(f"rewards must be {shapes}, none empty: {cure}")
    shape = rewards.shape[:2]
    known = np.ones(shape, dtype=bool) if failed is None else ~np.array(failed, dtype=bool)
    if known.shape != shape:
        raise ValueError(f"failed must be [n, m] = {shape}: whether a reward of an answer failed")
    # [K] each
    low, high = np.broadcast_to(np.asarray(ranges, dtype=np.float64), (rewards.shape[2], 2)).T
    is_range = low < high  # [K]
    if not is_range.all():
        k = int(is_range.argmin())
        raise ValueError(f"the range of reward {k} is {low[k]:g} to {high[k]:g}, must be rising")
    # A comparison with nan is False, so this also finds rewards that are not finite.
    inside = (rewards >= low) & (rewards <= high) & np.isfinite(rewards)  # [n, m, K]
    outside = ~inside & known[:, :, None]
    if outside.any():
        question, answer, k = np.argwhere(outside)[0].tolist()
        found = f"reward {k} of question {question}, {kind} {answer}, is "
        found += f"{rewards[question, answer, k]}, outside [{low[k]:g}, {high[k]:g}]"
        raise ValueError(f"{found}: fix the reward function, or pass its `ranges`")
    is_mapped = np.isfinite(low) & np.isfinite(high)  # [K]
    low, high = np.where(is_mapped, low, 0), np.where(is_mapped, high, 1)
    mapped = (rewards - low) / (high - low)
    np.copyto(mapped, np.nan, where=~known[:, :, None])
    return mapped
