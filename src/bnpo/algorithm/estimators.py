"""The estimators: BNPO and the methods it is compared with, as pure functions of the rewards of one
whole batch.

Rewards are [n, m]: n questions with m answers each, a group. p is the accuracy of a question, the
mean reward of its group. All arithmetic is in float64 on the batch of all ranks. docs/estimators.md
says what each estimator maximises.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from bnpo.algorithm.beta import MAX_CONCENTRATION, BetaFit, fit_beta, inverse_density
from bnpo.algorithm.weights import weight_values
from bnpo.files import InputError

OnUnitInterval = Literal["bnpo", "beta", "curverl", "eb", "weight"]
"""Estimators that are defined for p in [0, 1] only. Their rewards are averaged; those of others
are summed."""
NeedsLengths = Literal["opo", "reinforce_pp", "reinforce_pp_baseline"]  # they need `Batch.lengths`
Others = Literal["gdpo", "grpo", "maxrl", "reinforce", "remax", "rloo", "shrinkage"]
# Names that --algo takes, those of the functions below
Algorithm = Literal[OnUnitInterval, NeedsLengths, Others]
# Alpha and beta of a user: up to here 1/f is finite at every accuracy of 1,000 answers
MAX_BETA_PARAMETER = 100.0


@dataclass(frozen=True)
class Method:
    """The estimator of the policy gradient."""

    algo: Algorithm = "bnpo"
    """Estimator that turns rewards into advantages. docs/estimators.md has the formulas."""
    decompose: bool = False
    """Compute the advantages of each reward separately, then average them. Otherwise rewards are
    added first (for bnpo, beta, curverl, eb and weight averaged)."""
    reward_weights: tuple[float, ...] | None = None
    """Weights of the rewards, in the order of --rewards, such as 1 0.2. A reward with weight 0 is
    only recorded. The default is 1 for each."""
    rescale_advantages: bool = False
    """Divide the advantages by their root mean square, so that all methods have the same scale."""
    beta_parameters: tuple[float, float] | None = None
    """Alpha and beta of --algo beta. 1 1 is REINFORCE, and 1.5 1.5 is GRPO up to a factor."""
    weight: str | None = None
    """Expression of p, m and n for the w of --algo weight, such as '(1-p)**0.5'. The advantages
    are (R - p) w."""
    weight_wrong: str | None = None
    """With --algo weight, another weight for wrong answers. The default is --weight."""
    beta_moments: Literal["sample", "corrected"] = "sample"
    """Variance of the accuracies in BNPO's fit: `sample`, as in the paper, or `corrected` for the
    noise of m answers."""
    max_concentration: float = MAX_CONCENTRATION
    """Upper limit of a + b in BNPO's fit of Beta(a, b). It matters only if all questions are
    about equally hard."""

    def check(self, questions: int, answers: int, rewards: int) -> None:
        """Raise InputError for settings that do not go together, or not with a batch of shape
        [n, m, K].
        """
        if (self.algo == "beta") != (self.beta_parameters is not None):
            raise InputError(
                "--algo beta and --beta-parameters ALPHA BETA go together, as in --beta-parameters "
                "2 2"
            )
        # Not `value <= 0`: nan must be refused too.
        if self.beta_parameters and not all(
            0 < value <= MAX_BETA_PARAMETER for value in self.beta_parameters
        ):
            values = " ".join(f"{value:g}" for value in self.beta_parameters)
            raise InputError(
                f"--beta-parameters: are {values}, must be above 0 and at most "
                f"{MAX_BETA_PARAMETER:g}"
            )
        if not 0 < self.max_concentration < np.inf:
            raise InputError(
                f"--max-concentration: is {self.max_concentration}, must be above 0 and finite"
            )
        if self.algo == "gdpo" and self.decompose:
            raise InputError("--decompose: gdpo takes the rewards apart itself; use --no-decompose")
        if self.reward_weights is not None:
            values = " ".join(f"{value:g}" for value in self.reward_weights)
            if len(self.reward_weights) != rewards:
                raise InputError(
                    f"--reward-weights: are {values}, must be one for each of the {rewards} rewards"
                )
            if not all(0 <= value < np.inf for value in self.reward_weights) or not any(
                self.reward_weights
            ):
                raise InputError(f"--reward-weights: are {values}, must not be below 0, nor all 0")
        if (self.algo == "weight") != (self.weight is not None) or (
            self.weight_wrong and not self.weight
        ):
            raise InputError(
                "--algo weight and --weight go together, as in --algo weight --weight '(1-p)**0.5'"
            )
        if self.weight is not None:
            # All accuracies of binary rewards, and many between them: other rewards can have any
            # accuracy.
            self.weights(np.arange(1, 100 * answers) / (100 * answers), answers, questions)

    def weights(self, p: np.ndarray, m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of right and of wrong answers at accuracies p. Raises InputError,
        see `weight_values`.
        """
        assert self.weight is not None  # see `check`
        right = weight_values(self.weight, p, m, n)
        wrong = (
            right
            if self.weight_wrong is None
            else weight_values(self.weight_wrong, p, m, n, "--weight-wrong")
        )
        return right, wrong


