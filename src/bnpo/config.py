"""The settings of a training run: one dataclass of groups, its presets, and the checks that need no model."""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.algorithm.aggregation import AGGREGATIONS
from bnpo.algorithm.method import Method
from bnpo.files import ROOT, InputError
from bnpo.flags import (
    COMMA_SEPARATED,
    ON_ONE_RANK,
    Free,
    NotCompared,
    NotNegative,
    Planning,
    Positive,
    check_marks,
    check_planning,
    flat_settings,
    join_help_lines,
    one_of,
    with_settings,
)
from bnpo.grading.rewards import BUILT_IN, GRADERS, check_rewards
from bnpo.problems import SYSTEM_PROMPTS, TEMPERATURES

TINY_MODEL = ROOT / "data" / "tiny-model"

PRESETS: dict[str, dict[str, object]] = {
    "paper-1.5b": {},
    "paper-7b": {"model": "Qwen/Qwen2.5-Math-7B"},
    "paper-format": {
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "template": "think",
        "rewards": ("accuracy", "format"),
        "decompose": True,
        "eval_suite": "quick-format",
    },
    "tiny": {
        "model": str(TINY_MODEL),
        "train_data": "arithmetic",
        "max_prompt_tokens": 64,
        "max_answer_tokens": 128,
        "steps": 100,
        "lr": 1e-4,
        "dtype": "float32",
        "micro_batch_tokens": 2048,
        "gradient_checkpointing": False,
        "sync_tolerance": 1e-4,
        "save_every": 50,
        "eval_suite": "arithmetic-quick",
        "rollouts_every": 10,
    },
}


@dataclass(frozen=True)
class DataSettings:
    """The model to start from, the problems, and how answers are rewarded."""

    model: NotCompared[str] = "Qwen/Qwen2.5-Math-1.5B"
    """Model to start from: a Hugging Face folder or a hub name."""
    train_data: str = "data/math_train.jsonl"
    """Training problems: a JSON-lines file with the fields `problem` and `answer`, or `arithmetic` (built in)."""
    template: Annotated[str, *one_of(SYSTEM_PROMPTS)] = "chat"
    """Prompt: `chat` is the tokenizer's chat template; `think` adds a system prompt that asks for think and answer
    tags."""
    rewards: Annotated[tuple[str, ...], COMMA_SEPARATED, one_of((*BUILT_IN, "path/to/file.py:function"))] = (
        "accuracy",
    )
    """Rewards, separated by commas: `accuracy` (the final answer is right), `format` (think and answer tags, each
    once), or path/to/file.py:function (your own, see docs/training.md)."""
    grader: Annotated[str, *one_of(GRADERS)] = "default"
    """Rules that judge accuracy and format: `default` is this project's, `reference` the authors' released code."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value of your own rewards, which are mapped to [0, 1]. Built-in rewards are 0 or 1."""


@dataclass(frozen=True)
class BatchSettings:
    """The number of answers per step, and the number of updates on them."""

    questions_per_step: Positive[int] = 32
    """Different questions per step, over all ranks (n in the paper)."""
    samples_per_question: Positive[int] = 16
    """Answers sampled for every question (m in the paper)."""
    ppo_iterations: Positive[int] = 1
    """Passes of the learner over the answers of a step (T in the paper)."""
    mini_batches: Positive[int] = 1
    """Optimizer updates per pass, each on an equal share of the questions."""
    epochs: Free[Positive[int]] = 5
    """Passes over the training data. Sets the number of steps, unless --steps does."""
    steps: Free[Positive[int | None]] = None
    """Number of steps. With None, --epochs sets the number of steps."""


@dataclass(frozen=True)
class SamplingSettings:
    """How answers are sampled."""

    temperature: Positive[float] = 1.0
    """Sampling temperature. The learner's log-probabilities are taken at the same temperature."""
    max_prompt_tokens: Positive[int] = 1024
    """Longest prompt in tokens, template included. Longer questions are left out and counted."""
    max_answer_tokens: Positive[int] = 3072
    """Longest answer in tokens. Longer answers are cut off."""
    seed: NotCompared[NotNegative[int]] = 0
    """Seed of the order of questions and of all sampling."""


