"""What the first answers of a run say about its success: nothing to learn from, cut off, no final
answer, failing.

`scripts/check_task.py` prints these findings before a run. A run prints them once, after its first
steps.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bnpo.config import TrainConfig
from bnpo.evaluation.suites import are_numbers
from bnpo.grading.rewards import BUILT_IN, reward_name, stated_answer
from bnpo.rollouts import Rollouts, Task, has_signal

FIRST_STEPS = 3  # of a run, whose answers are looked at together
MOST_TEXTS = 256  # answers that are decoded to look for a final answer in them
# Shares from which on, and up to which, something is worth a line
ALMOST_ALL, MANY, FEW = 0.95, 0.5, 0.1
# What to do if a reward has one value for all answers: the lowest, the highest, or another
ALL_SAME = {
    "lowest": (
        "nothing is ever right; read some answers beside their references, and take easier problems"
    ),
    "highest": "nothing is left to learn; take harder problems",
    "equal": "correct the function, which must tell answers apart",
}


def unstated_share(steps: Sequence[Rollouts], task: Task, config: TrainConfig) -> float:
    """Return the share of the answers of some `steps` without a final answer, from at most
    MOST_TEXTS of them.
    """
    # [N]
    answers = [answer.token_ids for step in steps for group in step.answers for answer in group]
    texts = task.tokenizer.batch_decode(
        answers[:: -(-len(answers) // MOST_TEXTS)], skip_special_tokens=True
    )
    return float(
        np.mean(
            [stated_answer(text, config.data.grader, task.answer_tags) is None for text in texts]
        )
    )


def find(steps: Sequence[Rollouts], task: Task, config: TrainConfig) -> list[dict[str, str]]:
    """Return what keeps a run with the answers of these `steps` from learning, the most certain
    first.
    """
    names, weights = list(map(reward_name, config.data.rewards)), config.method.reward_weights
    rewards = np.concatenate([step.rewards for step in steps])  # [n, m, K], of all steps
    failed = np.concatenate([step.failed for step in steps])  # [n, m]
    cut_off = 1 - np.concatenate([step.finished for step in steps]).mean()
    unstated, mixed = (
        unstated_share(steps, task, config),
        has_signal(rewards, weights, failed).mean(),
    )
    findings: list[tuple[str, str]] = []  # kinds and texts
    users = [
        name
        for name, reward in zip(names, config.data.rewards, strict=True)
        if reward not in BUILT_IN
    ]
    if failed.mean() > (0 if users else FEW):
        failures = sum((step.failures for step in steps), Counter())
        kinds = ", ".join(f"{kind} {count} times" for kind, count in failures.items())
        text = (
            f"{failed.sum()} of {failed.size} answers are left out, because rewards could not be "
            f"computed ({kinds}); "
        )
        text += f"look at {', '.join(users or names)}, and at the lines `grading:` above"
        if "OutOfRange" in failures:
            text += "; --reward-range sets the lowest and the highest value of your rewards"
        findings.append(("failing", text))
    # With a signal, a policy learns to end its answers
    if cut_off >= (MANY if mixed < MANY else ALMOST_ALL):
        text = (
            f"{cut_off:.0%} of the answers are cut off before their end; raise --max-answer-tokens"
        )
        findings.append(("cut_off", text))
    if unstated >= MANY and "accuracy" in names:
        reads_numbers = config.data.grader == "last_number"
        lacks = "number" if reads_numbers else "\\boxed{}"
        text = f"{unstated:.0%} of the answers have no {lacks}; have the prompt ask for it "
        text += "(--system-prompt)"
        if not reads_numbers and are_numbers(task.problems):
            text += ", or take the last number in its place (--grader last_number)"
        findings.append(("no_final_answer", text))
    # Rewards with weight 0 are only recorded
    for k in np.flatnonzero(weights or np.ones(len(names))):
        values, (lowest, highest) = rewards[:, :, k][~failed], task.grader.ranges[k]
        if len(values) and (values == values[0]).all():
            value = values[0]
            kind = "lowest" if value == lowest else "highest" if value == highest else "equal"
            text = (
                f"the reward {names[k]} is {value:g} for all {values.size} answers: "
                f"{ALL_SAME[kind]}"
            )
            findings.append((f"all_{kind}", text))
    if (
        mixed <= FEW
        and failed.mean() < MANY
        and not any(kind.startswith("all_") for kind, _ in findings)
    ):
        text = (
            f"only {mixed:.0%} of the questions have answers with different rewards, and the "
            "others give "
        )
        text += (
            "no gradient; raise --samples-per-question or --temperature, or take easier or harder "
            "problems"
        )
        findings.append(("few_mixed_groups", text))
    return [{"kind": kind, "text": text} for kind, text in findings]
