"""How token losses become one number: the weight of every token, without torch, so that flags are checked fast."""

import numpy as np

AGGREGATIONS = ("seq-mean-token-sum", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_weights(lengths: np.ndarray, aggregation: str, norm_length: int) -> np.ndarray:
    """The weight [answers] that every token of an answer has in the loss of the whole batch.

    `lengths` [answers] are the answer tokens of the global batch. Each aggregation is linear in the tokens with one
    weight an answer, fixed before the batch is cut up: so neither micro-batches nor ranks can change the gradient.
    `norm_length` is the constant divisor of `seq-mean-token-sum-norm` (Dr. GRPO).

    >>> token_weights(np.array([1, 3]), "seq-mean-token-sum", 4)
    array([0.5, 0.5])
    >>> token_weights(np.array([1, 3]), "token-mean", 4)
    array([0.25, 0.25])
    >>> token_weights(np.array([1, 3]), "seq-mean-token-mean", 4)
    array([0.5       , 0.16666667])
    >>> token_weights(np.array([1, 3]), "seq-mean-token-sum-norm", 4)
    array([0.125, 0.125])
    """
    answers = len(lengths)
    if aggregation == "seq-mean-token-sum":
        return np.full(answers, 1 / answers)
    if aggregation == "token-mean":
        return np.full(answers, 1 / lengths.sum())
    if aggregation == "seq-mean-token-mean":
        return 1 / (answers * lengths)
    if aggregation == "seq-mean-token-sum-norm":
        return np.full(answers, 1 / (answers * norm_length))
    raise ValueError(f"unknown aggregation '{aggregation}'; known: {', '.join(AGGREGATIONS)}")
