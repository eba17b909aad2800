"""Print the verdicts of studies/smollm2 by its registered rules, from the recorded rows.

The rules are in README.md there, and those of the comparison with a side reward in side-reward.md.

    python dev/verdicts.py

Differences are those of runs with the same seed. As long as seeds are missing, a verdict is what
the rules would say of the seeds that are there.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnpo.files import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from compare import detected_errors, over_seeds
from compare_evaluations import holm
from paper.curves import read_run, variation
from paper.results import METHODS

RECORDS = ROOT / "studies" / "smollm2"
SEEDS = 5
DEVIATION = 3.4  # points, between runs of one method with different seeds, as the rules assume
Values = dict[str, dict[int, float]]
"""A number for each run, by method and seed."""


@dataclass(frozen=True)
class Difference:
    """Method `a` minus method `b` over the seeds that both have. `low` and `high` are the 95 %
    interval, and `p` is the p-value after Holm's correction over the pairs that are judged
    together.
    """

    a: str
    b: str
    seeds: int
    mean: float
    low: float
    high: float
    p: float

    @property
    def sign(self) -> int:
        """1 or -1 if the difference is above or below 0 after the correction, or else 0."""
        return int(np.sign(self.mean)) if self.p < 0.05 else 0


def read(table: str, value: Callable[[Path], float]) -> Values:
    """Return `value` of the folder of every recorded run of a table."""
    found: Values = {}
    for folder in sorted((RECORDS / table).glob("*-seed*")):
        name, _, seed = folder.name.rpartition("-seed")
        method = name.removeprefix("SmolLM2-135M-Instruct-")
        if method.endswith("_--decompose"):  # as compare.py names it
            method = f"AD-{method.removesuffix('_--decompose')}"
        found.setdefault(method, {})[int(seed)] = value(folder)
    return found


def score(folder: Path) -> float:
    """Return the average of the three test sets, in percent."""
    return 100 * read_run(folder).score


def norm_variation(folder: Path) -> float:
    """Return the coefficient of variation of the gradient norm before clipping."""
    return variation(read_run(folder).metrics["grad_norm"])


def variation_around_trend(folder: Path) -> float:
    """Return the variation of the gradient norm around a straight line over the steps, relative to
    its mean. It leaves out that the norm falls as questions are solved.
    """
    norms = read_run(folder).metrics["grad_norm"]
    steps = np.flatnonzero(~np.isnan(norms))
    norms = norms[steps]
    around = norms - np.polyval(np.polyfit(steps, norms, 1), steps)
    return float(around.std(ddof=1) / norms.mean())


def wrong_energy(folder: Path) -> float:
    """Return the share of the advantages' energy in groups without a right answer, the mean over
    the steps that have any advantage.
    """
    return float(np.nanmean(read_run(folder).metrics["advantage/energy_all_wrong"]))


def differences(values: Values, pairs: Sequence[tuple[str, str]]) -> list[Difference]:
    """Return the difference of each pair of methods that has two seeds or more."""
    tested = []
    for a, b in pairs:
        seeds = sorted(values.get(a, {}).keys() & values.get(b, {}).keys())
        if len(seeds) > 1:
            test = over_seeds(np.array([values[a][seed] - values[b][seed] for seed in seeds]))
            tested.append((a, b, len(seeds), test))
    p_values = holm([test["p_value"] for *_, test in tested])
    return [
        Difference(a, b, seeds, test["difference"], test["low"], test["high"], p)
        for (a, b, seeds, test), p in zip(tested, p_values, strict=True)
    ]


def lead(found: Sequence[Difference]) -> str:
    """Return the verdict on the lead of a method, from its differences from all others (3, 4)."""
    signs = [difference.sign for difference in found]
    if -1 in signs:
        return "against the paper"
    is_highest = all(difference.mean > 0 for difference in found)
    return "for the paper" if is_highest and signs.count(1) >= 2 else "undecided"


def stability(found: Sequence[Difference]) -> str:
    """Return the verdict on the variation of the gradient norm, from BNPO's differences (5)."""
    if any(difference.low > 0 for difference in found):
        return "against the paper"
    return "for the paper" if all(difference.high < 0 for difference in found) else "undecided"


def decomposition(found: Sequence[Difference]) -> str:
    """Return the verdict on AD, from the differences to the methods without it (6)."""
    signs = [difference.sign for difference in found]
    if -1 in signs:
        return "against the paper"
    return "for the paper" if all(sign == 1 for sign in signs) else "undecided"


