"""How token losses become one number: the weight of every token. Imports no torch, so that flags are checked fast."""

import numpy as np

AGGREGATIONS = ("seq-mean-token-sum", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_weights(lengths: np.ndarray, aggregation: str, norm_length: int) -> np.ndarray:
    """Return the weights [answers] that the tokens of each answer have in the loss of a whole batch.

    `lengths` [answers] are the tokens of each answer in the batch of all ranks. `norm_length` is the constant divisor
    of `seq-mean-token-sum-norm` (Dr. GRPO). Raises ValueError if `aggregation` is unknown.

    >>> token_weights(np.array([1, 3]), "seq-mean-token-sum", 4)
    array([0.5, 0.5])
    >>> token_weights(np.array([1, 3]), "token-mean", 4)
    array([0.25, 0.25])
    >>> token_weights(np.array([1, 3]), "seq-mean-token-mean", 4)
    array([0.5       , 0.16666667])
    >>> token_weights(np.array([1, 3]), "seq-mean-token-sum-norm", 4)
    array([0.125, 0.125])
    """
    # Weights are fixed before the batch is split. The loss is then a plain sum over tokens, whose gradient depends
    # neither on the micro-batches nor on the number of ranks.
    answers = len(lengths)
    if aggregation == "seq-mean-token-sum":
        return np.full(answers, 1 / answers)  # [answers]
    if aggregation == "token-mean":
        return np.full(answers, 1 / lengths.sum())  # [answers]
    if aggregation == "seq-mean-token-mean":
        return 1 / (answers * lengths)  # [answers]
    if aggregation == "seq-mean-token-sum-norm":
        return np.full(answers, 1 / (answers * norm_length))  # [answers]
    raise ValueError(f"unknown aggregation '{aggregation}'; known: {', '.join(AGGREGATIONS)}")
