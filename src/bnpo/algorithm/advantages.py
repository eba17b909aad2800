"""Advantages of a whole batch: rewards are checked, mapped to [0, 1], combined or taken apart, and estimated from."""

from collections.abc import Sequence

import numpy as np

from bnpo.algorithm.beta import MAX_CONCENTRATION, BetaFit
from bnpo.algorithm.estimators import ALGORITHMS, OF_LENGTHS, ON_UNIT_INTERVAL, Batch

ROUNDING = 1e-6
"""Advantages up to it are rounding errors of rewards that are all the same, such as 0.1, and are not rescaled."""
MAX_BETA_PARAMETER = 100.0
"""Largest alpha and beta that may be given: up to it 1/f is finite at every accuracy of up to 1,000 answers."""


def compute_advantages(
    algo: str,
    rewards: np.ndarray | Sequence,
    *,
    decompose: bool = False,
    ranges: np.ndarray | Sequence = (0.0, 1.0),
    greedy_rewards: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    beta_parameters: tuple[float, float] | None = None,
    moments: str = "sample",
    max_concentration: float = MAX_CONCENTRATION,
    rescale: bool = False,
) -> tuple[np.ndarray, list[BetaFit]]:
    """Advantages [n, m] of the K rewards [n, m, K] of a whole batch, and the Beta fits (BNPO: one, or K).

    `ranges` [K, 2] has the lowest and the highest value of each reward, or of all ([2]). They are first mapped to
    [0, 1] by (R - lo) / (hi - lo), as the paper's section on limitations allows. With `decompose` every reward gets
    its own advantage, and these are averaged (Eq. 17). Without it the rewards are summed first and, where a Beta
    density needs them in [0, 1], averaged. `rescale` divides the result by its root mean square over all answers.
    `greedy_rewards` [n, K] is needed by remax, `lengths` [n, m] by opo and reinforce_pp with and without baseline,
    `beta_parameters` (alpha, beta) by beta.

    One question, two answers, two rewards; the second reward tells the answers not apart:

    >>> compute_advantages("reinforce", [[[1, 1], [0, 1]]], decompose=True)[0]
    array([[ 0.25, -0.25]])
    >>> compute_advantages("reinforce", [[[1, 1], [0, 1]]])[0]
    array([[ 0.5, -0.5]])
    >>> compute_advantages("reinforce", [[[1, 1], [0, 1]]], rescale=True)[0]
    array([[ 1., -1.]])

    Raises ValueError naming the question where groups differ in size, a reward is not finite or leaves its range,
    or what the algorithm needs is absent, or does not go with it (`method_problem`).
    """
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algorithm '{algo}'; known: {', '.join(ALGORITHMS)}")
    rewards = _unit_rewards(_as_array(rewards), ranges, "answer")
    greedy_rewards = _greedy(greedy_rewards, rewards, ranges) if algo == "remax" else np.zeros(rewards.shape[::2])
    if algo in OF_LENGTHS and (lengths is None or np.shape(lengths) != rewards.shape[:2]):
        raise ValueError(f"{algo} needs lengths [n, m] = {rewards.shape[:2]}: the tokens of each answer")
    lengths = None if lengths is None else np.asarray(lengths)
    if problem := method_problem(algo, decompose, beta_parameters):
        raise ValueError(problem)

    combine = np.mean if algo in ON_UNIT_INTERVAL else np.sum
    parts = rewards.shape[2] if decompose else 1
    estimates = []
    for each, greedy in zip(np.split(rewards, parts, 2), np.split(greedy_rewards, parts, 1), strict=True):
        combined, greedy = combine(each, axis=2), combine(greedy, axis=1)
        batch = Batch(combined, each, greedy, lengths, beta_parameters, moments, max_concentration)
        estimates.append(ALGORITHMS[algo](batch))
    advantages = np.mean([advantages for advantages, _ in estimates], axis=0)
    if rescale and (largest := np.abs(advantages).max()) > ROUNDING:
        advantages = advantages / largest  # whose squares do not overflow
        advantages = advantages / np.sqrt((advantages**2).mean())
    return advantages, [fit for _, fit in estimates if fit is not None]


def method_problem(algo: str, decompose: bool, beta_parameters: tuple[float, float] | None) -> str | None:
    """What is wrong with the options of `algo`, in one line; None if nothing is.

    >>> method_problem("beta", False, (0, 1))
    '--beta-parameters: are 0 1, must be above 0 and at most 100'
    """
    if (algo == "beta") != (beta_parameters is not None):
        return "--algo beta and --beta-parameters ALPHA BETA go together, as in --algo beta --beta-parameters 1.5 1.5"
    # Not `parameter <= 0`: nan must be refused too.
    if beta_parameters and not all(0 < parameter <= MAX_BETA_PARAMETER for parameter in beta_parameters):
        given = " ".join(f"{parameter:g}" for parameter in beta_parameters)
        return f"--beta-parameters: are {given}, must be above 0 and at most {MAX_BETA_PARAMETER:g}"
    if algo == "gdpo" and decompose:
        return "--decompose: gdpo takes the rewards apart itself; give --no-decompose"
    return None


def _greedy(greedy_rewards: np.ndarray | None, rewards: np.ndarray, ranges: np.ndarray | Sequence) -> np.ndarray:
    if greedy_rewards is None:
        raise ValueError("remax needs greedy_rewards [n, K]: sample one greedy answer a question and grade it")
    greedy_rewards = np.asarray(greedy_rewards, dtype=np.float64)
    if greedy_rewards.shape != rewards.shape[::2]:
        raise ValueError(f"greedy_rewards has shape {greedy_rewards.shape}, not [n, K] = {rewards.shape[::2]}")
    return _unit_rewards(greedy_rewards[:, None], ranges, "greedy answer")[:, 0]


def _as_array(rewards: np.ndarray | Sequence) -> np.ndarray:
    if not isinstance(rewards, np.ndarray):
        sizes = [len(group) for group in rewards]
        odd = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
        if odd is not None:
            raise ValueError(
                f"question {odd} has {sizes[odd]} answers, question 0 has {sizes[0]}: "
                "sample the same number for every question, or drop the question"
            )
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 3 or 0 in rewards.shape:
        raise ValueError(f"rewards have shape {rewards.shape}; they must be [questions, answers, rewards], none empty")
    return rewards


def _unit_rewards(rewards: np.ndarray, ranges: np.ndarray | Sequence, what: str) -> np.ndarray:
    low, high = np.broadcast_to(np.asarray(ranges, dtype=np.float64), (rewards.shape[2], 2)).T
    # A comparison with nan is False, so this catches rewards that are not finite too.
    bad = ~((rewards >= low) & (rewards <= high))
    if bad.any():
        question, answer, reward = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"reward {reward} of question {question}, {what} {answer}, is {rewards[question, answer, reward]}, outside "
            f"[{low[reward]:g}, {high[reward]:g}]: mend the reward function or declare its range (--reward-range)"
        )
    return (rewards - low) / (high - low)
