"""The largest standard errors of the paper's averages, from its numbers of problems and answers."""

from math import hypot, sqrt

from paper.results import PAPER_DATASETS
from paper.tables import PAPER_SCORES, Table

LEVELS = ("over problems", "over answers")


def average_error(shares: list[float], over: str) -> float:
    """Return the largest possible standard error of the average of four shares in [0, 1].

    Over problems, the variance is at most p (1 - p) / n for n problems, if each is always or never solved. Over answers
    to the same problems, it is at most p (1 - p) / (n k) for k answers each, if all problems are equally hard.
    """
    variance = 0.0
    for p, (problems, answers) in zip(shares, PAPER_DATASETS.values(), strict=True):
        variance += p * (1 - p) / (problems * (answers if over == "over answers" else 1))
    return sqrt(variance) / len(shares)


def paper_table() -> Table:
    """Return the paper's averages with these errors, and BNPO's lead over each."""
    blocks: dict[str, dict[str, list[str]]] = {}
    leads: list[float] = []  # over trained methods, in errors over answers
    for models in PAPER_SCORES.values():
        for model, methods in models.items():
            rows = {name: numbers.replace("*", "").split() for name, numbers in methods.items()}
            [bnpo] = [name for name in rows if name.endswith("BNPO")]
            blocks[model] = {}
            for name, numbers in rows.items():
                errors = [average_error(_shares(numbers), level) for level in LEVELS]
                cells = [numbers[-1], *(f"{100 * error:.1f}" for error in errors)]
                lead = float(rows[bnpo][-1]) - float(numbers[-1])
                error = 100 * hypot(errors[1], average_error(_shares(rows[bnpo]), "over answers"))
                leads += [lead / error] if name != "Base" else []
                blocks[model][name] = cells + (["", ""] if name == bnpo else [f"{lead:+.1f}", f"{error:.1f}"])
    notes = [
        "In points of pass@1, the most that standard errors can be: sqrt(sum of p (1 - p) / problems) / 4 over "
        "problems, and with problems x answers in place of problems over the answers drawn to them (500 x 1, 40 x 16, "
        "30 x 16, 30 x 16). For a difference between two methods on these very problems the latter counts, and the "
        "scatter between training runs, of which one run a row tells nothing.",
        f"The largest lead of BNPO's average over a trained method is {max(leads):.1f} times the most that its error "
        "over answers can be. Where problems differ in difficulty that error is smaller; the scatter between training "
        "runs comes on top and is unknown.",
    ]
    columns = ["average", *(f"error {level}" for level in LEVELS), "BNPO's lead", "error of the lead"]
    return Table("How large is noise in the paper's averages?", columns, blocks, notes)


def _shares(numbers: list[str]) -> list[float]:
    return [float(number) / 100 for number in numbers[:-1]]
