"""The statistics of the study: differences paired by seed, with t intervals and exact tests
(plan.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

POWER = 0.8
"""Probability with which a difference that counts as found is found."""


@dataclass(frozen=True)
class Paired:
    """A mean difference over seeds with its 95 % t interval, the p-value of the exact sign-flip
    test, the share of seeds on which the first is better (ties count half), the number of seeds,
    and the standard deviation over them.
    """

    mean: float
    low: float
    high: float
    p: float
    wins: float
    seeds: int
    sd: float


def paired(differences: np.ndarray) -> Paired:
    """What `differences` [seeds], of the first less the second, say.

    Differences that are all the same leave no doubt about their size; the p-value is still that of
    so many signs.

    >>> difference = paired(np.array([1, 2, 3, 4]))
    >>> difference.mean, round(difference.low, 3), round(difference.high, 3), difference.p
    (2.5, 0.446, 4.554, 0.125)
    """
    mean, half = t_interval(differences)
    units = _units(differences)
    wins = float(((units > 0) + 0.5 * (units == 0)).mean())
    sd = float(np.std(differences, ddof=1))
    return Paired(
        mean, mean - half, mean + half, sign_flip(differences), wins, len(differences), sd
    )


def sign_flip(differences: np.ndarray) -> float:
    """The exact two-sided p-value of a mean of 0: the share of all choices of signs whose mean is
    as far from 0.

    >>> sign_flip(np.array([1.0, 2, 3, 4]))
    0.125
    """
    units = _units(differences)
    middle = len(units) // 2  # 2^40 choices of signs are pairs of 2^20 and 2^20
    first, second = _signed_sums(units[:middle]), np.sort(_signed_sums(units[middle:]))
    too_small = np.searchsorted(second, abs(units.sum()) - first)
    # The distribution is symmetric
    return min(1.0, float(2 * (len(second) - too_small).sum() / 2 ** len(units)))


def _units(differences: np.ndarray) -> np.ndarray:
    """Return differences in whole units of 1e-9: in floats, areas and sums that tie differ in
    their last digits.
    """
    return np.rint(differences / 1e-9).astype(np.int64)


def _signed_sums(units: np.ndarray) -> np.ndarray:
    """Return the sums of `units` [k] with all choices of signs: [2^k]."""
    sums = np.zeros(1, dtype=np.int64)
    for unit in units:
        sums = np.concatenate([sums + unit, sums - unit])
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: the error rate over all of them together is
    kept.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return adjusted[np.argsort(order)].tolist()


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of [seeds] and half the width of its 95 % t interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), float(half)


def smallest_found(deviation: float, seeds: int, level: float) -> float:
    """Return the difference that a two-sided paired t test at `level` finds with probability POWER.

    >>> round(smallest_found(1, 12, 0.05), 2)
    0.89
    """
    critical = stats.t.ppf(1 - level / 2, seeds - 1)

    def missing(difference: float) -> float:
        return stats.nct.sf(critical, seeds - 1, difference * np.sqrt(seeds) / deviation) - POWER

    return optimize.brentq(missing, 0.01 * deviation, 10 * deviation)
