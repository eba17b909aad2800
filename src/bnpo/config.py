"""What a training run is: one dataclass, its presets, and the checks that need no model."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.algorithm.advantages import method_problem
from bnpo.algorithm.aggregation import AGGREGATIONS
from bnpo.algorithm.beta import MAX_CONCENTRATION
from bnpo.algorithm.estimators import ALGORITHMS
from bnpo.answers.rewards import GRADERS, REWARDS, check_rewards
from bnpo.files import ROOT, InputError
from bnpo.flags import (
    COMMA_SEPARATED,
    SAID_ONCE,
    Free,
    NotCompared,
    NotNegative,
    Positive,
    check_marks,
    one_of,
    parse_grouped,
)
from bnpo.problems import SYSTEM_PROMPTS, TEMPERATURES

TINY_MODEL = ROOT / "data" / "tiny-model"


PRESETS = {
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
class Preset:
    """Where all other defaults come from."""

    preset: Free[Annotated[str, *one_of(("auto", *PRESETS))]] = "auto"
    """Defaults for all other flags: the paper's (1.5B and 7B: Table 1; format: Table 2) or `tiny`, which runs anywhere.
    `auto` is paper-1.5b where a CUDA device is present, tiny elsewhere."""


@dataclass(frozen=True)
class Method:
    """The estimator of the policy gradient."""

    algo: NotCompared[Annotated[str, *one_of(ALGORITHMS)]] = "bnpo"
    """How rewards become advantages."""
    decompose: NotCompared[bool] = False
    """Compute the advantage of each reward alone, then average (Eq. 17), in place of summing the rewards first."""
    rescale_advantages: bool = False
    """Divide the advantages of a batch by their root mean square: what then differs between methods is no scale."""
    beta_parameters: tuple[float, float] | None = None
    """Alpha and beta of the fixed density of --algo beta: 1 1 is REINFORCE, 1.5 1.5 GRPO up to a factor."""
    beta_moments: Annotated[str, *one_of(("sample", "corrected"))] = "sample"
    """Moments that BNPO fits: the paper's, or without the sampling noise of finitely many answers."""
    max_concentration: Positive[float] = MAX_CONCENTRATION
    """Largest a + b of BNPO's fit; acts only where all questions are about equally hard."""


@dataclass(frozen=True)
class Task:
    """What is learned, from what, and how answers are rewarded."""

    model: NotCompared[str] = "Qwen/Qwen2.5-Math-1.5B"
    """Model to start from: a Hugging Face folder or hub name."""
    train_data: str = "data/math_train.jsonl"
    """JSON-lines file with the fields `problem` and `answer`, or `arithmetic`, the built-in task."""
    template: Annotated[str, *one_of(SYSTEM_PROMPTS)] = "chat"
    """Prompt: the tokenizer's chat template as it is, or with a system prompt that asks for think and answer tags."""
    rewards: Annotated[tuple[str, ...], COMMA_SEPARATED, one_of((*REWARDS, "path/to/file.py:function"))] = ("accuracy",)
    """Rewards, separated by commas: accuracy (the final answer is right), format (think and answer tags, each once),
    path/to/file.py:function (your own, see docs/training.md)."""
    grader: Annotated[str, *one_of(GRADERS)] = "default"
    """How accuracy and format are judged: our rules, or those of the authors' released code."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value of your own rewards (the built-in ones are in [0, 1]); all are mapped to [0, 1] before
    advantages are computed."""


@dataclass(frozen=True)
class Batch:
    """How much is sampled and trained on."""

    questions_per_step: Positive[int] = 32
    """Different questions in a step, over all ranks (n in the paper)."""
    samples_per_question: Positive[int] = 16
    """Answers sampled for every question (m in the paper)."""
    ppo_iterations: Positive[int] = 1
    """Passes of the learner over the answers of a step (T in the paper)."""
    mini_batches: Positive[int] = 1
    """Optimizer updates a pass, each on its share of the questions."""
    epochs: Free[Positive[int]] = 5
    """Passes over the training data; sets the number of steps unless --steps does."""
    steps: Free[Positive[int | None]] = None
    """Number of steps: one sampling phase each."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn."""

    temperature: Positive[float] = 1.0
    """Sampling temperature; the learner's log-probabilities use it too."""
    max_prompt_tokens: Positive[int] = 1024
    """Longest prompt, template included; questions beyond it are left out, with a count."""
    max_answer_tokens: Positive[int] = 3072
    """Longest answer; longer ones are cut off."""
    seed: NotCompared[NotNegative[int]] = 0
    """Seeds the order of questions and all sampling."""


