r"""Formulas in LaTeX evaluated by other means than the grader's: translated to Python's arithmetic, run by mpmath.

A small part of LaTeX is enough here, since it checks labels; the rest is None.
"""

import ast
import operator
import re
from collections.abc import Callable

import mpmath

POINTS = 2
DIGITS = 1600
"""Enough to tell 2^1000 from 2^1000 + 1, and both from their quotients."""
_FUNCTIONS: dict[str, Callable] = {
    "sqrt": mpmath.sqrt,
    "root": lambda x, n: -mpmath.root(-x, n) if mpmath.im(x) == 0 and x < 0 and int(n) % 2 else mpmath.root(x, n),
    "binomial": mpmath.binomial,
    "log": mpmath.log,
    "Abs": abs,
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "sec", "csc", "cot", "factorial")},
}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda base, exponent: base**exponent,
}
_STEPS = (
    (r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[,!;: ]|\$", " "),
    (r"\\[dt]frac", r"\\frac"),
    (r"\\frac\s*(\w)\s*(\w)", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
    (r"(?<![\d.}])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\2/\3)"),
    (r"\\(?:times|cdot)(?![a-zA-Z])", "*"),
    (r"\\div", "/"),
)
_NESTED = (
    (r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))"),
    (r"\\binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"binomial((\1),(\2))"),
    (r"\\sqrt\s*\[(\d)\]\s*\{([^{}]*)\}", r"root((\2),\1)"),
    (r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)"),
    (r"\^\s*\{([^{}]*)\}", r"^(\1)"),
)
_TOKEN = re.compile(
    r"\d+\.?\d*|\.\d+|\\?(?:sqrt|root|binomial|sin|cos|tan|sec|csc|cot|pi)(?![a-z])|[a-zA-Z]|[-+*/^(),!]"
)


def python_of(latex: str) -> str | None:
    """The formula as an expression of Python, None where it is beyond this module."""
    text = latex
    for pattern, new in _STEPS:
        text = re.sub(pattern, new, text)
    for _ in range(8):
        for pattern, new in _NESTED:
            text = re.sub(pattern, new, text)
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+", "", text) or not tokens:
        return None
    words, before = [], ""
    for token in (token.lstrip("\\") for token in tokens):
        starts = token[0].isalnum() or token[0] in "(."
        if before and starts and (before[-1].isalnum() or before in (")", "!")) and before not in _FUNCTIONS:
            words.append("*")
        if token == "!":
            words = ["factorial(", *words, ")"] if len(words) == 1 else [*words, "!"]
        else:
            words.append("**" if token == "^" else token)
        before = token
    return "".join(words) if "!" not in words else None


def value(expression: str, variables: dict[str, mpmath.mpf]) -> mpmath.mpc | None:
    """What Python's arithmetic makes of it, None where it has no value."""
    try:
        return mpmath.mpmathify(_value(ast.parse(expression, mode="eval").body, variables))
    except (ArithmeticError, LookupError, SyntaxError, TypeError, ValueError):
        return None


def _value(node: ast.expr, variables: dict[str, mpmath.mpf]) -> mpmath.mpc:
    if isinstance(node, ast.Constant):
        return mpmath.mpf(str(node.value))
    if isinstance(node, ast.Name):
        return {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.j}.get(node.id, variables.get(node.id)) * 1
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, variables) if isinstance(node.op, ast.USub) else _value(node.operand, variables)
    if isinstance(node, ast.BinOp):
        left, right = (_value(side, variables) for side in (node.left, node.right))
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call):
        return _FUNCTIONS[node.func.id](*(_value(argument, variables) for argument in node.args))
    raise ValueError(ast.dump(node))


def same(first: str, second: str) -> bool | None:
    """Whether two formulas have the same values at random positive points, None where either is no formula."""
    expressions = [python_of(latex) for latex in (first, second)]
    if None in expressions:
        return None
    letters = sorted(set(re.findall(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])", " ".join(expressions))) - {"e", "i"})
    with mpmath.workdps(DIGITS):
        for point in range(POINTS):
            chosen = {letter: mpmath.mpf(3 + 5 * point + 7 * k) / 11 for k, letter in enumerate(letters)}
            one, other = (value(expression, chosen) for expression in expressions)
            if one is None or other is None:
                return None
            if abs(one - other) > mpmath.mpf(10) ** (20 - DIGITS) * max(abs(one), abs(other), mpmath.mpf(10) ** -500):
                return False
    return True
