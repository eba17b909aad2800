"""The configuration of a training run: its settings, its presets, and the checks that need no model."""

import argparse
import json
import math
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import Method
from bnpo.data import SYSTEM_PROMPTS, TEMPERATURES, Columns
from bnpo.files import ROOT, SMOLLM2, InputError, read_json, read_text
from bnpo.flags import (
    Free,
    Planning,
    check_marks,
    check_planning,
    flat_settings,
    join_help_lines,
    one_of,
    with_settings,
)
from bnpo.grading.rewards import check_rewards
from bnpo.settings import (
    BatchSettings,
    DataSettings,
    FolderSettings,
    HardwareSettings,
    LoggingSettings,
    SamplingSettings,
    UpdateSettings,
)

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
    "smollm2": {
        "model": str(SMOLLM2),
        "train_data": ("word-problems",),
        "system_prompt": "",
        "grader": "last_number",
        "temperature": 0.6,
        "questions_per_step": 16,
        "samples_per_question": 8,
        "max_prompt_tokens": 128,
        "max_answer_tokens": 40,
        "steps": 25,
        "lr": 2e-5,
        "warmup_steps": 3,
        "micro_batch_tokens": 2048,
        "gradient_checkpointing": False,
        "sync_tolerance": 0.5,
        "save_every": 25,
        "eval_every": 25,
        "eval_suite": "word-problems-greedy",
        "rollouts_every": 5,
    },
}


@dataclass(frozen=True)
class TrainConfig:
    """Train a language model with reinforcement learning on problems with checkable answers."""

    preset: Free[Annotated[str, *one_of(("auto", *PRESETS))]] = "auto"
    """Sets the defaults of all other flags. `paper-1.5b` and `paper-7b` reproduce Table 1 of the paper, `paper-format`
    reproduces Table 2, `tiny` runs anywhere, and `smollm2` trains SmolLM2-135M-Instruct on word problems. `auto` is
    paper-1.5b on a machine with a GPU and tiny elsewhere."""
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
    gpu_memory, update, batch = config.hardware.gpu_memory, config.update, config.batch
    config.method.check(batch.questions_per_step, batch.samples_per_question, len(config.data.rewards))
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
    if batch.samples_per_question == 1 and needs_groups(config):
        raise InputError(
            f"--samples-per-question: with 1, all advantages of --algo {config.method.algo} are 0 and nothing is "
            "learned; take at least 2, or an --algo without a baseline from the group, such as reinforce_pp"
        )
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


def needs_groups(config: TrainConfig) -> bool:
    """Return whether all advantages of --algo are 0 where each question has one answer."""
    n, k = config.batch.questions_per_step, len(config.data.rewards)
    rewards = np.linspace(0.1, 1, n * k).reshape(n, 1, k)
    batch = {"greedy_rewards": np.zeros((n, k)), "lengths": np.ones((n, 1))}
    return not compute_advantages(config.method, rewards, **batch).values.any()


def differences(config: TrainConfig) -> list[tuple[str, object, object]]:
    """Return name, value and the preset's value of every setting in which `config` differs from its preset."""
    ours = flat_settings(config)
    standard = flat_settings(with_settings(preset_config(config.preset), output_dir=config.folder.output_dir))
    return [(name, ours[name], standard[name]) for name in ours if name != "preset" and ours[name] != standard[name]]


def json_settings(config: TrainConfig, **facts: object) -> dict:
    """Return all settings as JSON holds them, flat and in order of definition, followed by `facts`."""
    return json.loads(json.dumps(flat_settings(config) | facts, default=str))
