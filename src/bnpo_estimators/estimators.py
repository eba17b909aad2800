"""The estimators: BNPO and the methods it is compared with, as pure functions of the rewards of one
whole batch, in float64.

Rewards R are [n, m]: n questions with m answers each, a group. p is the accuracy of a question, the
mean reward of its group. docs/estimators.md says what each estimator maximises.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from bnpo_estimators.beta import BetaFit, fit_beta, inverse_density
from bnpo_estimators.registry import Estimator, SettingError, estimator, find_estimator
from bnpo_estimators.weights import LARGEST_WEIGHT, shares, weight_values

NO_NOISE = 1e-12  # a variance of accuracies up to this size may be a rounding error


@dataclass(frozen=True)
class Method:
    """The estimator of the policy gradient."""

    algo: str = "bnpo"
    """Estimator that turns rewards into advantages: bnpo, beta, curverl, eb, gdpo, grpo, maxrl,
    opo, pass_at_k, reinforce, reinforce_pp, reinforce_pp_baseline, remax, rloo, shrinkage or weight
    (docs/estimators.md has the formulas), or your own: path/to/file.py:function."""
    decompose: bool = False
    """Compute the advantages of each reward separately, then average them. Otherwise rewards are
    added first (for bnpo, beta, curverl, eb, pass_at_k and weight averaged)."""
    reward_weights: tuple[float, ...] | None = None
    """Weights of the rewards, in the order of --rewards, such as 1 0.2; the default is 1 for each.
    A reward with weight 0 is only recorded, but an answer for which it fails is left out, too."""
    rescale_advantages: bool = False
    """Divide the advantages by their root mean square, so that all methods have the same scale."""
    beta_parameters: tuple[float, float] | None = None
    """Alpha and beta of --algo beta. 1 1 is REINFORCE, and 1.5 1.5 is GRPO up to a factor."""
    weight: str | None = None
    """Expression of p, m and n for the w of --algo weight, such as '(1-p)**0.5'. The advantages
    are (R - p) w."""
    weight_wrong: str | None = None
    """With --algo weight, another weight for wrong answers. The default is --weight."""
    k: int | None = None
    """K of --algo pass_at_k, which maximises the chance that one of K answers is right. Below
    --samples-per-question."""
    beta_moments: Literal["sample", "corrected"] = "sample"
    """Variance of the accuracies in BNPO's fit: `sample`, as in the paper, or `corrected` for the
    noise of m answers."""

    @cached_property
    def estimator(self) -> Estimator:
        """The function that `algo` names, and what it needs. Raises SettingError."""
        return find_estimator(self.algo)

    def weights_of_rewards(self, k: int) -> np.ndarray:
        """Return the weights of K rewards, [K]."""
        return np.array(self.reward_weights or (1.0,) * k)

    def check(self, n: int, m: int, k: int, graded: bool = False) -> None:
        """Raise SettingError for settings that do not go together, or not with rewards [n, m, K],
        and for a user's estimator that cannot be loaded. `graded` rewards are not 0 and 1 only.
        """
        if self.decompose and "separate_rewards" in self.estimator.needs:
            cure = "takes the rewards apart itself; use `decompose=False`"
            raise SettingError(f"`decompose`: {self.algo} {cure}")
        for algo, field_name, example in (
            ("beta", "beta_parameters", "(2, 2)"),
            ("weight", "weight", "'(1-p)**0.5'"),
            ("pass_at_k", "k", "4"),
        ):
            is_chosen = self.algo == algo
            is_set = getattr(self, field_name) is not None
            if is_chosen != is_set:
                together = f"`algo='{algo}'` and `{field_name}` go together"
                raise SettingError(f"{together}, as in `{field_name}={example}`")
        weights = self.reward_weights or (1.0,) * k
        found = f"`reward_weights`: are {_words(weights)}"
        if len(weights) != k:
            raise SettingError(f"{found}, must be one for each of the {k} rewards")
        if not all(0 <= value < np.inf for value in weights) or not any(weights):
            raise SettingError(f"{found}, must not be below 0, nor all 0")
        most = max(1, m - 1)
        if self.k is not None and self.k not in range(1, most + 1):
            limits = f"must be a whole number from 1 to {most}, below the answers to a question"
            raise SettingError(f"`k`: is {self.k}, {limits}")
        if self.beta_moments not in ("sample", "corrected"):
            raise SettingError(
                f"`beta_moments`: is {self.beta_moments}, must be sample or corrected"
            )
        if self.beta_parameters is not None:
            self._check_density(self.beta_parameters, m)
        if self.weight is not None:
            # Graded rewards, such as the mean of several, have accuracies between those of binary
            several = sum(value > 0 for value in weights) > 1
            graded = graded or (several and not self.decompose)
            self.weights(shares(100 * m) if graded else shares(m), m, n)
        elif self.weight_wrong is not None:
            raise SettingError("`weight_wrong`: needs `algo='weight'` and `weight`")

    def _check_density(self, parameters: tuple[float, float], m: int) -> None:
        """Raise SettingError if the weights of rewards of 0 and 1 are too large for fp32."""
        found = f"`beta_parameters`: are {_words(parameters)}"
        # Comparisons with nan are False, and it must be refused, too
        if not all(0 < value < np.inf for value in parameters):
            raise SettingError(f"{found}, must be above 0 and finite")
        with np.errstate(all="ignore"):
            largest = inverse_density(shares(m), *parameters).max(initial=0.0)
        if not largest <= LARGEST_WEIGHT:
            cure = "lower them, or take fewer answers per question"
            found += f", which gives a question a weight of up to {largest:.2g}"
            raise SettingError(f"{found}, must be at most {LARGEST_WEIGHT:g}; {cure}")

    def weights(self, p: np.ndarray, m: int | np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of right and of wrong answers at accuracies p. Raises SettingError."""
        right = weight_values(self.weight or "", p, m, n)
        if self.weight_wrong is None:
            return right, right
        return right, weight_values(self.weight_wrong, p, m, n, "weight_wrong")


