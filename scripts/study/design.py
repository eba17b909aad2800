"""The settings that all runs of the study share, and the flags of one run. plan.md has the reasons."""

from collections.abc import Mapping, Sequence
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


def command(row: Mapping, flags: Sequence[str], steps: int | None = None) -> list[str]:
    """Return the flags of train.py for the run of a row, whose method stands for `flags`; without --output-dir.

    `steps` cut the run short and leave its evaluations out. Paths start at the repository's root.
    """
    regime = row["regime"]
    split = "validation" if row["part"].endswith("tuning") else "test"
    questions = QUESTIONS_OF.get(regime, regime)
    suite = regime if regime == "tags" else questions
    task = ["--train-data", f"data/study/{questions}-train.jsonl", "--eval-suite", f"data/study/{suite}-{split}.json"]
    task += TAGS if regime == "tags" else ()
    _, every, *_, last = EVALUATED[regime]
    task += ["--steps", str(steps or last), "--eval-every", str(0 if steps else every), "--save-every", str(last)]
    return [*COMMON, *task, *flags, "--lr", f"{row['lr']:g}", "--seed", str(row["seed"])]
