"""Estimated hours and disk space of a run.

Sampling is bound by memory bandwidth or by operations, updates by operations. Lengths of answers are assumed to be
exponentially distributed and cut off at the longest. Such lengths have no memory, so the answers at work look alike at
every moment while finished ones are replaced by new ones.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from bnpo.config import TrainConfig
from bnpo.planning.fit import PlannedRun, answers_per_question
from bnpo.planning.gpus import GpuSpeed
from bnpo.planning.memory import GIB, ModelShape, number_bytes
from bnpo.speed import update_operations

TOKEN_SECONDS = 0.005  # per token of all answers together, besides the GPU's work: scheduling and launching
EXCHANGE_SECONDS = 20e-6  # per sum over the GPUs of a sampler, of which every layer needs two per token
LINK = 50e9  # bytes per second to other GPUs or to CPU memory
DISK = 1e9  # bytes per second of a checkpoint, flushing included
START_SECONDS = 180.0  # imports, loading models, CUDA graphs


@dataclass(frozen=True)
class TokenLengths:
    """Tokens of a prompt and of an answer on average, and of the longest possible answer."""

    prompt: float
    answer: float
    longest: int


def sampling_seconds(
    shape: ModelShape, speed: GpuSpeed, lengths: TokenLengths, *, answers: int, at_once: int, samplers: int, gpus=1
) -> float:
    """Return the seconds of the slowest of `samplers` on `gpus` GPUs each.

    Each draws `answers` in bf16, `at_once` at a time.
    """
    token_cache = 2 * 2 * shape.key_heads * shape.head_size * shape.layers  # bytes of its keys and values

    def token_seconds(live: np.ndarray, context: np.ndarray) -> np.ndarray:
        # One token for each of `live` answers: weights and cache are read, and the weights multiply one row per answer.
        read = 2 * shape.parameters + live * token_cache * context
        reading = read / (speed.bandwidth * speed.bandwidth_use)
        computing = 2 * shape.parameters * live / (speed.flops * speed.sampling_use)
        sums = EXCHANGE_SECONDS + 2 * shape.hidden * live / LINK  # of the hidden states, over the GPUs
        exchange = 2 * shape.layers * sums * (gpus > 1)
        return np.maximum(reading, computing) / gpus + exchange + TOKEN_SECONDS

    mean, at_once = lengths.answer, min(at_once, answers)
    # While answers wait, every finished one is replaced and the batch stays full. Prompts, read once, are not counted.
    full = (answers - at_once) * mean / at_once * token_seconds(np.array(at_once), np.array(lengths.prompt + mean))
    # Then the batch empties. All ranks wait until the last answer of the slowest sampler is done.
    ages = np.arange(lengths.longest)  # [longest]
    alive = np.exp(-ages / mean)
    any_alive = 1 - (1 - alive) ** (at_once * samplers)
    return float(full + (any_alive * token_seconds(at_once * alive, lengths.prompt + ages)).sum())


def update_seconds(run: PlannedRun, speed: GpuSpeed, lengths: TokenLengths) -> float:
    """Return the seconds of the updates of one step, if every answer has a gradient."""
    shape, batch, ranks = run.shape, run.config.batch, run.ranks
    prompt, answer = lengths.prompt, lengths.answer
    questions, answers = batch.questions_per_step, batch.questions_per_step * batch.samples_per_question
    tokens = questions * prompt + answers * answer  # the answers to a question share one pass of its prompt
    # The mean square of an exponentially distributed length is twice the square of its mean.
    pairs = questions * prompt**2 + answers * (2 * answer**2 + 2 * answer * prompt)
    multiplied = shape.parameters if shape.tied else shape.parameters - shape.head  # the embedding is only looked up
    adapter = sum(shape.adapter(run.config))
    frozen = multiplied if adapter else 0
    operations = update_operations(multiplied + adapter, shape.layers, shape.hidden, tokens, pairs, frozen)
    computing = batch.ppo_iterations * operations / (ranks * speed.flops * speed.mfu)
    # An offloaded AdamW moves gradients to the CPU and weights back, and uses 28 bytes per parameter in between.
    hardware = run.config.hardware
    moved = 40 * (adapter or shape.parameters) / ranks / LINK if hardware.offload_optimizer else 0.0
    # Offloaded weights are copied to the GPUs for the forward and for the backward pass of every micro-batch.
    copies = 2 * ceil(tokens / ranks / hardware.micro_batch_tokens) if hardware.offload_weights else 0
    copied = batch.ppo_iterations * copies * 2 * shape.parameters / ranks / LINK
    return computing + batch.mini_batches * moved + copied


def training_seconds(
    run: PlannedRun, speed: GpuSpeed, lengths: TokenLengths, at_once: int, steps: int, eval_answers: int
) -> dict[str, float]:
    """Return the seconds of a training run by what takes them. A sampler draws `at_once` answers at a time."""

    def sampling(answers: int) -> float:  # of every rank
        if answers == 0:
            return 0.0
        samplers = {"answers": answers * sharing, "at_once": at_once, "samplers": ranks // sharing, "gpus": sharing}
        return sampling_seconds(shape, speed, lengths, **samplers)

    def times(every: int) -> int:
        return ceil(steps / every) + 1 if every else 0  # at the start, every so many steps and at the end

    shape, config, ranks = run.shape, run.config, run.ranks
    sharing = config.hardware.sampler_ranks
    per_question = answers_per_question(config)
    watched = ceil(config.logging.watch_questions / ranks) * per_question
    sync = speed.sync if speed.sync is not None else 4 * shape.parameters / LINK
    saves, _ = checkpoints_kept(config, steps)
    return {
        "sampling": steps * sampling(config.batch.questions_per_step // ranks * per_question),
        "updates": steps * update_seconds(run, speed, lengths),
        "weight syncs": steps * sync,
        "evaluations": times(config.logging.eval_every) * sampling(ceil(eval_answers / ranks)),
        "watched questions": times(config.logging.rollouts_every) * sampling(watched),
        "checkpoints": saves * checkpoint_bytes(shape, config) / DISK,
        "start": START_SECONDS,
    }


def checkpoint_bytes(shape: ModelShape, config: TrainConfig) -> int:
    """Return the bytes of a checkpoint: the model (merged if there is an adapter), master weights, AdamW's moments."""
    adapter = sum(shape.adapter(config))
    return number_bytes(config) * (shape.parameters + adapter) + 12 * (adapter or shape.parameters)


def checkpoints_kept(config: TrainConfig, steps: int) -> tuple[int, int]:
    """Return how many checkpoints a run writes, and how many exist at once: kept, the best, and the one in writing."""
    saves = ceil(steps / config.folder.save_every)
    kept = min(config.folder.keep or saves, saves)
    return saves, kept + bool(config.logging.eval_every) + 1


def assumption_lines(speeds: list[GpuSpeed], answer_tokens: int) -> list[str]:
    """Return what the estimates assume of answers and of every GPU. docs/reproduce.md has the other assumptions."""
    lines = [f"the estimate assumes {answer_tokens} tokens per answer on average (--answer-tokens), and:"]
    for speed in dict.fromkeys(speeds):  # two models may share one line
        lines.append(
            f"  {speed.name}: {speed.flops / 1e12:.0f} TFLOP/s in bf16 and {speed.bandwidth / 1e12:.2f} TB/s (data "
            f"sheet), {speed.host / GIB:.0f} GiB of CPU memory per GPU, updates at {speed.mfu:.0%} of the operations "
            f"(MFU); measured: {speed.measured or 'nothing'}"
        )
    return lines
