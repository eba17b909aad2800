r"""Check Theorem 1 numerically, and compare the methods' variances.

    python scripts/verify_theorem.py            # about half a minute; exits with 1 if a check fails

With p ~ Beta(a, b), the variance of the gradient estimate is proportional to

    V(alpha, beta) = E[p (1 - p) / f(p; alpha, beta)^2] = B(alpha, beta)^2 B(a + 3 - 2 alpha, b + 3
    - 2 beta) / B(a, b)

REINFORCE has V(1, 1), GRPO has V(3/2, 3/2), BNPO has V(1 + a/3, 1 + b/3). A constant factor in an
estimator changes its variance, so a comparison must fix the scale. Two ways are printed:

- density: f integrates to one, as in the theorem. Then BNPO's variance is the smallest of all
  densities f, not only of Beta densities (by Hoelder's inequality: f is proportional to the cube
  root of p (1 - p) times the density of p).
- step: each estimator takes the step size that is best for it. A step of size c along the estimate
  of the gradient raises the objective by c S - c^2 V / 2 to second order, with the signal S = E[p
  (1 - p) / f]. The best c raises it by S^2 / (2 V). So V / S^2 is compared, the variance at equal
  signal. By Cauchy-Schwarz, REINFORCE's uniform weights are the best ones here.
"""

import sys
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import betaln, psi
from scipy.stats import beta as beta_distribution

CONSOLE = Console(width=120, highlight=False, markup=False)


POINTS = 8
"""Grid points of a, and of b, between 0.1 and 20."""


def log_variance(alpha: float, beta: float, a: float, b: float) -> float:
    """Return log V(alpha, beta), by the closed form above."""
    return 2 * betaln(alpha, beta) + betaln(a + 3 - 2 * alpha, b + 3 - 2 * beta) - betaln(a, b)


def log_signal(alpha: float, beta: float, a: float, b: float) -> float:
    """Return log E[p (1 - p) / f(p; alpha, beta)], the log of the signal S."""
    return betaln(alpha, beta) + betaln(a + 2 - alpha, b + 2 - beta) - betaln(a, b)


