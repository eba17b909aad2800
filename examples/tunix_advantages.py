"""BNPO and other estimators of this repository as advantage estimators of tunix (JAX).

    pip install ./src/bnpo_estimators    # of this repository, into the environment of tunix

    import tunix_advantages  # registers the names of METHODS
    config = GRPOConfig(advantage_estimator="bnpo", num_generations=16)

Add a line for a method of your own. tunix already has `grpo`, `rloo` and `drgrpo`. For BNPO the
batch is what its density is fitted to, and tunix computes advantages for each micro-batch of
rollouts: leave `rollout_micro_batch_size` unset, so that this is all of a training step.
"""

import numpy as np
from tunix.rl.function_registry import register_advantage_estimator

import bnpo_estimators
from bnpo_estimators import Method

METHODS = {
    "bnpo": Method("bnpo"),
    "curverl": Method("curverl"),
    "eb": Method("eb"),
    "maxrl": Method("maxrl"),
    "shrinkage": Method("shrinkage"),
}
REWARD_RANGE = (0.0, 1.0)
"""The lowest and the highest reward of an answer: the sum of what the reward functions return."""


def estimator(method: Method):
    """Return `method` as a function that tunix can call."""

    def advantages(rewards: np.ndarray, num_generations: int) -> np.ndarray:
        """Return the advantages [answers] of `rewards` [answers], of which the answers to one
        question are neighbours.
        """
        groups = np.asarray(rewards, dtype=np.float64).reshape(-1, num_generations)  # [n, m]
        values = bnpo_estimators.advantages(method, groups, ranges=REWARD_RANGE)
        return values.ravel().astype(np.float32)

    return advantages


for name, method in METHODS.items():
    register_advantage_estimator(name)(estimator(method))
