"""The settings of a training run: flags, presets, and the checks that need no model."""

import argparse
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar, dataclass_transform

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass
from tyro.constructors import PrimitiveConstructorSpec

from bnpo.data import Columns
from bnpo.environment import multiplies_bf16, parse_command
from bnpo.files import ROOT, SMOLLM2, InputError, read_text
from bnpo.grading.rewards import BUILT_IN, check_function, reward_name
from bnpo.prompts import SYSTEM_PROMPTS
from bnpo_estimators import AS_THEY_ARE, Method, SettingError, try_users_estimator

TINY_MODEL = ROOT / "data" / "tiny-model"
ALL_REWARDS = "all"  # a value of --signal

T = TypeVar("T")
Positive = Annotated[T, Field(gt=0)]
NotNegative = Annotated[T, Field(ge=0)]
PositiveOrOff = Annotated[T | None, Field(gt=0), BeforeValidator(lambda value: value or None)]
"""0 switches it off."""
Share = Annotated[float, Field(gt=0, le=1)]  # a part of a whole, such as of the memory of a GPU
# The temperatures that vLLM takes: below the lowest it uses that. Evaluations may also use 0.
TEMPERATURES = (0.01, 2.0)
Decay = Annotated[float, Field(ge=0, lt=1)]
Aggregation = Literal[
    "seq-mean-token-sum", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]

NAMES = PrimitiveConstructorSpec(
    nargs="*",
    metavar="NAME[,NAME...]",
    instance_from_str=lambda words: tuple(filter(None, ",".join(words).split(","))),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda value: [",".join(value)],
)
# A value of --system-prompt that is meant as a path. Not /no_think, which is a prompt for Qwen3.
PATH = re.compile(r"\S+\.(txt|md|jinja)|[\w./~-]+/[\w./~-]*", re.ASCII)


def read_prompt(value: str, folders: Sequence[Path] = (Path(),)) -> str:
    """Return the text of --system-prompt, or the text of the file that it names, from the first of
    the `folders` that has it. Raises InputError for a path without a file.
    """
    for folder in folders:
        if os.path.isfile(folder / value):  # unlike Path.is_file, False for names that are too long
            return read_text(folder / value).strip()
    if PATH.fullmatch(value):
        raise InputError(
            f"--system-prompt: no file '{value}'; correct the path, or write the prompt itself"
        )
    return value


def _prompt(value: str | None) -> str | None:
    """Return the text of a prompt that is set in Python."""
    return value and read_prompt(value)


PROMPT = PrimitiveConstructorSpec(
    nargs=1,
    metavar="TEXT|FILE",
    instance_from_str=lambda words: read_prompt(words[0]),
    is_instance=lambda value: isinstance(value, str),
    str_from_instance=lambda value: [value],
)


@dataclass_transform(frozen_default=True)
def settings(group: type[T]) -> type[T]:
    """Make a class a frozen dataclass that checks its values when it is made.

    Raises InputError, which names the flag. Checks of several values stand in `__post_init__`.
    """
    checked = dataclass(frozen=True, config=ConfigDict(extra="forbid"))(group)
    make: Callable = checked.__init__

    @wraps(make)
    def __init__(self, *args: object, **values: object) -> None:
        try:
            make(self, *args, **values)
        except ValidationError as error:
            raise InputError(_first_fault(error, are_flags=True)) from error

    checked.__init__ = __init__
    return checked


