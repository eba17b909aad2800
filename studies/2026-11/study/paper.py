"""The largest standard errors of the paper's averages, from its numbers of problems and answers."""

from math import hypot, sqrt

from study.shared import PAPER_DATASETS, PAPER_SCORES, Table
from study.tables import Blocks, table

LEVELS = ("over problems", "over answers")


def average_error(numbers: list[str], over: str) -> float:
    """Return the largest possible standard error, in points, of the average of the four percentages
    before it.

    Over problems, the variance is at most p (1 - p) / n for n problems, if each is always or never
    solved. Over answers to the same problems, it is at most p (1 - p) / (n k) for k answers each,
    if all problems are equally hard.
    """
    variance = 0.0
    for number, (problems, answers) in zip(numbers[:-1], PAPER_DATASETS.values(), strict=True):
        p = float(number) / 100
        variance += p * (1 - p) / (problems * (answers if over == "over answers" else 1))
    return 100 * sqrt(variance) / len(PAPER_DATASETS)


def paper_table() -> Table:
    """Return the paper's averages with these errors, and BNPO's lead over each."""
    blocks: Blocks = {}
    leads: list[float] = []  # over trained methods, in errors over answers
    for models in PAPER_SCORES.values():
        for model, methods in models.items():
            rows = {name: numbers.replace("*", "").split() for name, numbers in methods.items()}
            [bnpo] = [name for name in rows if name.endswith("BNPO")]
            blocks[model] = {}
            for name, numbers in rows.items():
                errors = [average_error(numbers, level) for level in LEVELS]
                cells = [numbers[-1], *(f"{error:.1f}" for error in errors)]
                lead = float(rows[bnpo][-1]) - float(numbers[-1])
                error = hypot(errors[1], average_error(rows[bnpo], "over answers"))
                leads += [lead / error] if name != "Base" else []
                blocks[model][name] = cells + (
                    ["", ""] if name == bnpo else [f"{lead:+.1f}", f"{error:.1f}"]
                )
    return table("paper", blocks, largest=max(leads))