@dataclass(frozen=True)
class Update:
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
    """Gradients are scaled down to this norm; the norm before is logged."""
    clip_low: float = 0.2
    """The probability ratio is clipped below at 1 - clip_low (no effect with one update a step: the ratio is 1)."""
    clip_high: float = 0.2
    """The probability ratio is clipped above at 1 + clip_high."""
    aggregation: Annotated[str, *one_of(AGGREGATIONS)] = "seq-mean-token-sum"
    """How token losses become one number; all means are over the global batch."""
    importance_cap: Positive[float | None] = None
    """Weigh tokens by min(pi_learner / pi_sampler, cap): corrects the sampler's different arithmetic."""
    max_bad_steps: NotCompared[Positive[int]] = 3
    """Steps in a row with an update skipped, its loss or gradient norm not finite, after which the run stops."""


@dataclass(frozen=True)
class Hardware:
    """How it is computed: memory and speed, and last bits of results."""

    dtype: Annotated[str, *one_of(("bfloat16", "float32"))] = "bfloat16"
    """Arithmetic of learner and sampler; bfloat16 keeps fp32 master weights in the optimizer."""
    micro_batch_tokens: NotCompared[Positive[int]] = 16384
    """Tokens in one forward and backward pass of a rank; sequences are packed, without padding. Fewer take less memory,
    down to the longest prompt and answer."""
    gradient_checkpointing: NotCompared[bool] = True
    """Keep layer inputs only and compute the rest again in the backward pass: less memory, a third more compute."""
    offload_optimizer: NotCompared[bool] = False
    """Keep master weights and AdamW's moments in CPU memory (20 bytes a parameter) and update there: less GPU memory,
    slower."""
    gpu_memory: NotCompared[float | None] = None
    """Share of GPU memory for the sampler while it is awake; by default what the learner leaves, as far as a step's
    answers can use it."""
    enforce_eager: NotCompared[bool] = False
    """Run the sampler without CUDA graphs: slower, but starts at once."""
    sync_tolerance: Free[Positive[float]] = 0.05
    """Largest mean difference of log-probabilities between sampler and learner on an answer after a weight sync."""


@dataclass(frozen=True)
class Folder:
    """The run's folder and its checkpoints."""

    output_dir: Free[Path | None] = None
    """Folder for everything the run writes; by default runs/<preset>-<algo>-seed<seed>."""
    overwrite: Free[bool] = False
    """Delete what an earlier run left in the output folder."""
    resume: Free[bool] = False
    """Go on from the newest checkpoint in the output folder; from the start if there is none."""
    allow_changes: Free[Annotated[tuple[str, ...], COMMA_SEPARATED]] = ()
    """Flags, separated by commas, in which a resumed run may differ from what it was."""
    save_every: Free[Positive[int]] = 100
    """Steps between checkpoints; the last step always saves one."""
    keep: Free[NotNegative[int]] = 2
    """Newest checkpoints to keep, besides `best`; 0: all."""


