"""Rewards for TRL and verl: 1 if the final answer of a text equals the reference, else 0.

An answer must be in a box. Worker processes with limits compare, so any thread may call these functions. The program
needs `if __name__ == "__main__":`, because every worker process imports it.
"""

from collections.abc import Sequence

from mathequal import final_answer, instant_verdict, parse, submit, verify

TIME_LIMIT = 5.0
"""Seconds of processor time for one verdict."""


def accuracy_reward(completions: Sequence, solution: Sequence[str], **_: object) -> list[float]:
    """Return the reward of each completion. For TRL: `reward_funcs=mathequal.rewards.accuracy_reward`.

    `solution` is a column of the data set: answers, or solutions with the answer in a box.
    """
    outcomes = []
    for completion, text in zip(completions, solution, strict=True):
        answer = final_answer(completion if isinstance(completion, str) else completion[-1]["content"]) or ""
        reference = "".join(parse(text))
        verdict = instant_verdict(reference, answer)
        if verdict is None:
            verdict = submit("mathequal:equal", reference, answer, TIME_LIMIT)
        outcomes.append(verdict)
    return [float(outcome is True or (outcome is not False and outcome.result() is True)) for outcome in outcomes]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """Return the reward of one answer. For verl: `custom_reward_function.path` is this file."""
    return float(verify(parse(ground_truth), final_answer(solution_str) or "", timeout_seconds=TIME_LIMIT))
