"""An estimator of one's own: advantages relative to the median of the group.

    deepspeed train.py --preset tiny --algo examples/estimator.py:median

An estimator gets the rewards of one whole batch, n questions with m answers each, and returns an
advantage for each answer. A reward that could not be computed is nan, and must change nothing for
other answers: `np.nanmedian` leaves it out.
"""

import numpy as np

from bnpo_estimators import RewardBatch, estimator


@estimator()
def median(batch: RewardBatch) -> np.ndarray:
    """Return R minus the median of the group.

    >>> median(RewardBatch(np.array([[1.0, 0, 0], [0.2, 0.4, np.nan]]))).round(1)
    array([[ 1. ,  0. ,  0. ],
           [-0.1,  0.1,  nan]])
    """
    return batch.rewards - np.nanmedian(batch.rewards, axis=1, keepdims=True)
