r"""Countdown: make a target from given numbers.

A reward that checks an expression, and problems for it.

    python examples/countdown.py --output data/countdown.jsonl
    python scripts/launch.py train.py --preset paper-1.5b --train-data data/countdown.jsonl \
        --rewards examples/countdown.py:countdown --eval-every 0

A problem has many right answers, so the field `answer` holds no value to compare with, but what the
reward needs: `98: 19 35 44` are the target and the numbers. This is the task of TinyZero. Every
problem here has a solution.
"""

import ast
import operator
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from bnpo.environment import run_program
from bnpo.files import write_json_lines
from mathequal import final_answer

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
LATEX = {
    r"\times": "*",
    r"\cdot": "*",
    r"\div": "/",
    r"\left": "",
    r"\right": "",
    "×": "*",
    "÷": "/",
    "$": "",
}
MAX_LENGTH = 200
"""Characters of an expression. A longer one is wrong, and is not parsed."""
LARGEST_TARGET = 1000


def countdown(text: str, reference: str) -> float:
    r"""Return 1 if the box in `text` holds an expression of the numbers in `reference` that equals
    its target, else 0.

    Each number must be used exactly once.

    >>> countdown(r"\boxed{(44 - 19) * 4 = 100}", "100: 4 19 44")
    1.0
    >>> countdown(r"\boxed{100}", "100: 4 19 44")
    0.0
    """
    target, _, given = reference.partition(": ")
    expression = (final_answer(text) or "").partition("=")[0]
    for command, sign in LATEX.items():
        expression = expression.replace(command, sign)
    expression = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", expression)
    if len(expression) > MAX_LENGTH:
        return 0.0
    numbers: list[int] = []
    try:
        # Parsed, and computed node by node. `eval` would run whatever the model writes.
        value = _value(ast.parse(expression.strip(), mode="eval").body, numbers)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return 0.0
    return float(value == int(target) and sorted(numbers) == sorted(map(int, given.split())))


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    """Return the exact value of an expression, and append its numbers. Raises ValueError for
    anything else.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, numbers), _value(node.right, numbers))
    raise ValueError(f"{ast.dump(node)[:60]} is no arithmetic")


def draw_problem(rng: np.random.Generator) -> dict[str, str]:
    """Return a random problem with three or four numbers from 1 to 100, its reference and a
    solution.
    """
    while True:  # until the value is a target
        numbers = [int(number) for number in rng.integers(1, 101, size=rng.integers(3, 5))]
        parts = [(Fraction(number), str(number)) for number in numbers]
        while len(parts) > 1:
            rng.shuffle(parts)
            (right, right_text), (left, left_text) = parts.pop(), parts.pop()
            sign = rng.choice(list(SIGNS))
            if sign == "/" and right == 0:
                break
            parts.append((SIGNS[sign](left, right), f"({left_text} {sign} {right_text})"))
        value, solution = parts[0]
        if len(parts) == 1 and value.denominator == 1 and 1 <= value <= LARGEST_TARGET:
            listed = ", ".join(map(str, numbers))
            problem = (
                f"Use each of the numbers {listed} exactly once, with + - * / and parentheses, to "
                f"make {value}."
            )
            problem += r" Write the expression in \boxed{}."
            return {
                "problem": problem,
                "answer": f"{value}: {' '.join(map(str, numbers))}",
                "solution": solution[1:-1],
            }


@dataclass
class Args:
    output: Path
    """File of JSON lines to write."""
    problems: int = 5000
    """Number of problems."""
    seed: int = 0
    """Seed of the problems. Take another one for a test set."""


def main(args: Args) -> None:
    rng = np.random.default_rng(args.seed)
    problems: dict[str, dict[str, str]] = {}  # by text, so that none is repeated
    while len(problems) < args.problems:
        row = draw_problem(rng)
        problems[row["problem"]] = row
    write_json_lines(args.output, problems.values())
    print(f"{args.output}: {len(problems)} problems")


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
