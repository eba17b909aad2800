"""The list of all runs of both studies. docs/study/plan.md and docs/study/plan-2.md have the reasons."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    Grid,
    StudyRun,
)
from study.rows import RESULTS, RowList, chosen_lr, first_grid, rates_to_try, select

Method = tuple[str, tuple[str, ...]]
"""Name and flags."""
Earlier = RowList | None
"""Rows of earlier parts, which choose learning rates and the first fit. None lists runs with nan in their place."""
ROWS_2 = RESULTS / "rows-2.jsonl"
"""The rows of the second study."""

CLIFF = "cliff"
"""The regime of the cliff: rare questions, twice as many steps as in the first study."""
CLIFF_METHODS = ("reinforce", "grpo", "bnpo")
CLIPS = {"clipped": "1", "unclipped": "1e9"}
"""Values of --max-grad-norm."""
CLIFF_LR = 4e-4
CLIFF_SEEDS = tuple(range(24, 64))
CLIFF_CONTROL_SEEDS = CLIFF_SEEDS[:12]
SLOW = "reinforce clipped at half the rate"
"""The positive control of the cliff."""
CLIFF_CONTROLS = ("rloo unclipped", SLOW)

PRIOR_METHODS = ("eb", "shrinkage", "curverl", "rloo", "bnpo")
PRIOR_CONTROLS = ("reinforce", "maxrl")
"""The null and the positive control, both beside `rloo` and at its learning rate."""
PRIOR_SEEDS = tuple(range(12, 24))
PRIOR_GRID = Grid("prior-tuning", (1.4e-4, 2e-4, 2.8e-4, 4e-4), {1.4e-4: 1e-4, 4e-4: 5.6e-4}, (102, 103, 104, 105))
SAME_RATE = "prior-same-rate"
"""A part that was added after the results of all others were known. No registered comparison has it."""


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


def plain(names: Iterable[str], *flags: str) -> list[Method]:
    """Return algorithms as methods, with more flags that all of them have."""
    return [(name, ("--algo", name, *flags)) for name in names]


def tagged_methods() -> list[Method]:
    """Return names and flags of Table 2's methods, and of those that were added later."""
    names = (*TAGGED, *TAGGED_LATER)
    decomposed = [(f"ad-{name}", flags) for name, flags in plain(names, "--decompose")]
    return plain(names, "--no-decompose") + decomposed


def _clipped(names: Iterable[str], clip: str) -> list[Method]:
    return [(f"{name} {clip}", flags) for name, flags in plain(names, "--max-grad-norm", CLIPS[clip])]


def tuned_as(algorithm: str) -> str:
    """Return the algorithm whose learning rate `algorithm` uses in the first study.

    RLOO is REINFORCE times a constant, and the null comparison of the two needs the same rate.
    """
    return "reinforce" if algorithm == "rloo" else algorithm


def _rate(rows: Earlier, regime: str, method: str, grid: Grid | None = None) -> float:
    """Return the rate that tuning chose; `grid` is that of the first study unless another is given."""
    return nan if rows is None else chosen_lr(rows, regime, method, grid or first_grid(regime))


def _runs(
    part: str,
    regimes: Iterable[str],
    methods: Sequence[Method],
    seeds: Iterable[int],
    rate: Callable[[str, str], float],
) -> Iterator[StudyRun]:
    """Yield the runs of a part, seed by seed. `rate` of regime and method gives the learning rate."""
    for seed in seeds:
        for regime in regimes:
            for name, flags in methods:
                yield StudyRun(part, regime, name, flags, rate(regime, name), seed)


def _grid(rows: Earlier, regimes: Sequence[str], methods: Sequence[Method], grid: Grid) -> Iterator[StudyRun]:
    for seed in grid.seeds:
        for regime in regimes:
            for name, flags in methods:
                for lr in rates_to_try(rows or (), regime, name, grid):
                    yield StudyRun(grid.part, regime, name, flags, lr, seed)


def _tuning(rows: Earlier) -> Iterator[StudyRun]:
    methods = plain(name for name in ALGORITHMS if name == tuned_as(name))
    return _grid(rows, REGIMES, methods, first_grid(REGIMES[0]))


