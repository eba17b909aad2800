"""What an estimator (R - p) w(p) maximises, exactly, with m answers to each question.

With m answers p is only known as k / m, where k answers are right, and w matters only at these points. With B further
right answers of m - 1, the expected gradient for a question with the true accuracy p is w_m(p) times the gradient of p:

    w_m(p) = (m - 1) / m E[w((B' + 1) / m)],  B' ~ Bin(m - 2, p): a Bernstein polynomial of degree m - 2
    J_m(p) = 1 / m E[w(1 / m) + ... + w(B / m)],  B ~ Bin(m - 1, p): its integral from 0, a polynomial of degree m - 1

docs/theory.md derives both.
"""

import ast
import operator
from collections.abc import Callable

import numpy as np
from scipy.stats import betabinom, binom

from bnpo.algorithm.beta import BetaFit, inverse_density
from bnpo.algorithm.estimators import ALGORITHMS, Batch
from bnpo.files import InputError

FITS = ((0.3, 0.09), (0.5, 0.02), (0.1, 0.01))
"""Batches for which BNPO and CurveRL are shown, as mean and variance of the accuracies: questions of all kinds, about
equally hard ones, and hard ones."""
OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
ALLOWED = "Use p, numbers, + - * / ** and sqrt, log, exp, as in p**-0.5 * (1 - p)"
FUNCTIONS: dict[str, Callable] = {"sqrt": np.sqrt, "log": np.log, "exp": np.exp}


def shares(answers: int) -> np.ndarray:
    """Return the accuracies strictly between 0 and 1 that `answers` = m answers can show: [m - 1]."""
    return np.arange(1, answers) / answers


def exact_weight(p: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return w_m(p) [points] of the `weights` w(1/m) to w((m - 1)/m) [m - 1].

    By hand, m = 2: two answers differ with probability 2 p (1 - p), and only then have an advantage. Then w_2 = w / 2.

    >>> exact_weight(np.array([0.1, 0.9]), np.array([4.0]))
    array([2., 2.])
    """
    m = len(weights) + 1
    chances = binom.pmf(np.arange(m - 1), m - 2, p[:, None])  # [points, m - 1]
    return (m - 1) / m * chances @ weights


def exact_objective(p: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return J_m(p) [points], the integral of w_m from 0 to p, of the weights w(1/m) to w((m - 1)/m) [m - 1].

    >>> exact_objective(np.array([0.0, 0.25, 1.0]), np.array([4.0]))
    array([0. , 0.5, 2. ])
    """
    m = len(weights) + 1
    reached = binom.sf(np.arange(m - 1), m - 1, p[:, None])  # [points, m - 1]: P(B >= k) for k = 1 to m - 1
    return reached @ weights / m


def group_weights(algo: str, answers: int) -> np.ndarray:
    """Return w(k/m) [m - 1] of an estimator that sees one question at a time, from its advantages themselves."""
    rewards = (np.arange(answers) < np.arange(1, answers)[:, None]).astype(float)  # [m - 1, m], right answers first
    advantages, _ = ALGORITHMS[algo](Batch(rewards))
    return advantages[:, 0] - advantages[:, -1]  # (1 - p) w + p w


def beta_moments(mean: float, variance: float) -> BetaFit:
    """Return the Beta distribution with this mean and variance."""
    concentration = mean * (1 - mean) / variance - 1
    return BetaFit(mean, variance, concentration * mean, concentration * (1 - mean), "")


def atlas(answers: int) -> dict[str, np.ndarray]:
    """Return w(k/m) [m - 1] of all estimators by label. BNPO and CurveRL are shown for the batches in FITS.

    `remax`, `eb` and `shrinkage` leave the expected gradient as it is, as `rloo` does. `opo` and the two REINFORCE++ do
    so up to terms of order 1/m.
    """
    weights = {
        "rloo, remax, eb, shrinkage": group_weights("rloo", answers),
        "reinforce": group_weights("reinforce", answers),
        "grpo": group_weights("grpo", answers),
        "maxrl": group_weights("maxrl", answers),
    }
    for mean, variance in FITS:
        fit = beta_moments(mean, variance)
        weights[f"bnpo at E[p] = {mean}, Var[p] = {variance}"] = inverse_density(shares(answers), fit.alpha, fit.beta)
    for mean, variance in FITS:
        fit = beta_moments(mean, variance)
        counts = betabinom.pmf(np.arange(1, answers), answers, fit.a, fit.b)  # [m - 1], of a large batch
        weights[f"curverl at E[p] = {mean}, Var[p] = {variance}"] = counts / np.cumsum(counts)
    return weights


def parse_weight(text: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return w as a function of p [points], from an expression such as `p**-0.5 * (1 - p)`.

    It may have p, numbers, + - * / ** and the functions sqrt, log and exp. It is parsed, never run as code. Raises
    InputError for anything else.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(
            f"--weight {text[:60]!r} is no expression. Use p, numbers, + - * / ** and sqrt, log, exp"
        ) from None

    def evaluate(node: ast.expr, p: np.ndarray) -> np.ndarray:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return np.full_like(p, float(value))  # so that 9**9**9 is infinite at once
            case ast.Name(id="p"):
                return p
            case ast.UnaryOp(op=ast.USub()):
                return -evaluate(node.operand, p)
            case ast.BinOp() if type(node.op) in OPERATORS:
                return OPERATORS[type(node.op)](evaluate(node.left, p), evaluate(node.right, p))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                return FUNCTIONS[name](evaluate(argument, p))
        raise InputError(f"--weight {text[:60]!r}: {ast.unparse(node)[:60]!r} is not allowed. {ALLOWED}")

    def weight(p: np.ndarray) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):
                values = evaluate(tree, p)
        except (OverflowError, RecursionError):
            raise InputError(f"--weight {text[:60]!r} is too large to evaluate") from None
        if not np.isfinite(values).all():
            raise InputError(f"--weight {text[:60]!r} is not finite at p = {p[~np.isfinite(values)][0]:g}")
        return values

    return weight
