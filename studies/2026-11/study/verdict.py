"""The verdicts on the registered questions, by the rules of plan.md, section "What would count"."""

from collections.abc import Mapping
from itertools import product

from study.comparisons import FIRST_FIT, METRICS, against_fixed, against_others, compare, nulls
from study.design import EVALUATED, FAVOURED, REGIMES
from study.rows import RowList, both_done
from study.shared import Table
from study.tables import table

SMALL = 0.02
"""The smallest difference of pass@1 that matters in practice."""


def verdict_table(rows: RowList, noise: Mapping[str, Mapping]) -> Table:
    """Return the registered questions and their verdicts."""
    lines = {"BNPO learns better": _learning(rows), "its gradient is less noisy": _noise(noise)}
    lines["the nulls hold"] = _nulls(rows)
    return table("verdicts", {"claim": lines})


def _learning(rows: RowList) -> list[str]:
    found = {}
    for regime, metric in product(REGIMES, METRICS):
        compared = compare(rows, against_others(regime), METRICS[metric])
        found[regime, metric] = [compared["reinforce"], compared["grpo"]]
    below = [place for place, pair in found.items() if any(opponent.sign < 0 for opponent in pair)]
    if below:
        return ["against", f"below REINFORCE or GRPO: {_place_names(below)}"]
    above = [place for place, pair in found.items() if all(opponent.sign > 0 for opponent in pair)]
    for regime, metric in (place for place in above if place[0] in FAVOURED):
        if compare(rows, against_fixed(rows, regime), METRICS[metric])[FIRST_FIT].sign > 0:
            return ["for", f"above REINFORCE, GRPO and its own first fit: {regime}, {metric}"]
    intervals = {place: [opponent.difference for opponent in pair] for place, pair in found.items()}
    beyond = [place for place, pair in intervals.items() if any(d.high >= SMALL for d in pair)]
    under = [place for place, pair in intervals.items() if any(d.high < 0 for d in pair)]
    over = [place for place, pair in intervals.items() if any(d.low > 0 for d in pair)]
    bound = f"{100 * SMALL:g} points"
    if not (beyond or under or over):
        return ["against", f"all intervals contain 0 and end below {bound}"]
    details = f"above both in: {_place_names(above)}; intervals below 0 in: {_place_names(under)}"
    details += f"; above 0 in: {_place_names(over)}"
    return ["undecided", f"{details}; ending beyond {bound} in: {_place_names(beyond)}"]


def _place_names(places: list[tuple[str, str]]) -> str:
    return "; ".join(f"{regime}, {metric}" for regime, metric in places) or "none"


def _noise(noise: Mapping[str, Mapping]) -> list[str]:
    places = [f"{regime}, step {step}" for regime in REGIMES for step in EVALUATED[regime]]
    above = []
    for place in places:
        less = [noise[place]["methods"][name]["bnpo_less"] for name in ("reinforce", "grpo")]
        if all(difference > 2 * error for difference, error in less):
            above.append(place)
    verdict = "for" if len(above) > len(places) / 2 else "not supported"
    return [verdict, f"above both at {len(above)} of {len(places)} checkpoints"]


def _nulls(rows: RowList) -> list[str]:
    cells, differ = [], []
    for name, metric in METRICS.items():
        compared = compare(rows, nulls(), metric)
        differ += [(label, name) for label, null in compared.items() if null.sign]
        cells.append(f"{name}: p {min(null.adjusted for null in compared.values()):.2f}")
    pairs = [pair for places in nulls().values() for pair in both_done(rows, *places)]
    same = sum(first["evals"] == second["evals"] for first, second in pairs)
    details = _place_names(differ) if differ else f"least adjusted {', '.join(cells)}"
    return [
        "no" if differ else "yes",
        f"{details}; {same} of {len(pairs)} pairs of runs have the same curve",
    ]
