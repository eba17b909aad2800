r"""Rewards of one's own: does the answer show its work, and is it brief?

    deepspeed train.py --preset tiny --rewards accuracy,examples/reward.py:shows_work

A reward takes the text of one answer and the field `answer` of its problem, and returns a number in
[0, 1]. Use `--reward-range` for other values. It runs in worker processes with a limit of 5 seconds
and of memory.

More parameters are columns of the data set, by name. If the first parameter is `completions`, the
function takes all answers to a question at once, and every parameter is a list:

    deepspeed train.py --preset tiny --train-data examples/data.jsonl --questions-per-step 4 \
        --rewards accuracy,examples/reward.py:brief --reward-weights 1 0.2
"""


def shows_work(text: str, reference: str) -> float:
    r"""Return 1 if there is an equation before the final answer, and 0 if there is none or no final
    answer.

    >>> shows_work(r"40+2=42 42-40=2 \boxed{2}", "2")
    1.0
    >>> shows_work(r"\boxed{2}", "2"), shows_work("40+2=42", "2")
    (0.0, 0.0)
    """
    work, final_answer, _ = text.rpartition("\\boxed{")
    return float(final_answer != "" and "=" in work)


def brief(completions: list[str], references: list[str], terms: list[int]) -> list[float]:
    """Return 1 for answers of up to 10 characters for each term of the problem. Of longer ones, the
    longest answer to the question gets 0, and the others are in between.

    >>> brief(["7+5=12", "7+5=12" * 5, "7+5=12" * 10], ["12"] * 3, [2] * 3)
    [1.0, 0.75, 0.0]
    """
    beyond = [
        max(0, len(text) - 10 * count) for text, count in zip(completions, terms, strict=True)
    ]
    longest = max(beyond)
    return [1 - length / longest if longest else 1.0 for length in beyond]
