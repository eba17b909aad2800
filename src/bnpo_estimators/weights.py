"""Weights of questions that users type (--algo weight)."""

import ast

import numpy as np

from bnpo_estimators.registry import SettingError

OPERATORS = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
FUNCTIONS = {"sqrt": (np.sqrt, 1), "log": (np.log, 1), "exp": (np.exp, 1), "max": (np.maximum, 2)}
"""Functions, each with the number of its arguments."""
ALLOWED = "Use p, m, n, numbers, + - * / ** and sqrt, log, exp, max(a, b), as in (1 - p)**0.5 / p"
LARGEST_WEIGHT = 1e30  # far below the largest number in fp32, in which the learner holds advantages


def weight_values(
    text: str, p: np.ndarray, m: int | np.ndarray, n: int, field: str = "weight"
) -> np.ndarray:
    """Return w(p) [points] of an expression such as `(1 - p)**0.5`, at 0 < p < 1. m are the answers
    to a question (one number, or one for each p), n the questions of a batch.

    The expression is parsed, never run as code. Raises SettingError for what is not ALLOWED, and
    for weights below 0 or not finite.

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
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if (
                name in FUNCTIONS and len(arguments) == FUNCTIONS[name][1]
            ):
                return FUNCTIONS[name][0](*map(evaluate, arguments))
        raise SettingError(f"{shown}: {ast.unparse(node)[:60]!r} is not allowed. {ALLOWED}")

    try:
        with np.errstate(all="ignore"):
            values = evaluate(ast.parse(text.strip(), mode="eval").body)
    except SettingError:  # is a ValueError, too
        raise
    except (SyntaxError, ValueError, MemoryError, OverflowError, RecursionError):
        problem = "is not a valid expression, or is too large to evaluate"
        raise SettingError(f"{shown} {problem}. {ALLOWED}") from None
    allowed = (values >= 0) & (values <= LARGEST_WEIGHT)  # nan is not
    if not allowed.all():
        value, at, answers = (each[~allowed][0] for each in (values, p, names["m"]))
        found = f"is {value:g} at p = {at:g} and m = {answers:g}"
        cure = "; write max(0, ...) around what may be negative" if value < 0 else ""
        raise SettingError(f"{shown} {found}, must be from 0 to {LARGEST_WEIGHT:g}{cure}")
    return values


def shares(m: int) -> np.ndarray:
    """Return the accuracies strictly between 0 and 1 that m answers can show, [m - 1]."""
    return np.arange(1, m) / m
