"""The miniature study as data: every run that counts. docs/study.md says why each of them is there."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from bnpo.files import ROOT, read_json_lines

REGIMES = ("spread", "concentrated", "rare")
ALGORITHMS = ("reinforce", "rloo", "remax", "grpo", "reinforce_pp", "bnpo", "maxrl")
TAGGED = ("grpo", "reinforce_pp", "bnpo")
"""Algorithms of Table 2, plain and with decomposed rewards (`ad-`)."""
FROZEN = ((1.0, 1.0), (1.25, 1.25), (1.5, 1.5), (2.0, 2.0))
"""Fixed alpha and beta that stand beside BNPO's, which follow the batch."""
LEARNING_RATES = (5e-5, 1e-4, 2e-4, 4e-4)
TUNING_SEEDS = (100, 101)
SEEDS = tuple(range(12))
STEPS, EVAL_EVERY, ANSWERS = 12, 6, 16

COMMON = ("--preset", "tiny", "--questions-per-step", "16", "--samples-per-question", str(ANSWERS))
COMMON += ("--steps", str(STEPS), "--warmup-steps", "2", "--rollouts-every", "0")
TAGS = ("--model", "data/tags-model", "--template", "think", "--rewards", "accuracy,format")
"""Flags of Table 2 in miniature."""


@dataclass(frozen=True)
class StudyRun:
    """A run of the study: what names it, and `flags`, those of its method."""

    part: str
    regime: str
    method: str
    flags: tuple[str, ...]
    lr: float
    seed: int

    @property
    def name(self) -> str:
        method = self.method.replace(" ", "-")
        return f"{self.part}/{self.regime}-{method}-lr{self.lr:g}-seed{self.seed}"

    def command(self) -> tuple[str, ...]:
        """Flags of train.py, from the repository's root, apart from the run's folder."""
        split = "validation" if self.part.endswith("tuning") else "test"
        questions = "spread" if self.regime == "tags" else self.regime
        task = ("--train-data", f"data/study/{questions}-train.jsonl")
        task += ("--eval-suite", f"data/study/{self.regime}-{split}.json")
        task += TAGS if self.regime == "tags" else ()
        task += ("--eval-every", str(EVAL_EVERY), "--save-every", str(STEPS))
        return (*COMMON, *task, *self.flags, "--lr", f"{self.lr:g}", "--seed", str(self.seed))


ChosenLr = Callable[[str, str], float]
"""The learning rate that tuning has chosen for a regime and a method."""


@cache
def first_fit(regime: str) -> tuple[float, float]:
    """Alpha and beta that BNPO fits at the first step, in expectation: from the moments of the questions' shares of
    right answers and the noise of a step's answers."""
    rows = read_json_lines(ROOT / "data" / "study" / f"{regime}-train.jsonl")
    shares = np.array([row["accuracy"] for _, row in rows])
    mean = shares.mean()
    variance = shares.var(ddof=1) + (shares * (1 - shares)).mean() / ANSWERS
    concentration = mean * (1 - mean) / variance - 1
    return round(1 + concentration * mean / 3, 3), round(1 + concentration * (1 - mean) / 3, 3)


def frozen(alpha: float, beta: float) -> tuple[str, tuple[str, ...]]:
    """Name and flags of the method with a fixed density."""
    return f"beta {alpha:g} {beta:g}", ("--algo", "beta", "--beta-parameters", f"{alpha:g}", f"{beta:g}")


def tagged_methods() -> list[tuple[str, tuple[str, ...]]]:
    """Names and flags of Table 2's methods."""
    plain = [(name, ("--algo", name, "--no-decompose")) for name in TAGGED]
    return plain + [(f"ad-{name}", ("--algo", name, "--decompose")) for name in TAGGED]


def tuned_as(algorithm: str) -> str:
    """Whose learning rate an algorithm takes: RLOO is REINFORCE times a constant, and the null comparison of the two
    needs one rate for both."""
    return "reinforce" if algorithm == "rloo" else algorithm


def _tuning(_: ChosenLr) -> Iterator[StudyRun]:
    methods = [(name, ("--algo", name)) for name in ALGORITHMS if name == tuned_as(name)]
    return _grid("tuning", REGIMES, methods)


def _tags_tuning(_: ChosenLr) -> Iterator[StudyRun]:
    return _grid("tags-tuning", ("tags",), tagged_methods())


def _grid(part: str, regimes: Iterable[str], methods: list[tuple[str, tuple[str, ...]]]) -> Iterator[StudyRun]:
    for seed in TUNING_SEEDS:
        for regime in regimes:
            for name, flags in methods:
                for lr in LEARNING_RATES:
                    yield StudyRun(part, regime, name, flags, lr, seed)


def _main(chosen_lr: ChosenLr) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for regime in REGIMES:
            for name in ALGORITHMS:
                yield StudyRun("main", regime, name, ("--algo", name), chosen_lr(regime, tuned_as(name)), seed)


def _adaptive(chosen_lr: ChosenLr) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for regime in ("concentrated", "rare"):
            for parameters in (*FROZEN, first_fit(regime)):
                yield StudyRun("adaptive", regime, *frozen(*parameters), chosen_lr(regime, "bnpo"), seed)


def _scale(chosen_lr: ChosenLr) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for name in ALGORITHMS:
            lr = chosen_lr("concentrated", tuned_as(name))
            yield StudyRun("scale", "concentrated", name, ("--algo", name, "--rescale-advantages"), lr, seed)


def _moments(chosen_lr: ChosenLr) -> Iterator[StudyRun]:
    flags = ("--algo", "bnpo", "--beta-moments", "corrected")
    for seed in SEEDS:
        for regime in REGIMES:
            yield StudyRun("moments", regime, "bnpo", flags, chosen_lr(regime, "bnpo"), seed)


def _tags(chosen_lr: ChosenLr) -> Iterator[StudyRun]:
    for seed in SEEDS:
        for name, flags in tagged_methods():
            yield StudyRun("tags", "tags", name, flags, chosen_lr("tags", name), seed)


PARTS: dict[str, Callable[[ChosenLr], Iterator[StudyRun]]] = {
    "tuning": _tuning,
    "main": _main,
    "tags-tuning": _tags_tuning,
    "tags": _tags,
    "adaptive": _adaptive,
    "scale": _scale,
    "moments": _moments,
}
"""Parts of the study in the order in which they are run. Seeds are paired: every method has the same ones."""
