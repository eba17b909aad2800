"""Check whether a Beta distribution fits the accuracies of a run's batches, and how good the fit of
a batch is.

    # the counts of right answers of each kept batch, with p-values
    python scripts/fit_check.py runs/demo/run
    # bias and standard deviation of alpha and beta, by simulation
    python scripts/fit_check.py --moments

The first compares the counts of right answers with the beta-binomial distribution that fits them.
The p-value comes from a parametric bootstrap, so it allows for discrete counts and for the fit.
Batches are kept every --rollouts-every steps. A reward that is not 0 or 1 is left out.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy.stats import betabinom, binomtest, combine_pvalues

from bnpo.environment import run_program
from bnpo.files import InputError, step_of, whole_json_lines
from bnpo.grading.rewards import reward_name
from bnpo_estimators import fit_beta
from runpage.run_files import open_folder, rewards_of

CONSOLE = Console(width=120, markup=False, highlight=False)
LEVEL = 0.05
LEAST_CONCENTRATION = 1e-6
"""The a + b that stands for 0: nearly all accuracies are 0 or 1."""
GRID = (0.5, 1.5, 5.0)
"""Values of a, and of b, for which the fit is simulated."""


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of training runs. They may still be going."""
    resamples: int = 999
    """Draws of the parametric bootstrap for each batch."""
    moments: bool = False
    """Print bias and standard deviation of the fit, by simulation."""
    questions: int = 32
    """Questions of a simulated batch."""
    answers: int = 16
    """Answers to each question of a simulated batch."""
    batches: int = 4000
    """Number of simulated batches."""


def fitted_counts(right: np.ndarray, answers: int) -> np.ndarray:
    """Return the probabilities [m + 1] of 0 to m right answers by the beta-binomial distribution
    fitted to `right`.

    `right` [n] are the counts of right answers to n questions with `answers` = m answers each. a
    and b are fitted with corrected moments, which are those of a beta-binomial distribution
    (`fit_beta`).

    With counts 1 and 3 of 4, a = b = 3/2 (see `fit_beta`). For example, B(3/2, 11/2) / B(3/2, 3/2)
    = 0.1641:

    >>> fitted_counts(np.array([1, 3]), answers=4).round(4)
    array([0.1641, 0.2188, 0.2344, 0.2188, 0.1641])
    """
    fit = fit_beta(right / answers, answers, "corrected")
    counts = np.arange(answers + 1)
    if fit.edge == "constant":
        return (counts == right[0]).astype(float)
    total = max(fit.a + fit.b, LEAST_CONCENTRATION)
    return betabinom.pmf(counts, answers, total * fit.mean, total * (1 - fit.mean))


def distance(right: np.ndarray, probabilities: np.ndarray) -> float:
    """Return how far counts [n] are from `probabilities` [m + 1]: the Cramer-von Mises distance of
    discrete data.

    It is n times the sum of P(k) (share of counts up to k - P(up to k))^2. By hand: n = 2, and both
    counts are 0, so the shares are 1 and 1, against 1/2 and 1. The distance is 2 * 1/2 * (1/2)^2.

    >>> distance(np.array([0, 0]), np.array([0.5, 0.5]))
    0.25
    """
    shares = np.bincount(right, minlength=len(probabilities)).cumsum() / len(right)
    return float(len(right) * (probabilities * (shares - probabilities.cumsum()) ** 2).sum())


def beta_p_value(
    right: np.ndarray, answers: int, resamples: int = 199, seed: int = 0
) -> float | None:
    """Return the p-value of the hypothesis that accuracies have a Beta distribution, or None if all
    are 0 or all 1.

    Parametric bootstrap: counts are drawn from the fitted beta-binomial distribution `resamples`
    times, fitted again, and compared with their own fit. So the p-value allows for discrete counts
    and for the fit. Few questions give the test little power: it finds gross misfits only.

    >>> beta_p_value(np.array([8] * 16 + [0, 16] * 8), answers=16)  # half of the accuracies are 1/2
    0.005
    >>> beta_p_value(np.array([16, 16]), answers=16) is None
    True
    """
    if (right == right[0]).all() and right[0] in (0, answers):
        return None
    rng = np.random.default_rng(seed)
    probabilities = fitted_counts(right, answers)
    observed = distance(right, probabilities)
    as_far = 1
    for _ in range(resamples):
        sample = rng.choice(answers + 1, size=len(right), p=probabilities / probabilities.sum())
        as_far += distance(sample, fitted_counts(sample, answers)) >= observed - 1e-12
    return as_far / (resamples + 1)


