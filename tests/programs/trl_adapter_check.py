"""Train one step with examples/trl_trainer.py and TRL's real trainer, for tests/test_adapters.py.
Prints one JSON line.

Its third reward is mathequal's, with weight 0.
"""

import json
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig
from trl_trainer import BNPOTrainer

from bnpo.config import TINY_MODEL
from bnpo_estimators import Method, compute_advantages
from mathequal import accuracy_reward

QUESTIONS = [f"{i}+{i}=?" for i in range(4)]
ANSWERS = 4


def sum_is_even(completion_ids, **_):
    return [float(sum(ids) % 2 == 0) for ids in completion_ids]


def has_a_one(completions, **_):
    return [float("1" in text) for text in completions]


class Watched(BNPOTrainer):
    """Keeps what the loss is given."""

    def _compute_loss(self, model, inputs):
        self.used = inputs
        return super()._compute_loss(model, inputs)


def trained(folder: Path) -> Watched:
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    config = GRPOConfig(
        output_dir=str(folder),
        **{"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "save_strategy": "no"},
        **{"report_to": "none", "logging_steps": 1, "disable_tqdm": True},
        per_device_train_batch_size=len(QUESTIONS) * ANSWERS,
        num_generations=ANSWERS,
        max_completion_length=8,
        max_steps=1,
        learning_rate=1e-3,
        reward_weights=[1.0, 0.2, 0.0],
        loss_type="dapo",
    )
    trainer = Watched(
        method=Method("bnpo"),
        model=AutoModelForCausalLM.from_pretrained(TINY_MODEL),
        reward_funcs=[sum_is_even, has_a_one, accuracy_reward],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": QUESTIONS, "solution": ["0", "2", "4", "6"]}),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


def main() -> None:
    trainer = trained(Path(sys.argv[1]))
    rewards = trainer.last_rewards.double().numpy().reshape(len(QUESTIONS), ANSWERS, 3)
    expected = compute_advantages(
        Method("bnpo", reward_weights=(1, 0.2, 0)), rewards
    ).values.ravel()
    used = trainer.used["advantages"].double().numpy()  # TRL shuffles the answers of a step
    before = AutoModelForCausalLM.from_pretrained(TINY_MODEL).state_dict()
    found = {
        "step": trainer.state.global_step,
        "trained": any(
            not torch.equal(before[name], value)
            for name, value in trainer.model.state_dict().items()
        ),
        "signal": np.abs(expected).max(),
        "step_difference": np.abs(np.sort(used) - np.sort(expected)).max(),
        "logged_difference": np.abs(np.array(trainer._logs["advantages"]) - expected).max(),
        "accuracy": trainer.state.log_history[0]["rewards/accuracy_reward/mean"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
