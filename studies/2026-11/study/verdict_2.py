"""The registered comparisons of the second study, and their verdicts by the rules of plan-2.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from study.comparisons import Compared, Pairs, compare, differences
from study.design import CLIFF, CLIPS, REGIMES, SLOW
from study.rows import Place, RowList, area, final
from study.shared import Table
from study.statistics import Paired, paired
from study.tables import in_points, table

NAMES = {"reinforce": "REINFORCE", "rloo": "RLOO", "grpo": "GRPO", "bnpo": "BNPO", "maxrl": "MaxRL"}
NAMES |= {"eb": "eb", "shrinkage": "shrinkage", "curverl": "CurveRL"}
NO_GAIN = ("equal", "not better")
INVALID = "invalid"
"""The verdict on every line of a part whose null differs from 0."""
NULL_P = 0.025
"""The null of a part differs from 0 below this p-value: 0.05 over two nulls."""


@dataclass(frozen=True)
class Family:
    """Comparisons that share Holm's correction, with the checks of their part. `bound` is a
    share of answers.
    """

    part: str
    metric: Callable[[Mapping], float]
    lines: Mapping[str, Pairs]  # "X less Y" -> setting or regime -> the places of X and Y
    bound: float
    null: tuple[Place, Place]
    control: tuple[Place, Place]  # the positive one: the first should be above

    def pairs(self) -> Pairs:
        return flat(self.lines)


def lines_of(pairs_of: Callable[[str, str], Pairs], *methods: tuple[str, str]) -> dict[str, Pairs]:
    """Return the pairs of places of two methods each, by line."""
    return {
        f"{NAMES[first]} less {NAMES[second]}": pairs_of(first, second) for first, second in methods
    }


def flat(lines: Mapping[str, Pairs]) -> Pairs:
    """Return all comparisons by line and place."""
    return {
        f"{line}, {place}": pair for line, places in lines.items() for place, pair in places.items()
    }


def clip_pairs(first: str, second: str) -> Pairs:
    """Return the places of two methods on the cliff, by clipping."""
    return {
        clip: (("cliff", CLIFF, f"{first} {clip}"), ("cliff", CLIFF, f"{second} {clip}"))
        for clip in CLIPS
    }


def regime_pairs(first: str, second: str) -> Pairs:
    """Return the places of two methods of the part prior, by regime."""
    return {regime: (("prior", regime, first), ("prior", regime, second)) for regime in REGIMES}


CLIFF_FAMILY = Family(
    part="cliff",
    metric=final,
    lines=lines_of(clip_pairs, ("bnpo", "reinforce"), ("bnpo", "grpo")),
    bound=0.05,
    null=(("cliff-controls", CLIFF, "rloo unclipped"), ("cliff", CLIFF, "reinforce unclipped")),
    control=(("cliff-controls", CLIFF, SLOW), ("cliff", CLIFF, "reinforce clipped")),
)
PRIOR_FAMILY = Family(
    part="prior",
    metric=area,
    lines=lines_of(
        regime_pairs, ("eb", "rloo"), ("eb", "bnpo"), ("shrinkage", "rloo"), ("curverl", "rloo")
    ),
    bound=0.01,
    null=(("prior", "rare", "rloo"), ("prior-controls", "rare", "reinforce")),
    control=(("prior", "rare", "rloo"), ("prior-controls", "rare", "maxrl")),
)
FAMILIES = (CLIFF_FAMILY, PRIOR_FAMILY)


def check(rows: RowList, family: Family, places: tuple[Place, Place]) -> Paired:
    """Return the null or the positive control of a family."""
    return paired(differences(rows, places, family.metric))


def judge(found: Sequence[Compared], bound: float) -> str:
    """Return the verdict on one line by the table of plan-2.md, from its comparisons in all
    places.
    """
    signs = {compared.sign for compared in found}
    if signs >= {1, -1}:
        return "mixed"
    if 1 in signs:
        return "better"
    if -1 in signs:
        return "worse"
    if all(
        -bound < compared.difference.low and compared.difference.high < bound for compared in found
    ):
        return "equal"
    return (
        "not better" if all(compared.difference.high < bound for compared in found) else "undecided"
    )


def judge_lines(rows: RowList, family: Family) -> dict[str, list[str]]:
    """Return the verdict on each line of a family, and its differences in words."""
    compared = compare(rows, family.pairs(), family.metric)
    null, control = check(rows, family, family.null), check(rows, family, family.control)
    verdicts = {}
    for line, places in family.lines.items():
        found = {place: compared[f"{line}, {place}"] for place in places}
        verdict = judge(list(found.values()), family.bound)
        because = "; ".join(f"{place} {in_points(one.difference)}" for place, one in found.items())
        if verdict in NO_GAIN and control.low <= 0:
            verdict, because = "undecided", f"{because}; the positive control is not above 0"
        if null.p < NULL_P:
            verdict, because = INVALID, f"{because}; the null is not 0"
        verdicts[line] = [verdict, because]
    return verdicts


def judge_claims(verdicts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the verdicts on the claims of plan-2.md, from those on the lines."""
    # The lines that must all be better, and the lines that can speak against the claim
    stable, prior = ("BNPO less REINFORCE", "BNPO less GRPO"), ("eb less BNPO",)
    lines = {
        "BNPO is more stable": (stable, stable),
        "a Beta is better as a prior than as a normaliser": (prior, prior),
        "a Beta is worth having as a prior": (("eb less RLOO", *prior), ("eb less RLOO",)),
    }
    claims = {}
    for claim, (names, names_against) in lines.items():
        found = [verdicts[name][0] for name in names]
        against = [verdicts[name][0] for name in names_against]
        verdict = "undecided"
        if INVALID in found:
            verdict = INVALID
        elif all(one == "better" for one in found):
            verdict = "for"
        elif "worse" in against or all(one in NO_GAIN for one in against):
            verdict = "against"
        claims[claim] = [
            verdict,
            "; ".join(f"{name}: {one}" for name, one in zip(names, found, strict=True)),
        ]
    return claims


def judge_checks(rows: RowList) -> dict[str, list[str]]:
    """Return whether the nulls and the positive controls are as they should be."""
    checks = {}
    for family in FAMILIES:
        null, control = check(rows, family, family.null), check(rows, family, family.control)
        holds, shows = ("yes" if right else "no" for right in (null.p >= NULL_P, control.low > 0))
        checks[f"{family.part}: the null holds"] = [holds, f"{in_points(null)}, p {null.p:.4f}"]
        checks[f"{family.part}: the positive control is above 0"] = [shows, in_points(control)]
    return checks


def verdict_table(rows: RowList) -> Table:
    """Return the registered claims, lines and checks with their verdicts."""
    lines = {
        line: cells for family in FAMILIES for line, cells in judge_lines(rows, family).items()
    }
    blocks = {"claim": judge_claims(lines), "comparison": lines, "check": judge_checks(rows)}
    return table("verdicts_2", blocks)
