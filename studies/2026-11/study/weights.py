"""How the methods differ: their advantages on the same answers, before any update."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from study.design import ANSWERS, QUESTIONS, REGIMES
from study.shared import HERE, Table, advantages, json_lines
from study.tables import table

WEIGHING = ("reinforce", "grpo", "maxrl", "bnpo")
"""Methods whose advantage is w(p) (R - p), p the accuracy of the question."""
COMPARED = ("reinforce", "grpo", "maxrl", "reinforce_pp")
SAMPLED = 32
"""Answers to each question from which its accuracy in data/ was taken."""
MEANS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9)
CONCENTRATIONS = (1, 3, 10, 30)
"""Beta distributions of accuracies, by mean and a + b."""
BATCHES = ((QUESTIONS, ANSWERS), (32, 16), (512, 16), (512, 256))
"""Questions and answers to each: of the study, of the paper, and larger ones."""
OUTLYING = {
    "32 x 16, accuracy 0.1 but for two questions at 0.9": ((0.1, 0.9), (30, 2), 16),
    "512 x 256, accuracy 0.5 but for 32 at 0.02": ((0.5, 0.02), (480, 32), 256),
}
"""Accuracies, how many questions have each, and the answers to a question."""


def base_accuracies(regime: str) -> np.ndarray:
    """Shares [n] of right answers of the base model to the training questions of a regime."""
    lines = json_lines(HERE / "data" / f"{regime}-train.jsonl")
    return np.array([line["accuracy"] for line in lines])


def base_weights(regime: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By method, accuracies that occur strictly between 0 and 1 and the weights w(p) there when all
    training questions of the regime are one batch, scaled to advantages of root mean square 1.
    """
    right = np.round(base_accuracies(regime) * SAMPLED)
    rewards = (np.arange(SAMPLED) < right[:, None]).astype(float)  # [n, m], the right answers first
    p, first = np.unique(right / SAMPLED, return_index=True)
    inside = (p > 0) & (p < 1)
    p, first = p[inside], first[inside]
    weights = {}
    for name in WEIGHING:
        found = advantages(name, rewards)  # [n, m]
        weights[name] = (p, found[first, 0] / (1 - p) / np.sqrt((found**2).mean()))
    return weights


def cosines(
    draw: Callable[[np.random.Generator], np.ndarray],
    answers: int,
    names: Sequence[str],
    batches: int,
    quantile: float = 0.5,
) -> dict[str, float]:
    """Medians, or another quantile, over batches of the cosine between the advantages of each
    method and BNPO's.

    `draw` gives the accuracies [n] of a batch's questions, whose answers are drawn from them; they
    are taken as equally long. Batches in which no question tells answers apart are left out.
    """
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(batches):
        p = draw(rng)
        rewards = (rng.random((len(p), answers)) < p[:, None]).astype(float)
        bnpo = advantages("bnpo", rewards)  # [n, m]
        for name in names if bnpo.any() else ():
            other = advantages(name, rewards)  # [n, m]
            found[name].append((bnpo * other).sum() / np.sqrt((bnpo**2).sum() * (other**2).sum()))
    return {name: float(np.quantile(values, quantile)) for name, values in found.items()}


def likeness_tables() -> list[Table]:
    """How alike BNPO's advantages are to others' in the study's regimes, and to REINFORCE's
    anywhere.
    """
    lines = {}
    for regime in REGIMES:
        accuracies = base_accuracies(regime)
        draw = partial(np.random.Generator.choice, a=accuracies, size=QUESTIONS)
        found = cosines(draw, ANSWERS, COMPARED, batches=300)
        lines[regime] = [f"{found[name]:.3f}" for name in COMPARED]
    likeness = table("likeness", {"regime": lines}, columns=COMPARED)
    lines = {
        f"{questions} x {answers}": _least_cosines(questions, answers)
        for questions, answers in BATCHES
    }
    columns = [f"a + b = {concentration}" for concentration in CONCENTRATIONS]
    further = []
    for name, (accuracies, counts, answers) in OUTLYING.items():
        batch = np.repeat(accuracies, counts)
        cosine = cosines(lambda _, batch=batch: batch, answers, ("reinforce",), batches=50)[
            "reinforce"
        ]
        further.append(f"{name}: {cosine:.2f}")
    draw = partial(np.random.Generator.beta, a=15, b=15, size=32)
    low = cosines(draw, 16, ("reinforce",), batches=1000, quantile=0.05)["reinforce"]
    values = {"low": low, "outlying": "; ".join(further)}
    return [
        likeness,
        table("least_likeness", {"questions x answers": lines}, columns=columns, **values),
    ]


def _least_cosines(questions: int, answers: int) -> list[str]:
    cells = []
    for c in CONCENTRATIONS:
        found = []
        for mean in MEANS:
            a, b = mean * c, (1 - mean) * c
            draw = partial(np.random.Generator.beta, a=a, b=b, size=questions)
            found.append(cosines(draw, answers, ("reinforce",), batches=50)["reinforce"])
        cells.append(f"{min(found):.3f}")
    return cells
