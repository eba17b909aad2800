"""Compare our estimators with the formulas of the paper's released code.

    python benchmarks/released.py     # make conformance calls it, too

The code is recipe/bnpo of github.com/changyi7231/BNPO at commit a9c51b9. It has BNPO and the
decomposition itself, and calls functions of verl for the other estimators. Both are written again
here, in fp32 as there. On random batches of rewards of 0 and 1, a row per estimator has the largest
difference of an advantage, relative to the largest advantage of its batch. Below them are the
batches that BNPO treats otherwise on purpose.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch

from bnpo_estimators import Method, compute_advantages

BATCHES = 300
LARGEST_WEIGHT = 1e6
"""The released code limits the weights of BNPO to this value."""


class Batch(NamedTuple):
    """Rewards [n, m] of 0 and 1, lengths [n, m] of the answers in tokens, and rewards [n] of greedy
    answers.
    """

    rewards: np.ndarray
    lengths: np.ndarray
    greedy: np.ndarray


Formula = Callable[[torch.Tensor, Batch], torch.Tensor]
"""From rewards [n, m] and the batch they belong to, to advantages [n, m]."""


def means(rewards: torch.Tensor) -> torch.Tensor:
    """Return the mean reward of every question, [n, 1]. A single answer has the mean 0."""
    mean = rewards.mean(dim=1, keepdim=True)
    return mean if rewards.shape[1] > 1 else torch.zeros_like(mean)


def bnpo(rewards: torch.Tensor, _: Batch | None = None) -> torch.Tensor:
    p = means(rewards)  # [n, 1]
    several = len(p) > 1
    mean = p.mean() if several else torch.tensor(0.0)
    variance = p.var() if several else torch.tensor(1.0)
    concentration = mean * (1 - mean) / variance - 1  # a + b
    alpha = (1 + concentration * mean / 3).clamp(min=1)
    beta = (1 + concentration * (1 - mean) / 3).clamp(min=1)
    density = torch.distributions.Beta(alpha, beta).log_prob(p).exp()
    return (rewards - p) * (1 / density).clamp(0, LARGEST_WEIGHT)


def reinforce(rewards: torch.Tensor, _: Batch) -> torch.Tensor:
    return rewards - means(rewards)


def grpo(rewards: torch.Tensor, _: Batch) -> torch.Tensor:
    return (rewards - means(rewards)) / (rewards.std(dim=1, keepdim=True) + 1e-6)


def rloo(rewards: torch.Tensor, _: Batch) -> torch.Tensor:
    m = rewards.shape[1]
    return m / (m - 1) * rewards - m / (m - 1) * means(rewards)


def remax(rewards: torch.Tensor, batch: Batch) -> torch.Tensor:
    return rewards - torch.from_numpy(batch.greedy).float()[:, None]


def whitened(values: torch.Tensor, lengths: np.ndarray) -> torch.Tensor:
    """Return values [n, m] whitened over the tokens of all answers."""
    tokens = values.flatten().repeat_interleave(torch.from_numpy(lengths).flatten())
    return (values - tokens.mean()) * torch.rsqrt(tokens.var() + 1e-8)


def reinforce_pp(rewards: torch.Tensor, batch: Batch) -> torch.Tensor:
    return whitened(rewards, batch.lengths)


def reinforce_pp_baseline(rewards: torch.Tensor, batch: Batch) -> torch.Tensor:
    return whitened(rewards - means(rewards), batch.lengths)


FORMULAS: dict[str, Formula] = {
    "reinforce": reinforce,
    "rloo": rloo,
    "remax": remax,
    "grpo": grpo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "bnpo": bnpo,
}
DECOMPOSED = ("grpo", "reinforce_pp", "bnpo")
"""Estimators of the paper's Table 2."""


def random_batch(rng: np.random.Generator) -> Batch:
    """Return 2 to 64 questions with 2 to 16 answers each, of accuracies with a Beta distribution,
    of which some are U-shaped and some narrow.
    """
    n, m = rng.integers(2, 65), rng.integers(2, 17)
    p = rng.beta(*np.exp(rng.uniform(-2, 3, 2)), n)[:, None]
    rewards = (rng.random((n, m)) < p).astype(float)
    return Batch(rewards, rng.integers(1, 400, (n, m)), rng.integers(0, 2, n).astype(float))