def _words(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


@dataclass
class RewardBatch:
    """Input of the estimators, which return advantages [n, m].

    An answer whose reward could not be computed has the reward nan. It must change nothing for the
    other answers: `counts` leaves it out, and so do np.nansum, np.nanmean and the like. Its own
    advantage does not count.
    """

    rewards: np.ndarray  # [n, m], nan where a reward failed
    method: Method = Method()
    reward_weights: np.ndarray | None = None  # [K], None: one reward
    # None, unless the estimator `needs` it:
    separate_rewards: Any = None  # [n, m, K], before they were combined
    greedy_rewards: Any = None  # [n]
    lengths: Any = None  # [n, m], tokens of each answer
    # Of each question, [n, 1]
    counts: np.ndarray = field(init=False)  # answers with a known reward: m, unless one failed
    accuracies: np.ndarray = field(init=False)  # p
    inner_accuracies: np.ndarray = field(init=False)  # p for weights that 0 or 1 makes infinite

    def __post_init__(self) -> None:
        self.counts = (~np.isnan(self.rewards)).sum(axis=1, keepdims=True)
        # The mean of seven rewards of 0.7 is not exactly 0.7. Clipped to the rewards' range it is,
        # so that equal rewards have the advantage 0.
        low = np.nanmin(self.rewards, axis=1, keepdims=True)
        high = np.nanmax(self.rewards, axis=1, keepdims=True)
        p = np.clip(np.nanmean(self.rewards, axis=1, keepdims=True), low, high)
        self.accuracies = p
        # Graded rewards can have a p of 1e-9, with a weight so large that one question outweighs
        # all others. So p is kept away from 0 and 1 by half of the smallest p that rewards of 0 and
        # 1 can have: 1 / m, times the smallest share of a reward in R. Where p is 0 or 1, R - p is
        # 0 with any weight.
        share = 1.0
        if self.reward_weights is not None:
            weights = self.reward_weights[self.reward_weights > 0]
            share = weights.min() / weights.sum()
        least = share / (2 * self.counts)
        # A placeholder that rewards of 0 and 1 can have: a weight may be defined for them alone
        anything = 1 / np.maximum(2, self.counts)
        inside = (p > 0) & (p < 1)
        self.inner_accuracies = np.where(inside, np.clip(p, least, 1 - least), anything)

    @cached_property
    def fit(self) -> BetaFit:
        """The Beta distribution fitted to the accuracies, for rewards in [0, 1].

        Where its `edge` is "concentrated", `bnpo` takes the density at its mean for all questions.
        """
        return fit_beta(self.accuracies, self.counts, self.method.beta_moments)


@estimator()
def reinforce(batch: RewardBatch) -> np.ndarray:
    """REINFORCE with baseline (Eq. 6): R minus the mean of the group.

    >>> reinforce(RewardBatch(np.array([[1.0, 0, 0, 1]])))
    array([[ 0.5, -0.5, -0.5,  0.5]])
    """
    return batch.rewards - batch.accuracies


@estimator(needs="range")
def maxrl(batch: RewardBatch) -> np.ndarray:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): (R - p) / p, and 0 where p is 0.

    >>> maxrl(RewardBatch(np.array([[1.0, 0, 0, 0], [0, 0, 0, 0]])))
    array([[ 3., -1., -1., -1.],
           [ 0.,  0.,  0.,  0.]])
    """
    # Where p is 0, R - p is 0 too, so any divisor but 0 gives 0.
    return reinforce(batch) / np.where(batch.accuracies > 0, batch.accuracies, 1)


@estimator()
def rloo(batch: RewardBatch) -> np.ndarray:
    """RLOO (Kool et al. 2019): R minus the mean of the other answers in the group.

    >>> rloo(RewardBatch(np.array([[1.0, 0, 0]])))
    array([[ 1. , -0.5, -0.5]])
    """
    m = batch.counts  # [n, 1]
    return reinforce(batch) * (m / np.maximum(1, m - 1))


@estimator(needs="greedy_rewards", group=False)
def remax(batch: RewardBatch) -> np.ndarray:
    """ReMax (Li et al. 2024): R minus the reward of the greedy answer to the same question.

    >>> remax(RewardBatch(np.array([[1.0, 0], [1, 0]]), greedy_rewards=np.array([1.0, 0])))
    array([[ 0., -1.],
           [ 1.,  0.]])
    """
    return batch.rewards - batch.greedy_rewards[:, None]


@estimator()
def grpo(batch: RewardBatch) -> np.ndarray:
    """GRPO (Eq. 7): R minus the group's mean, over the group's standard deviation (divisor m - 1)
    plus 1e-6.

    >>> grpo(RewardBatch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 1]]))).round(4)
    array([[ 1.5, -0.5, -0.5, -0.5],
           [ 0. ,  0. ,  0. ,  0. ]])
    """
    centred = reinforce(batch)  # [n, m]
    squares = np.nansum(centred**2, axis=1, keepdims=True)  # [n, 1]
    deviation = np.sqrt(squares / np.maximum(1, batch.counts - 1))  # [n, 1]
    return centred / (deviation + 1e-6)


@estimator(needs="lengths", group=False)
def reinforce_pp(batch: RewardBatch) -> np.ndarray:
    """REINFORCE++ (Hu 2025): R whitened over all answer tokens of the batch.

    By hand: 3 tokens of reward 1 and 1 of 0 have mean 3/4 and variance (3/16 + 9/16) / 3 = 1/4.

    >>> reinforce_pp(RewardBatch(np.array([[1.0, 0]]), lengths=np.array([[3, 1]]))).round(4)
    array([[ 0.5, -1.5]])
    """
    return _whiten(batch.rewards, batch.lengths)


@estimator(needs="lengths")
def reinforce_pp_baseline(batch: RewardBatch) -> np.ndarray:
    """REINFORCE++ with baseline (Hu 2025, arXiv:2501.03262): R - p, whitened over answer tokens.

    As in verl and OpenRLHF, whitening subtracts the mean over tokens too. If right and wrong
    answers differ in length it is not 0, and even groups of equal rewards get an advantage.
    """
    return _whiten(reinforce(batch), batch.lengths)


@estimator(needs="lengths")
def opo(batch: RewardBatch) -> np.ndarray:
    """OPO (Hao et al. 2025, arXiv:2505.23585): R minus the group's mean weighted by length.

    >>> opo(RewardBatch(np.array([[1.0, 0, 0]]), lengths=np.array([[2, 1, 1]])))
    array([[ 0.5, -0.5, -0.5]])
    """
    lengths = np.where(np.isnan(batch.rewards), 0, batch.lengths)  # [n, m]
    tokens = lengths.sum(axis=1, keepdims=True)  # [n, 1]
    baseline = np.nansum(batch.rewards * lengths, axis=1, keepdims=True) / np.maximum(1, tokens)
    # Clipped as `accuracies` are
    low = np.nanmin(batch.rewards, axis=1, keepdims=True)
    high = np.nanmax(batch.rewards, axis=1, keepdims=True)
    return batch.rewards - np.where(tokens > 0, np.clip(baseline, low, high), 0)


@estimator(needs="separate_rewards")
def gdpo(batch: RewardBatch) -> np.ndarray:
    """GDPO (Liu et al. 2026, arXiv:2601.05242): the GRPO advantages of each reward, summed, then
    whitened over the answers of the batch, as in its Eq. 6. verl whitens over tokens.

    >>> rewards = np.array([[[1.0, 1], [0, 0]], [[1, 1], [0, 1]]])
    >>> gdpo(RewardBatch(rewards.sum(2), Method(), np.ones(2), rewards)).round(4)
    array([[ 1.0954, -1.0954],
           [ 0.5477, -0.5477]])
    """
    assert batch.reward_weights is not None
    rewards_by_name = np.moveaxis(batch.separate_rewards, 2, 0)  # [K, n, m]
    pairs = zip(batch.reward_weights, rewards_by_name, strict=True)
    summed = np.sum([w * grpo(RewardBatch(rewards)) for w, rewards in pairs], axis=0)  # [n, m]
    whitened = _whiten(summed, np.ones(batch.rewards.shape))
    # The mean that whitening subtracts is 0 up to rounding. Where all rewards of a group are equal,
    # that rounding error would be all there is.
    without_signal = np.nanmax(np.abs(summed), axis=1, keepdims=True) == 0  # [n, 1]
    return np.where(without_signal, 0.0, whitened)


def _whiten(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return values [n, m], each counted `counts` [n, m] times, minus their mean and over their
    deviation. Values that are nan do not count.
    """
    counts = np.where(np.isnan(values), 0, counts)
    total = counts.sum()
    mean = np.nansum(values * counts) / max(1, total)
    if total:  # clipped as `accuracies` are
        mean = np.clip(mean, values[counts > 0].min(), values[counts > 0].max())
    centred = values - mean  # [n, m]
    variance = np.nansum(centred**2 * counts) / max(1, total - 1)
    return centred / np.sqrt(variance + 1e-8)