def validate(kind: type[T], values: dict) -> T:
    """Return a dataclass from the content of a JSON file. Raises InputError for the first fault."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise InputError(_first_fault(error, are_flags=False)) from error


def _first_fault(error: ValidationError, are_flags: bool) -> str:
    fault = error.errors()[0]
    if not fault["loc"]:  # the only text that JSON cannot hold
        return "a value has half of a surrogate pair, which is no text"
    name = ".".join(map(str, fault["loc"]))
    if are_flags:
        name = flag_name(next(part for part in reversed(fault["loc"]) if isinstance(part, str)))
    if fault["type"] == "unexpected_keyword_argument":
        return f"there is no setting {name.removeprefix('--').replace('-', '_')}"
    message = fault["msg"].replace("Input should", "must")
    if isinstance(fault["input"], dict):
        return f"{name}: {message}"
    return f"{name}: is {' '.join(str(fault['input']).split())[:60]}, {message}"


def flag_name(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def check_template(template: str, system_prompt: str | None) -> None:
    """Raise InputError for a template that is no file and not known, and for two system prompts."""
    if template not in SYSTEM_PROMPTS and not os.path.isfile(template):
        raise InputError(
            f"--template: no file '{template}'; known: {', '.join(SYSTEM_PROMPTS)}, or a Jinja file"
        )
    if template == "think" and system_prompt is not None:
        raise InputError(
            "--template think is a system prompt itself: use it without --system-prompt"
        )


@settings
class DataSettings:
    """The model to start from, the problems, and how answers are rewarded."""

    model: str = "Qwen/Qwen2.5-Math-1.5B@4a83ca6e4526a4f2da3aa259ec36c259f66b2ab2"
    """Model to start from: a folder, or a name on the Hugging Face hub: OWNER/NAME, or
    OWNER/NAME@REVISION with a commit, tag or branch."""
    train_data: tuple[str, ...] = ("data/math_train.jsonl",)
    """Training problems from one or more sources: files (.jsonl, .json, .csv, .parquet),
    hub:OWNER/NAME:CONFIG@REVISION#SPLIT, or built in (`arithmetic`, `word-problems`). docs/data.md
    has all forms."""
    template: str = "chat"
    """Prompt template: `chat` (the tokenizer's chat template), `think` (the same, with a system
    prompt that asks for think and answer tags), or the path of a Jinja file."""
    system_prompt: Annotated[str | None, PROMPT, AfterValidator(_prompt)] = None
    """System prompt, as text ('' is an empty one) or as the path of a text file. It replaces
    the one of the preset and of --template think. The default is the template's own."""
    thinking: Literal["on", "off"] | None = None
    """Sets `enable_thinking` of chat templates that have it, such as Qwen3's. The default is the
    template's own."""
    rewards: Annotated[tuple[str, ...], NAMES] = ("accuracy",)
    """Rewards: `accuracy` (the final answer is right, by --grader), `format` (think and answer
    tags, each once), `last_number` (the last number is right, whatever --grader says), or your
    own: path/to/file.py:function."""
    grader: Literal["default", "paper", "last_number"] = "default"
    """How accuracy is judged: by this project's rule, by the paper's code (which then also judges
    `format`), or by the last number of a text, for models that write no boxes."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value of your own rewards, which are mapped to [0, 1]. Set it if values
    lie outside [0, 1] and --algo needs a range, as bnpo does; with the default, others, such as
    grpo, take any values as they are."""

    @property
    def reward_names(self) -> list[str]:
        """Names of the rewards in metrics."""
        return list(map(reward_name, self.rewards))

    def __post_init__(self) -> None:
        for reward in self.rewards:
            check_function("rewards", reward, BUILT_IN)
        names, (low, high) = self.reward_names, self.reward_range
        if not names:
            raise InputError("--rewards: name at least one")
        if len(set(names)) < len(names):
            raise InputError(
                f"--rewards: {', '.join(names)}: names repeat; metrics need different ones"
            )
        if reserved := {"mean", "se", "timeouts", "errors", ALL_REWARDS}.intersection(names):
            raise InputError(
                f"--rewards: the name '{reserved.pop()}' has another meaning in metrics or "
                "--signal; give the function another name"
            )
        if not -math.inf < low < high < math.inf:
            raise InputError(
                f"--reward-range: {low:g} {high:g}: must be two finite numbers, the lower first"
            )
        check_template(self.template, self.system_prompt)


