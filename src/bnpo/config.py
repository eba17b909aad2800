"""The configuration of a training run: its settings, presets and command line, and the checks that need no model."""

import argparse
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
from pydantic import Field, TypeAdapter, ValidationError

from bnpo.algorithm.estimators import Method
from bnpo.data import SYSTEM_PROMPTS, TEMPERATURES, Columns
from bnpo.files import ROOT, InputError, read_json, read_text
from bnpo.grading.rewards import check_rewards

@dataclass(frozen=True)
class DataSettings:
    """The model to start from, the problems, and how answers are rewarded."""

    model: NotCompared[str] = "Qwen/Qwen2.5-Math-1.5B"
    """Model to start from: a Hugging Face folder or a hub name."""
    train_data: tuple[str, ...] = ("data/math_train.jsonl",)
    """Training problems, one source or several: files (.jsonl, .json, .csv, .parquet), data sets of the Hugging Face
    hub (hub:OWNER/NAME:CONFIG@REVISION#SPLIT), or `arithmetic` (built in)."""
    template: str = "chat"
    """Prompt: `chat` is the tokenizer's chat template; `think` adds a system prompt that asks for think and answer
    tags; the path of a Jinja file replaces the chat template."""
    system_prompt: str | None = None
    """System prompt, as text or as the path of a text file. The default is that of the chat template."""
    thinking: Annotated[str | None, *one_of(("on", "off"))] = None
    """Handed to chat templates with `enable_thinking`, such as Qwen3's. The default is the template's."""
    rewards: Annotated[tuple[str, ...], COMMA_SEPARATED] = ("accuracy",)
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
    """Learning rate of AdamW, constant after the warm-up. With --lora-rank the default is ten times as
    large."""
    lora_rank: Positive[int | None] = None
    """Train low-rank additions (LoRA) of this rank to all linear layers but the head, and freeze all other weights:
    less memory. None: all weights are trained."""
    lora_alpha: Positive[float | None] = None
    """LoRA adds alpha / rank * B A to a weight. The default is twice the rank."""
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
    aggregation: Annotated[
        str, *one_of(("seq-mean-token-sum", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"))
    ] = "seq-mean-token-sum"
    """How token losses are averaged, over all answers of an update on all ranks. docs/estimators.md has formulas."""
    importance_cap: Positive[float | None] = None
    """Weight tokens by min(pi_learner / pi_sampler, cap), since both round differently. None: no weights."""
    max_bad_steps: NotCompared[Positive[int]] = 3
    """The run stops after this many steps in a row with a skipped update (loss or gradient norm not finite)."""


@dataclass(frozen=True)
class HardwareSettings:
    """Memory, speed and number format."""

    dtype: Annotated[str, *one_of(("bfloat16", "float16", "float32"))] = "bfloat16"
    """Number format of learner and sampler. With bfloat16 and float16 the optimizer keeps fp32 master weights."""
    loss_scale: Positive[float] = 2.0**8
    """With float16, the loss is multiplied by this power of two, and gradients are divided by it after the backward
    pass. Lower it if updates are skipped."""
    micro_batch_tokens: NotCompared[Positive[int]] = 16384
    """Tokens per forward and backward pass of a rank, packed without padding. Lower it to save memory, but not below
    the longest prompt plus the longest answer."""
    gradient_checkpointing: NotCompared[bool] = True
    """Keep only the inputs of layers and recompute the rest in the backward pass: less memory, a third more compute."""
    offload_optimizer: NotCompared[bool] = False
    """Keep master weights, gradients (twice) and AdamW's moments in CPU memory: 20 bytes per parameter. It saves GPU
    memory and is slower."""
    offload_weights: NotCompared[bool] = False
    """Keep the learner's weights in CPU memory, and copy them to the GPU layer by layer. Slower. With --lora-rank, a
    GPU can train a model of which it cannot hold two copies."""
    sampler_ranks: NotCompared[Positive[int]] = 1
    """Number of ranks of a machine that share one sampler, each with a part of its weights and its cache. Set it for
    models whose weights leave little of a GPU for anything else."""
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
    save_merged: Free[bool] = False
    """With LoRA, write the merged model into every checkpoint, not only into that of the best evaluation."""


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


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Dry run: print what a run would take, and start nothing."""

    dry_run: bool = False
    """Check settings and data, print the disk space and, with --gpu, the memory and hours that the run needs. Exit."""
    gpus: Positive[int | None] = None
    """Number of GPUs to plan for, with --dry-run. The default is one."""
    gpu: str | None = None
    """GPU model to plan for, with --dry-run, such as H100 or RTX-4090; a wrong name lists all. Without it, memory and
    hours are left out."""
    answer_tokens: Positive[int] = 600
    """Mean tokens per answer that the estimated hours assume, with --dry-run."""


TINY_MODEL = ROOT / "data" / "tiny-model"

PRESETS: dict[str, dict[str, object]] = {
    "paper-1.5b": {"grader": "reference"},
    "paper-7b": {"model": "Qwen/Qwen2.5-Math-7B", "grader": "reference"},
    "paper-format": {
        "grader": "reference",
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "template": "think",
        "rewards": ("accuracy", "format"),
        "decompose": True,
        "eval_suite": "quick-format",
    },
    "tiny": {
        "model": str(TINY_MODEL),
        "train_data": ("arithmetic",),
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
class TrainConfig:
    """Train a language model with reinforcement learning on problems with checkable answers."""

    preset: Free[Annotated[str, *one_of(("auto", *PRESETS))]] = "auto"
    """Sets the defaults of all other flags. `paper-1.5b` and `paper-7b` reproduce Table 1 of the paper, `paper-format`
    reproduces Table 2, and `tiny` runs anywhere. `auto` is paper-1.5b on a machine with a GPU and tiny elsewhere."""
    config: Free[Path | None] = None
    """config.json of an earlier run. Its settings are the defaults of all other flags, in place of a preset's, except
    for --output-dir, --overwrite, --resume and --allow-changes."""
    method: tyro.conf.OmitArgPrefixes[Method] = Method()
    data: tyro.conf.OmitArgPrefixes[DataSettings] = DataSettings()
    columns: tyro.conf.OmitArgPrefixes[Columns] = Columns()
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


def saved_config(path: Path) -> TrainConfig:
    """Return the settings in a run's config.json, without those that belong to that run only. Raises InputError."""
    saved = read_json(path, "--config needs the config.json of a run")
    if saved.get("preset") not in PRESETS:
        raise InputError(f"{path}: names no preset, as the config.json of a run does; --config needs that of a run")
    config = preset_config(saved["preset"])
    for name, default in flat_settings(config).items():
        if name not in saved or name in ("preset", "config", "output_dir", "overwrite", "resume", "allow_changes"):
            continue  # newer than that run, or its own
        # JSON has lists for tuples, and train_data was one name in earlier versions.
        value = [saved[name]] if isinstance(default, tuple) and isinstance(saved[name], str) else saved[name]
        config = with_settings(config, **{name: tuple(value) if isinstance(value, list) else value})
    return config


def needs_cuda_check(argv: list[str]) -> bool:
    """Return whether the preset of command line `argv` depends on the machine: `auto`, and no GPU is planned for."""
    asked = _preset_flags(argv)
    return asked.preset == "auto" and asked.gpu is None and asked.config is None


def _preset_flags(argv: list[str]) -> argparse.Namespace:
    # Only the preset knows the defaults of the other flags, so it is read before tyro parses all of them.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--gpu")
    parser.add_argument("--config", type=Path)
    return parser.parse_known_args(argv)[0]


def parse_train_config(argv: list[str], has_cuda: bool) -> tuple[TrainConfig, str]:
    """Return the config that command line `argv` asks for, and a line that says which preset was taken and why.

    Raises InputError for an unknown preset. tyro exits on flags that it does not know.
    """
    asked = _preset_flags(argv)
    preset, reason = asked.preset, "asked for"
    check_marks(TrainConfig(preset=preset))
    saved = saved_config(asked.config) if asked.config else None
    if saved:
        if preset not in ("auto", saved.preset):
            raise InputError(f"--preset {preset}: --config sets all defaults, and is of preset {saved.preset}")
        preset, reason = saved.preset, f"with the settings of {asked.config}"
    if preset == "auto":
        preset = "paper-1.5b" if has_cuda else "tiny"
        reason = f"{'a' if has_cuda else 'no'} CUDA device was found; --preset chooses another"
    defaults = replace(saved or preset_config(preset), preset="auto")
    join_help_lines(TrainConfig)
    prints = os.environ.get("LOCAL_RANK", "0") == "0"  # one rank per machine prints help and errors
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # tyro only warns of a default with the wrong type
            config = tyro.cli(
                TrainConfig, args=argv, default=defaults, prog="deepspeed train.py", console_outputs=prints
            )
    except Warning as error:
        raise InputError(f"{asked.config}: a setting of the wrong type: {str(error)[:70]}; correct it") from error
    config, system_prompt = replace(config, preset=preset), config.data.system_prompt
    lr_is_given = any(flag.partition("=")[0] == "--lr" for flag in argv)
    if config.update.lora_rank and not defaults.update.lora_rank and not lr_is_given:
        config = with_settings(config, lr=10 * defaults.update.lr)
    if system_prompt and os.path.isfile(system_prompt):
        config = with_settings(config, system_prompt=read_text(system_prompt).strip())
    if config.folder.output_dir is None:
        folder = Path("runs") / f"{preset}-{config.method.algo}-seed{config.sampling.seed}"
        config = with_settings(config, output_dir=folder)
    return config, f"preset {preset} ({reason})"


def check_config(config: TrainConfig, ranks: int) -> None:
    """Raise InputError, one line, for values that are not allowed, alone or together. Reads no file."""
    check_marks(config)
    check_planning(config.planning)
    check_rewards(config.data.rewards, config.data.reward_range)
    config.columns.check()
    template = config.data.template
    if template not in SYSTEM_PROMPTS and not os.path.isfile(template):
        raise InputError(f"--template: no file '{template}'; known: {', '.join(SYSTEM_PROMPTS)}, or a Jinja file")
    if template == "think" and config.data.system_prompt:
        raise InputError("--template think is a system prompt itself: use it without --system-prompt")
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
    if update.lora_rank is None and (update.lora_alpha is not None or config.folder.save_merged):
        raise InputError("--lora-alpha and --save-merged need --lora-rank")
    if not math.log2(config.hardware.loss_scale).is_integer():
        raise InputError(f"--loss-scale: is {config.hardware.loss_scale:g}, must be a power of two, such as 256")
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
