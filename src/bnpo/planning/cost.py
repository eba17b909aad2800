"""How long a run takes, estimated: sampling bound by bandwidth or products, updates by their operations.

Lengths of answers are taken to be exponential, cut off at the longest: without memory, which makes a sampler that
refills its batch a stationary one, and with a tail, on which a step waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from bnpo.config import TrainConfig
from bnpo.planning.fit import token_bytes
from bnpo.planning.gpus import HOST, Speed
from bnpo.planning.memory import GIB, Shape
from bnpo.speed import update_operations

TOKEN_SECONDS = 0.005
"""What the sampler takes for a token of all its answers beside the GPU's work: scheduling, launching."""
LINK = 50e9
"""Bytes a second that a GPU gathers or hands on, over its links or to CPU memory."""
DISK = 1e9
"""Bytes a second that a checkpoint is written and flushed with."""
START_SECONDS = 180
"""A program's imports, models, CUDA graphs."""


@dataclass(frozen=True)
class Work:
    """What a run does: `steps`, tokens of a prompt on average, tokens of an answer, answers of an evaluation on the way
    and how many there are, how often the watched questions are answered, checkpoints and bytes of one."""

    steps: int
    prompt: float
    answer: float
    evaluated: int
    evaluations: int
    watches: int
    saves: int
    checkpoint: int


def sampling_seconds(
    shape: Shape, speed: Speed, answers: int, at_once: int, samplers: int, prompt: float, answer: float, longest: int
) -> float:
    """Seconds in which the slowest of `samplers` draws its `answers`, `at_once` together: of `answer` tokens on
    average, `longest` at most, in bf16. Prompts are read once a question, which is not counted."""
    length = min(answer, longest)

    def token(live: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Seconds for a token of each of `live` answers that have `context` tokens: weights and cache are read, the
        weights multiplied by a row an answer."""
        read = 2 * shape.parameters + live * token_bytes(shape, 2) * context
        products = 2 * shape.parameters * live
        reading = read / (speed.bandwidth * speed.bandwidth_use)
        return np.maximum(reading, products / (speed.flops * speed.sampling_use)) + TOKEN_SECONDS

    at_once = min(at_once, answers)
    full = (answers - at_once) * length / at_once * token(np.array(at_once), np.array(prompt + length))
    ages = np.arange(longest)
    alive = np.exp(-ages / length)
    anyone = 1 - (1 - alive) ** (at_once * samplers)  # whether some sampler still works; no rank goes on without it
    return float(full + (anyone * token(at_once * alive, prompt + ages)).sum())


def update_seconds(shape: Shape, speed: Speed, config: TrainConfig, ranks: int, prompt: float, answer: float) -> float:
    """Seconds of an update, if no group is without a gradient: as the learner counts its operations, for which every
    prompt passes once."""
    questions, answers = (
        config.batch.questions_per_step,
        config.batch.questions_per_step * config.batch.samples_per_question,
    )
    tokens = questions * prompt + answers * answer
    # The mean square of an exponential length is twice the square of its mean.
    pairs = questions * prompt**2 + answers * (2 * answer**2 + 2 * answer * prompt)
    multiplied = shape.parameters if shape.tied else shape.parameters - shape.head
    operations = update_operations(multiplied, shape.layers, shape.hidden, tokens, pairs)
    # Offloaded: gradients go to the CPU, where AdamW reads and writes 28 bytes a parameter, and weights come back.
    moved = 40 * shape.parameters / ranks / LINK if config.hardware.offload_optimizer else 0.0
    return (
        config.batch.ppo_iterations * operations / (ranks * speed.flops * speed.mfu) + config.batch.mini_batches * moved
    )


def training_seconds(
    shape: Shape, speed: Speed, config: TrainConfig, ranks: int, at_once: int, work: Work
) -> dict[str, float]:
    """Seconds of a training run by what they go to."""
    longest = config.sampling.max_answer_tokens
    answer = min(work.answer, longest)
    each = config.batch.samples_per_question + (config.method.algo == "remax")

    def sampling(answers: int) -> float:
        """Seconds of the slowest rank, with so many answers of its own."""
        return sampling_seconds(shape, speed, answers, at_once, ranks, work.prompt, answer, longest) if answers else 0.0

    sync = speed.sync if speed.sync is not None else 4 * shape.parameters / LINK
    return {
        "sampling": work.steps * sampling(config.batch.questions_per_step // ranks * each),
        "updates": work.steps * update_seconds(shape, speed, config, ranks, work.prompt, answer),
        "weight syncs": work.steps * sync,
        "evaluations on the way": work.evaluations * sampling(ceil(work.evaluated / ranks)),
        "watched questions": work.watches * sampling(ceil(config.logging.watch_questions / ranks) * each),
        "checkpoints": work.saves * work.checkpoint / DISK,
        "start": float(START_SECONDS),
    }


def checkpoint_bytes(shape: Shape, config: TrainConfig) -> int:
    """A checkpoint: the model, and master weights and AdamW's moments in fp32."""
    return shape.parameters * ((2 if config.hardware.dtype == "bfloat16" else 4) + 12)


def checkpoints_kept(config: TrainConfig, steps: int) -> tuple[int, int]:
    """How many checkpoints a run of `steps` writes (without those for `best`), and most that are there at once: those
    kept, the best, and the one being written."""
    saves = ceil(steps / config.folder.save_every)
    kept = min(config.folder.keep or saves, saves)
    return saves, kept + bool(config.logging.eval_every) + 1


def assumptions(speeds: Sequence[Speed], answer_tokens: int) -> list[str]:
    """What estimates rest on, a line each: in general, and for every GPU (and model, where it was measured)."""
    return [
        f"answers of {answer_tokens} tokens on average (--answer-tokens), of exponential length, all with a gradient",
        f"sampling takes {1000 * TOKEN_SECONDS:.0f} ms a token beside the GPU's work; links of {LINK / 1e9:.0f} GB/s "
        f"and {HOST / GIB:.0f} GiB of CPU memory a GPU, a disk of {DISK / 1e9:.0f} GB/s, {START_SECONDS} s to start a "
        "program",
        *dict.fromkeys(map(_assumed, speeds)),
    ]


def _assumed(speed: Speed) -> str:
    measured = f"measured: {speed.measured}" if speed.measured else "nothing of it measured"
    return (
        f"{speed.name}: {speed.flops / 1e12:.0f} TFLOP/s in bf16, {speed.bandwidth / 1e12:.2f} TB/s (data sheet); "
        f"sampling reaches {speed.bandwidth_use:.0%} of the bandwidth and {speed.sampling_use:.0%} of the operations, "
        f"updates {speed.mfu:.0%} (MFU); {measured}"
    )