def _main(rows: Earlier) -> Iterator[StudyRun]:
    return _runs("main", REGIMES, plain(ALGORITHMS), SEEDS, lambda regime, name: _rate(rows, regime, tuned_as(name)))


def _tags(rows: Earlier) -> Iterator[StudyRun]:
    return _runs("tags", ("tags",), tagged_methods(), SEEDS, lambda regime, name: _rate(rows, regime, name))


def _adaptive(rows: Earlier) -> Iterator[StudyRun]:
    for regime in FAVOURED:
        methods = [frozen(*parameters) for parameters in (*FROZEN, first_fit(rows, regime))]
        yield from _runs("adaptive", (regime,), methods, SEEDS, lambda regime, _: _rate(rows, regime, "bnpo"))


def _scale(rows: Earlier) -> Iterator[StudyRun]:
    methods = plain(ALGORITHMS, "--rescale-advantages")
    return _runs("scale", ("concentrated",), methods, SEEDS, lambda regime, name: _rate(rows, regime, tuned_as(name)))


def _moments(rows: Earlier) -> Iterator[StudyRun]:
    methods = plain(("bnpo",), "--beta-moments", "corrected")
    return _runs("moments", REGIMES, methods, SEEDS, lambda regime, name: _rate(rows, regime, name))


def _cliff(rows: Earlier) -> Iterator[StudyRun]:
    methods = [method for clip in CLIPS for method in _clipped(CLIFF_METHODS, clip)]
    return _runs("cliff", (CLIFF,), methods, CLIFF_SEEDS, lambda *_: CLIFF_LR)


def _cliff_controls(rows: Earlier) -> Iterator[StudyRun]:
    [(_, flags)] = _clipped(("reinforce",), "clipped")
    methods = [*_clipped(("rloo",), "unclipped"), (SLOW, flags)]
    return _runs(
        "cliff-controls",
        (CLIFF,),
        methods,
        CLIFF_CONTROL_SEEDS,
        lambda _, name: CLIFF_LR / 2 if name == SLOW else CLIFF_LR,
    )


def _prior(rows: Earlier) -> Iterator[StudyRun]:
    rate = lambda regime, name: _rate(rows, regime, name, PRIOR_GRID)  # noqa: E731
    return _runs("prior", REGIMES, plain(PRIOR_METHODS), PRIOR_SEEDS, rate)


def _prior_controls(rows: Earlier) -> Iterator[StudyRun]:
    rate = lambda regime, _: _rate(rows, regime, "rloo", PRIOR_GRID)  # noqa: E731
    return _runs("prior-controls", ("rare",), plain(PRIOR_CONTROLS), PRIOR_SEEDS, rate)


def _prior_same_rate(rows: Earlier) -> Iterator[StudyRun]:
    """RLOO on spread questions at eb's rate, which all other methods have there."""
    rate = lambda regime, _: _rate(rows, regime, "eb", PRIOR_GRID)  # noqa: E731
    return _runs(SAME_RATE, ("spread",), plain(("rloo",)), PRIOR_SEEDS, rate)


Parts = dict[str, Callable[[Earlier], Iterator[StudyRun]]]
PARTS: Parts = {
    "tuning": _tuning,
    "main": _main,
    "tags-tuning": lambda rows: _grid(rows, ("tags",), tagged_methods(), first_grid("tags")),
    "tags": _tags,
    "adaptive": _adaptive,
    "scale": _scale,
    "moments": _moments,
}
"""Parts of the first study in the order in which they are run. Seeds are paired: every method has the same ones."""
PARTS_2: Parts = {
    "cliff": _cliff,
    "cliff-controls": _cliff_controls,
    "prior-tuning": lambda rows: _grid(rows, REGIMES, plain(PRIOR_METHODS), PRIOR_GRID),
    "prior": _prior,
    "prior-controls": _prior_controls,
    SAME_RATE: _prior_same_rate,
}
"""Parts of the second study in the order in which they are run."""