@settings
class BatchSettings:
    """The number of answers per step, and the number of updates on them."""

    questions_per_step: Positive[int] = 32
    """Different questions per step, over all ranks (n)."""
    samples_per_question: Positive[int] = 16
    """Answers sampled for each question (m)."""
    resample_rounds: NotNegative[int] = 0
    """DAPO's dynamic sampling: while fewer than n questions have a signal (--signal), draw n more,
    at most this many times. The learner takes n of all questions drawn, first those with a signal;
    BNPO's fit uses all."""
    signal: str | None = None
    """Reward that must differ between the answers to a question, so that the question has a signal:
    its name in the metrics, or `all` for any reward that is trained on. The default is the first of
    them, so that a length or format reward does not hide that no answer is right."""
    ppo_iterations: Positive[int] = 1
    """Passes of the learner over the answers of a step (T)."""
    mini_batches: Positive[int] = 1
    """Optimizer updates per pass, each on an equal share of the questions."""
    epochs: Positive[int] = 5
    """Passes over the training data, which set the number of steps where --steps does not. A pass
    has an order of its own and whole batches only, so it leaves a few questions out."""
    steps: NotNegative[int | None] = None
    """Number of steps, which takes the place of --epochs. 0: --epochs decides, as in the paper's
    presets."""

    def __post_init__(self) -> None:
        if self.questions_per_step % self.mini_batches:
            raise InputError(
                f"--mini-batches: {self.questions_per_step} questions cannot be cut into "
                f"{self.mini_batches} equal parts"
            )


@settings
class SamplingSettings:
    """How answers are sampled."""

    temperature: Annotated[float, Field(ge=TEMPERATURES[0], le=TEMPERATURES[1])] = 1.0
    """Sampling temperature. The learner's log-probabilities use the same."""
    top_k: PositiveOrOff[int] = None
    """Draw every token from the K most likely ones only. The learner's log-probabilities use the
    same. 0: from all."""
    max_prompt_tokens: Positive[int] = 1024
    """Longest prompt in tokens, template included. Longer questions are left out, and their
    number is printed."""
    max_answer_tokens: Positive[int] = 3072
    """Longest answer in tokens. Longer answers are cut off."""
    seed: NotNegative[int] = 0
    """Seed of the order of questions, of all sampling, and of LoRA's first values."""

    @property
    def longest(self) -> int:
        """The most tokens of a prompt with its answer."""
        return self.max_prompt_tokens + self.max_answer_tokens


@settings
class UpdateSettings:
    """Loss and optimizer."""

    lr: Positive[float] = 1e-6
    """Learning rate of AdamW, constant after the warm-up. The default is 1e-6 in the paper's
    presets, 2e-5 in smollm2 and 1e-4 in tiny, and ten times as much with --lora-rank."""
    lora_rank: Positive[int | None] = None
    """Train LoRA adapters of this rank on all linear layers but the head. The default is to
    train all weights."""
    lora_alpha: Positive[float | None] = None
    """LoRA adds alpha / rank * B A to a weight. The default is twice the rank."""
    warmup_steps: NotNegative[int] = 10
    """Steps over which the learning rate rises linearly."""
    weight_decay: NotNegative[float] = 0.0
    """Decoupled weight decay of AdamW."""
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)  # decay rates of AdamW's moments
    max_grad_norm: Positive[float] = 1.0
    """Gradients with a larger norm are scaled down to it."""
    clip_low: Decay = 0.2
    """Probability ratios are clipped at 1 - clip_low. With one update per step (the default) all
    ratios are 1, and this has no effect."""
    clip_high: NotNegative[float] = 0.2
    """Probability ratios are clipped at 1 + clip_high."""
    aggregation: Aggregation = "seq-mean-token-sum"
    """How token losses are averaged over the batch. docs/estimators.md has formulas."""
    importance_cap: PositiveOrOff[float] = None
    """Truncated importance sampling, against different rounding in sampler and learner: multiply
    the loss of a token by min(p / p_sampler, cap), where p is the learner's probability before the
    step's updates. 0: off."""
    # Stop after this many steps in a row whose loss or gradient norm was not finite
    max_bad_steps: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.lora_rank is None and self.lora_alpha is not None:
            raise InputError("--lora-alpha: needs --lora-rank")


