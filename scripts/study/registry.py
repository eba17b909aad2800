"""The methods of both studies, and the flags that their names stand for. docs/study/ says why."""

from study.design import TAGGED, TAGGED_LATER, Grid
from study.rows import RESULTS

ROWS_2 = RESULTS / "rows-2.jsonl"
"""The rows of the second study."""

CLIFF = "cliff"
"""The regime of the cliff: rare questions, twice as many steps as in the first study."""
CLIFF_METHODS = ("reinforce", "grpo", "bnpo")
CLIPS = {"clipped": "1", "unclipped": "1e9"}
"""Values of --max-grad-norm."""
CLIFF_SEEDS = tuple(range(24, 64))
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

REGISTERED = {"cliff": 240, "cliff-controls": 24, "prior-tuning": 240, "prior": 180, "prior-controls": 24}
REGISTERED |= {SAME_RATE: 12}
"""Runs of each part of the second study, without the rates that tuning may add at the ends of the grid."""


def tagged_methods() -> list[str]:
    """Return the names of Table 2's methods, and of those that were added later: plain, then decomposed."""
    names = (*TAGGED, *TAGGED_LATER)
    return [*names, *(f"ad-{name}" for name in names)]


def method_flags(part: str, method: str) -> tuple[str, ...]:
    """Return the flags of train.py that `method` stands for in a part."""
    algo, *rest = method.split()
    flags: tuple[str, ...] = ("--algo", algo.removeprefix("ad-"))
    if part.startswith("tags"):
        flags += ("--decompose" if algo.startswith("ad-") else "--no-decompose",)
    if part.startswith("cliff"):
        flags += ("--max-grad-norm", CLIPS[rest[0]])
    if part == "adaptive":
        flags += ("--beta-parameters", *rest)
    if part == "scale":
        flags += ("--rescale-advantages",)
    if part == "moments":
        flags += ("--beta-moments", "corrected")
    return flags
