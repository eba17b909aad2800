"""TRL's GRPOTrainer with the advantages of this repository.

    trainer = BNPOTrainer(method=Method("bnpo"), model=..., reward_funcs=..., args=GRPOConfig(...),
    train_dataset=...)

Needs `pip install ./src/bnpo_estimators` of this repository, into the environment of TRL. Rewards
must be numbers in `reward_range`, from which all of them are mapped, the accuracy included. The
batch of a method is TRL's generation batch: `generation_batch_size` should be all questions of a
step times `num_generations`. TRL's `scale_rewards` and `multi_objective_aggregation` have no
effect; `reward_weights` and `loss_type` do. TRL has no function for advantages alone, so this class
depends on two of its private methods.
"""

from dataclasses import replace

import numpy as np
import torch
from trl import GRPOTrainer

import bnpo_estimators
from bnpo_estimators import Method


class BNPOTrainer(GRPOTrainer):
    """GRPOTrainer whose advantages are those of `method`, any but ReMax."""

    def __init__(
        self, *args, method: Method, reward_range: tuple[float, float] = (0.0, 1.0), **kwargs
    ):
        super().__init__(*args, **kwargs)
        weights = tuple(self.reward_weights.tolist())
        self.method, self.reward_range = replace(method, reward_weights=weights), reward_range

    def advantages(self, rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the advantages [answers] of rewards [answers, K] and lengths [answers] of all
        processes.
        """
        answers = self.num_generations if self.model.training else self.num_generations_eval
        # [n, m, K]
        by_question = rewards.double().cpu().numpy().reshape(-1, answers, rewards.shape[1])
        low, high = self.reward_range
        rounded = np.clip(by_question, low, high)
        # A reward of -0.1 is -0.10000000149 in fp32
        by_question = np.where(np.abs(rounded - by_question) < 1e-6, rounded, by_question)
        lengths = lengths.cpu().numpy().reshape(-1, answers)  # [n, m]
        found = bnpo_estimators.advantages(
            self.method, by_question, ranges=self.reward_range, lengths=lengths
        )
        return torch.from_numpy(found).to(rewards).flatten()

    def _calculate_rewards(self, *args, **kwargs) -> torch.Tensor:
        # [answers of all processes, K]
        self.last_rewards = super()._calculate_rewards(*args, **kwargs)
        return self.last_rewards

    def _generate_and_score_completions(self, inputs: list[dict]) -> dict:
        output = super()._generate_and_score_completions(inputs)
        # [answers of all processes]
        lengths = self.accelerator.gather(output["completion_mask"].sum(dim=1))
        advantages = self.advantages(self.last_rewards, lengths)
        own = len(output["advantages"])  # the answers of this process
        output["advantages"] = advantages[self.accelerator.process_index * own :][:own]
        # Of TRL's table of completions, which has TRL's advantages at its end
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages))):
            logged.pop()
        logged.extend(advantages.tolist())
        return output