@settings
class HardwareSettings:
    """Memory, speed and number format."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of learner and sampler. With the 16-bit formats, the optimizer keeps fp32
    master weights."""
    loss_scale: Positive[float] = 2.0**8
    """With float16, a power of two by which the loss is multiplied. Lower it if updates are
    skipped."""
    micro_batch_tokens: Positive[int] = 16384
    """Tokens per forward and backward pass of a rank, but at least the longest prompt plus answer.
    Lower it to save memory."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, a third more compute."""
    offload_optimizer: bool = False
    """Keep optimizer and gradients in CPU memory, 20 bytes per parameter. Slower."""
    offload_weights: bool = False
    """Keep the learner's weights in CPU memory, and copy them to the GPU layer by layer. Slower."""
    sampler_ranks: Positive[int] = 1
    """Ranks that share one sampler, each with a part of its weights: less memory per GPU, and often
    faster sampling. scripts/plan.py compares the values."""
    gpu_memory: Share | None = None
    """Share of GPU memory for the sampler. The default is what the learner leaves free, but no more
    than the answers of a step can use."""
    enforce_eager: bool = False
    """Run the sampler without CUDA graphs: starts faster, samples more slowly."""
    sync_tolerance: Positive[float | None] = None
    """Stop if the mean difference between the log-probabilities of sampler and learner is larger
    than this, at the start or after a step. The default is 5 times the rounding that is measured at
    the start (3 times at the start itself), but at least 3e-4."""

    def __post_init__(self) -> None:
        if not math.log2(self.loss_scale).is_integer():
            raise InputError(
                f"--loss-scale: is {self.loss_scale:g}, must be a power of two, such as 256"
            )


@settings
class FolderSettings:
    """The run's folder and its checkpoints."""

    output_dir: Path | None = None
    """Folder for everything that the run writes. The default is runs/<preset>-<algo>-seed<seed>."""
    resume: bool = False
    """Continue from the newest checkpoint in the output folder, or start anew if there is none."""
    allow_changes: Annotated[tuple[str, ...], NAMES] = ()
    """Settings that may differ from those of the run that --resume continues, such as
    lr,temperature. Those of length, saving and logging, such as --steps, may always differ."""
    save_every: NotNegative[int] = 100
    """Steps between checkpoints; one is also saved after the last step, after a new best evaluation
    and when the run is stopped. 0: only then."""
    keep: NotNegative[int] = 2
    """Number of newest checkpoints to keep, besides `best`. 0: delete none."""


