"""The side reward of the comparison in side-reward.md: a short answer, whatever it says."""


def brief(text: str, reference: str) -> float:
    """Return 1 minus the length of the answer, as a share of 160 characters.

    Answers of SmolLM2-135M-Instruct to word problems have at most 40 tokens, about 160 characters.

    >>> brief("x" * 40, "7"), brief("x" * 200, "7")
    (0.75, 0.0)
    """
    return 1 - min(len(text), 160) / 160
