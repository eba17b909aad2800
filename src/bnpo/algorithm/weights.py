"""Weights of questions that users type (--algo weight), and what an estimator with a weight
maximises, exactly.

With m answers to each question, the accuracy p is only known as k / m, where k answers are right.
docs/theory.md derives the formulas.
"""

import ast
from collections.abc import Callable

import numpy as np
import scipy  # `scipy.stats` is loaded on first use

from bnpo.algorithm.registry import SettingError

OPERATORS = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
FUNCTIONS: dict[str, Callable] = {"sqrt": np.sqrt, "log": np.log, "exp": np.exp}
ALLOWED = "Use p, m, n, numbers, + - * / ** and sqrt, log, exp, as in (1 - p)**0.5 / p"
# Accuracies at which tables show values
ACCURACIES = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
LARGEST_WEIGHT = 1e30  # far below the largest number in fp32, in which the learner holds advantages


def weight_values(
    text: str, p: np.ndarray, m: int | np.ndarray, n: int, field: str = "weight"
) -> np.ndarray:
    """Return w(p) [points] of an expression such as `(1 - p)**0.5`, at accuracies p strictly
    between 0 and 1.

    m are the answers to a question (one number, or one for each p), n the questions of a batch. The
    expression is parsed, never run as code. Raises SettingError for what is not ALLOWED, and for
    weights below 0 or not finite.

    >>> weight_values("sqrt(1 - p) / m", np.array([0.75, 0.96]), m=2, n=1).round(3)
    array([0.25, 0.1 ])
    """
    shown = f"`{field}` {text[:60]!r}"
    names = {"p": p, "m": np.full_like(p, m), "n": np.full_like(p, n)}

    def evaluate(node: ast.expr) -> np.ndarray:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                # An array, so that 9**9**9 is infinite at once
                return np.full_like(p, float(value))
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=ast.USub()):
                return -evaluate(node.operand)
            case ast.BinOp() if type(node.op) in OPERATORS:
                return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if (
                name in FUNCTIONS
            ):
                return FUNCTIONS[name](evaluate(argument))
        raise SettingError(f"{shown}: {ast.unparse(node)[:60]!r} is not allowed. {ALLOWED}")

    try:
        with np.errstate(all="ignore"):
            values = evaluate(ast.parse(text.strip(), mode="eval").body)
    except SettingError:  # what `evaluate` found, also a ValueError
        raise
    except (SyntaxError, ValueError, MemoryError, OverflowError, RecursionError):
        raise SettingError(
            f"{shown} is no expression, or is too large to evaluate. {ALLOWED}"
        ) from None
    allowed = (values >= 0) & (values <= LARGEST_WEIGHT)  # nan is not
    if not allowed.all():
        where, value = p[~allowed][0], values[~allowed][0]
        raise SettingError(
            f"{shown} is {value:g} at p = {where:g}, must be from 0 to {LARGEST_WEIGHT:g} for 0 < "
            "p < 1"
        )
    return values


def shares(answers: int) -> np.ndarray:
    """Return the accuracies strictly between 0 and 1 that `answers` = m answers can show: [m -
    1].
    """
    return np.arange(1, answers) / answers


def gains(right: np.ndarray, wrong: np.ndarray | None = None) -> np.ndarray:
    """Return u(b) [m]: how much more advantage an answer has if it is right, where b of the m - 1
    others are right.

    `right` [m - 1] are the weights of right answers at the accuracies `shares(m)`, `wrong` those of
    wrong answers (the default is the same). A right answer has the advantage (1 - k/m) right(k/m)
    with k = b + 1, a wrong one -k/m wrong(k/m) with k = b.
    """
    m = len(right) + 1
    values = np.zeros(m)
    values[:-1] = (1 - shares(m)) * right
    values[1:] += shares(m) * (right if wrong is None else wrong)
    return values


def exact_weight(p: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return w_m(p) [points], the expected gradient of a question over the gradient of p: E[u(B)],
    B ~ Bin(m - 1, p).

    >>> exact_weight(np.array([0.1, 0.9]), gains(np.array([4.0])))  # with m = 2 half the weight
    array([2., 2.])
    """
    m = len(gain)
    return scipy.stats.binom.pmf(np.arange(m), m - 1, p[:, None]) @ gain


def exact_objective(p: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Return J_m(p) [points], the integral of w_m from 0 to p: the sum over b of u(b) P(B > b) /
    m, B ~ Bin(m, p).
    """
    m = len(gain)
    return scipy.stats.binom.sf(np.arange(m), m, p[:, None]) @ gain / m