@dataclass(frozen=True)
class Report:
    """What is watched on the way."""

    eval_every: NotCompared[NotNegative[int]] = 50
    """Steps between evaluations with the live sampler, of the start and the end too; 0: none. The best step by
    the average over data sets (not the start) gets a checkpoint of its own and the name `best`."""
    eval_suite: NotCompared[str] = "quick"
    """What they evaluate: a suite of evals/ or the path of one."""
    rollouts_every: Free[NotNegative[int]] = 50
    """Steps between those whose prompts, answers, rewards and advantages are kept as text; 0: none."""
    watch_questions: Free[NotNegative[int]] = 8
    """Training questions, always the same, that are also answered every --rollouts-every steps, at the start and at the
    end, beside the batch: what the policy makes of one question over time; 0: none."""
    exact_entropy: NotCompared[bool] = False
    """Also log the mean entropy of the policy over the tokens trained on (`entropy` is an estimate from samples)."""
    wandb: Free[Annotated[str, *one_of(("disabled", "offline", "online"))]] = "disabled"
    """Weights & Biases; metrics.jsonl is written in any case."""


@dataclass(frozen=True)
class TrainConfig(Report, Folder, Hardware, Update, Sampling, Batch, Task, Method, Preset):
    """Train a language model with reinforcement learning on answers that can be checked."""


def parse_train_config(argv: list[str], has_cuda: bool) -> tuple[TrainConfig, str]:
    """The config that command line `argv` asks for, and a line that says which preset was taken and why.

    Raises InputError for an unknown preset; tyro exits on flags it does not know.
    """
    # Only the preset can set the defaults of the other flags, so it is looked up first.
    chosen, _ = tyro.cli(Preset, args=argv, return_unknown_args=True, add_help=False, **SAID_ONCE)
    check_marks(chosen)
    preset = chosen.preset
    if preset == "auto":
        preset = "paper-1.5b" if has_cuda else "tiny"
        reason = f"{'a' if has_cuda else 'no'} CUDA device was found; --preset chooses another"
    else:
        reason = "asked for"
    config = replace(parse_grouped(TrainConfig(**PRESETS[preset]), argv, "deepspeed train.py"), preset=preset)
    if config.output_dir is None:
        config = replace(config, output_dir=Path("runs") / f"{preset}-{config.algo}-seed{config.seed}")
    return config, f"preset {preset} ({reason})"


def check_config(config: TrainConfig, ranks: int) -> None:
    """Raise InputError, one line, for values that cannot work together or alone; reads no file."""
    check_marks(config)
    check_rewards(config.rewards, config.reward_range)
    if problem := method_problem(config.algo, config.decompose, config.beta_parameters):
        raise InputError(problem)
    if config.gpu_memory is not None and not 0 < config.gpu_memory <= 1:
        raise InputError(f"--gpu-memory: is {config.gpu_memory}, must be above 0 and at most 1")
    lowest, highest = TEMPERATURES
    if not lowest <= config.temperature <= highest:
        raise InputError(f"--temperature: is {config.temperature}, must be from {lowest} to {highest}, as vLLM draws")
    if not all(0 <= beta < 1 for beta in config.betas):
        raise InputError(f"--betas: are {config.betas[0]} {config.betas[1]}, must be in [0, 1)")
    if not (0 <= config.clip_low < 1 and config.clip_high >= 0):
        raise InputError("--clip-low must be in [0, 1) and --clip-high not below 0")
    if config.questions_per_step % ranks:
        raise InputError(
            f"--questions-per-step: {config.questions_per_step} questions cannot be shared evenly by {ranks} ranks; "
            f"take a multiple of {ranks}"
        )
    if config.questions_per_step % config.mini_batches:
        raise InputError(
            f"--mini-batches: {config.questions_per_step} questions cannot be cut into {config.mini_batches} "
            "equal parts"
        )
    if config.resume and config.overwrite:
        raise InputError("--resume goes on with a run and --overwrite deletes it: give one of them")


def differences(config: TrainConfig) -> list[tuple[str, object, object]]:
    """Name, value and the preset's value of what `config` has otherwise than its preset."""
    ours, standard = asdict(config), asdict(TrainConfig(**PRESETS[config.preset], output_dir=config.output_dir))
    return [(name, ours[name], standard[name]) for name in ours if name != "preset" and ours[name] != standard[name]]


def json_settings(config: TrainConfig, **facts: object) -> dict:
    """The config as JSON knows it, every field in the order of its definition, and then `facts`."""
    return json.loads(json.dumps(asdict(config) | facts, default=str))
