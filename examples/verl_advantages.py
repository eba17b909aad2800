"""BNPO and other estimators of this repository as advantage estimators of verl.

    pip install ./src/bnpo_estimators    # of this repository, into the environment of verl
    VERL_USE_EXTERNAL_MODULES=verl_advantages PYTHONPATH=examples \
        python -m verl.trainer.main_ppo algorithm.adv_estimator=bnpo ...

verl imports this module and finds the names of METHODS. Add a line for a method of your own. verl
already has `grpo`, `rloo` and `opo`; docs/conformance.md says where its names mean something else.
All answers to a question must be in the batch, the same number for each question. For BNPO the
batch is what its density is fitted to: all of a training step.
"""

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

import bnpo_estimators
from bnpo_estimators import Method

METHODS = {
    "bnpo": Method("bnpo"),
    "curverl": Method("curverl"),
    "eb": Method("eb"),
    "maxrl": Method("maxrl"),
    "shrinkage": Method("shrinkage"),
    "signbalance": Method("weight", weight="1/(1-p)"),
}
REWARD_RANGE = (0.0, 1.0)
"""The lowest and the highest reward of an answer."""


def estimator(method: Method):
    """Return `method` as a function that verl can call."""

    def advantages(
        token_level_rewards: torch.Tensor,  # [answers, tokens]
        response_mask: torch.Tensor,  # [answers, tokens]
        index: np.ndarray,  # [answers], equal for the answers to one question
        **_,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        questions, counts = np.unique(index, return_counts=True)
        if len(set(counts)) > 1:
            raise ValueError(
                f"a question has {min(counts)} answers, another {max(counts)}: all need the same "
                "number"
            )
        order = np.argsort(index, kind="stable")  # answers to one question become neighbours
        shape = (len(questions), -1)  # [n, m]
        rewards = token_level_rewards.sum(dim=-1).double().cpu().numpy()[order].reshape(shape)
        lengths = response_mask.sum(dim=-1).cpu().numpy()[order].reshape(shape)
        values = np.empty(len(index))
        values[order] = bnpo_estimators.advantages(
            method, rewards, ranges=REWARD_RANGE, lengths=lengths
        ).ravel()
        per_token = torch.from_numpy(values).to(token_level_rewards)[:, None] * response_mask
        return per_token, per_token

    return advantages


for name, method in METHODS.items():
    register_adv_est(name)(estimator(method))