def squared_cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the squared cosine between BNPO's and REINFORCE's advantages, if accuracies are known
    and Beta(a, b).

    It is E[w v]^2 / (E[v] E[w^2 v]) with v = p (1 - p) and BNPO's weight w = 1 / f(p; 1 + a/3, 1 +
    b/3).
    """
    log_cosine = (
        2 * betaln(1 + 2 * a / 3, 1 + 2 * b / 3)
        - betaln(1 + a, 1 + b)
        - betaln(1 + a / 3, 1 + b / 3)
    )
    return np.exp(log_cosine)


def numerical_minimum(a: float, b: float, start: np.ndarray) -> np.ndarray:
    """Return the (alpha, beta) that minimise the log variance. BFGS begins at `start`, in (0,
    1)^2 of the domain.
    """
    top = np.array([(a + 3) / 2, (b + 3) / 2])

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        share = 1 / (1 + np.exp(-u))  # maps the plane onto the domain of finiteness
        alpha, beta = x = top * share
        y = 2 * (top - x)
        gradient = 2 * (psi(x) - psi(alpha + beta)) - 2 * (psi(y) - psi(y.sum()))
        return log_variance(alpha, beta, a, b), gradient * top * share * (1 - share)

    found = minimize(
        objective, np.log(start / (1 - start)), jac=True, method="BFGS", options={"gtol": 1e-12}
    )
    return top / (1 + np.exp(-found.x))


def check_minimum() -> float:
    """Return the largest distance of the numerical minima, from three starts each, to (1 + a/3,
    1 + b/3).
    """
    grid, starts = np.geomspace(0.1, 20, POINTS), ([0.5, 0.5], [0.05, 0.9], [0.9, 0.05])
    return max(
        np.abs(numerical_minimum(a, b, np.array(start)) - [1 + a / 3, 1 + b / 3]).max()
        for a, b, start in product(grid, grid, starts)
    )


def is_finite(alpha: float, beta: float, a: float, b: float) -> bool:
    """Return whether E[p (1 - p) / f(p; alpha, beta)^2] converges at p = 0, judged by the growth of
    its integral.

    With p = e^-t, the part with t in [2T, 4T] must be smaller than the part with t in [T, 2T].
    """

    def integrand(t: float) -> float:
        p = np.exp(-t)
        log_density = beta_distribution.logpdf(p, a, b) - 2 * beta_distribution.logpdf(
            p, alpha, beta
        )
        return np.exp(np.log(p) + np.log1p(-p) + log_density - t)  # dp = p dt

    first, second = (quad(integrand, low, 2 * low)[0] for low in (20.0, 40.0))
    return bool(second < first)


def check_domain() -> int:
    """Return how often `is_finite` is wrong just inside and just outside of alpha = (a + 3) / 2.

    The end p = 1 needs no check: it equals the end p = 0 with (a, alpha) and (b, beta) exchanged,
    and the grid has every pair in both orders.
    """
    grid, offsets = np.geomspace(0.1, 20, POINTS), ((-0.05, True), (0.05, False))
    return sum(
        is_finite((a + 3) / 2 + offset, 1 + b / 3, a, b) != finite
        for a, b, (offset, finite) in product(grid, grid, offsets)
    )


def monte_carlo_z(a: float, b: float, alpha: float, beta: float, rng: np.random.Generator) -> float:
    """Return (Monte-Carlo variance of s (R - p) / f - formula) / its standard error, with scores
    s ~ N(0, 1).
    """
    p = rng.beta(a, b, size=2_000_000)
    rewards = rng.random(p.size) < p
    estimates = rng.normal(size=p.size) * (rewards - p) / beta_distribution.pdf(p, alpha, beta)
    squares = estimates**2
    error = squares.std() / np.sqrt(p.size)
    return (squares.mean() - np.exp(log_variance(alpha, beta, a, b))) / error


def check_ceiling(rng: np.random.Generator) -> tuple[float, float, float]:
    """Return three numbers about the squared cosine: its least value on a grid of (a, b), the
    largest distance to its limits sqrt(3)/2 and 3/4, and the largest z of a Monte-Carlo estimate
    from rewards.
    """
    grid = np.geomspace(1e-4, 1e5, 100)
    least = squared_cosine(grid[:, None], grid).min()
    limits = ((1e4, 1e4, 3**0.5 / 2), (3e3, 1e4, 3**0.5 / 2), (1e-4, 1e4, 3 / 4))
    distance = max(abs(squared_cosine(a, b) - limit) for a, b, limit in limits)
    z_scores = []
    for a, b in ((0.5, 1), (3, 3), (2.7, 23)):
        p = rng.beta(a, b, size=(100, 40_000))  # a hundred estimates, for an error
        reinforce = (rng.random(p.shape) < p) - p
        bnpo = reinforce / beta_distribution.pdf(p, 1 + a / 3, 1 + b / 3)
        means = [
            (x * y).mean(axis=1)
            for x, y in ((reinforce, bnpo), (reinforce, reinforce), (bnpo, bnpo))
        ]
        found = means[0] ** 2 / (means[1] * means[2])
        z_scores.append((found.mean() - squared_cosine(a, b)) / (found.std() / 10))
    return float(least), float(distance), float(np.abs(z_scores).max())


def check_best_weight(rng: np.random.Generator) -> float:
    """Return the largest share of the best weight's signal over noise that another weight reaches;
    at most 1.

    With the gradient p (1 - p) d of a question, and m answers of even noise, the best weight is
    proportional to 1 / (1 + rho p (1 - p)). The others are p^x (1 - p)^y on a grid, for eight pairs
    of rho and of (a, b).
    """
    worst = 0.0
    for rho, (a, b) in product((0.0, 1.0, 10.0, 1000.0), ((0.7, 1.3), (3, 3))):
        p = rng.beta(a, b, size=20_000)
        v = p * (1 - p)
        squares = v**2 * rho + v  # E|h|^2 of a question, in units of the noise of an answer over m

        def score(weights: np.ndarray, v: np.ndarray = v, squares: np.ndarray = squares) -> float:
            return (weights * v).mean() ** 2 / (weights**2 * squares).mean()

        best = score(1 / (1 + rho * v))
        others = [
            score(p**x * (1 - p) ** y) for x, y in product(np.linspace(-1.2, 0.6, 10), repeat=2)
        ]
        worst = max(worst, *(other / best for other in others))
    return worst


def largest_mean_gradient_z(rng: np.random.Generator) -> float:
    """Return |mean| / standard error of s (R - p) / f, largest over cases, with scores s as the
    theorem assumes them.

    Scores that are uncorrelated with the advantages have any mean; here it is 1. The mean gradient
    must be 0.
    """
    z_scores = []
    for a, b in ((0.5, 1), (2, 2), (4, 1)):
        p = rng.beta(a, b, size=1_000_000)
        scores = rng.normal(1, 1, size=p.size)
        gradients = (
            scores * ((rng.random(p.size) < p) - p) / beta_distribution.pdf(p, 1 + a / 3, 1 + b / 3)
        )
        z_scores.append(gradients.mean() / (gradients.std() / np.sqrt(p.size)))
    return float(np.abs(z_scores).max())


def print_ratios() -> None:
    """Print how BNPO's variance compares with those of REINFORCE and GRPO, for several Beta
    distributions.
    """
    table = Table(title="Variance of BNPO over that of the others (below 1: BNPO's is smaller)")
    for column in (
        "a",
        "b",
        "E p",
        "Var p",
        "density: REINFORCE",
        "density: GRPO",
        "step: REINFORCE",
        "step: GRPO",
    ):
        table.add_column(column, justify="right")
    for a, b in (
        (0.2, 0.2),
        (0.5, 1),
        (1, 1),
        (1.5, 1.5),
        (2, 1),
        (1, 4),
        (4, 4),
        (8, 2),
        (20, 20),
    ):
        mean, variance = beta_distribution.stats(a, b, moments="mv")
        row = [f"{value:.3g}" for value in (a, b, mean, variance)]
        for with_signal in (0, 1):
            scores = [
                log_variance(*parameters, a, b) - 2 * with_signal * log_signal(*parameters, a, b)
                for parameters in ((1 + a / 3, 1 + b / 3), (1, 1), (1.5, 1.5))
            ]
            row += [f"{np.exp(scores[0] - other):.3f}" for other in scores[1:]]
        table.add_row(*row)
    CONSOLE.print(table)


def main() -> None:
    worst = check_minimum()
    CONSOLE.print(
        f"minimum_distance: {worst:.1e}   (numerical minimum to (1 + a/3, 1 + b/3); must be below "
        "1e-6)"
    )
    wrong = check_domain()
    CONSOLE.print(f"domain_errors: {wrong}   (finite below alpha = (a + 3)/2, infinite above)")
    rng = np.random.default_rng(0)
    # The fourth moments behind the error bars are finite for these.
    cases = [
        (a, b, *ab)
        for a, b in ((0.5, 1), (1, 2), (2, 2), (2.5, 1))
        for ab in ((1, 1), (1 + a / 3, 1 + b / 3))
    ]
    z_scores = [monte_carlo_z(*case, rng) for case in cases]
    CONSOLE.print(
        f"monte_carlo_largest_z: {np.abs(z_scores).max():.2f}   "
        f"(of {len(cases)} variances, in standard errors; must be below 4)"
    )
    zero = largest_mean_gradient_z(rng)
    CONSOLE.print(
        f"mean_gradient_largest_z: {zero:.2f}   (no signal under the theorem's assumption; must be "
        "below 4)"
    )
    least, distance, cosine_z = check_ceiling(rng)
    CONSOLE.print(
        f"squared_cosine_least: {least:.4f}   (on a grid of a and b; must be above 3/4)\n"
        f"squared_cosine_limits: {distance:.1e}   (distance to sqrt(3)/2 and 3/4; must be below "
        f"1e-3)\nsquared_cosine_largest_z: {cosine_z:.2f}   (formula against rewards; must be "
        "below 4)"
    )
    share = check_best_weight(rng)
    CONSOLE.print(
        f"best_weight_share: {share:.4f}   (of its signal over noise, by other weights; at most 1)"
    )
    print_ratios()
    confirmed = worst < 1e-6 and wrong == 0 and max(np.abs(z_scores).max(), zero, cosine_z) < 4
    if not (confirmed and least > 3 / 4 and distance < 1e-3 and share <= 1):
        sys.exit("Theorem 1 or a statement of docs/theory.md was not confirmed")


if __name__ == "__main__":
    main()
