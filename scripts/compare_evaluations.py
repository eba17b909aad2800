"""Compare several evaluated checkpoints with a base, paired by problem, with Holm's correction.

    python scripts/compare_evaluations.py evals/results/BASE evals/results/A evals/results/B

The folders are those of eval.py, of one suite. Every checkpoint is compared with the first folder,
on each data set and by the average over them: paired t-tests of the scores, problem by problem.
With several checkpoints, one of them is more easily ahead by chance. The column Holm has p-values
of the averages that account for this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bnpo.environment import run_program
from bnpo.evaluation.scores import describe_difference, paired_differences
from bnpo.files import InputError, read_json, whole_json_lines

Means = dict[str, np.ndarray]
"""Share of correct answers to every problem [problems], by data set."""


@dataclass(frozen=True)
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished evaluations, the base first."""


def problem_means(folder: Path, protocol: dict) -> Means:
    """Return the means of the problems of an evaluation. Raises InputError if it is not
    finished.
    """
    sums = {
        name: np.zeros(dataset["problems"])
        for name, dataset in protocol["suite"]["datasets"].items()
    }
    records = whole_json_lines(folder / "samples.jsonl")
    expected = sum(
        dataset["problems"] * dataset["repetitions"]
        for dataset in protocol["suite"]["datasets"].values()
    )
    if len(records) < expected:
        raise InputError(
            f"{folder}: has {len(records)} of {expected} samples; finish it by repeating its "
            "command"
        )
    for record in records:
        sums[record["dataset"]][record["index"]] += record["correct"]
    return {
        name: sums[name] / dataset["repetitions"]
        for name, dataset in protocol["suite"]["datasets"].items()
    }


def read(folders: tuple[Path, ...]) -> list[Means]:
    """Return the means of all folders, and print a line about those with other prompts. Raises
    InputError if one has another suite, grader (or file of it) or limit than the first.
    """
    if len(folders) < 2:
        raise InputError("name the folders of at least two evaluations, the base first")
    protocols = [
        read_json(folder / "protocol.json", "name a folder that eval.py wrote")
        for folder in folders
    ]
    for folder, protocol in zip(folders, protocols, strict=True):
        for key in ("suite", "grader", "grader_sha256", "limit"):
            if protocol.get(key) != protocols[0].get(key):
                fix = (
                    "scripts/regrade.py changes the grader"
                    if key.startswith("grader")
                    else "evaluate both with the same suite"
                )
                raise InputError(
                    f"{folder}: has another {key} than {folders[0]} (see protocol.json); {fix}"
                )
        # A hash of token ids, which also differ between tokenizers
        if protocol.get("prompts_sha256") != protocols[0].get("prompts_sha256"):
            print(
                f"{folder}: the token ids of its prompts differ from those of {folders[0]}. If "
                "both models have one tokenizer, chat template, system prompt or thinking differ; "
                "a suite can set system_prompt and thinking"
            )
    return [
        problem_means(folder, protocol) for folder, protocol in zip(folders, protocols, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given: they keep the error rate over all of
    them together.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return adjusted[np.argsort(order)].tolist()


def main(args: Args) -> None:
    base, *others = read(args.folders)
    reports = [
        paired_differences({name: means[name] - base[name] for name in base}) for means in others
    ]
    # Of the average over the data sets, or of the only set
    p_values = [list(report.values())[-1]["p_value"] for report in reports]
    table = Table("checkpoint", "data set", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("difference", "95 % interval", "p-value", "Holm", "detectable"):
        table.add_column(column, justify="right")
    for folder, report, p in zip(args.folders[1:], reports, holm(p_values), strict=True):
        for name, paired in report.items():
            *cells, found = describe_difference(paired)
            adjusted = f"{p:.4f}" if paired is list(report.values())[-1] else ""
            table.add_row(str(folder), name, *cells, adjusted, found)
    print(f"minus {args.folders[0]}, paired by problem, in points")
    Console(width=Console(width=1000).measure(table).maximum).print(table)


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
