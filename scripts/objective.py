"""Print and draw what estimators maximise with m answers to each question, for any weight w(p) of
yours too.

    # all estimators, 16 answers
    python scripts/objective.py
    # and the advantage (R - p) p**-0.5
    python scripts/objective.py --weight 'p**-0.5' --answers 8

A weight may have p, the answers per question m, the questions per step n, numbers, + - * / ** and
the functions sqrt, log and exp. `train.py --algo weight` takes the same. It is parsed, never run as
code. The tables show the exact weight w_m(p), that is the expected gradient over the gradient of p,
and the objective J_m(p), its integral from 0. docs/theory.md derives them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bnpo.algorithm.estimators import Method
from bnpo.algorithm.weights import ACCURACIES, exact_objective, exact_weight, gains, shares
from bnpo.config import naming_flags
from bnpo.environment import run_program
from bnpo.files import InputError
from paper.figures import draw_weights, save
from paper.objectives import atlas

MAX_ANSWERS = 1024


@dataclass
class Args:
    weight: tuple[str, ...] = ()
    """Weights w(p) of advantages (R - p) w(p), as expressions."""
    weight_wrong: str | None = None
    """Another weight for wrong answers, with each of --weight."""
    answers: int = 16
    """Number of answers to each question, m."""
    questions: int = 32
    """Number of questions per step, n."""
    output_dir: Path = Path("runs/figures")
    """Folder for objective.pdf and objective.png."""


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
    everything = {}
    for text in args.weight:
        method = Method("weight", weight=text, weight_wrong=args.weight_wrong)
        with naming_flags():
            everything[text] = gains(*method.weights(shares(m), m, args.questions))
    everything |= atlas(m)
    weights = {label: exact_weight(ACCURACIES, gain) for label, gain in everything.items()}
    print_table(f"Exact weight with {m} answers", weights)
    objectives = {label: exact_objective(ACCURACIES, gain) for label, gain in everything.items()}
    print_table(f"Exact objective with {m} answers", objectives)
    print(*save(draw_weights(everything), args.output_dir / "objective"))


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