@dataclass(frozen=True)
class UpdateSettings:
    """Loss and optimizer."""

    lr: Positive[float] = 1e-6
    """Learning rate of AdamW, constant after the warm-up."""
    warmup_steps: NotNegative[int] = 10
    """Steps over which the learning rate rises linearly."""
    weight_decay: NotNegative[float] = 0.0
    """Decoupled weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's moments."""
    max_grad_norm: Positive[float] = 1.0
    """Gradients with a larger norm are scaled down to it. The norm before scaling is logged."""
    clip_low: float = 0.2
    """The probability ratio is clipped below at 1 - clip_low. With one update per step the ratio is always 1."""
    clip_high: float = 0.2
    """The probability ratio is clipped above at 1 + clip_high."""
    aggregation: Annotated[str, *one_of(AGGREGATIONS)] = "seq-mean-token-sum"
    """How token losses are averaged, over all answers of an update on all ranks. docs/estimators.md has formulas."""
    importance_cap: Positive[float | None] = None
    """Weight tokens by min(pi_learner / pi_sampler, cap), since both round differently. None: no weights."""
    max_bad_steps: NotCompared[Positive[int]] = 3
    """The run stops after this many steps in a row with a skipped update (loss or gradient norm not finite)."""


@dataclass(frozen=True)
class HardwareSettings:
    """Memory, speed and number format."""

    dtype: Annotated[str, *one_of(("bfloat16", "float32"))] = "bfloat16"
    """Number format of learner and sampler. With bfloat16 the optimizer keeps fp32 master weights."""
    micro_batch_tokens: NotCompared[Positive[int]] = 16384
    """Tokens per forward and backward pass of a rank, packed without padding. Lower it to save memory, but not below
    the longest prompt plus the longest answer."""
    gradient_checkpointing: NotCompared[bool] = True
    """Keep only the inputs of layers and recompute the rest in the backward pass: less memory, a third more compute."""
    offload_optimizer: NotCompared[bool] = False
    """Keep master weights, gradients (twice) and AdamW's moments in CPU memory: 20 bytes per parameter. It saves GPU
    memory and is slower."""
    gpu_memory: NotCompared[float | None] = None
    """Share of GPU memory for the sampler while it samples. The default is all that the learner leaves free, but no
    more than the answers of one step can use."""
    enforce_eager: NotCompared[bool] = False
    """Run the sampler without CUDA graphs: starts at once, samples more slowly."""
    sync_tolerance: Free[Positive[float]] = 0.05
    """Largest allowed mean difference between the sampler's and the learner's log-probabilities after a weight sync."""


@dataclass(frozen=True)
class FolderSettings:
    """The run's folder and its checkpoints."""

    output_dir: Free[Path | None] = None
    """Folder for everything that the run writes. The default is runs/<preset>-<algo>-seed<seed>."""
    overwrite: Free[bool] = False
    """Delete an earlier run in the output folder."""
    resume: Free[bool] = False
    """Continue from the newest checkpoint in the output folder, or start from the beginning if there is none."""
    allow_changes: Free[Annotated[tuple[str, ...], COMMA_SEPARATED]] = ()
    """Settings, separated by commas, that a resumed run may change."""
    save_every: Free[Positive[int]] = 100
    """Steps between checkpoints. The last step always saves one."""
    keep: Free[NotNegative[int]] = 2
    """Number of newest checkpoints to keep, besides `best`. 0 keeps all."""


@dataclass(frozen=True)
class LoggingSettings:
    """Evaluation during training, and what is written for people to read."""

    eval_every: NotCompared[NotNegative[int]] = 50
    """Number of steps between evaluations. With 0 there are none. Otherwise the model is also evaluated before the
    first and after the last step. The checkpoint of the best step, not counting the start, is named `best`."""
    eval_suite: NotCompared[str] = "quick"
    """Evaluation suite: a name in evals/ or the path of a suite file."""
    rollouts_every: Free[NotNegative[int]] = 50
    """Write the answers, rewards and advantages of every k-th step as text, from step 1 on. With 0 none are written."""
    watch_questions: Free[NotNegative[int]] = 8
    """Number of fixed training questions that are answered before training, after every --rollouts-every steps and at
    the end, to see how the answers to one question change. 0: none. Also none with --rollouts-every 0."""
    exact_entropy: NotCompared[bool] = False
    """Also log `entropy_trained`, the mean entropy over the whole vocabulary. `entropy` uses sampled tokens only."""
    wandb: Free[Annotated[str, *one_of(("disabled", "offline", "online"))]] = "disabled"
    """Weights & Biases. metrics.jsonl is written in any case."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a language model with reinforcement learning on problems with checkable answers."""

    preset: Free[Annotated[str, *one_of(("auto", *PRESETS))]] = "auto"
    """Sets the defaults of all other flags. `paper-1.5b` and `paper-7b` reproduce Table 1 of the paper, `paper-format`
    reproduces Table 2, and `tiny` runs anywhere. `auto` is paper-1.5b on a machine with a GPU and tiny elsewhere."""
    method: tyro.conf.OmitArgPrefixes[Method] = Method()
    data: tyro.conf.OmitArgPrefixes[DataSettings] = DataSettings()
    batch: tyro.conf.OmitArgPrefixes[BatchSettings] = BatchSettings()
    sampling: tyro.conf.OmitArgPrefixes[SamplingSettings] = SamplingSettings()
    update: tyro.conf.OmitArgPrefixes[UpdateSettings] = UpdateSettings()
    hardware: tyro.conf.OmitArgPrefixes[HardwareSettings] = HardwareSettings()
    folder: tyro.conf.OmitArgPrefixes[FolderSettings] = FolderSettings()
    logging: tyro.conf.OmitArgPrefixes[LoggingSettings] = LoggingSettings()
    planning: tyro.conf.OmitArgPrefixes[Planning] = Planning()