@settings
class LoggingSettings:
    """Evaluation during training, and what is written for people to read."""

    eval_every: NotNegative[int] = 50
    """Steps between evaluations; there is also one before the first step and one after the last. 0:
    never."""
    eval_suite: str = "quick"
    """Evaluation suite: a name in evals/, or the path of a suite file."""
    rollouts_every: NotNegative[int] = 50
    """Write answers, rewards and advantages of every k-th step (1, 1 + k, ...) to rollouts/. 0: of
    skipped updates only."""
    watch_questions: NotNegative[int] = 8
    """Number of fixed training questions that are answered again every --rollouts-every steps.
    0: none."""
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Log to Weights & Biases, too: `online` uploads to the project bnpo (the variable
    WANDB_PROJECT names another), `offline` keeps a folder to upload later. WANDB_MODE can only
    reduce what is sent."""


@settings
class TrainConfig:
    """Train a language model with reinforcement learning on problems with checkable answers."""

    preset: Literal["auto", "paper-1.5b", "paper-7b", "paper-format", "tiny", "smollm2"] = "auto"
    """Sets the defaults of all other flags: `paper-*` are the paper's runs, `tiny` is a toy model,
    and `smollm2` is SmolLM2-135M-Instruct on word problems. `auto` is paper-1.5b with a GPU, else
    tiny."""
    dry_run: bool = False
    """Check settings and data, print disk space and prompts, and start nothing. scripts/plan.py
    also estimates memory and hours on GPUs."""
    print_config: bool = False
    """Print all settings as JSON, as the run's config.json would have them, and start nothing."""
    method: Method = Method()
    data: DataSettings = DataSettings()
    columns: Columns = Columns()
    batch: BatchSettings = BatchSettings()
    sampling: SamplingSettings = SamplingSettings()
    update: UpdateSettings = UpdateSettings()
    hardware: HardwareSettings = HardwareSettings()
    folder: FolderSettings = FolderSettings()
    logging: LoggingSettings = LoggingSettings()

    def __post_init__(self) -> None:
        batch, algo, rewards = self.batch, self.method.algo, len(self.data.rewards)
        with naming_flags():
            n, m = batch.questions_per_step, batch.samples_per_question
            # Rewards of the user's own may have any value, the built-in ones are 0 or 1
            graded = not set(self.data.rewards).issubset(BUILT_IN)
            self.method.check(n, m, rewards, graded)
            group = self.method.estimator.group
        if batch.samples_per_question == 1 and group:
            problem = f"--samples-per-question: with 1, all advantages of --algo {algo} are 0"
            raise InputError(
                f"{problem}; take at least 2, or an --algo without groups, such as reinforce_pp"
            )
        if batch.samples_per_question == 1 and batch.resample_rounds:
            raise InputError(
                "--resample-rounds: a single answer to a question has no signal, so every step "
                "would draw all rounds, and train on right answers only; leave it out, or take at "
                "least 2 --samples-per-question"
            )
        names = self.data.reward_names
        if batch.signal not in (None, ALL_REWARDS, *names):
            known = ", ".join([*names, ALL_REWARDS])
            raise InputError(f"--signal: there is no reward '{batch.signal}'; known: {known}")
        with naming_flags():
            try_users_estimator(self.method, batch.samples_per_question, rewards)

    @cached_property
    def signal_rewards(self) -> list[int]:
        """Indices of the rewards of --signal: a question has a signal if its answers differ in one
        of them. The first one decides whether an answer is right.
        """
        names, signal = self.data.reward_names, self.batch.signal
        weights = self.method.weights_of_rewards(len(names))
        weighted = [k for k, weight in enumerate(weights) if weight]  # others are only recorded
        if signal is None:
            return weighted[:1]
        return weighted if signal == ALL_REWARDS else [names.index(signal)]

    @property
    def users_range(self) -> tuple[float, float]:
        """Lowest and highest value of the user's rewards, AS_THEY_ARE if any value is taken."""
        is_default = self.data.reward_range == DataSettings.reward_range
        needs_range = self.method.estimator.needs_range
        return AS_THEY_ARE if is_default and not needs_range else self.data.reward_range


@contextmanager
def naming_flags() -> Iterator[None]:
    """Turn a SettingError of bnpo_estimators in the block, which names fields of `Method`, into an
    InputError that names their flags.
    """

    def flag(field: re.Match[str]) -> str:
        name, value = flag_name(field[1]), field[2] or ""
        if value == "False":  # decompose=False is --no-decompose
            return name.replace("--", "--no-")
        # weight='1/p' is --weight 1/p, and beta_parameters=(2, 2) is --beta-parameters 2 2
        values = [value[1:-1]] if value.startswith("'") else re.findall(r"[\w.]+", value)
        return shlex.join([name, *values])

    names = "|".join(field.name for field in fields(Method))
    try:
        yield
    except SettingError as error:
        raise InputError(re.sub(f"`({names})(?:=([^`]*))?`", flag, str(error))) from error


