"""What the first answers of a run say about its success: nothing to learn from, cut off, no final answer, failing.

`scripts/check_task.py` prints these findings before a run. A run prints them once, after its first steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bnpo.config import TrainConfig
from bnpo.grading.rewards import BUILT_IN, reward_name, stated_answer
from bnpo.rollouts import Rollouts, Task, has_signal

FIRST_STEPS = 3
"""Steps of a run whose answers are looked at together."""
MOST_TEXTS = 256
"""Answers that are decoded to look for a final answer in them."""
ALMOST_ALL, MANY, FEW = 0.95, 0.5, 0.1
"""Shares from which on, and up to which, something is worth a line."""


class Finding(NamedTuple):
    """One thing that keeps a run from learning. `kind` is its name in findings.json."""

    kind: str
    text: str


@dataclass(frozen=True)
class FirstAnswers:
    """N answers in n groups of m, each group to one question, from one step or several."""

    reward_names: Sequence[str]  # [K]
    weights: np.ndarray  # [K], 0 for a reward that is only recorded
    ranges: Sequence[tuple[float, float]]  # [K], lowest and highest value of each reward
    rewards: np.ndarray  # [n, m, K]
    failed: np.ndarray  # [n, m], True where a reward could not be computed
    failures: dict[str, int]  # failed calls by kind
    finished: np.ndarray  # [n, m], False where an answer was cut off
    stated: np.ndarray  # [at most MOST_TEXTS], whether an answer has a final answer
    rule: str  # --grader

    @classmethod
    def of(cls, rollouts: Sequence[Rollouts], task: Task, config: TrainConfig) -> "FirstAnswers":
        """Return the answers of the steps `rollouts`."""
        names, rule = list(map(reward_name, config.data.rewards)), config.data.grader
        groups = [group for step in rollouts for group in step.answers]  # [n][m]
        answers = [answer for group in groups for answer in group]  # [N]
        some = answers[:: -(-len(answers) // MOST_TEXTS)]
        texts = task.tokenizer.batch_decode([answer.token_ids for answer in some], skip_special_tokens=True)
        return cls(
            reward_names=names,
            weights=np.array(config.method.reward_weights or [1.0] * len(names)),
            ranges=task.grader.ranges,
            rewards=np.concatenate([step.rewards for step in rollouts]),
            failed=np.concatenate([step.failed for step in rollouts]),
            failures=dict(sum((step.failures for step in rollouts), start=type(rollouts[0].failures)())),
            finished=np.array([[answer.finished for answer in group] for group in groups]),
            stated=np.array([stated_answer(text, rule, task.answer_tags) is not None for text in texts]),
            rule=rule,
        )

    @property
    def mixed(self) -> float:
        """Share of the groups whose answers differ in a reward that counts: only these give a gradient."""
        return float(has_signal(self.rewards, self.weights).mean())


def find(answers: FirstAnswers) -> list[Finding]:
    """Return what keeps a run with these answers from learning, the most certain first."""
    findings = []
    failed, cut_off = answers.failed.mean(), 1 - answers.finished.mean()
    unstated = 1 - answers.stated.mean()
    if failed > (0 if set(answers.reward_names) - set(BUILT_IN) else FEW):
        kinds = ", ".join(f"{kind} {count} times" for kind, count in answers.failures.items())
        names = [name for name in answers.reward_names if name not in BUILT_IN] or answers.reward_names
        text = f"rewards of {failed:.0%} of the answers could not be computed ({kinds}) and count as the lowest value; "
        findings.append(Finding("failing", text + f"look at {', '.join(names)}, and at the lines `grading:` above"))
    if cut_off >= (MANY if answers.mixed < MANY else ALMOST_ALL):  # with a signal, a policy learns to end its answers
        text = f"{cut_off:.0%} of the answers are cut off before their end; raise --max-answer-tokens"
        findings.append(Finding("cut_off", text))
    if unstated >= MANY and "accuracy" in answers.reward_names:
        lacks = "number" if answers.rule == "last_number" else "\\boxed{}"
        text = f"{unstated:.0%} of the answers have no {lacks}; have the prompt ask for it (--system-prompt), or take "
        findings.append(Finding("no_final_answer", text + "the last number in its place (--grader last_number)"))
    for k in np.flatnonzero(answers.weights):
        findings += _about_reward(answers.rewards[:, :, k], answers.reward_names[k], answers.ranges[k])
    if answers.mixed <= FEW and not any(finding.kind.startswith("all_") for finding in findings):
        text = f"only {answers.mixed:.0%} of the questions have answers with different rewards, and the others give "
        text += "no gradient; raise --samples-per-question or --temperature, or take easier or harder problems"
        findings.append(Finding("few_mixed_groups", text))
    return findings


def _about_reward(rewards: np.ndarray, name: str, value_range: tuple[float, float]) -> list[Finding]:
    """Return a finding if the rewards [n, m] of all answers are equal."""
    value = rewards.flat[0]
    if (rewards != value).any():
        return []
    same = f"the reward {name} is {value:g} for all {rewards.size} answers"
    if value == value_range[0]:
        text = f"{same}: nothing is ever right; read some answers beside their references, and take easier problems"
        return [Finding("all_lowest", text)]
    if value == value_range[1]:
        return [Finding("all_highest", f"{same}: nothing is left to learn; take harder problems")]
    return [Finding("all_equal", f"{same}; correct the function, which must tell answers apart")]
