"""The list of all runs of the second study: the cliff, and the Beta distribution as a prior (docs/study-2.md)."""

from collections.abc import Callable, Iterator
from math import nan

from study.design import REGIMES, Grid, StudyRun
from study.registry import Earlier
from study.rows import RESULTS, chosen_lr, rates_to_try

ROWS_2 = RESULTS / "rows-2.jsonl"

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


def _cliff_run(part: str, algorithm: str, clip: str, seed: int) -> StudyRun:
    flags = ("--algo", algorithm, "--max-grad-norm", CLIPS[clip])
    return StudyRun(part, CLIFF, f"{algorithm} {clip}", flags, CLIFF_LR, seed)


def _cliff(rows: Earlier) -> Iterator[StudyRun]:
    for seed in CLIFF_SEEDS:
        for clip in CLIPS:
            for algorithm in CLIFF_METHODS:
                yield _cliff_run("cliff", algorithm, clip, seed)


def _cliff_controls(rows: Earlier) -> Iterator[StudyRun]:
    flags = ("--algo", "reinforce", "--max-grad-norm", CLIPS["clipped"])
    for seed in CLIFF_CONTROL_SEEDS:
        yield _cliff_run("cliff-controls", "rloo", "unclipped", seed)
        yield StudyRun("cliff-controls", CLIFF, SLOW, flags, CLIFF_LR / 2, seed)


def _prior_tuning(rows: Earlier) -> Iterator[StudyRun]:
    for seed in PRIOR_GRID.seeds:
        for regime in REGIMES:
            for name in PRIOR_METHODS:
                for lr in rates_to_try(rows or (), regime, name, PRIOR_GRID):
                    yield StudyRun(PRIOR_GRID.part, regime, name, ("--algo", name), lr, seed)


def _rate(rows: Earlier, regime: str, method: str) -> float:
    return nan if rows is None else chosen_lr(rows, regime, method, PRIOR_GRID)


def _prior(rows: Earlier) -> Iterator[StudyRun]:
    for seed in PRIOR_SEEDS:
        for regime in REGIMES:
            for name in PRIOR_METHODS:
                yield StudyRun("prior", regime, name, ("--algo", name), _rate(rows, regime, name), seed)


def _prior_controls(rows: Earlier) -> Iterator[StudyRun]:
    for seed in PRIOR_SEEDS:
        for name in PRIOR_CONTROLS:
            yield StudyRun("prior-controls", "rare", name, ("--algo", name), _rate(rows, "rare", "rloo"), seed)


def _prior_same_rate(rows: Earlier) -> Iterator[StudyRun]:
    """RLOO on spread questions at eb's rate, which all other methods have there."""
    for seed in PRIOR_SEEDS:
        yield StudyRun(SAME_RATE, "spread", "rloo", ("--algo", "rloo"), _rate(rows, "spread", "eb"), seed)


PARTS_2: dict[str, Callable[[Earlier], Iterator[StudyRun]]] = {
    "cliff": _cliff,
    "cliff-controls": _cliff_controls,
    "prior-tuning": _prior_tuning,
    "prior": _prior,
    "prior-controls": _prior_controls,
    SAME_RATE: _prior_same_rate,
}
"""Parts of the second study in the order in which they are run."""
