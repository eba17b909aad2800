"""What keeps a run from learning, according to its first answers.

`scripts/check_task.py` prints these findings before a run, and a run once after its first steps.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from bnpo.batch import Batch, Task, all_wrong_energy, has_signal, right_reward
from bnpo.config import TrainConfig
from bnpo.evaluation.suites import are_numbers
from bnpo.grading.rewards import BUILT_IN, reward_name, stated_answer
from bnpo.prompts import decode_answers
from bnpo_estimators import Method, SettingError, compute_advantages

FIRST_STEPS = 3  # of a run, whose answers are looked at together
MAX_DECODED = 256  # answers that are decoded to look for a final answer in them
# Shares up to which answers may be cut off, in batches with and without enough mixed groups
MAX_CUT_OFF_SHARE, MAX_CUT_OFF_SHARE_UNLEARNED = 0.95, 0.5
MAX_UNSTATED_SHARE = 0.5  # of answers without a final answer
MAX_FAILED_SHARE = 0.1  # of answers whose built-in rewards could not be computed
MIN_MIXED_SHARE = 0.1  # of questions with a signal (--signal)
MAX_ALL_WRONG_ENERGY = 0.2  # share of the squared advantages in groups without a right answer
SIDE_WEIGHT = 0.1  # of the other rewards, if they have too much of the advantages
# What to do if a reward has its lowest value for all answers
NONE_RIGHT = (
    "no answer is right; read some of them beside their references. If a reference holds more "
    "than the final answer, set --answer-pattern; if it is right, take easier problems"
)
LOWEST = {
    "accuracy": NONE_RIGHT,
    "last_number": NONE_RIGHT,
    "format": "no answer has the tags; have the prompt ask for them, as --template think does",
}
LOWEST_OF_FUNCTION = (
    "call the function with a right answer and its reference; if it gives more for that, take "
    "easier problems"
)
# And if it has its highest value, or another one
ALL_SAME = {
    "highest": "nothing is left to learn; take harder problems",
    "equal": "correct the function, which must tell answers apart",
}


def find(batches: Sequence[Batch], task: Task, config: TrainConfig) -> list[dict[str, str]]:
    """Return kind and text of what keeps a run with these first `batches` from learning, the most
    certain first.
    """
    rewards = np.concatenate([batch.rewards for batch in batches])  # [questions, m, K], of all
    failed = np.concatenate([batch.failed for batch in batches])  # [questions, m]
    cut_off = 1 - np.concatenate([batch.finished for batch in batches]).mean()
    mixed = has_signal(rewards[:, :, config.signal_rewards], failed).mean()
    failures = sum((batch.failures for batch in batches), Counter())
    findings = []  # kinds and texts
    if text := _failing(failed, failures, config.data.rewards):
        findings.append(("failing", text))
    # With a signal, a policy learns to end its answers
    if cut_off >= (MAX_CUT_OFF_SHARE if mixed >= 0.5 else MAX_CUT_OFF_SHARE_UNLEARNED):
        text = f"{cut_off:.0%} of the answers are cut off before their end"
        findings.append(("cut_off", f"{text}; raise --max-answer-tokens"))
    if "accuracy" in config.data.rewards and (text := _unstated(batches, task, config)):
        findings.append(("no_final_answer", text))
    all_same = _all_same(rewards, failed, task.grader.ranges, config)
    findings += all_same
    if mixed <= MIN_MIXED_SHARE and failed.mean() < 0.5 and not all_same:
        names = " or ".join(config.data.reward_names[k] for k in config.signal_rewards)
        text = (
            f"only {mixed:.0%} of the questions have answers that differ in {names}; raise "
            "--samples-per-question or --temperature, or take easier or harder problems"
        )
        findings.append(("few_mixed_groups", text))
    if text := _phantom(batches, task, config):
        findings.append(("phantom_advantages", text))
    return [{"kind": kind, "text": text} for kind, text in findings]


def _phantom(batches: Sequence[Batch], task: Task, config: TrainConfig) -> str:
    """Return how much of the advantages comes from side rewards of groups without a right answer,
    if it is much, and what makes it little in these batches; else ''.
    """
    first = config.signal_rewards[0]
    weights = config.method.weights_of_rewards(len(task.grader.ranges))
    if not weights[first] or not np.delete(weights, first).any():
        return ""
    share = _all_wrong_share(batches, task, config, config.method)
    if not share >= MAX_ALL_WRONG_ENERGY:  # nan: there are no advantages
        return ""
    # With several rewards in --signal, resampling keeps groups that differ in any of them
    resampling_helps = not config.batch.resample_rounds and len(config.signal_rewards) == 1
    cures = ["set --resample-rounds"] if resampling_helps else []
    small = np.minimum(weights / weights[first], SIDE_WEIGHT)
    small[first] = 1.0
    method = replace(config.method, reward_weights=tuple(small.tolist()))
    flags = f"--reward-weights {' '.join(f'{weight:g}' for weight in small)}"
    others = {
        flags: method,
        f"{flags} --decompose": replace(method, decompose=True),
        # which does not divide by the deviation of a group
        f"{flags} --algo reinforce": Method("reinforce", reward_weights=method.reward_weights),
    }
    for its_flags, other in others.items():
        # gdpo does not go with --decompose, nor does each estimator of a user
        with suppress(SettingError):
            left = _all_wrong_share(batches, task, config, other)
            if left < MAX_ALL_WRONG_ENERGY:
                cures.append(f"take {its_flags} ({left:.0%} with these answers)")
                break
    return (
        f"{share:.0%} of the advantages' energy (the sum of their squares) lies in groups without "
        "a right answer, which only the other rewards tell apart; "
        f"{', or '.join(cures) or 'take easier problems'}"
    )


def _all_wrong_share(
    batches: Sequence[Batch], task: Task, config: TrainConfig, method: Method
) -> float:
    """Return `all_wrong_energy` of the groups that are trained on, with advantages by `method`."""
    first, ranges = config.signal_rewards[0], task.grader.ranges
    advantages, rewards, failed = [], [], []  # by batch
    for batch in batches:
        values = compute_advantages(
            method,
            batch.rewards,
            ranges=ranges,
            greedy_rewards=batch.greedy_rewards,
            lengths=batch.lengths,
            failed=batch.failed,
        ).values
        trained = np.zeros_like(values)  # other groups have no energy
        trained[batch.trained_groups] = values[batch.trained_groups]
        advantages.append(trained)
        rewards.append(batch.rewards[:, :, first])
        failed.append(batch.failed)
    of_all = np.concatenate(rewards), np.concatenate(failed)
    right = right_reward(*of_all, ranges[first][1])
    return all_wrong_energy(np.concatenate(advantages), *of_all, right)


def _failing(failed: np.ndarray, failures: Counter[str], rewards: Sequence[str]) -> str:
    """Return what is wrong with the `rewards` of the answers that have `failed` [n, m], or ''."""
    users = [reward_name(reward) for reward in rewards if reward not in BUILT_IN]
    if failed.mean() <= (0 if users else MAX_FAILED_SHARE):
        return ""
    kinds = ", ".join(f"{kind} {count} times" for kind, count in failures.items())
    text = (
        f"{failed.sum()} of {failed.size} answers are left out, because rewards could not be "
        f"computed ({kinds}); look at {', '.join(users or rewards)}, and at the lines `grading:` "
        "above"
    )
    if "OutOfRange" in failures:
        text += "; --reward-range sets the lowest and the highest value of your rewards"
    return text


def unstated_share(batches: Sequence[Batch], task: Task, config: TrainConfig) -> float:
    """Return the share of answers without a final answer, from at most MAX_DECODED of them."""
    groups = [group for batch in batches for group in batch.groups]
    answers = [answer.token_ids for group in groups for answer in group.answers]
    every = -(-len(answers) // MAX_DECODED)
    texts = decode_answers(task.tokenizer, answers[::every])
    finals = [stated_answer(text, config.data.grader, task.answer_tags) for text in texts]
    return finals.count(None) / len(finals)


def _unstated(batches: Sequence[Batch], task: Task, config: TrainConfig) -> str:
    """Return how many answers have no final answer, if they are many, or ''."""
    share = unstated_share(batches, task, config)
    if share < MAX_UNSTATED_SHARE:
        return ""
    reads_numbers = config.data.grader == "last_number"
    lacks = "number" if reads_numbers else "\\boxed{}"
    text = f"{share:.0%} of the answers have no {lacks}; have the prompt ask for it "
    text += "(--system-prompt)"
    if not reads_numbers and are_numbers(task.problems):
        text += ", or take the last number in its place (--grader last_number)"
    return text


def _all_same(
    rewards: np.ndarray,  # [n, m, K]
    failed: np.ndarray,  # [n, m]
    ranges: Sequence[tuple[float, float]],  # [K]
    config: TrainConfig,
) -> list[tuple[str, str]]:
    """Return kind and text for each trained reward that is the same for all answers."""
    names = config.data.reward_names
    findings = []
    # Rewards with weight 0 are only recorded
    for k in np.flatnonzero(config.method.weights_of_rewards(len(names))):
        values, (lowest, highest) = rewards[:, :, k][~failed], ranges[k]
        if len(values) and (values == values[0]).all():
            value = values[0]
            kind = "lowest" if value == lowest else "highest" if value == highest else "equal"
            lowest_cure = LOWEST.get(config.data.rewards[k], LOWEST_OF_FUNCTION)
            cure = lowest_cure if kind == "lowest" else ALL_SAME[kind]
            text = f"the reward {names[k]} is {value:g} for all {len(values)} answers: {cure}"
            findings.append((f"all_{kind}", text))
    return findings