PRESETS = {
    "paper-1.5b": TrainConfig(preset="paper-1.5b", data=DataSettings(grader="paper")),
    "paper-7b": TrainConfig(
        preset="paper-7b",
        data=DataSettings(
            model="Qwen/Qwen2.5-Math-7B@b101308fe89651ea5ce025f25317fea6fc07e96e", grader="paper"
        ),
    ),
    "paper-format": TrainConfig(
        preset="paper-format",
        method=Method(decompose=True),
        data=DataSettings(
            model="Qwen/Qwen2.5-1.5B-Instruct@989aa7980e4cf806f80c7fef2b1adb7bc71aa306",
            template="think",
            rewards=("accuracy", "format"),
            grader="paper",
        ),
        logging=LoggingSettings(eval_suite="quick-format"),
    ),
    "tiny": TrainConfig(
        preset="tiny",
        data=DataSettings(model=str(TINY_MODEL), train_data=("arithmetic",)),
        batch=BatchSettings(steps=100),
        sampling=SamplingSettings(max_prompt_tokens=64, max_answer_tokens=128),
        update=UpdateSettings(lr=1e-4),
        hardware=HardwareSettings(
            dtype="float32", micro_batch_tokens=2048, gradient_checkpointing=False
        ),
        folder=FolderSettings(save_every=50),
        logging=LoggingSettings(eval_suite="arithmetic-quick", rollouts_every=10),
    ),
    "smollm2": TrainConfig(
        preset="smollm2",
        data=DataSettings(
            model=str(SMOLLM2),
            train_data=("word-problems",),
            system_prompt="",
            grader="last_number",
        ),
        batch=BatchSettings(questions_per_step=16, samples_per_question=8, steps=25),
        sampling=SamplingSettings(temperature=0.6, max_prompt_tokens=128, max_answer_tokens=40),
        update=UpdateSettings(lr=2e-5, warmup_steps=3),
        hardware=HardwareSettings(micro_batch_tokens=1536, gradient_checkpointing=False),
        folder=FolderSettings(save_every=25),
        logging=LoggingSettings(eval_every=25, eval_suite="word-problems-greedy", rollouts_every=5),
    ),
}

# Settings of one run, which other runs of the same kind do not share
OF_ONE_RUN = {"preset", "output_dir", "resume", "allow_changes"}
FREE = OF_ONE_RUN | {"epochs", "steps", "sync_tolerance", "save_every", "keep"}
FREE |= {"rollouts_every", "watch_questions", "wandb"}
"""Settings that do not change what a run computes up to a given step, so that a resumed run may
have other values."""
REMOVED = {"betas": [0.9, 0.999], "max_concentration": 100.0, "top_k_in_learner": True}
"""Settings of earlier versions that changed what a run computes, with the value that all runs have
now."""
GONE = REMOVED.keys() | {"config", "exact_entropy", "max_bad_steps", "overwrite", "save_merged"}
"""All settings of earlier versions in the config.json of old runs."""
USUAL = {"preset", "algo", "model", "train_data", "template", "rewards", "grader"}
USUAL |= {"questions_per_step", "samples_per_question", "epochs", "steps", "seed"}
USUAL |= {"temperature", "max_answer_tokens", "lr", "lora_rank", "micro_batch_tokens"}
USUAL |= {"problem_field", "answer_field", "answer_pattern", "reward_weights"}
USUAL |= {"system_prompt", "thinking", "max_prompt_tokens", "save_every"}
USUAL |= {"output_dir", "resume", "eval_every", "eval_suite", "wandb", "dry_run"}
USUAL |= {"print_config"}
"""Settings that --help shows. --help-all shows all."""


def flat_settings(config: TrainConfig, **facts: object) -> dict:
    """Return all settings as JSON holds them, without groups, --dry-run and --print-config,
    followed by `facts`.
    """
    values: dict[str, object] = {}
    for name, value in asdict(config).items():
        if name not in ("dry_run", "print_config"):
            values |= value if isinstance(value, dict) else {name: value}
    return json.loads(json.dumps(values | facts, default=str))


