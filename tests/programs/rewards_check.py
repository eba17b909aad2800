"""Give mathequal's rewards to TRL's trainer and to verl's loader, for tests/test_adapters.py. Prints one JSON line."""

import json
import sys

from bnpo.environment import setup_environment

setup_environment()

from datasets import Dataset
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from verl.trainer.ppo.reward import get_custom_reward_fn

from bnpo.config import TINY_MODEL
from mathequal import accuracy_reward

if __name__ == "__main__":
    config = GRPOConfig(
        output_dir=sys.argv[1],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        max_steps=1,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY_MODEL),
        reward_funcs=accuracy_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["1+1=?", "2+2=?"], "solution": ["2", "4"]}),
        processing_class=AutoTokenizer.from_pretrained(TINY_MODEL),
    )
    trainer.train()
    logged = trainer.state.log_history[0]["rewards/accuracy_reward/mean"]
    reward = {"path": "pkg://mathequal", "name": "compute_score"}
    score = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": reward}}))
    scores = [
        score(data_source="", solution_str=text, ground_truth="0.5", extra_info={}) for text in (r"\boxed{1/2}", "1/2")
    ]
    print(json.dumps({"logged": logged, "scores": scores}))
