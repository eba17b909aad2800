"""Advantages of a whole batch: check the rewards, map them to [0, 1], sum or separate them, call
the estimator.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bnpo.algorithm.beta import BetaFit
from bnpo.algorithm.estimators import Batch, Method
from bnpo.algorithm.registry import ESTIMATORS, fault_in, find_estimator
from bnpo.files import InputError

# Advantages up to this size are rounding errors, as where all rewards are 0.1: they are not
# rescaled
ROUNDING = 1e-6
# Sums of rewards that differ by no more are equal: 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1
EQUAL = 1e-12
AS_THEY_ARE = (-np.inf, np.inf)  # the range of a reward that is not mapped to [0, 1]


class Advantages(NamedTuple):
    values: np.ndarray  # [n, m] float64
    # From estimators that log their fit, such as bnpo: one, or one per reward with `decompose`
    fits: list[BetaFit]


def compute_advantages(
    method: Method,
    rewards: np.ndarray | Sequence,  # [n, m, K]
    *,
    ranges: np.ndarray | Sequence = (0.0, 1.0),  # [K, 2], or [2] for all rewards
    greedy_rewards: np.ndarray | None = None,  # [n, K]
    lengths: np.ndarray | None = None,  # [n, m]
    failed: np.ndarray | None = None,  # [n, m]
) -> Advantages:
    """Return the advantages [n, m] of a batch of n questions with m answers each. Each answer has K
    rewards.

    Each reward is mapped from its range [lowest, highest] to [0, 1], as the paper's section on
    limitations allows. With the range AS_THEY_ARE it is not, which estimators that need [0, 1]
    refuse. With `method.decompose` the advantages of each reward are computed separately, then
    averaged (Eq. 17). Otherwise the rewards of an answer are summed, or averaged for estimators on
    the `unit_interval`, with `method.reward_weights`. Some need `greedy_rewards` or `lengths`.

    An answer that has `failed`, since one of its rewards could not be computed, gets the advantage
    0, and all statistics are those of the other answers. So is a question of which fewer than two
    answers are left, and it does not count in the batch.

    >>> # One question has two answers, which differ in the first of two rewards.
    >>> rewards = [[[1, 1], [0, 1]]]
    >>> compute_advantages(Method("reinforce", decompose=True), rewards).values
    array([[ 0.25, -0.25]])

    Raises ValueError for ragged rewards, rewards out of range, missing arguments, and wrong
    settings (SettingError); InputError for faults of a user's estimator.
    """
    algo = method.algo
    found = find_estimator(algo)
    if found.needs_range and np.isinf(np.asarray(ranges, dtype=float)).any():
        raise ValueError(f"{algo} needs rewards in a finite range; pass it as `ranges`")
    rewards = _as_array(rewards)
    n, m, k = rewards.shape
    method.check(n, m, k)
    known = _known_answers(failed, n, m)  # [n, m]
    rewards = _to_unit_interval(rewards, ranges, known, "answer")  # [n, m, K]
    greedy = tokens = None
    if "greedy_rewards" in found.needs:
        greedy = _greedy_rewards(algo, greedy_rewards, ranges, known, k)  # [n, 1, K]
    if "lengths" in found.needs:
        tokens = _lengths(algo, lengths, n, m)  # [n, m]

    # One answer has a signal only where every question has one
    kept = known.sum(axis=1) >= min(2, m)  # [n], questions that count
    values = np.zeros((n, m))
    if not kept.any():
        return Advantages(values, [])
    greedy, tokens = (None if array is None else array[kept] for array in (greedy, tokens))
    values[kept], fits = _of_known_answers(method, rewards[kept], greedy, tokens)
    counted = known & kept[:, None]  # [n, m]
    if np.isnan(values[counted]).any():
        raise ValueError(f"{algo} gave nan; it must leave out rewards that are nan (see `Batch`)")
    values[~counted] = 0
    if method.rescale_advantages:
        values = _rescaled(values, counted.sum())
    return Advantages(values, fits)


def _known_answers(failed: np.ndarray | None, n: int, m: int) -> np.ndarray:
    """Return which answers have not failed, [n, m]. Raises ValueError for another shape."""
    known = np.ones((n, m), dtype=bool) if failed is None else ~np.array(failed, dtype=bool)
    if known.shape != (n, m):
        raise ValueError(f"failed must be [n, m] = {(n, m)}: whether a reward of an answer failed")
    return known


def _lengths(algo: str, lengths: np.ndarray | None, n: int, m: int) -> np.ndarray:
    """Return the tokens of each answer, [n, m]. Raises ValueError if they are missing."""
    if lengths is None or np.shape(lengths) != (n, m):
        raise ValueError(f"{algo} needs lengths [n, m] = {(n, m)}: the tokens of each answer")
    return np.asarray(lengths)


def _rescaled(values: np.ndarray, count: int) -> np.ndarray:
    """Return advantages [n, m] over the root mean square of the `count` answers that have one."""
    largest = np.abs(values).max()
    if largest <= ROUNDING:
        return values
    values = values / largest  # first, so that no square overflows
    return values / np.sqrt((values**2).sum() / count)


def _greedy_rewards(
    algo: str,
    greedy_rewards: np.ndarray | None,  # [n, K]
    ranges: np.ndarray | Sequence,
    known: np.ndarray,  # [n, m]
    k: int,
) -> np.ndarray:
    """Return the rewards [n, 1, K] of the greedy answers, mapped like those of the others."""
    n = len(known)
    if greedy_rewards is None or np.shape(greedy_rewards) != (n, k):
        raise ValueError(
            f"{algo} needs greedy_rewards [n, K] = {(n, k)}: grade one greedy answer per question"
        )
    has_answers = np.array([[answers.any()] for answers in known])  # [n, 1]
    greedy = np.reshape(np.asarray(greedy_rewards, dtype=np.float64), (n, 1, k))
    return _to_unit_interval(greedy, ranges, has_answers, "greedy answer")


def _of_known_answers(
    method: Method,
    rewards: np.ndarray,  # [n, m, K] in [0, 1], nan for failed answers
    greedy: np.ndarray | None,  # [n, 1, K]
    lengths: np.ndarray | None,  # [n, m]
) -> Advantages:
    """Return the advantages of questions with known rewards. Those of failed answers may be nan."""
    found, k = find_estimator(method.algo), rewards.shape[2]
    # Weights [K]
    weights = np.ones(k) if method.reward_weights is None else np.array(method.reward_weights)
    # With `decompose` each reward is a part; then the weighted average of the parts' advantages.
    parts = [[i] for i in range(k)] if method.decompose else [list(range(k))]
    outer_weights = weights if method.decompose else np.ones(1)  # [parts]
    weighted, fits = [], []  # weighted: parts x [n, m]
    for part, outer_weight in zip(parts, outer_weights, strict=True):
        inner_weights = np.ones(1) if method.decompose else weights
        divisor = inner_weights.sum() if found.unit_interval else 1.0
        combined = (rewards[:, :, part] * inner_weights).sum(axis=2) / divisor  # [n, m]
        combined_greedy = None
        if greedy is not None:
            combined_greedy = ((greedy[:, :, part] * inner_weights).sum(axis=2) / divisor)[:, 0]
        # Where the rewards of a group are nearly equal, all get the lowest one
        lowest, highest = (f(combined, axis=1, keepdims=True) for f in (np.nanmin, np.nanmax))
        nearly_equal = (highest - lowest <= EQUAL) & ~np.isnan(combined)  # [n, m]
        np.copyto(combined, lowest, where=nearly_equal)
        separate = rewards[:, :, part] if "separate_rewards" in found.needs else None
        batch = Batch(combined, method, inner_weights, separate, combined_greedy, lengths)
        weighted.append(outer_weight * _estimate(method.algo, batch))
        if found.logs_fit:
            fits.append(batch.fit(method.beta_moments))
    return Advantages(np.sum(weighted, axis=0) / sum(outer_weights), fits)


def _estimate(algo: str, batch: Batch) -> np.ndarray:
    """Return the advantages [n, m] of a batch. Faults of a user's function are InputErrors."""
    function = find_estimator(algo).function
    if algo in ESTIMATORS:
        return function(batch)
    known = ~np.isnan(batch.rewards)  # [n, m]
    try:
        values = np.asarray(function(batch), dtype=np.float64)
    except (Exception, SystemExit) as error:
        raise InputError(f"{algo}: {fault_in(algo.rpartition(':')[0], error)}") from error
    if values.shape != known.shape:
        shapes = f"returned shape {list(values.shape)}, must be [n, m] = {list(known.shape)}"
        raise InputError(f"{algo}: {shapes}, like batch.rewards")
    if not np.isfinite(values[known]).all():
        cure = "leave out rewards that are nan, as np.nanmean does, and do not divide by 0"
        raise InputError(f"{algo}: returned an advantage that is not finite; {cure}")
    return values


