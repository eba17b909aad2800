"""What the first answers of a run say about its success: nothing to learn from, cut off, no final answer, failing.

`scripts/check_task.py` prints these findings before a run. A run prints them once, after its first steps.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnpo.config import TrainConfig
from bnpo.grading.rewards import BUILT_IN, reward_name, stated_answer
from bnpo.rollouts import Rollouts, Task, has_signal

FIRST_STEPS = 3  # of a run, whose answers are looked at together
MOST_TEXTS = 256  # answers that are decoded to look for a final answer in them
ALMOST_ALL, MANY, FEW = 0.95, 0.5, 0.1  # shares from which on, and up to which, something is worth a line


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
    def of(cls, steps: Sequence[Rollouts], task: Task, config: TrainConfig) -> "FirstAnswers":
        """Return the answers of some `steps`."""
        names, rule = list(map(reward_name, config.data.rewards)), config.data.grader
        answers = [answer.token_ids for step in steps for group in step.answers for answer in group]  # [N]
        some = answers[:: -(-len(answers) // MOST_TEXTS)]
        texts = task.tokenizer.batch_decode(some, skip_special_tokens=True)
        return cls(
            reward_names=names,
            weights=np.array(config.method.reward_weights or [1.0] * len(names)),
            ranges=task.grader.ranges,
            rewards=np.concatenate([step.rewards for step in steps]),
            failed=np.concatenate([step.failed for step in steps]),
            failures=sum((step.failures for step in steps), Counter()),
            finished=np.concatenate([step.finished for step in steps]),
            stated=np.array([stated_answer(text, rule, task.answer_tags) is not None for text in texts]),
            rule=rule,
        )

    @property
    def mixed(self) -> float:
        """Share of the groups whose answers differ in a reward that counts: only these give a gradient."""
        return float(has_signal(self.rewards, self.weights).mean())


def find(answers: FirstAnswers) -> list[dict[str, str]]:
    """Return what keeps a run with these answers from learning, the most certain first, as findings.json has it."""
    findings = []
    failed, cut_off, unstated = answers.failed.mean(), 1 - answers.finished.mean(), 1 - answers.stated.mean()

    def add(kind: str, text: str) -> None:
        findings.append({"kind": kind, "text": text})

    if failed > (0 if set(answers.reward_names) - set(BUILT_IN) else FEW):
        kinds = ", ".join(f"{kind} {count} times" for kind, count in answers.failures.items())
        names = [name for name in answers.reward_names if name not in BUILT_IN] or answers.reward_names
        text = f"rewards of {failed:.0%} of the answers could not be computed ({kinds}) and count as the lowest value; "
        add("failing", text + f"look at {', '.join(names)}, and at the lines `grading:` above")
    if cut_off >= (MANY if answers.mixed < MANY else ALMOST_ALL):  # with a signal, a policy learns to end its answers
        add("cut_off", f"{cut_off:.0%} of the answers are cut off before their end; raise --max-answer-tokens")
    if unstated >= MANY and "accuracy" in answers.reward_names:
        lacks = "number" if answers.rule == "last_number" else "\\boxed{}"
        text = f"{unstated:.0%} of the answers have no {lacks}; have the prompt ask for it (--system-prompt), or take "
        add("no_final_answer", text + "the last number in its place (--grader last_number)")
    for k in np.flatnonzero(answers.weights):
        value, (lowest, highest) = answers.rewards[0, 0, k], answers.ranges[k]
        same = f"the reward {answers.reward_names[k]} is {value:g} for all {answers.failed.size} answers"
        if (answers.rewards[:, :, k] != value).any():
            continue
        if value == lowest:
            text = "nothing is ever right; read some answers beside their references, and take easier problems"
            add("all_lowest", f"{same}: {text}")
        elif value == highest:
            add("all_highest", f"{same}: nothing is left to learn; take harder problems")
        else:
            add("all_equal", f"{same}; correct the function, which must tell answers apart")
    if answers.mixed <= FEW and not any(finding["kind"].startswith("all_") for finding in findings):
        text = f"only {answers.mixed:.0%} of the questions have answers with different rewards, and the others give "
        text += "no gradient; raise --samples-per-question or --temperature, or take easier or harder problems"
        add("few_mixed_groups", text)
    return findings
