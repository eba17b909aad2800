"""Compare methods by training: several runs of each, evaluated, with a paired test and one page.

    python scripts/compare.py --algos grpo,bnpo --seeds 3 -- --preset tiny --steps 60
    # a method with flags of its own; compared with the first method
    python scripts/compare.py --algos "grpo,pass_at_k --k 4" -- --preset tiny

Flags of train.py come after `--`. Every method trains with the seeds 0, 1, ..., each run in a
folder of its own. Repeat the command after an interruption: finished runs are kept, and others
continue. A run that fails does not keep the others from running.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy.special import nctdtrinc, stdtrit
from tyro.constructors import PrimitiveConstructorSpec

from bnpo.config import Positive, TrainConfig, parse_train_config, settings, typed_settings
from bnpo.environment import expects_cuda, parse_command, setup_environment
from bnpo.errors import error_line
from bnpo.evaluation.program import SUITE_OF_PRESET, chosen_suite
from bnpo.evaluation.scores import describe_difference, paired_differences
from bnpo.evaluation.suites import suite_problems
from bnpo.files import ROOT, InputError
from compare_evaluations import Means, holm, read
from paper.rows import Row
from reproduce import is_finished, is_trained, reproduce_all
from runpage.page import write_page


def methods_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the methods that the words after --algos name. Commas separate them, except in quotes
    and brackets and, if there are several words, in one with flags.
    """
    methods: list[str] = []
    for word in words:
        has_flags = len(words) > 1 and len(word.split()) > 1
        methods += [word] if has_flags else re.findall(r"(?:'[^']*'|\([^)]*\)|[^,])+", word)
    return tuple(filter(None, map(str.strip, methods)))


METHODS = PrimitiveConstructorSpec(
    nargs="*",
    metavar="METHOD[,METHOD...]",
    instance_from_str=methods_of,
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=list,
)
OF_A_RUN = {"algo", "seed", "output_dir", "resume", "dry_run"}
"""Settings that follow from the method and the seed, or that no comparison can have."""


@settings
class Args:
    algos: Annotated[tuple[str, ...], METHODS] = ()
    """Methods, the one that the others are compared with first: values of --algo, each with flags
    of its own if needed, as in "grpo,beta --beta-parameters 2 2". Write a method whose flags have
    commas as a word of its own: grpo "gdpo --rewards accuracy,format"."""
    seeds: Positive[int] = 3
    """Number of runs of each method, with the seeds 0, 1, ... Two methods see the same questions
    with the same seed, so they are compared seed by seed."""
    eval_flags: str = ""
    """More flags for every eval.py, as one text after an equals sign: --eval-flags="--limit 100".
    The suite is that of the preset."""
    output_dir: Path = Path("runs/compare")
    """Folder of the runs, their evaluations, and the page report.html."""
    rows_at_once: Positive[int | None] = None
    """Runs to train at the same time, each on an equal share of the GPUs, or of the cores on
    machines without GPUs. The default is what is estimated as fastest on GPUs, and 1 on CPUs."""


class Run(Row):
    """A method with a seed, as a row whose folder is that of its run."""

    @property
    def run(self) -> Path:
        return self.folder

    @cached_property
    def train(self) -> TrainConfig:
        """The settings of its training on this machine. Raises InputError."""
        return parse_train_config([*self.train_flags], has_cuda=expects_cuda())[0]


@dataclass(frozen=True)
class Comparison:
    """A method minus the first one, as in `paired_differences`, over one kind of pairs."""

    method: str
    pairs: str  # such as `3 seeds`
    test: dict