ABSENT = np.empty(0)  # what a batch does not have


class Batch(NamedTuple):
    """Input of the estimators, which return advantages [n, m]: one reward per answer, and what
    only some need.
    """

    rewards: np.ndarray  # [n, m]
    method: Method = Method()  # for beta, bnpo, eb and weight
    separate_rewards: np.ndarray = ABSENT  # [n, m, K], before they were combined; for gdpo
    reward_weights: np.ndarray = ABSENT  # [K]; for gdpo
    greedy_rewards: np.ndarray = ABSENT  # [n]; for remax
    lengths: np.ndarray = ABSENT  # [n, m], tokens of each answer; for `NeedsLengths`

    @property
    def accuracies(self) -> np.ndarray:
        """p of every question, [n, 1]."""
        return self.rewards.mean(axis=1, keepdims=True)

    def fit(self, moments: str) -> BetaFit:
        """Return the Beta distribution fitted to the accuracies (`fit_beta`)."""
        return fit_beta(
            self.accuracies[:, 0], self.rewards.shape[1], moments, self.method.max_concentration
        )


def reinforce(batch: Batch) -> np.ndarray:
    """REINFORCE with baseline (Eq. 6): R minus the mean of the group.

    >>> reinforce(Batch(np.array([[1.0, 0, 0, 1]])))
    array([[ 0.5, -0.5, -0.5,  0.5]])
    """
    return batch.rewards - batch.accuracies


