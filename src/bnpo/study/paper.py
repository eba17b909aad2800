"""What the paper's own averages can bear: the errors that follow from its numbers of problems and answers."""

from math import hypot, sqrt

from bnpo.report.read import PAPER_DATASETS
from bnpo.report.tables import PAPER_TABLES, Table

LEVELS = ("over problems", "over answers")


def average_error(shares: list[float], over: str) -> float:
    """The most that the standard error of the average of four shares [0, 1] can be.

    Over problems: p (1 - p) / n for n problems, reached where each is always or never solved. Over answers, at the same
    problems: p (1 - p) / (n k) for k answers to each, reached where all are equally hard; less in truth.
    """
    variance = 0.0
    for p, (problems, answers) in zip(shares, PAPER_DATASETS.values(), strict=True):
        variance += p * (1 - p) / (problems * (answers if over == "over answers" else 1))
    return sqrt(variance) / len(shares)


def paper_table() -> Table:
    """The paper's averages with these errors, and BNPO's lead over each."""
    blocks: dict[str, dict[str, list[str]]] = {}
    leads: dict[bool, list[float]] = {True: [], False: []}  # in errors over answers, over the base model or not
    for models in PAPER_TABLES.values():
        for model, methods in models.items():
            rows = {name: numbers.replace("*", "").split() for name, numbers in methods.items()}
            [bnpo] = [name for name in rows if name.endswith("BNPO")]
            blocks[model] = {name: _cells(numbers, rows[bnpo]) for name, numbers in rows.items()}
            for name, cells in blocks[model].items():
                leads[name == "Base"].append(float(cells[-2]) / float(cells[-1]))
    notes = [
        "In points of pass@1, the most that standard errors can be: sqrt(sum of p (1 - p) / problems) / 4 over "
        "problems, and with problems x answers in place of problems over the answers drawn to them (500 x 1, 40 x 16, "
        "30 x 16, 30 x 16). Methods answer the same problems, so a difference between two has the latter error, and "
        "that over training runs, which one run a row does not tell.",
        f"BNPO's lead over a trained method is at most {max(leads[False]):.1f} of these errors, that over the base "
        f"models {min(leads[True]):.0f} and more: the gain by training is real, and none of the differences between "
        "methods is larger than noise for certain.",
    ]
    columns = ["average", *(f"error {level}" for level in LEVELS), "BNPO's lead", "error of the lead"]
    return Table("What the paper's own averages can bear", columns, blocks, notes)


def _cells(numbers: list[str], bnpo: list[str]) -> list[str]:
    shares, of_bnpo = ([float(number) / 100 for number in row[:-1]] for row in (numbers, bnpo))
    errors = [100 * average_error(shares, level) for level in LEVELS]
    of_lead = hypot(errors[1], 100 * average_error(of_bnpo, "over answers"))
    lead = float(bnpo[-1]) - float(numbers[-1])
    return [numbers[-1], *(f"{error:.1f}" for error in errors), f"{lead:+.1f}", f"{of_lead:.1f}"]
