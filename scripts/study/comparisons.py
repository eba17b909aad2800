"""What the study compares with what, paired by seed, with Holm's correction over what docs/study.md takes together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from study.design import ALGORITHMS, FROZEN, REGIMES, SEEDS, TAGGED
from study.registry import frozen
from study.rows import RowList, area, final, select
from study.statistics import Paired, holm, paired

METRICS: dict[str, Callable[[Mapping], float]] = {"at the end": final, "area": area}
"""The primary metrics of a row, in [0, 1]."""
FIRST_FIT = "first fit"
Place = tuple[str, str, str]
"""Part, regime and method."""
Pairs = Mapping[str, tuple[Place, Place]]
"""What is compared together: a label, and where the first method is and the second."""


@dataclass(frozen=True)
class Compared:
    """The first less the second, and the p-value adjusted over all pairs together; None until these have all seeds."""

    difference: Paired
    adjusted: float | None

    @property
    def sign(self) -> int:
        """1 where the first is above the second, -1 where below, 0 where the adjusted p-value is 0.05 or more."""
        if self.adjusted is None or self.adjusted >= 0.05:
            return 0
        return 1 if self.difference.mean > 0 else -1


def differences(rows: RowList, places: tuple[Place, Place], metric: Callable[[Mapping], float]) -> np.ndarray:
    """The first method less the second, by seed: those of the seeds that have both rows."""
    ours, theirs = (select(rows, *place) for place in places)
    return np.array([metric(ours[seed]) - metric(theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())])


def compare(rows: RowList, pairs: Pairs, metric: Callable[[Mapping], float]) -> dict[str, Compared]:
    """Those of `pairs` of which two seeds or more have both rows."""
    found: dict[str, Paired] = {}
    for label, places in pairs.items():
        if len(values := differences(rows, places, metric)) > 1:
            found[label] = paired(values)
    if len(found) < len(pairs) or any(difference.seeds < len(SEEDS) for difference in found.values()):
        return {label: Compared(difference, None) for label, difference in found.items()}
    adjusted = holm([difference.p for difference in found.values()])
    return {label: Compared(found[label], p) for label, p in zip(found, adjusted, strict=True)}


def against_others(regime: str) -> Pairs:
    """BNPO less each other method but RLOO, which is REINFORCE."""
    others = [name for name in ALGORITHMS if name not in ("bnpo", "rloo")]
    return {name: (("main", regime, "bnpo"), ("main", regime, name)) for name in others}


def nulls() -> Pairs:
    """RLOO less REINFORCE, which differ by a factor, where factors are forgotten."""
    pairs = {regime: (("main", regime, "rloo"), ("main", regime, "reinforce")) for regime in REGIMES}
    return pairs | {"rescaled": (("scale", "concentrated", "rloo"), ("scale", "concentrated", "reinforce"))}


def against_fixed(rows: RowList, regime: str) -> Pairs:
    """BNPO less densities that do not follow the policy, its own first fit among them."""
    ours = ("main", regime, "bnpo")
    pairs = {"reinforce: 1 1": (ours, ("main", regime, "reinforce"))}
    pairs["grpo: 1.5 1.5"] = (ours, ("main", regime, "grpo"))
    for parameters in FROZEN:
        name, _ = frozen(*parameters)
        pairs[name] = (ours, ("adaptive", regime, name))
    run = {row["method"] for row in rows if (row["part"], row["regime"]) == ("adaptive", regime)}
    first_fit = next(iter(run - pairs.keys()), FIRST_FIT)
    return pairs | {FIRST_FIT: (ours, ("adaptive", regime, first_fit))}


def rescaled() -> Pairs:
    """Each method rescaled to unit root mean square less as it is."""
    return {name: (("scale", "concentrated", name), ("main", "concentrated", name)) for name in ALGORITHMS}


def corrected() -> Pairs:
    """BNPO with corrected moments less with the paper's."""
    return {regime: (("moments", regime, "bnpo"), ("main", regime, "bnpo")) for regime in REGIMES}


def explored() -> Pairs:
    """Table 2 in miniature, what is not registered: its normalising methods and REINFORCE, plain and decomposed."""
    pairs = {}
    for prefix in ("", "ad-"):
        for first, second in (("bnpo", "grpo"), ("bnpo", "reinforce"), ("grpo", "reinforce")):
            label = f"{prefix}{first} less {prefix}{second}"
            pairs[label] = (("tags", "tags", f"{prefix}{first}"), ("tags", "tags", f"{prefix}{second}"))
    for name in ("bnpo", "grpo"):
        pairs[f"ad-{name} less {name}"] = (("tags", "tags", f"ad-{name}"), ("tags", "tags", name))
    return pairs


def decomposed() -> Pairs:
    """Methods of Table 2 with rewards decomposed less without."""
    return {name: (("tags", "tags", f"ad-{name}"), ("tags", "tags", name)) for name in TAGGED}