def runs_of(args: Args, flags: Sequence[str]) -> list[Run]:
    """Return the runs of all methods, one after the other. Raises InputError for wrong flags."""
    if len(set(args.algos)) < 2:
        raise InputError("--algos: name at least two different methods, as in --algos grpo,bnpo")
    if fixed := sorted(typed_settings(flags) & OF_A_RUN):
        name = fixed[0].replace("_", "-")
        raise InputError(f"--{name}: cannot come after `--`; use --algos, --seeds, --output-dir")
    first = [*flags, "--algo", *_words("--algos", args.algos[0])]
    preset = parse_train_config(first, has_cuda=expects_cuda())[0].preset
    runs = []
    names: list[str] = []
    for method in dict.fromkeys(args.algos):
        name = re.sub(r"[^\w.=-]+", "_", method)
        if name in names:  # such as those of p*2 and p**2
            name += f"-{len(names)}"
        names.append(name)
        own = ["--algo", *_words("--algos", method)]
        if fixed := sorted(typed_settings(own[1:]) & {*OF_A_RUN, "preset"}):
            flag = fixed[0].replace("_", "-")
            cure = "write it after `--`" if flag == "preset" else "compare.py sets it for each run"
            raise InputError(f"--algos: {method!r} cannot have --{flag}; {cure}")
        for seed in range(args.seeds):
            folder = args.output_dir / f"{name}-seed{seed}"
            # The method's own flags come last, because they override those of all methods
            train = ["--preset", preset, *flags, *own]
            train += ["--seed", str(seed), "--output-dir", str(folder)]
            evaluate = ["--ckpt", str(folder / "last"), "--output-dir", str(folder / "eval")]
            evaluate += ["--suite", SUITE_OF_PRESET.get(preset, "paper")]
            evaluate += _words("--eval-flags", args.eval_flags)
            model = parse_train_config(train, has_cuda=expects_cuda())[0].data.model
            runs.append(Run(folder, model, method, tuple(train), tuple(evaluate)))
    # Refuses wrong flags and a suite that cannot be used, which all runs share
    suite_problems(chosen_suite(runs[0].evaluate, Path()))
    return runs


def _words(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"{flag}: {text!r} cannot be read ({error})") from error


def compare(means: dict[str, dict[int, Means]]) -> list[Comparison]:
    """Compare each method with the first one, from the means of each problem by method and seed:
    over the seeds that both have, if these are several, and over the problems.
    """
    (_, base), *others = means.items()
    comparisons = []
    for method, own in others:
        seeds = [seed for seed in own if seed in base]
        if not seeds:
            continue
        # [seeds, problems] by data set
        changes = {
            name: np.array([own[seed][name] - base[seed][name] for seed in seeds])
            for name in own[seeds[0]]
        }
        if len(seeds) > 1:
            averages = np.mean([change.mean(axis=1) for change in changes.values()], axis=0)
            comparisons.append(Comparison(method, f"{len(seeds)} seeds", over_seeds(averages)))
        tests = paired_differences({name: change.mean(axis=0) for name, change in changes.items()})
        problems = sum(change.shape[1] for change in changes.values())
        test = tests.get("average") or next(iter(tests.values()))
        comparisons.append(Comparison(method, f"{problems} problems", test))
    return comparisons


def over_seeds(differences: np.ndarray) -> dict:
    """Return the paired t-test of `differences` [seeds], at least 2.

    Its detectable difference is exact, from the noncentral t-distribution: the usual factor of 2.8
    standard errors is far too small for a few pairs.

    >>> test = over_seeds(np.array([0.0, 0.01, 0.02]))
    >>> round(test["p_value"], 3), round(test["detectable"], 3)
    (0.225, 0.033)
    """
    test = paired_differences({"seeds": differences})["seeds"]
    if test["detectable"] is not None:
        error = differences.std(ddof=1) / np.sqrt(len(differences))
        test["detectable"] = detected_errors(len(differences)) * float(error)
    return test


def detected_errors(pairs: int, comparisons: int = 1) -> float:
    """Return the true difference, in standard errors, that a paired t-test at 5 % finds with 80 %
    power: the largest of several `comparisons`, by Holm's first step.

    >>> round(detected_errors(5), 2), round(detected_errors(5, comparisons=4), 2)
    (3.76, 5.54)
    """
    degrees = pairs - 1
    # With this mean, 80 % of the t-values lie above the critical one
    return float(nctdtrinc(degrees, 0.2, stdtrit(degrees, 1 - 0.025 / comparisons)))