@estimator(unit_interval=True, settings=("beta_parameters",))
def beta(batch: RewardBatch) -> np.ndarray:
    """BNPO (Eq. 11) with a fixed density: (R - p) / f(p; alpha, beta), with the user's alpha and
    beta. (1, 1) is `reinforce` exactly.

    By hand: f(1/4; 2, 2) = 9/8.

    >>> method = Method("beta", beta_parameters=(2, 2))
    >>> beta(RewardBatch(np.array([[1.0, 0, 0, 0]]), method)).round(4)
    array([[ 0.6667, -0.2222, -0.2222, -0.2222]])
    """
    assert batch.method.beta_parameters is not None  # see `Method.check`
    return reinforce(batch) * inverse_density(batch.inner_accuracies, *batch.method.beta_parameters)


@estimator(unit_interval=True, settings=("weight", "weight_wrong"))
def weight(batch: RewardBatch) -> np.ndarray:
    """(R - p) w(p) with a weight w that the user types, and perhaps another one where R < p.

    >>> method = Method("weight", weight="1/p", weight_wrong="1-p")
    >>> weight(RewardBatch(np.array([[1.0, 0, 0, 0]]), method))
    array([[ 3.    , -0.1875, -0.1875, -0.1875]])
    """
    centred = reinforce(batch)  # [n, m]
    right, wrong = batch.method.weights(batch.inner_accuracies, batch.counts, len(centred))
    return centred * np.where(centred > 0, right, wrong)  # the weights are [n, 1]