def check_run(folder: Path, resamples: int) -> None:
    """Print the p-value of each kept batch of a run, and what they say together."""
    config = open_folder(folder)
    if "protocol" in config:
        raise InputError(f"{folder}: is an evaluation; name a folder that train.py wrote")
    table = Table("step", "reward", "questions", "mean accuracy", "a", "b", "p", title=str(folder))
    names = [reward_name(reward) for reward in config["rewards"]]
    found: dict[str, list[float]] = {}
    for path in sorted((folder / "rollouts").glob("step-*.jsonl")):
        rows = whole_json_lines(path)
        rewards = rewards_of(rows, config["samples_per_question"])  # [n, m, K]
        if rewards is None or step_of(path) is None:
            continue
        # Only questions with m known rewards have a count of m answers
        failed = np.reshape([row.get("failed", False) for row in rows], rewards.shape[:2])
        rewards = rewards[~failed.any(axis=1)]
        if not len(rewards):
            continue
        for k, name in enumerate(names if len(names) > 1 else [""]):
            values = rewards[:, :, k]  # [n, m]
            if not np.isin(values, (0, 1)).all():
                continue
            n, m = values.shape
            right = values.sum(axis=1).astype(int)
            fit, p = fit_beta(right / m, m, "corrected"), beta_p_value(right, m, resamples)
            numbers = [f"{value:.3g}" for value in (fit.mean, fit.a, fit.b)]
            table.add_row(
                str(step_of(path)), name, str(n), *numbers, "-" if p is None else f"{p:.3f}"
            )
            if p is not None:
                found.setdefault(name, []).append(p)
    if not found:
        raise InputError(
            f"{folder}: has no whole batch with rewards of 0 and 1; train with --rollouts-every 1"
        )
    CONSOLE.print(table)
    for name, p_values in found.items():
        small = sum(p <= LEVEL for p in p_values)
        many = binomtest(small, len(p_values), LEVEL, alternative="greater").pvalue
        together = combine_pvalues(p_values).pvalue
        CONSOLE.print(
            f"{name + ': ' if name else ''}{small} of {len(p_values)} batches have p <= {LEVEL:g} "
            f"(so many or more by chance: p = {many:.3g}); all together by Fisher's method: p = "
            f"{together:.3g}"
        )


def simulate_fits(a: float, b: float, moments: str, args: Args) -> np.ndarray:
    """Return alpha, beta, and 1 for a fit at its limit (`edge`), of simulated batches: [batches,
    3].
    """
    rng = np.random.default_rng(0)
    p = rng.beta(a, b, size=(args.batches, args.questions))
    accuracies = rng.binomial(args.answers, p) / args.answers
    fits = [fit_beta(batch, args.answers, moments) for batch in accuracies]
    return np.array([(fit.alpha, fit.beta, bool(fit.edge)) for fit in fits])


def print_moments(args: Args) -> None:
    """Print how far the fitted alpha and beta are from 1 + a/3 and 1 + b/3, for both kinds of
    moments.
    """
    columns = (
        "a",
        "b",
        "alpha",
        "beta",
        "sample: alpha",
        "beta",
        "corrected: alpha",
        "beta",
        "limited, %",
    )
    title = (
        f"Bias ± standard deviation of the fit, {args.questions} questions x {args.answers} answers"
    )
    table = Table(*columns, title=title)
    for a, b in product(GRID, repeat=2):
        truth = np.array([1 + a / 3, 1 + b / 3])
        cells = [f"{value:.3g}" for value in (a, b, *truth)]
        limited = []
        for moments in ("sample", "corrected"):
            fits = simulate_fits(a, b, moments, args)
            bias, deviation = fits[:, :2].mean(axis=0) - truth, fits[:, :2].std(axis=0, ddof=1)
            cells += [f"{x:+.2f} ± {y:.2f}" for x, y in zip(bias, deviation, strict=True)]
            limited.append(f"{100 * fits[:, 2].mean():.1f}")
        table.add_row(*cells, ", ".join(limited))
    CONSOLE.print(table)
    CONSOLE.print(
        "limited: batches whose a + b was set to its largest or smallest value, with sample, "
        "corrected moments"
    )


def main(args: Args) -> None:
    for name in ("resamples", "questions", "answers", "batches"):
        if getattr(args, name) < 2:
            raise InputError(f"--{name}: is {getattr(args, name)}, must be at least 2")
    if not args.runs and not args.moments:
        raise InputError("nothing to do: name the folder of a run, or use --moments")
    for folder in args.runs:
        check_run(folder, args.resamples)
    if args.moments:
        print_moments(args)


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
