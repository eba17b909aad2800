r"""Decide whether two mathematical answers are equal, and find the final answer in a text. See README.md.

>>> import mathequal
>>> mathequal.equal(r"\frac{1}{2}", "0.5"), mathequal.equal("(1,2)", "[1,2]")
(True, False)
"""

from mathequal.equality import final_answer, quick_verdict

__all__ = ["equal", "final_answer"]


def equal(reference: str, answer: str) -> bool:
    """Whether two answers are equal, whichever of them is the reference.

    Has no limit of time or memory, which a hostile answer may exhaust. `bnpo.grading.grader.Grader` has limits.
    """
    verdict = quick_verdict(reference, answer)
    if verdict is not None:
        return verdict
    from mathequal.symbolic import slow_verdict  # takes most of a second to import

    return slow_verdict(reference, answer)