@estimator(unit_interval=True, settings=("k",))
def pass_at_k(batch: RewardBatch) -> np.ndarray:
    """Exact pass@K: (R - p) w, where w is m / (m - 1) times K times the chance that K - 1 of m - 2
    answers, of which m p - 1 are right, are all wrong.

    For rewards of 0 and 1 the expected gradient is exactly that of 1 - (1 - p)^K, and the baseline
    leaves two answers out, as in MaxPO (Takashiro et al. 2026, arXiv:2606.06080): the advantage is
    the mean over other answers j of K (max(R, S) - max(R_j, S)), where S are K - 1 of the remaining
    m - 2. If answers have failed, K is at most m - 1.

    By hand: with one right answer of 4, the other 2 are wrong, and the weight is 4/3 * 2 * 2/2.
    With two, one of 2 is wrong: 4/3 * 2 * 1/2.

    >>> rewards = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0]])
    >>> pass_at_k(RewardBatch(rewards, Method("pass_at_k", k=2))).round(4)
    array([[ 2.    , -0.6667, -0.6667, -0.6667],
           [ 0.6667,  0.6667, -0.6667, -0.6667]])
    """
    assert batch.method.k is not None  # see `Method.check`
    m = batch.counts  # [n, 1]
    k = np.minimum(batch.method.k, np.maximum(1, m - 1))  # [n, 1]
    wrong = np.nansum(1 - batch.rewards, axis=1, keepdims=True) - 1  # of m - 2, [n, 1]
    weights = k * m / np.maximum(1, m - 1)  # [n, 1]
    for i in range(int(k.max()) - 1):
        # The chance that the next of the K - 1 is wrong, too. Graded rewards have parts of answers
        chance = np.maximum(0, wrong - i) / np.maximum(1, m - 2 - i)
        weights = weights * np.where(i < k - 1, chance, 1)
    return reinforce(batch) * weights


