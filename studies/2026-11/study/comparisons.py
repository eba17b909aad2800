"""The comparisons of the study: paired by seed, with Holm's correction over the families of
plan.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from study.design import ALGORITHMS, FROZEN, REGIMES, TAGGED
from study.rows import Place, RowList, area, final, select
from study.statistics import Paired, holm, paired
from study.tables import in_points

Metrics = Mapping[str, Callable[[Mapping], float]]
METRICS = {"at the end": final, "area": area}
"""The primary metrics of a row, in [0, 1]."""
FIRST_FIT = "first fit"
Pairs = Mapping[str, tuple[Place, Place]]
"""A family of comparisons: label -> the places of the first and of the second method."""


@dataclass(frozen=True)
class Compared:
    """The first minus the second, and the p-value adjusted over the family."""

    difference: Paired
    adjusted: float

    @property
    def sign(self) -> int:
        """Return 1 if the first is above the second, -1 if below, and 0 if the adjusted p-value
        is 0.05 or more.
        """
        if self.adjusted >= 0.05:
            return 0
        return 1 if self.difference.mean > 0 else -1


def differences(
    rows: RowList, places: tuple[Place, Place], metric: Callable[[Mapping], float]
) -> np.ndarray:
    """Return the first method minus the second for each seed that has both rows: [seeds]."""
    ours, theirs = (select(rows, *place) for place in places)
    return np.array(
        [metric(ours[seed]) - metric(theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    )


def compare(rows: RowList, pairs: Pairs, metric: Callable[[Mapping], float]) -> dict[str, Compared]:
    """Compare the methods of each pair, by label."""
    found = {label: paired(differences(rows, places, metric)) for label, places in pairs.items()}
    adjusted = holm([difference.p for difference in found.values()])
    return {label: Compared(found[label], p) for label, p in zip(found, adjusted, strict=True)}


def difference_cells(found: Compared) -> list[str]:
    """Seeds, points with their interval, p, adjusted p, and the share of seeds on which the
    first is better.
    """
    d = found.difference
    return [str(d.seeds), in_points(d), f"{d.p:.4f}", f"{found.adjusted:.4f}", f"{d.wins:.0%}"]


def against_others(regime: str) -> Pairs:
    """BNPO minus each other method, except RLOO, which equals REINFORCE."""
    others = [name for name in ALGORITHMS if name not in ("bnpo", "rloo")]
    return {name: (("main", regime, "bnpo"), ("main", regime, name)) for name in others}


def nulls() -> Pairs:
    """RLOO minus REINFORCE. They differ by a factor only, which clipping and rescaling remove."""
    pairs = {
        regime: (("main", regime, "rloo"), ("main", regime, "reinforce")) for regime in REGIMES
    }
    return pairs | {
        "rescaled": (("scale", "concentrated", "rloo"), ("scale", "concentrated", "reinforce"))
    }


def against_fixed(rows: RowList, regime: str) -> Pairs:
    """BNPO minus fixed densities, one of which is its own first fit."""
    ours = ("main", regime, "bnpo")
    pairs = {"reinforce: 1 1": (ours, ("main", regime, "reinforce"))}
    pairs["grpo: 1.5 1.5"] = (ours, ("main", regime, "grpo"))
    for alpha, beta in FROZEN:
        name = f"beta {alpha:g} {beta:g}"
        pairs[name] = (ours, ("adaptive", regime, name))
    run = {row["method"] for row in rows if (row["part"], row["regime"]) == ("adaptive", regime)}
    [first_fit] = run - pairs.keys()
    return pairs | {FIRST_FIT: (ours, ("adaptive", regime, first_fit))}


def rescaled() -> Pairs:
    """Each method rescaled to unit root mean square minus the method itself."""
    return {
        name: (("scale", "concentrated", name), ("main", "concentrated", name))
        for name in ALGORITHMS
    }


def corrected() -> Pairs:
    """BNPO with corrected moments minus BNPO with the paper's."""
    return {regime: (("moments", regime, "bnpo"), ("main", regime, "bnpo")) for regime in REGIMES}


def explored() -> Pairs:
    """Comparisons in the small Table 2 that are not registered: methods that normalise and
    REINFORCE.
    """
    pairs = {}
    for prefix in ("", "ad-"):
        for first, second in (("bnpo", "grpo"), ("bnpo", "reinforce"), ("grpo", "reinforce")):
            label = f"{prefix}{first} less {prefix}{second}"
            pairs[label] = (
                ("tags", "tags", f"{prefix}{first}"),
                ("tags", "tags", f"{prefix}{second}"),
            )
    for name in ("bnpo", "grpo"):
        pairs[f"ad-{name} less {name}"] = (("tags", "tags", f"ad-{name}"), ("tags", "tags", name))
    return pairs


def decomposed() -> Pairs:
    """Methods of Table 2 with decomposed rewards minus without."""
    return {name: (("tags", "tags", f"ad-{name}"), ("tags", "tags", name)) for name in TAGGED}