def harm(found: Sequence[Difference]) -> str:
    """Return the verdict on each method's difference from GRPO (side-reward.md, 3)."""
    verdicts = {1: "for the claim", -1: "against the claim", 0: "undecided"}
    return ", ".join(f"{_label(one.a)} {verdicts[one.sign]}" for one in found)


def mechanism(energies: Values) -> str:
    """Return the verdict on the energy in groups without a right answer (side-reward.md, 4)."""
    others = [energies[name] for name in energies if name != "grpo"]
    is_largest = all(
        energy > other[seed] for seed, energy in energies["grpo"].items() for other in others
    )
    return "holds" if is_largest else "does not hold"


def show(
    title: str,
    values: Values,
    pairs: Sequence[tuple[str, str]],
    judge: Callable[[Sequence[Difference]], str],
) -> None:
    """Print the differences of `pairs` as a Markdown table, with the verdict on them."""
    found = differences(values, pairs)
    print(f"### {title}\n")
    if len(found) < len(pairs):
        print("Too few seeds are finished.\n")
        return
    print("| | seeds | difference | 95 % interval | p (Holm) |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for one in found:
        interval = f"{one.low:+.2f} to {one.high:+.2f}"
        label = f"{_label(one.a)} minus {_label(one.b)}"
        print(f"| {label} | {one.seeds} | {one.mean:+.2f} | {interval} | {one.p:.3f} |")
    means = [
        f"{_label(name)} {np.mean(list(by_seed.values())):.2f}" for name, by_seed in values.items()
    ]
    print(f"\nMeans of all finished seeds: {', '.join(means)}.")
    seeds = min(one.seeds for one in found)
    missing = "" if seeds == SEEDS else f" with {seeds} of {SEEDS} seeds"
    print(f"\nVerdict{missing}: **{judge(found)}**.\n")


def show_mechanism(energies: Values) -> None:
    """Print the energy of each run in groups without a right answer, with the verdict."""
    print("### Side reward: share of the advantages' energy in groups without a right answer\n")
    if len(energies) < 4:
        print("Too few runs are finished.")
        return
    seeds = sorted(set.intersection(*map(set, energies.values())))
    print("| |", " | ".join(f"seed {seed}" for seed in seeds), "|")
    print("| --- |", " | ".join("---:" for _ in seeds), "|")
    for name, by_seed in energies.items():
        print(f"| {_label(name)} |", " | ".join(f"{by_seed[seed]:.3f}" for seed in seeds), "|")
    common = {name: {seed: by_seed[seed] for seed in seeds} for name, by_seed in energies.items()}
    missing = "" if len(seeds) == SEEDS else f" with {len(seeds)} of {SEEDS} seeds"
    print(f"\nVerdict{missing}: the mechanism **{mechanism(common)}**.")


def _label(method: str) -> str:
    algo = method.removeprefix("AD-")
    return method.replace(algo, METHODS[algo])


def show_power() -> None:
    """Print what the registered tests detect if runs of one seed are not correlated."""
    error = DEVIATION * np.sqrt(2 / SEEDS)
    for comparisons in (1, 3, 4):
        found = detected_errors(SEEDS, comparisons) * error
        print(f"Detectable by {SEEDS} pairs, the largest of {comparisons}: {found:.1f} points.\n")


def main() -> None:
    """Print all verdicts."""
    show_power()
    scores, decomposed = read("table1", score), read("table2", score)
    others = ("reinforce", "remax", "grpo", "reinforce_pp")
    show("Table 1: BNPO's lead, in points", scores, [("bnpo", name) for name in others], lead)
    variations = read("table1", norm_variation)
    pairs = [("bnpo", "reinforce"), ("bnpo", "grpo")]
    title = "Stability: coefficient of variation of the gradient norm"
    show(title, variations, pairs, stability)
    around = {
        _label(name): np.mean(list(by_seed.values()))
        for name, by_seed in read("table1", variation_around_trend).items()
    }
    means = ", ".join(f"{name} {value:.2f}" for name, value in around.items())
    print(f"Around a straight line over the steps: {means}.\n")
    pairs = [(f"AD-{name}", name) for name in ("grpo", "reinforce_pp")]
    show("Table 2: decomposition, in points", decomposed, pairs, decomposition)
    pairs = [("AD-bnpo", f"AD-{name}") for name in ("grpo", "reinforce_pp")]
    show("Table 2: AD-BNPO's lead, in points", decomposed, pairs, lead)
    scores = read("side-reward", score)
    pairs = [(name, "grpo") for name in ("AD-grpo", "bnpo", "reinforce")]
    show("Side reward: harm, in points", scores, pairs, harm)
    show_mechanism(read("side-reward", wrong_energy))


if __name__ == "__main__":
    main()
