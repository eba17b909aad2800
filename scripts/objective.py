"""Print and draw what estimators maximise with m answers to each question.

    # all that need no flags and no more than one reward, with 16 answers
    python scripts/objective.py
    # some, each with its flags as behind `train.py --algo`
    python scripts/objective.py grpo 'pass_at_k --k 4' 'weight --weight p**-0.5' my_file.py:median

The tables and the picture show the exact weight w_m(p), that is the expected gradient over the
gradient of p, and the exact objective J_m(p), its integral from 0, for rewards of 0 and 1.
docs/theory.md derives them. `bnpo` and `curverl` depend on the batch, and are shown for batches of
three kinds.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from bnpo.config import naming_flags
from bnpo.environment import parse_command, run_program
from bnpo.files import InputError
from bnpo_estimators import Method, exact_objective, exact_weight, method_gains
from paper.figures import draw_weights, save
from paper.objectives import UNBIASED, atlas, fitted_gains
from planner.dry_run import ACCURACIES

MAX_ANSWERS = 1024


@dataclass
class Args:
    methods: tyro.conf.Positional[tuple[str, ...]] = ()
    """Estimators, each with its flags in quotes. Without any, all that need no flags and no more
    than one reward are shown."""
    answers: int = 16
    """Number of answers to each question, m."""
    questions: int = 32
    """Number of questions per step, n, which weights may use."""
    output_dir: Path = Path("runs/figures")
    """Folder for objective.pdf and objective.png."""


def gains_of(text: str, answers: int, questions: int) -> dict[str, np.ndarray]:
    """Return the gains [m] of an estimator with its flags, by label. Raises InputError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{text!r}: cannot be split into flags: {error}") from error
    method = parse_command(Method, ["--algo", *words])
    if method.rescale_advantages or method.beta_moments != Method.beta_moments:
        raise InputError(
            f"{text!r}: what --rescale-advantages and --beta-moments change depends on the batch, "
            "and is not shown; leave them out"
        )
    with naming_flags():
        if method.algo in ("bnpo", "curverl"):
            method.check(questions, answers, 1)
            return fitted_gains(method.algo, answers)
        if method.algo in UNBIASED:
            return {text: method_gains(Method("rloo"), answers)}
        return {text: method_gains(method, answers, questions)}


def print_table(title: str, rows: dict[str, np.ndarray]) -> None:
    """Print values by label, one for each of ACCURACIES."""
    table = Table("estimator", *(f"p = {p:g}" for p in ACCURACIES), title=title)
    for label, values in rows.items():
        table.add_row(label, *(f"{value:.3f}" for value in values))
    Console(width=150, markup=False).print(table)


def main(args: Args) -> None:
    m = args.answers
    if not 2 <= m <= MAX_ANSWERS:
        raise InputError(f"--answers: is {m}, must be from 2 to {MAX_ANSWERS}")
    if args.questions < 2:
        raise InputError(f"--questions: is {args.questions}, must be at least 2")
    gains = {} if args.methods else atlas(m)
    for text in args.methods:
        gains |= gains_of(text, m, args.questions)
    weights = {label: exact_weight(ACCURACIES, gain) for label, gain in gains.items()}
    print_table(f"Exact weight with {m} answers", weights)
    objectives = {label: exact_objective(ACCURACIES, gain) for label, gain in gains.items()}
    print_table(f"Exact objective with {m} answers", objectives)
    print(*save(draw_weights(gains, m), args.output_dir / "objective"))


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