def preset_config(preset: str) -> TrainConfig:
    """Return the settings of a preset."""
    return with_settings(TrainConfig(preset=preset), **PRESETS[preset])


def needs_cuda_check(argv: list[str]) -> bool:
    """Return whether the preset of command line `argv` depends on the machine: `auto`, and no GPU is planned for."""
    asked = _preset_flags(argv)
    return asked.preset == "auto" and asked.gpu is None


def _preset_flags(argv: list[str]) -> argparse.Namespace:
    # Only the preset knows the defaults of the other flags, so it is read before tyro parses all of them.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--gpu")
    return parser.parse_known_args(argv)[0]


def parse_train_config(argv: list[str], has_cuda: bool) -> tuple[TrainConfig, str]:
    """Return the config that command line `argv` asks for, and a line that says which preset was taken and why.

    Raises InputError for an unknown preset. tyro exits on flags that it does not know.
    """
    preset, reason = _preset_flags(argv).preset, "asked for"
    check_marks(TrainConfig(preset=preset))
    if preset == "auto":
        preset = "paper-1.5b" if has_cuda else "tiny"
        reason = f"{'a' if has_cuda else 'no'} CUDA device was found; --preset chooses another"
    defaults = replace(preset_config(preset), preset="auto")
    join_help_lines(TrainConfig)
    config = tyro.cli(TrainConfig, args=argv, default=defaults, prog="deepspeed train.py", **ON_ONE_RANK)
    config = replace(config, preset=preset)
    if config.folder.output_dir is None:
        folder = Path("runs") / f"{preset}-{config.method.algo}-seed{config.sampling.seed}"
        config = with_settings(config, output_dir=folder)
    return config, f"preset {preset} ({reason})"


def check_config(config: TrainConfig, ranks: int) -> None:
    """Raise InputError, one line, for values that are not allowed, alone or together. Reads no file."""
    check_marks(config)
    check_planning(config.planning)
    check_rewards(config.data.rewards, config.data.reward_range)
    if problem := config.method.problem():
        raise InputError(problem)
    gpu_memory, update, batch = config.hardware.gpu_memory, config.update, config.batch
    if gpu_memory is not None and not 0 < gpu_memory <= 1:
        raise InputError(f"--gpu-memory: is {gpu_memory}, must be above 0 and at most 1")
    lowest, highest = TEMPERATURES
    if not lowest <= config.sampling.temperature <= highest:
        raise InputError(
            f"--temperature: is {config.sampling.temperature}, must be from {lowest} to {highest}, vLLM's limits"
        )
    if not all(0 <= beta < 1 for beta in update.betas):
        raise InputError(f"--betas: are {update.betas[0]} {update.betas[1]}, must be in [0, 1)")
    if not (0 <= update.clip_low < 1 and update.clip_high >= 0):
        raise InputError("--clip-low must be in [0, 1) and --clip-high not below 0")
    questions = batch.questions_per_step
    if questions % ranks:
        raise InputError(
            f"--questions-per-step {questions} cannot be divided by {ranks} ranks. Use a multiple of {ranks}, "
            f"for example {ranks * max(1, questions // ranks)}"
        )
    if questions % batch.mini_batches:
        raise InputError(f"--mini-batches: {questions} questions cannot be cut into {batch.mini_batches} equal parts")
    if config.folder.resume and config.folder.overwrite:
        raise InputError("--resume continues a run and --overwrite deletes it: use one of them")


def differences(config: TrainConfig) -> list[tuple[str, object, object]]:
    """Return name, value and the preset's value of every setting in which `config` differs from its preset."""
    ours = flat_settings(config)
    standard = flat_settings(with_settings(preset_config(config.preset), output_dir=config.folder.output_dir))
    return [(name, ours[name], standard[name]) for name in ours if name != "preset" and ours[name] != standard[name]]


def json_settings(config: TrainConfig, **facts: object) -> dict:
    """Return all settings as JSON holds them, flat and in order of definition, followed by `facts`."""
    return json.loads(json.dumps(flat_settings(config) | facts, default=str))
