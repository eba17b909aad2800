"""The list of all runs of the study. docs/study.md has the reasons."""

from collections.abc import Callable, Iterable, Iterator
from math import nan

import numpy as np

from bnpo.files import InputError
from study.design import (
    ALGORITHMS,
    FAVOURED,
    FROZEN,
    REGIMES,
    SEEDS,
    TAGGED,
    TAGGED_LATER,
    TUNING_SEEDS,
    StudyRun,
)
from study.rows import RowList, chosen_lr, first_grid, rates_to_try, select

Method = tuple[str, tuple[str, ...]]
"""Name and flags."""


Earlier = RowList | None
"""Rows of earlier parts, which choose learning rates and the first fit. None lists runs with nan in their place."""


def first_fit(rows: Earlier, regime: str) -> tuple[float, float]:
    """Return alpha and beta of BNPO's fit at its first step: the mean over the seeds of the main part that have a fit.

    Raises InputError if one of these runs has no row yet.
    """
    if rows is None:
        return nan, nan
    runs = select(rows, "main", regime, "bnpo")
    if missing := set(SEEDS) - runs.keys():
        raise InputError(f"{regime}, bnpo: seed {min(missing)} has no row; run --only main first")
    curves = [row["curves"] for row in runs.values() if "alpha" in row["curves"]]
    fits = [(curve["alpha"][0], curve["beta"][0]) for curve in curves]
    alpha, beta = np.mean(fits, axis=0)
    return round(float(alpha), 3), round(float(beta), 3)


def frozen(alpha: float, beta: float) -> Method:
    """Return the method with a fixed density."""
    return f"beta {alpha:g} {beta:g}", ("--algo", "beta", "--beta-parameters", f"{alpha:g}", f"{beta:g}")


def tagged_methods() -> list[Method]:
    """Return names and flags of Table 2's methods, and of those that were added later."""
    names = (*TAGGED, *TAGGED_LATER)
    plain = [(name, ("--algo", name, "--no-decompose")) for name in names]
    return plain + [(f"ad-{name}", ("--algo", name, "--decompose")) for name in names]


def tuned_as(algorithm: str) -> str:
    """Return the algorithm whose learning rate `algorithm` uses.

    RLOO is REINFORCE times a constant, and the null comparison of the two needs the same rate.
    """
    return "reinforce" if algorithm == "rloo" else algorithm


def _rate(rows: Earlier, regime: str, method: str) -> float:
    return nan if rows is None else chosen_lr(rows, regime, tuned_as(method), first_grid(regime))


def _tuning(rows: Earlier) -> Iterator[StudyRun]:
    methods = [(name, ("--algo", name)) for name in ALGORITHMS if name == tuned_as(name)]
    return _grid("tuning", rows, REGIMES, methods)


def _tags_tuning(rows: Earlier) -> Iterator[StudyRun]:
    return _grid("tags-tuning", rows, ("tags",), tagged_methods())


def _grid(part: str, rows: Earlier, regimes: Iterable[str], methods: list[Method]) -> Iterator[StudyRun]:
    for seed in TUNING_SEEDS:
        for regime in regimes:
            for name, flags in methods:
                for lr in rates_to_try(rows or (), regime, name, first_grid(regime)):
                    yield StudyRun(part, regime, name, flags, lr, seed)


def _main(rows: Earlier) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for regime in REGIMES:
            for name in ALGORITHMS:
                yield StudyRun("main", regime, name, ("--algo", name), _rate(rows, regime, name), seed)


def _adaptive(rows: Earlier) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for regime in FAVOURED:
            for parameters in (*FROZEN, first_fit(rows, regime)):
                yield StudyRun("adaptive", regime, *frozen(*parameters), _rate(rows, regime, "bnpo"), seed)


def _scale(rows: Earlier) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for name in ALGORITHMS:
            lr = _rate(rows, "concentrated", name)
            yield StudyRun("scale", "concentrated", name, ("--algo", name, "--rescale-advantages"), lr, seed)


def _moments(rows: Earlier) -> Iterator[StudyRun]:
    flags = ("--algo", "bnpo", "--beta-moments", "corrected")
    for seed in SEEDS:
        for regime in REGIMES:
            yield StudyRun("moments", regime, "bnpo", flags, _rate(rows, regime, "bnpo"), seed)


def _tags(rows: Earlier) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for name, flags in tagged_methods():
            yield StudyRun("tags", "tags", name, flags, _rate(rows, "tags", name), seed)


PARTS: dict[str, Callable[[Earlier], Iterator[StudyRun]]] = {
    "tuning": _tuning,
    "main": _main,
    "tags-tuning": _tags_tuning,
    "tags": _tags,
    "adaptive": _adaptive,
    "scale": _scale,
    "moments": _moments,
}
"""Parts of the study in the order in which they are run. Seeds are paired: every method has the same ones."""
