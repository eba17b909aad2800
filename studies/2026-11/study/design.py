"""What the runs of both studies share: regimes, methods, and the flags of one run. plan.md
and plan-2.md have the reasons.
"""

from collections.abc import Mapping

REGIMES = ("spread", "concentrated", "rare")
ALGORITHMS = ("reinforce", "rloo", "remax", "grpo", "reinforce_pp", "bnpo", "maxrl")
FAVOURED = ("concentrated", "rare")
"""Regimes in which the paper predicts an advantage of BNPO."""
TAGGED = ("grpo", "reinforce_pp", "bnpo")
"""Algorithms of Table 2, plain and with decomposed rewards (`ad-`)."""
TAGGED_LATER = ("reinforce",)
"""Algorithms that were added after the results of TAGGED were known. No registered comparison
has them."""
FROZEN = ((1.25, 1.25), (2.0, 2.0))
"""Fixed alpha and beta that BNPO's fitted ones are compared with. (1, 1) is REINFORCE, (3/2,
3/2) is GRPO."""
RATES = (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4)
"""Learning rates of the tuning. The first and the last were tried where the best of the others
was beside them."""
EVALUATED = {
    "spread": (0, 6, 12),
    "concentrated": (0, 3, 6),
    "rare": (0, 6, 12),
    "tags": (0, 6, 12),
}
EVALUATED["cliff"] = (0, 6, 12, 18, 24)
"""Steps after which held-out questions are evaluated, by regime: at the start, in the middle, at
the end."""
QUESTIONS_OF = {"tags": "spread", "cliff": "rare"}
"""The questions of regimes that have none of their own."""
QUESTIONS, ANSWERS = 16, 16

CLIFF = "cliff"
"""The regime of the cliff in the second study: rare questions, twice as many steps as in the
first."""
CLIFF_METHODS = ("reinforce", "grpo", "bnpo")
CLIPS = {"clipped": "1", "unclipped": "1e9"}
"""Values of --max-grad-norm."""
SLOW = "reinforce clipped at half the rate"
"""The positive control of the cliff."""
CLIFF_CONTROLS = ("rloo unclipped", SLOW)
PRIOR_METHODS = ("eb", "shrinkage", "curverl", "rloo", "bnpo")
PRIOR_CONTROLS = ("reinforce", "maxrl")
"""The null and the positive control, both beside `rloo` and at its learning rate."""
PRIOR_RATES = (1e-4, 1.4e-4, 2e-4, 2.8e-4, 4e-4, 5.6e-4)
SAME_RATE = "prior-same-rate"
"""A part that was added after the results of all others were known. No registered comparison has
it."""
REGISTERED = {
    "cliff": 240,
    "cliff-controls": 24,
    "prior-tuning": 240,
    "prior": 180,
    "prior-controls": 24,
}
REGISTERED |= {SAME_RATE: 12}
"""Runs of each part of the second study, without the rates that tuning may add at the ends of
the grid."""

COMMON = (
    "--preset",
    "tiny",
    "--questions-per-step",
    str(QUESTIONS),
    "--samples-per-question",
    str(ANSWERS),
)
COMMON += ("--warmup-steps", "2", "--rollouts-every", "0")
TAGS = ("--model", "data/tags-model", "--template", "think", "--rewards", "accuracy,format")
"""Flags of Table 2 in miniature."""


def tagged_methods() -> list[str]:
    """Return the names of Table 2's methods, and of those that were added later: plain, then
    decomposed.
    """
    names = (*TAGGED, *TAGGED_LATER)
    return [*names, *(f"ad-{name}" for name in names)]


def command(row: Mapping, steps: int | None = None) -> list[str]:
    """Return the flags of train.py for the run of a row, without --output-dir.

    `steps` cut the run short and leave its evaluations out. Paths start at the repository's root.
    """
    regime = row["regime"]
    split = "validation" if row["part"].endswith("tuning") else "test"
    questions = QUESTIONS_OF.get(regime, regime)
    suite = regime if regime == "tags" else questions
    task = [
        "--train-data",
        f"studies/2026-11/data/{questions}-train.jsonl",
        "--eval-suite",
        f"studies/2026-11/data/{suite}-{split}.json",
    ]
    task += TAGS if regime == "tags" else ()
    _, every, *_, last = EVALUATED[regime]
    task += [
        "--steps",
        str(steps or last),
        "--eval-every",
        str(0 if steps else every),
        "--save-every",
        str(last),
    ]
    method = method_flags(row["part"], row["method"])
    return [*COMMON, *task, *method, "--lr", f"{row['lr']:g}", "--seed", str(row["seed"])]


def method_flags(part: str, method: str) -> list[str]:
    """Return the flags of train.py that `method` stands for in a part."""
    algo, *rest = method.split()
    flags = ["--algo", algo.removeprefix("ad-")]
    if part.startswith("tags"):
        flags.append("--decompose" if algo.startswith("ad-") else "--no-decompose")
    if part.startswith("cliff"):
        flags += ["--max-grad-norm", CLIPS[rest[0]]]
    if part == "adaptive":
        flags += ["--beta-parameters", *rest]
    if part == "scale":
        flags.append("--rescale-advantages")
    if part == "moments":
        flags += ["--beta-moments", "corrected"]
    return flags
