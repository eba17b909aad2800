"""A reward of one's own: does the answer show its work?

    deepspeed train.py --preset tiny --rewards accuracy,examples/reward.py:shows_work

A reward takes the text of one answer and the field `answer` of its problem, and returns a number in
[0, 1]. Use `--reward-range` for other values. It runs in worker processes with a limit of 5 seconds
and of memory.
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