def try_users_estimator(method: Method, m: int, k: int) -> None:
    """Call the user's estimator of `method` for a small batch with m answers per question and K
    rewards, in which one answer has failed. Does nothing for a built-in one.

    Raises InputError if it fails, if its advantages do not have the shape of the rewards or are not
    finite, or if a second call gives others, since every rank calls it by itself.
    """
    if method.algo in ESTIMATORS:
        return
    answers = np.arange(m)[:, None]
    # Some answers are right, all, none, and graded rewards
    questions = [(answers + np.arange(k)) % 2, np.ones((m, k)), np.zeros((m, k))]
    questions.append(np.repeat((answers + 1) / (m + 1), k, axis=1))
    rewards = np.array(questions, dtype=np.float64)  # [4, m, K]
    failed = np.zeros((4, m), dtype=bool)
    failed[0, -1] = m > 2
    lengths = np.arange(1, 4 * m + 1).reshape(4, m)
    arguments = {"greedy_rewards": rewards[:, 0], "lengths": lengths, "failed": failed}
    first, second = (compute_advantages(method, rewards, **arguments).values for _ in range(2))
    if not np.array_equal(first, second):
        cure = "let it depend on the batch only"
        raise InputError(
            f"{method.algo}: two calls for one batch gave different advantages; {cure}"
        )