def changed_settings(config: TrainConfig) -> list[str]:
    """Return a line for each setting that differs from the preset's."""
    of_preset = flat_settings(PRESETS[config.preset])
    return [
        f"  {name:<24} {value!s:<24} preset: {of_preset[name]}"
        for name, value in flat_settings(config).items()
        if value != of_preset[name] and name not in ("preset", "output_dir")
    ]


def with_settings(config: TrainConfig, **values: object) -> TrainConfig:
    """Return a copy of `config` with other values for some settings, named without their group.
    Raises InputError.
    """
    for group in fields(config):
        own = getattr(config, group.name)
        if is_dataclass(own):
            names = [field.name for field in fields(own) if field.name in values]
            values[group.name] = replace(own, **{name: values.pop(name) for name in names})
    return replace(config, **values)


def preset_config(name: str, has_cuda: bool) -> TrainConfig:
    """Return a preset as this machine runs it: smollm2, which is for CPUs too, has float32 where
    bfloat16 is slow.
    """
    if name == "smollm2" and not has_cuda and not multiplies_bf16():
        return with_settings(PRESETS[name], dtype="float32")
    return PRESETS[name]


def _defaults(argv: Sequence[str], has_cuda: bool) -> tuple[TrainConfig, str]:
    """Return the defaults of all flags: the preset's, without those that would overrule what
    `argv` sets. Also a line that names the preset and why.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--template")
    asked = parser.parse_known_args(argv)[0]
    typed = typed_settings(argv)
    preset, why = asked.preset, "from --preset"
    if preset not in PRESETS:  # auto, or a word that tyro refuses
        preset = "paper-1.5b" if has_cuda else "tiny"
        why = f"{'a' if has_cuda else 'no'} CUDA device was found; --preset chooses another"
    defaults = preset_config(preset, has_cuda)
    data, changes = defaults.data, dict[str, object]()
    if "epochs" in typed:
        changes["steps"] = None
    if "lora_rank" in typed:
        changes["lr"] = 10 * defaults.update.lr
    if "system_prompt" in typed and data.template == "think":
        changes["template"] = "chat"  # think is chat with a system prompt
    # A preset's '' only keeps its template from adding its own text.
    elif "template" in typed and asked.template != data.template:
        changes["system_prompt"] = None
    return with_settings(defaults, **changes), f"preset {preset} ({why})"


def typed_settings(argv: Sequence[str]) -> set[str]:
    """Return the names of the settings in a command line."""
    return {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}


def parse_train_config(argv: Sequence[str], has_cuda: bool) -> tuple[TrainConfig, str]:
    """Return the config of the command line `argv`, and a line that says why it has its preset.
    Raises InputError.
    """
    defaults, preset_line = _defaults(argv, has_cuda)
    config = parse_command(
        TrainConfig,
        argv,
        usual=USUAL,
        default=defaults,
        prog="train.py",
        description=f"Defaults are those of {preset_line}.\n\n{TrainConfig.__doc__}",
    )
    if config.batch.steps and {"steps", "epochs"} <= typed_settings(argv):
        raise InputError(
            "--steps and --epochs both set the number of steps: leave one of them out, or write "
            "--steps 0"
        )
    preset, folder = defaults.preset, config.folder
    if folder.output_dir is None:
        estimator = config.method.algo.rpartition(":")[2]  # of path/to/file.py:function
        run = Path(f"runs/{preset}-{estimator}-seed{config.sampling.seed}")
        folder = replace(folder, output_dir=run)
    return replace(config, preset=preset, folder=folder), preset_line


def check_config(config: TrainConfig, ranks: int) -> None:
    """Raise InputError if the questions of a step cannot be divided by the ranks."""
    if (questions := config.batch.questions_per_step) % ranks:
        raise InputError(
            f"--questions-per-step {questions} cannot be divided by {ranks} ranks. Use a multiple "
            f"of {ranks}"
        )