def maxrl(batch: Batch) -> np.ndarray:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): (R - p) / p, and 0 where p is 0.

    >>> maxrl(Batch(np.array([[1.0, 0, 0, 0], [0, 0, 0, 0]])))
    array([[ 3., -1., -1., -1.],
           [ 0.,  0.,  0.,  0.]])
    """
    # Where p is 0, R - p is 0 too, so any divisor but 0 gives 0.
    return reinforce(batch) / np.where(batch.accuracies > 0, batch.accuracies, 1)


def rloo(batch: Batch) -> np.ndarray:
    """RLOO (Kool et al. 2019): R minus the mean of the other answers in the group, m / (m - 1)
    times `reinforce`.

    >>> rloo(Batch(np.array([[1.0, 0, 0]])))
    array([[ 1. , -0.5, -0.5]])
    """
    m = batch.rewards.shape[1]
    return reinforce(batch) * (m / max(1, m - 1))


def remax(batch: Batch) -> np.ndarray:
    """ReMax (Li et al. 2024): R minus the reward of the greedy answer to the same question.

    >>> remax(Batch(np.array([[1.0, 0], [1, 0]]), greedy_rewards=np.array([1.0, 0])))
    array([[ 0., -1.],
           [ 1.,  0.]])
    """
    return batch.rewards - batch.greedy_rewards[:, None]


def grpo(batch: Batch) -> np.ndarray:
    """GRPO (Eq. 7): R minus the group's mean, over the group's standard deviation (divisor m - 1)
    plus 1e-6.

    >>> grpo(Batch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 1]]))).round(4)
    array([[ 1.5, -0.5, -0.5, -0.5],
           [ 0. ,  0. ,  0. ,  0. ]])
    """
    centred = reinforce(batch)  # [n, m]
    m = centred.shape[1]
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / max(1, m - 1))  # [n, 1]
    return centred / (deviation + 1e-6)


def reinforce_pp(batch: Batch) -> np.ndarray:
    """REINFORCE++ (Hu 2025): R whitened over all answer tokens of the batch. Each token has its
    answer's reward.

    By hand: 3 tokens of reward 1 and 1 of reward 0 have mean 3/4 and variance (3/16 + 9/16) / 3 =
    1/4.

    >>> reinforce_pp(Batch(np.array([[1.0, 0]]), lengths=np.array([[3, 1]]))).round(4)
    array([[ 0.5, -1.5]])
    """
    return _whiten(batch.rewards, batch.lengths)


def reinforce_pp_baseline(batch: Batch) -> np.ndarray:
    """REINFORCE++ with baseline (Hu 2025, arXiv:2501.03262): R - p, whitened over all answer tokens
    of the batch.

    As in verl and OpenRLHF, whitening subtracts the mean over tokens too. It is not 0 if right and
    wrong answers differ in length, so even groups whose answers all have the same reward get an
    advantage.
    """
    return _whiten(reinforce(batch), batch.lengths)


def opo(batch: Batch) -> np.ndarray:
    """OPO (Hao et al. 2025, arXiv:2505.23585): R minus the mean of the group weighted by the
    lengths of the answers.

    >>> opo(Batch(np.array([[1.0, 0, 0]]), lengths=np.array([[2, 1, 1]])))
    array([[ 0.5, -0.5, -0.5]])
    """
    tokens = np.maximum(1, batch.lengths.sum(axis=1, keepdims=True))  # [n, 1]
    baseline = (batch.rewards * batch.lengths).sum(axis=1, keepdims=True) / tokens  # [n, 1]
    return batch.rewards - baseline


def gdpo(batch: Batch) -> np.ndarray:
    """GDPO (Liu et al. 2026, arXiv:2601.05242): the GRPO advantages of each reward, summed, then
    whitened.

    Whitened over the answers of the batch, as in the paper (Eq. 6). verl whitens over tokens.

    >>> rewards = np.array([[[1.0, 1], [0, 0]], [[1, 1], [0, 1]]])
    >>> batch = Batch(rewards.sum(axis=2), separate_rewards=rewards, reward_weights=np.ones(2))
    >>> gdpo(batch).round(4)
    array([[ 1.0954, -1.0954],
           [ 0.5477, -0.5477]])
    """
    rewards_by_name = np.moveaxis(batch.separate_rewards, 2, 0)  # [K, n, m]
    advantages = [
        w * grpo(Batch(rewards))
        for w, rewards in zip(batch.reward_weights, rewards_by_name, strict=True)
    ]
    return _whiten(np.sum(advantages, axis=0), np.ones(batch.rewards.shape))


def _whiten(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return `values` [n, m], each counted `counts` [n, m] times, minus their mean and over
    their deviation.
    """
    total = counts.sum()
    centred = values - (values * counts).sum() / max(1, total)  # [n, m]
    variance = (centred**2 * counts).sum() / max(1, total - 1)
    return centred / np.sqrt(variance + 1e-8)


def beta(batch: Batch) -> np.ndarray:
    """BNPO (Eq. 11) with a fixed density: (R - p) / f(p; alpha, beta), with alpha and beta set by
    the user.

    (1, 1) is `reinforce` exactly. By hand: f(1/4; 2, 2) = 6 * 1/4 * 3/4 = 9/8.

    >>> beta(Batch(np.array([[1.0, 0, 0, 0]]), Method("beta", beta_parameters=(2, 2)))).round(4)
    array([[ 0.6667, -0.2222, -0.2222, -0.2222]])
    """
    assert batch.method.beta_parameters is not None  # see `Method.check`
    return reinforce(batch) * inverse_density(batch.accuracies, *batch.method.beta_parameters)


def weight(batch: Batch) -> np.ndarray:
    """(R - p) w(p) with a weight w that the user types. Wrong answers, those with R < p, may have
    another weight.

    >>> method = Method("weight", weight="1/p", weight_wrong="1-p")
    >>> weight(Batch(np.array([[1.0, 0, 0, 0]]), method))
    array([[ 3.    , -0.1875, -0.1875, -0.1875]])
    """
    n, m = batch.rewards.shape
    p, centred = batch.accuracies, reinforce(batch)  # [n, 1], [n, m]
    inside = np.where((p > 0) & (p < 1), p, 0.5)  # where p is 0 or 1, R - p is 0 with any weight
    right, wrong = batch.method.weights(inside, m, n)  # [n, 1]
    return centred * np.where(centred > 0, right, wrong)


