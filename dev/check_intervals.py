"""Measure how often the 95 % interval of a paired comparison contains the true difference, on
simulated answers: the project's t interval beside the percentiles of a bootstrap.

    python dev/check_intervals.py    # half a minute

The problems are drawn anew in each trial. Before the change, their rates of right answers are drawn
from Beta(0.5, 0.8), as for a model that solves some problems always and others never. A trial
without any changed answer has no interval. These are counted apart.
"""

from dataclasses import dataclass

import numpy as np
import tyro

from bnpo.evaluation.scores import paired_differences

RESAMPLES = 2000  # of the bootstrap


@dataclass(frozen=True)
class Change:
    """How a second model differs from the first."""

    repetitions: int
    """Answers to each problem."""
    improved: float
    """Share of the problems whose rate of right answers becomes 1."""
    worsened: float
    """Share of the problems whose rate becomes 0."""
    shift: float = 0.0
    """Standard deviation of a change of all other rates."""


CHANGES = {
    "all problems, 16 repetitions": Change(16, 0.05, 0.0, 0.1),
    "all problems, 1 repetition": Change(1, 0.05, 0.0, 0.1),
    "10 % of the answers, 1 repetition": Change(1, 0.12, 0.06),
    "4 % of the answers, 1 repetition": Change(1, 0.05, 0.02),
}


@dataclass
class Args:
    trials: int = 1000
    """Simulated comparisons of each kind."""
    problems: tuple[int, ...] = (30, 100, 500)
    """Numbers of problems."""
    seed: int = 0


def draw(change: Change, problems: int, rng: np.random.Generator) -> np.ndarray:
    """Return the differences [problems] of the means of two models. Without a shift of all rates,
    only answers to the changed problems differ, as with greedy decoding.
    """
    rates = rng.beta(0.5, 0.8, problems)
    if not change.shift:
        rates = (rng.random(problems) < rates).astype(float)
    kind = rng.random(problems)
    after = np.clip(rates + change.shift * rng.standard_normal(problems), 0, 1)
    after = np.where(kind < change.improved, 1.0, after)
    after = np.where(kind > 1 - change.worsened, 0.0, after)
    count = change.repetitions
    return (rng.binomial(count, after) - rng.binomial(count, rates)) / count


def main(args: Args) -> None:
    rng = np.random.default_rng(args.seed)
    for name, change in CHANGES.items():
        truth = draw(change, 2_000_000, rng).mean()
        for problems in args.problems:
            by_t, by_bootstrap = [], []  # of the trials with an interval
            for _ in range(args.trials):
                values = draw(change, problems, rng)
                report = paired_differences({"x": values})["x"]
                if report["detectable"] is None:
                    continue
                by_t.append(report["low"] <= truth <= report["high"])
                means = rng.choice(values, (RESAMPLES, problems)).mean(axis=1)
                low, high = np.percentile(means, [2.5, 97.5])
                by_bootstrap.append(low <= truth <= high)
            print(
                f"{name}: {problems} problems: t {np.mean(by_t):.3f}, "
                f"bootstrap {np.mean(by_bootstrap):.3f}, "
                f"no interval {1 - len(by_t) / args.trials:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
