"""Print how many training seeds, problems and answers per problem a comparison of two methods needs.

    python scripts/power.py --difference 1.0    # points of pass@1

Both methods train once per seed, and their models answer the same problems. The difference of a pair of runs varies by

    T + 2 W / (problems x answers per problem)

where T is the variance between training runs and W the variance of one answer to a problem, E[p (1 - p)] for solve
rates p. T and W of the study are measured: T is the median over all pairs of methods (without RLOO, which equals
REINFORCE), less the second term. W follows from the mean and the variance of the accuracies at BNPO's last step. The
paper publishes neither T nor W. Its rows assume the study's median T, and solve rates like a Beta(a, b) with a + b = 1,
for which W is half of pass@1 (1 - pass@1).

A conclusion about other problems than those of the test set also needs enough problems. The last column has the number
for --correlation, the correlation over problems of the two models' solve rates.
"""

import sys
from dataclasses import dataclass
from itertools import combinations
from math import ceil, sqrt
from statistics import fmean, median

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bnpo.environment import parse_command
from bnpo.evaluation.scores import DETECTED
from bnpo.files import InputError
from paper.results import PAPER_DATASETS
from paper.tables import PAPER_SCORES
from study.design import ALGORITHMS, REGIMES, SEEDS
from study.rows import RowList, final, read_rows, select
from study.statistics import smallest_found

STUDY_TEST = (500, 4)
"""Problems and repetitions of the study's test sets."""
PAPERS_ROW = "Qwen2.5-Math-1.5B", "BNPO"
PROBLEMS, ANSWERS = (100, 500, 2000, 10_000), (1, 4, 16)
"""Sizes of test sets in the second table."""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Setting:
    """A test set, or several whose mean is compared. Variances are of shares, not of points."""

    name: str
    pass1: float
    training: float  # T
    within: float  # W, mean over the test sets
    between: float  # variance of solve rates over problems, mean over the test sets
    sampling: float  # variance of a difference from the random answers


@dataclass(frozen=True)
class Args:
    difference: float
    """Difference in points of pass@1 that is to be found with 80 % power, by a two-sided paired t test at 5 %."""
    correlation: float = 0.9
    """Correlation over problems of the two models' solve rates."""


def study_setting(rows: RowList, regime: str) -> Setting:
    """Return the variances that were measured on a task of the first study."""
    runs = {name: select(rows, "main", regime, name) for name in ALGORITHMS}
    scores = {name: np.array([final(runs[name][seed]) for seed in SEEDS]) for name in ALGORITHMS if name != "rloo"}
    variances = [np.var(scores[one] - scores[other], ddof=1) for one, other in combinations(scores, 2)]
    curves = [row["curves"] for row in runs["bnpo"].values()]
    mean, variance = (np.array([curve[name][-1] for curve in curves]) for name in "EV")
    # Accuracies of 16 answers vary by between + within / 16, and mean (1 - mean) is between + within.
    within = float(np.mean((mean * (1 - mean) - variance) * 16 / 15))
    problems, answers = STUDY_TEST
    sampling = 2 * within / (problems * answers)
    training = max(0.0, median(variances) - sampling)
    between = float(np.mean(mean * (1 - mean))) - within
    return Setting(f"study, {regime}", fmean(map(np.mean, scores.values())), training, within, between, sampling)


def paper_settings(training: float) -> list[Setting]:
    """Return the paper's test sets and their average, which its tables compare."""
    model, method = PAPERS_ROW
    scores = next(models[model][method] for models in PAPER_SCORES.values() if model in models)
    settings = []
    for (name, size), score in zip(PAPER_DATASETS.items(), scores.split(), strict=False):
        pass1 = float(score.lstrip("*")) / 100
        half = pass1 * (1 - pass1) / 2
        settings.append(Setting(f"paper, {name}", pass1, training, half, half, 2 * half / (size[0] * size[1])))
    sampling = sum(setting.sampling for setting in settings) / len(settings) ** 2
    pass1, within = (fmean(getattr(setting, name) for setting in settings) for name in ("pass1", "within"))
    return [*settings, Setting("paper, average", pass1, training, within, within, sampling)]


def seeds_needed(difference: float, variance: float) -> int | None:
    """Return the fewest training seeds that find `difference` if that of a pair of runs has `variance`.

    None: more than MOST_SEEDS.

    >>> seeds_needed(1.0, 1.0), seeds_needed(0.5, 1.0)
    (10, 34)
    """
    for seeds in range(2, MOST_SEEDS + 1):
        # The normal approximation is below the exact number, and much faster.
        if (
            DETECTED * sqrt(variance / seeds) <= difference
            and smallest_found(sqrt(variance), seeds, 0.05) <= difference
        ):
            return seeds
    return None


def problems_needed(difference: float, setting: Setting, correlation: float) -> int:
    """Return the fewest problems for a conclusion about others like them, with any number of seeds and answers."""
    return ceil(2 * setting.between * (1 - correlation) * (DETECTED / difference) ** 2)


def print_needs(settings: list[Setting], args: Args) -> None:
    """Print the seeds that every setting needs with its own test set, and the problems for more general conclusions."""
    table = Table("setting", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("pass@1", "sd of runs", "sd of answers", "seeds", "found with 1 pair", "problems"):
        table.add_column(column, justify="right")
    for setting in settings:
        variance = setting.training + setting.sampling
        cells = [f"{100 * x:.1f}" for x in (setting.pass1, sqrt(setting.training), sqrt(setting.sampling))]
        cells += [str(seeds_needed(args.difference / 100, variance) or f"over {MOST_SEEDS}")]
        cells += [f"{100 * DETECTED * sqrt(variance):.1f}"]
        cells += [f"{problems_needed(args.difference / 100, setting, args.correlation):,}"]
        table.add_row(setting.name, *cells)
    Console(width=100).print(table)


def print_trade_off(settings: list[Setting], args: Args) -> None:
    """Print the seeds that are needed with test sets of other sizes."""
    table = Table("setting", "answers", box=SIMPLE_HEAD, pad_edge=False)
    for problems in PROBLEMS:
        table.add_column(f"{problems:,} problems", justify="right")
    for setting in settings:
        for answers in ANSWERS:
            cells = []
            for problems in PROBLEMS:
                variance = setting.training + 2 * setting.within / (problems * answers)
                cells.append(str(seeds_needed(args.difference / 100, variance) or f"over {MOST_SEEDS}"))
            table.add_row(setting.name, str(answers), *cells)
    Console(width=100).print(table)


def main(args: Args) -> None:
    if not 0 < args.difference < 100:
        raise InputError(f"--difference: is {args.difference:g}, must be between 0 and 100 points")
    if not 0 <= args.correlation <= 1:
        raise InputError(f"--correlation: is {args.correlation:g}, must be from 0 to 1")
    rows = read_rows()
    study = [study_setting(rows, regime) for regime in REGIMES]
    paper = paper_settings(median(setting.training for setting in study))
    print(f"To find {args.difference:g} points with 80 % power (two-sided 5 %, paired by seed and problem).")
    print("sd: standard deviation of the difference of a pair of runs, in points, with the setting's own test set.")
    print("problems: for a conclusion about new problems too, whatever the number of seeds.")
    print_needs([*study, *paper], args)
    print("Training seeds needed per method, by the size of the test set:")
    print_trade_off([*study, paper[0]], args)


if __name__ == "__main__":
    try:
        main(parse_command(Args, description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