@estimator(unit_interval=True)
def bnpo(batch: RewardBatch) -> np.ndarray:
    """BNPO (Eq. 11): (R - p) / f(p; alpha, beta), with alpha and beta fitted to the accuracies p of
    the batch.

    By hand: accuracies 1/4 and 3/4 give alpha = beta = 7/6 (see `fit_beta`), and both questions the
    weight B(7/6, 7/6) (16/3)^(1/6) = 0.9555.

    >>> bnpo(RewardBatch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]]))).round(4)
    array([[ 0.7166, -0.2389, -0.2389, -0.2389],
           [ 0.2389,  0.2389,  0.2389, -0.7166]])
    """
    fit = batch.fit
    points = batch.inner_accuracies  # where the density is taken, [n, 1]
    if fit.edge == "concentrated":
        # The accuracies differ by noise only, and outliers would get very large weights. So all
        # questions get the weight of the mean.
        points = np.full_like(points, fit.mean)
    centred = batch.rewards - batch.accuracies  # [n, m]
    return centred * inverse_density(points, fit.alpha, fit.beta)


@estimator(unit_interval=True, group=False)
def eb(batch: RewardBatch) -> np.ndarray:
    """Empirical Bayes: R minus the posterior mean of p, given the question's other answers.

    It is (a + sum of the others' rewards) / (a + b + m - 1), or the batch's mean where that is
    0 / 0. The prior Beta(a, b) is fitted to the accuracies of the batch with corrected moments.
    """
    rewards, fit = batch.rewards, fit_beta(batch.accuracies, batch.counts, "corrected")
    others = np.nansum(rewards, axis=1, keepdims=True) - rewards  # [n, m]
    total = fit.a + fit.b + batch.counts - 1  # [n, 1]
    baseline = np.where(total > 0, (fit.a + others) / np.where(total > 0, total, 1), fit.mean)
    # Clipped as `accuracies` are
    return rewards - np.clip(baseline, np.nanmin(rewards), np.nanmax(rewards))


@estimator()
def shrinkage(batch: RewardBatch) -> np.ndarray:
    """Shrinkage baseline (Zeng et al. 2025): (1 - l) times the mean of the other answers plus l
    times the mean accuracy of the other questions.

    l = (n - 1) / n * v / (v + s) is computed for each question from the others: v is the mean noise
    of their accuracies (variance of the rewards with divisor m - 1, over m), s the variance of
    their accuracies (divisor: their number).
    """
    n, m = len(batch.rewards), batch.counts  # m: [n, 1]
    squares = np.nansum(reinforce(batch) ** 2, axis=1, keepdims=True)  # [n, 1]
    noise = squares / (m * np.maximum(1, m - 1))  # [n, 1]

    def mean_of_others(values: np.ndarray) -> np.ndarray:
        return (values.sum() - values) / max(1, n - 1)

    others = mean_of_others(batch.accuracies)  # [n, 1]
    v = mean_of_others(noise)  # [n, 1]
    s = np.maximum(0, mean_of_others(batch.accuracies**2) - others**2)  # [n, 1]
    # Without noise v / (v + s) may be the quotient of two rounding errors
    is_noisy = v > NO_NOISE  # [n, 1]
    share = np.where(is_noisy, (n - 1) / n * v / np.where(is_noisy, v + s, 1), 0.0)  # [n, 1]
    return (1 - share) * rloo(batch) + share * (batch.rewards - others)


@estimator(unit_interval=True)
def curverl(batch: RewardBatch) -> np.ndarray:
    """CurveRL (Sun et al. 2026): (R - p) f(p) / F(p), with the histogram of the batch's accuracies.
    The paper's is of the ten batches before.

    The histogram has m + 1 bins on [0, 1] and leaves out accuracies of 0 and 1. f(p) is the share
    of its questions in the bin of p, F(p) the share in this bin or a lower one.
    """
    m, p = batch.rewards.shape[1], batch.accuracies  # [n, 1]
    inside = (p > 0) & (p < 1)  # [n, 1]
    # An accuracy between two bins belongs to the upper one, also after rounding errors
    bins = np.minimum(np.floor(p * (m + 1) + 1e-9).astype(int), m)  # [n, 1]
    counts = np.bincount(bins[inside], minlength=m + 1)  # [m + 1]
    share = counts[bins] / np.maximum(1, np.cumsum(counts))[bins]  # [n, 1]
    return reinforce(batch) * np.where(inside, share, 0.0)
