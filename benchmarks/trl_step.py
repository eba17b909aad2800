r"""Train with TRL's GRPOTrainer under the settings of `train.py`, and measure the seconds per step.

    PYTHONPATH=.venv/trl python benchmarks/trl_step.py --micro-batch 16 --generate 128 \
        --preset smollm2 --steps 5
    PYTHONPATH=.venv/trl torchrun --nproc-per-node 2 benchmarks/trl_step.py ...

All other flags are those of train.py: they choose the model, the problems, the reward, and the
sizes. Prints a JSON object after each step and, at the end, the row trl_step_seconds, the median. A
step has prompts, sampling with transformers' `generate`, rewards and an update. The first step
warms up and is not measured. Reference model, logging, checkpoints and gradient checkpointing,
which only take time, are off. In bfloat16 TRL keeps the weights in fp32 and computes with autocast.
Its learning rate rises from 0, one step later than ours.

With --output-dir, it writes config.json and metrics.jsonl as train.py does, with `reward/mean` of
every step and `eval/average` of greedy answers to --eval-suite every --eval-every steps.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

from bnpo.environment import setup_environment

setup_environment()

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bnpo.config import TrainConfig, flat_settings, parse_train_config, with_settings
from bnpo.data import load_sources
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import load_suite
from bnpo.files import write_json
from bnpo.grading.grader import Grader
from bnpo.policy.folder import model_folder
from bnpo.prompts import encode_problems, stop_token_ids
from bnpo.runs.prepare import prepare_tokenizer


class Clock(TrainerCallback):
    """Prints and stores the seconds of each step after the first."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > 1 and state.is_world_process_zero:
            self.seconds.append(time.perf_counter() - self.started)
            print(
                json.dumps({"step": state.global_step, "seconds": round(self.seconds[-1], 3)}),
                flush=True,
            )


class Records(TrainerCallback):
    """Writes metrics.jsonl in the first process. The trainer calls `on_log` after each step,
    with the means of all.
    """

    def __init__(self, config: TrainConfig, evaluation: Evaluation, grader: Grader):
        self.config, self.evaluation, self.grader = config, evaluation, grader
        self.path = config.folder.output_dir / "metrics.jsonl"
        config.folder.output_dir.mkdir(parents=True)
        write_json(config.folder.output_dir / "config.json", flat_settings(config, trainer="trl"))

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.write({"step": 0, "eval/average": self.accuracy(model)})

    def on_log(self, args, state, control, model, logs, **kwargs):
        if "reward" not in logs:  # the last call sums up
            return
        row = {"step": state.global_step, "reward/mean": logs["reward"]}
        if state.global_step in (
            state.max_steps,
            *range(0, state.max_steps, self.config.logging.eval_every),
        ):
            row["eval/average"] = self.accuracy(model)
        self.write(row)

    def write(self, row: dict) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def accuracy(self, model) -> float:
        """Return the share of right greedy answers to the suite's only data set."""
        [(name, prompts)] = self.evaluation.prompts.items()
        tokenizer, texts = self.evaluation.tokenizer, []
        most = {"max_new_tokens": self.config.sampling.max_answer_tokens}
        for begin in range(0, len(prompts), 100):
            part = {"input_ids": prompts[begin : begin + 100]}
            batch = tokenizer.pad(part, padding_side="left", return_tensors="pt")
            with torch.no_grad():
                rows = model.generate(
                    **batch, **most, do_sample=False, pad_token_id=tokenizer.pad_token_id
                )
            texts += tokenizer.batch_decode(
                rows[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
        references = [problem.answer for problem in self.evaluation.problems[name]]
        return float(self.grader(texts, references).rewards[:, 0].mean())


def trainer_of(
    config: TrainConfig, micro_batch: int, generate: int, folder: str, records: bool
) -> GRPOTrainer:
    """Return TRL's trainer with the settings of `config`. Its own files go to `folder`."""
    sampling, update = config.sampling, config.update
    model = model_folder(config.data.model)
    tokenizer = prepare_tokenizer(
        config, model, sampling.max_prompt_tokens + sampling.max_answer_tokens
    )
    problems, _ = load_sources(config.data.train_data, config.columns)
    problems, prompts = encode_problems(problems, tokenizer, sampling.max_prompt_tokens)
    grader = Grader(config.data.rewards, grader=config.data.grader)

    def reward(completions, answer, **_) -> list[float]:
        """Return the first reward of each text. The signature is TRL's."""
        return grader(completions, answer).rewards[:, 0].tolist()

    policy = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    # Where TRL looks for the ends of answers
    policy.generation_config.eos_token_id = stop_token_ids(tokenizer)
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
    answers = config.batch.questions_per_step * config.batch.samples_per_question
    settings = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=config.hardware.dtype == "bfloat16",
        seed=sampling.seed,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=answers // (micro_batch * processes),
        generation_batch_size=generate,
        num_generations=config.batch.samples_per_question,
        temperature=sampling.temperature,
        max_completion_length=sampling.max_answer_tokens,
        max_steps=config.batch.steps,
        learning_rate=update.lr,
        warmup_steps=update.warmup_steps,
        lr_scheduler_type="constant_with_warmup",
        adam_beta2=update.betas[1],
        max_grad_norm=update.max_grad_norm,
        loss_type="luspo",  # like ours: the sum over the tokens of an answer, the mean over answers
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="steps" if records else "no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    callbacks: list[TrainerCallback] = [Clock()]
    if records and os.environ.get("RANK", "0") == "0":
        suite = load_suite(config.logging.eval_suite)
        callbacks.append(
            Records(config, Evaluation.prepare(suite, tokenizer, sampling.seed), grader)
        )
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    return GRPOTrainer(
        model=policy,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict(
            {"prompt": texts, "answer": [problem.answer for problem in problems]}
        ),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--micro-batch", type=int, required=True, help="answers per pass of a process"
    )
    parser.add_argument(
        "--generate", type=int, required=True, help="answers sampled at once, over all processes"
    )
    args, train_flags = parser.parse_known_args()
    config = with_settings(parse_train_config(train_flags, has_cuda=False)[0], algo="grpo")
    records = any(
        flag.partition("=")[0] in ("--output-dir", "--output_dir") for flag in train_flags
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(config, args.micro_batch, args.generate, folder, records)
        trainer.remove_callback(PrinterCallback)  # of all logs
        trainer.train()
    [clock] = [
        callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Clock)
    ]
    if clock.seconds:
        print(f"trl_step_seconds: {statistics.median(clock.seconds):.3f}")


if __name__ == "__main__":
    main()
