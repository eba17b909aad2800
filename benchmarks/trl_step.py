"""Measure the seconds per step of TRL's GRPOTrainer on our task: 32 questions, 16 answers each, one update per step.

    PYTHONPATH=.venv/trl python benchmarks/trl_step.py --help
    PYTHONPATH=.venv/trl torchrun --nproc-per-node 2 benchmarks/trl_step.py

Prints a JSON object after each step and, at the end, the row trl_step_seconds, the median. A step has prompts,
sampling with transformers' `generate`, rewards and an update. The first step warms up and is not measured. The settings
are those of `train.py --algo grpo` as far as TRL has them. Reference model, logging, checkpoints and gradient
checkpointing, which only take time, are off.
"""

import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bnpo.environment import setup_environment

setup_environment()

import tyro
from datasets import Dataset
from long_model import even_length
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bnpo.config import TINY_MODEL
from bnpo.data import arithmetic_problems, encode_prompt, stop_token_ids
from mathequal import final_answer

QUESTIONS, ANSWERS = 32, 16


@dataclass(frozen=True)
class Settings:
    """Train with TRL and print the seconds of every step."""

    model: Path = TINY_MODEL
    """Folder of a Hugging Face model."""
    reward: Literal["accuracy", "even_length"] = "accuracy"
    """`accuracy`: the final answer is right. `even_length`: the reward for the model of long_model.py."""
    max_answer_tokens: int = 128
    """Largest number of tokens per answer."""
    steps: int = 10
    """Measured steps."""
    warmup: int = 1
    """Steps before the measured ones."""
    micro_batch: int = 64
    """Answers per forward and backward pass of a process."""
    generate: int = 512
    """Answers sampled at once, over all processes."""
    continuous: bool = False
    """Sample with transformers' continuous batching."""


class Clock(TrainerCallback):
    """Prints and stores the seconds of each step after the first `warmup` steps."""

    def __init__(self, warmup: int):
        self.warmup = warmup
        self.seconds: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.last = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        if state.global_step > self.warmup and state.is_world_process_zero:
            self.seconds.append(now - self.last)
            print(json.dumps({"step": state.global_step, "seconds": round(self.seconds[-1], 3)}), flush=True)
        self.last = now


def accuracy(completions, answer, **_) -> list[float]:
    """Return 1 for each final answer that is spelled like its reference, else 0. The signature is TRL's."""
    return [float(final_answer(text) == reference) for text, reference in zip(completions, answer, strict=True)]


def evenness(completions, **_) -> list[float]:
    """Return `even_length` of each text. The signature is TRL's."""
    return [even_length(text, "") for text in completions]


def main(settings: Settings) -> None:
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    model = AutoModelForCausalLM.from_pretrained(settings.model)
    model.generation_config.eos_token_id = stop_token_ids(
        tokenizer
    )  # where TRL looks for the tokens that end an answer
    problems = arithmetic_problems("train", 7500)
    prompts = [tokenizer.decode(encode_prompt(tokenizer, problem.problem)) for problem in problems]
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
    clock = Clock(settings.warmup)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=QUESTIONS * ANSWERS // (settings.micro_batch * processes),
            generation_batch_size=settings.generate,
            num_generations=ANSWERS,
            max_completion_length=settings.max_answer_tokens,
            use_transformers_continuous_batching=settings.continuous,
            max_steps=settings.warmup + settings.steps,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            loss_type="luspo",  # like ours: the sum over the tokens of an answer, the mean over answers
            gradient_checkpointing=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs={"accuracy": accuracy, "even_length": evenness}[settings.reward],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts, "answer": [problem.answer for problem in problems]}),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.train()
    if clock.seconds:
        print(f"trl_step_seconds: {statistics.median(clock.seconds):.3f}")


if __name__ == "__main__":
    main(tyro.cli(Settings))
