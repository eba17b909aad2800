"""The settings of a training run in groups, with the help of their flags. `config.py` puts the groups together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bnpo.flags import COMMA_SEPARATED, Free, NotCompared, NotNegative, Positive, one_of
from bnpo.grading.rewards import GRADERS


@dataclass(frozen=True)
class DataSettings:
    """The model to start from, the problems, and how answers are rewarded."""

    model: NotCompared[str] = "Qwen/Qwen2.5-Math-1.5B"
    """Model to start from: a Hugging Face folder or a hub name."""
    train_data: tuple[str, ...] = ("data/math_train.jsonl",)
    """Training problems, one source or several: files (.jsonl, .json, .csv, .parquet), data sets of the Hugging Face
    hub (hub:OWNER/NAME:CONFIG@REVISION#SPLIT), `arithmetic` or `word-problems:LARGEST:STEPS` (built in)."""
    template: str = "chat"
    """Prompt: `chat` is the tokenizer's chat template; `think` adds a system prompt that asks for think and answer
    tags; the path of a Jinja file replaces the chat template."""
    system_prompt: str | None = None
    """System prompt, as text or as the path of a text file. The default is that of the chat template. '' is an empty
    one, which keeps a chat template from adding its own."""
    thinking: Annotated[str | None, *one_of(("on", "off"))] = None
    """Handed to chat templates with `enable_thinking`, such as Qwen3's. The default is the template's."""
    rewards: Annotated[tuple[str, ...], COMMA_SEPARATED] = ("accuracy",)
    """Rewards, separated by commas: `accuracy` (the final answer is right), `format` (think and answer tags, each
    once), `last_number` (the last number is the answer's), or path/to/file.py:function (your own, see
    docs/training.md)."""
    grader: Annotated[str, *one_of(GRADERS)] = "default"
    """Rules that judge accuracy and format: `default` is this project's, `reference` the authors' released code.
    `last_number` compares the last number in the text, as GSM8K's evaluators do: for models that write no boxes."""
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