def report(runs: Sequence[Run], page: Path) -> None:
    """Print the scores and the tests of all finished runs, and write their page."""
    finished = [run for run in runs if is_finished(run)]
    known: dict[str, dict[int, Means]] = {run.method: {} for run in runs}  # by method and seed
    if len(finished) > 1:
        all_means = read(tuple(run.evaluation for run in finished))
        for run, of_run in zip(finished, all_means, strict=True):
            known[run.method][run.train.sampling.seed] = of_run
    table = Table("method", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("runs", "pass@1 in %", "lowest", "highest"):
        table.add_column(column, justify="right")
    for method, by_seed in known.items():
        scores = [100 * np.mean([x.mean() for x in means.values()]) for means in by_seed.values()]
        cells = [f"{f(scores):.1f}" for f in (np.mean, min, max)] if scores else ["-"] * 3
        table.add_row(method, str(len(scores)), *cells)
    _print(table)
    if comparisons := compare(known):
        print_tests(comparisons, next(iter(known)))
        if not any(comparison.pairs.endswith("seeds") for comparison in comparisons):
            print("One seed says nothing of other seeds: --seeds 3 or more tests over seeds, too.")
    started = [run.run for run in runs if (run.run / "metrics.jsonl").exists()]
    if started:
        write_page(page, started)
        print(f"page of all runs: {page}")


def print_tests(comparisons: Sequence[Comparison], base: str) -> None:
    """Print the tests, with Holm's correction over the methods for each kind of pairs."""
    adjusted = {}
    for kind in ("seeds", "problems"):
        tests = {c.method: c.test["p_value"] for c in comparisons if c.pairs.endswith(kind)}
        methods = [(method, kind) for method in tests]
        adjusted |= dict(zip(methods, holm([*tests.values()]), strict=True))
    table = Table(f"minus {base}, in points", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("paired by", "difference", "95 % interval", "p-value", "Holm", "detectable"):
        table.add_column(column, justify="right")
    for comparison in comparisons:
        *cells, found = describe_difference(comparison.test)
        p = adjusted[comparison.method, comparison.pairs.split()[1]]
        table.add_row(comparison.method, comparison.pairs, *cells, f"{p:.4f}", found)
    _print(table)
    print(
        "Paired by seeds: what other seeds would give on these problems. Paired by problems: what "
        "these runs\nwould give on other problems, which says nothing of other seeds. detectable: "
        "the true difference\nthat the test finds with a power of 80 %. More seeds make it smaller."
    )


def _print(table: Table) -> None:
    Console(width=Console(width=1000).measure(table).maximum).print(table)


def main(args: Args, flags: Sequence[str]) -> None:
    """Train, evaluate and compare. Raises InputError for bad input, and if a run fails."""
    runs = runs_of(args, flags)
    try:
        for run in runs:
            is_trained(run)  # compares the settings of a run that is there
        unfinished = [run for run in runs if not is_finished(run)]
    except InputError as error:
        raise InputError(
            f"{args.output_dir}: holds the runs of another comparison; choose another "
            f"--output-dir, or repeat its flags ({error})"
        ) from error
    errors = reproduce_all(unfinished, args, None) if unfinished else []
    report(runs, args.output_dir / "report.html")
    if errors:
        raise InputError(
            f"{len(errors)} of {len(unfinished)} runs failed or were stopped; repeat the command "
            f"to continue them: {'; '.join(errors)}"
        )


if __name__ == "__main__":
    setup_environment()
    os.chdir(ROOT)  # the commands and the paths in them are relative to it
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    with error_line():
        main(parse_command(Args, words[:end], description=__doc__), words[end + 1 :])
