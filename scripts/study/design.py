"""The settings that all runs of the study share, and the class of one run. docs/study/plan.md has the reasons."""

from collections.abc import Mapping
from dataclasses import dataclass

REGIMES = ("spread", "concentrated", "rare")
ALGORITHMS = ("reinforce", "rloo", "remax", "grpo", "reinforce_pp", "bnpo", "maxrl")
FAVOURED = ("concentrated", "rare")
"""Regimes in which the paper predicts an advantage of BNPO."""
TAGGED = ("grpo", "reinforce_pp", "bnpo")
"""Algorithms of Table 2, plain and with decomposed rewards (`ad-`)."""
TAGGED_LATER = ("reinforce",)
"""Algorithms that were added after the results of TAGGED were known. No registered comparison has them."""
FROZEN = ((1.25, 1.25), (2.0, 2.0))
"""Fixed alpha and beta that BNPO's fitted ones are compared with. (1, 1) is REINFORCE, (3/2, 3/2) is GRPO."""
LEARNING_RATES = (5e-5, 1e-4, 2e-4, 4e-4)
BEYOND = {5e-5: 2.5e-5, 4e-4: 8e-4}
"""Best rate at an end of the grid -> the rate beyond it that is tried, too."""
TUNING_SEEDS = (100, 101)
SEEDS = tuple(range(12))
EVALUATED = {"spread": (0, 6, 12), "concentrated": (0, 3, 6), "rare": (0, 6, 12), "tags": (0, 6, 12)}
EVALUATED["cliff"] = (0, 6, 12, 18, 24)
"""Steps after which held-out questions are evaluated, by regime: at the start, in the middle, at the end."""
QUESTIONS_OF = {"tags": "spread", "cliff": "rare"}
"""The questions of regimes that have none of their own."""
QUESTIONS, ANSWERS = 16, 16

COMMON = ("--preset", "tiny", "--questions-per-step", str(QUESTIONS), "--samples-per-question", str(ANSWERS))
COMMON += ("--warmup-steps", "2", "--rollouts-every", "0")
TAGS = ("--model", "data/tags-model", "--template", "think", "--rewards", "accuracy,format")
"""Flags of Table 2 in miniature."""


@dataclass(frozen=True)
class Grid:
    """The learning rates that a tuning part tries with each of its seeds.

    Where the best rate is a key of `beyond`, the rate that belongs to it is tried, too.
    """

    part: str
    rates: tuple[float, ...]
    beyond: Mapping[float, float]
    seeds: tuple[int, ...]


GRID = Grid("tuning", LEARNING_RATES, BEYOND, TUNING_SEEDS)
GRID_OF_TAGS = Grid("tags-tuning", LEARNING_RATES, BEYOND, TUNING_SEEDS)


@dataclass(frozen=True)
class StudyRun:
    """A run of the study. `flags` are the flags of its method; the other fields name it."""

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
        """Return the flags of train.py without --output-dir. Paths start at the repository's root."""
        split = "validation" if self.part.endswith("tuning") else "test"
        questions = QUESTIONS_OF.get(self.regime, self.regime)
        suite = self.regime if self.regime == "tags" else questions
        task = ("--train-data", f"data/study/{questions}-train.jsonl")
        task += ("--eval-suite", f"data/study/{suite}-{split}.json")
        task += TAGS if self.regime == "tags" else ()
        _, every, *_, last = map(str, EVALUATED[self.regime])
        task += ("--steps", last, "--eval-every", every, "--save-every", last)
        return (*COMMON, *task, *self.flags, "--lr", f"{self.lr:g}", "--seed", str(self.seed))