def ours(method: Method, rewards: np.ndarray, batch: Batch) -> np.ndarray:
    """Return our advantages [n, m] for rewards [n, m, K]."""
    greedy = np.repeat(batch.greedy[:, None], rewards.shape[2], axis=1)  # [n, K]
    advantages = compute_advantages(method, rewards, lengths=batch.lengths, greedy_rewards=greedy)
    return advantages.values


def is_edge(rewards: np.ndarray) -> bool:
    """Return whether BNPO limits its fit to the rewards [n, m]: all accuracies are, or nearly
    are, equal.
    """
    [fit] = compute_advantages(Method("bnpo"), rewards[:, :, None]).fits
    return fit.edge in ("constant", "concentrated")


def difference(theirs: torch.Tensor, own: np.ndarray) -> float:
    """Return the largest difference, relative to our largest advantage, or to 1 if all are 0."""
    return float(np.abs(theirs.double().numpy() - own).max() / (np.abs(own).max() or 1))


def largest_differences(batches: int = BATCHES) -> Iterator[tuple[str, int, float]]:
    """Yield estimators, the number of batches, and the largest difference over them.

    Batches with an edge of BNPO's are left out of its rows. `--decompose` has two rewards.
    """
    rng = np.random.default_rng(0)
    drawn = [random_batch(rng) for _ in range(batches)]
    second = [(rng.random(batch.rewards.shape) < rng.random()).astype(float) for batch in drawn]
    edges = [is_edge(batch.rewards) for batch in drawn]
    second_edges = [is_edge(rewards) for rewards in second]
    for algo, formula in FORMULAS.items():
        found = [
            difference(
                formula(torch.from_numpy(batch.rewards).float(), batch),
                ours(Method(algo), batch.rewards[:, :, None], batch),
            )
            for batch, edge in zip(drawn, edges, strict=True)
            if algo != "bnpo" or not edge
        ]
        yield f"`--algo {algo}`", len(found), max(found)
    for algo in DECOMPOSED:
        found = []
        for i, batch in enumerate(drawn):
            if algo == "bnpo" and (edges[i] or second_edges[i]):
                continue
            rewards = np.stack([batch.rewards, second[i]], axis=2)  # [n, m, 2]
            parts = [
                FORMULAS[algo](part, batch) for part in torch.from_numpy(rewards).float().unbind(2)
            ]
            own = ours(Method(algo, decompose=True), rewards, batch)
            found.append(difference((parts[0] + parts[1]) / 2, own))
        yield f"`--algo {algo} --decompose`", len(found), max(found)


EDGES = {
    "equal accuracies, V = 0": [[1.0, 0.0], [1.0, 0.0]],
    "all right, V = 0": [[1.0, 1.0], [1.0, 1.0]],
    "V at least E(1 - E)": [[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]],
    "one question": [[1.0, 0.0, 0.0, 0.0]],
    "one answer per question": [[1.0], [0.0], [1.0]],
}
"""Batches of rewards [n, m] on which BNPO needs a rule of its own."""


def edge_rows() -> Iterator[tuple[str, str, str]]:
    """Yield edges, the released code's advantages (or how it fails), and ours."""
    for name, rewards in EDGES.items():
        try:
            values = shown(bnpo(torch.tensor(rewards)).numpy())
        except ValueError:
            values = "raises ValueError"
        own = compute_advantages(Method("bnpo"), np.array(rewards)[:, :, None]).values
        yield f"{name}: {rewards}", values, shown(own)


def shown(advantages: np.ndarray) -> str:
    return str((np.round(advantages.astype(float), 3) + 0.0).tolist())


def main() -> None:
    for label, batches, largest in largest_differences():
        print(f"| {label} | {batches} | {largest:.0e} |")
    for row in edge_rows():
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