def trained_rewards(
    method: Method,
    rewards: np.ndarray,  # [n, m, K]
    *,
    ranges: np.ndarray | Sequence,  # [K, 2]
    failed: np.ndarray,  # [n, m]
) -> np.ndarray:
    """Return the weighted mean [n, m] of the rewards of each answer, mapped as they are for
    training. Failed answers have nan. Raises ValueError like `compute_advantages`.
    """
    mapped = _to_unit_interval(_as_array(rewards), ranges, ~failed, "answer")  # [n, m, K]
    weights = np.ones(mapped.shape[2]) if method.reward_weights is None else method.reward_weights
    return (mapped * np.array(weights)).sum(axis=2) / np.sum(weights)


def _as_array(rewards: np.ndarray | Sequence) -> np.ndarray:
    """Return rewards as float64 [n, m, K]. Raises ValueError for another shape."""
    try:
        rewards = np.asarray(rewards, dtype=np.float64)
    except ValueError:  # ragged lists
        rewards = np.empty(0)
    if rewards.ndim != 3 or 0 in rewards.shape:
        cure = "sample the same number of answers to every question, or drop the question"
        raise ValueError(f"rewards must be [questions, answers, rewards], none empty: {cure}")
    return rewards


def _to_unit_interval(
    rewards: np.ndarray, ranges: np.ndarray | Sequence, known: np.ndarray, kind: str
) -> np.ndarray:
    """Return `rewards` [n, m, K], mapped from their ranges to [0, 1], and nan where they are not
    `known` [n, m]. The range AS_THEY_ARE changes nothing. `kind` of answer is for the message.

    Raises ValueError for known values outside their range.
    """
    # [K] each
    low, high = np.broadcast_to(np.asarray(ranges, dtype=np.float64), (rewards.shape[2], 2)).T
    # A comparison with nan is False, so this also finds rewards that are not finite.
    inside = (rewards >= low) & (rewards <= high) & np.isfinite(rewards)  # [n, m, K]
    outside = ~inside & known[:, :, None]
    if outside.any():
        question, answer, k = np.argwhere(outside)[0].tolist()
        found = (
            f"reward {k} of question {question}, {kind} {answer}, is {rewards[question, answer, k]}"
        )
        raise ValueError(
            f"{found}, outside [{low[k]:g}, {high[k]:g}]: fix the reward function, or pass its "
            "`ranges`"
        )
    low, high = np.where(np.isinf(low), 0, low), np.where(np.isinf(high), 1, high)
    mapped = (rewards - low) / (high - low)
    np.copyto(mapped, np.nan, where=~known[:, :, None])
    return mapped