def bnpo(batch: Batch) -> np.ndarray:
    """BNPO (Eq. 11): (R - p) / f(p; alpha, beta), with alpha and beta fitted to the accuracies p of
    the batch.

    By hand: accuracies 1/4 and 3/4 give a = b = 1/2 (see `fit_beta`), alpha = beta = 7/6, and both
    questions the weight B(7/6, 7/6) (16/3)^(1/6) = 0.9555.

    >>> bnpo(Batch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]]))).round(4)
    array([[ 0.7166, -0.2389, -0.2389, -0.2389],
           [ 0.2389,  0.2389,  0.2389, -0.7166]])
    """
    # Points: where the density is taken, [n, 1]
    fit, points = batch.fit(batch.method.beta_moments), batch.accuracies
    if fit.edge == "concentrated":
        # The accuracies differ by noise only, and the narrow density would give outliers very large
        # weights. So all questions get the weight of the mean.
        points = np.where((points > 0) & (points < 1), fit.mean, points)  # [n, 1]
    return reinforce(batch) * inverse_density(points, fit.alpha, fit.beta)


def eb(batch: Batch) -> np.ndarray:
    """Empirical Bayes: R minus the posterior mean of the question's accuracy, given its other
    answers.

    It is (a + sum of the others' rewards) / (a + b + m - 1), or the batch's mean where that is 0 /
    0. The prior Beta(a, b) is fitted to the accuracies of the batch with corrected moments
       (`fit_beta`).
    """
    rewards, fit = batch.rewards, batch.fit("corrected")
    others = rewards.sum(axis=1, keepdims=True) - rewards  # [n, m]
    total = fit.a + fit.b + rewards.shape[1] - 1
    return rewards - ((fit.a + others) / total if total > 0 else fit.mean)


def shrinkage(batch: Batch) -> np.ndarray:
    """Shrinkage baseline (Zeng et al. 2025, arXiv:2511.03710): between `rloo` and the mean of the
    other questions.

    The baseline is (1 - l) times the mean of the other answers plus l times the mean accuracy of
    the other questions. l = (n - 1) / n * v / (v + s) is computed for each question from the
    others: v is the mean noise of their accuracies (variance of the rewards with divisor m - 1,
    over m), s the variance of their accuracies (divisor: their number).
    """
    n, m = batch.rewards.shape
    noise = (reinforce(batch) ** 2).sum(axis=1, keepdims=True) / (m * max(1, m - 1))  # [n, 1]

    def mean_of_others(values: np.ndarray) -> np.ndarray:
        return (values.sum() - values) / max(1, n - 1)

    others = mean_of_others(batch.accuracies)  # [n, 1]
    v = mean_of_others(noise)  # [n, 1]
    s = np.maximum(0, mean_of_others(batch.accuracies**2) - others**2)  # [n, 1]
    share = (n - 1) / n * v / np.where(v + s > 0, v + s, 1)  # [n, 1]
    return (1 - share) * rloo(batch) + share * (batch.rewards - others)


def curverl(batch: Batch) -> np.ndarray:
    """CurveRL (Sun et al. 2026, arXiv:2605.24331): (R - p) f(p) / F(p), with the histogram of the
    batch's accuracies.

    The histogram has m + 1 bins on [0, 1] and leaves out accuracies of 0 and 1. f(p) is the share
    of its questions in the bin of p, F(p) the share in this bin or a lower one. The paper's
    histogram is of the ten batches before.
    """
    m, p = batch.rewards.shape[1], batch.accuracies  # [n, 1]
    inside = (p > 0) & (p < 1)  # [n, 1]
    # An accuracy between two bins belongs to the upper one, also where rounding puts it a little
    # lower.
    bins = np.minimum(np.floor(p * (m + 1) + 1e-9).astype(int), m)  # [n, 1]
    counts = np.bincount(bins[inside], minlength=m + 1)  # [m + 1]
    return reinforce(batch) * np.where(
        inside, counts[bins] / np.maximum(1, np.cumsum(counts))[bins], 0.0
    )


ALGORITHMS: dict[str, Callable[[Batch], np.ndarray]] = {
    name: globals()[name] for name in get_args(Algorithm)
}
# Learn from one answer per question, others do not
WITHOUT_GROUPS = ("eb", "reinforce_pp", "remax")
