"""The hours of a run on GPUs that need not be there, estimated from data sheets."""

from dataclasses import dataclass, field, replace
from math import ceil

from bnpo.config import TrainConfig
from bnpo.files import InputError
from bnpo.policy.memory import GIB, check_sampler_ranks
from bnpo.policy.sampling import MOST_SEQUENCES
from bnpo.policy.speed import PEAKS
from planner import Planning
from planner.inputs import Inputs
from planner.memory import RANKS_PER_MACHINE, MemoryPlan, plan_memory

# GiB of memory as torch reports it, rounded down, and bandwidth in 10^12 bytes per second
SHEETS = {
    "A100 80GB": (79.1, 2.04),
    "H20": (95.0, 4.0),
    "H100": (79.1, 3.35),
    "H200": (139.7, 4.8),
    "L40S": (44.3, 0.864),
    "RTX 4090": (23.5, 1.01),
    "RTX 5080": (15.4, 0.96),
    "RTX 5090": (31.3, 1.79),
    "RTX PRO 6000": (94.9, 1.79),
}
BANDWIDTH_USE = 0.6  # share of the bandwidth that sampling reaches
SAMPLING_USE = 0.4  # share of the operations that sampling reaches: few rows per product
MFU = 0.35  # share of the operations that an update reaches
# Seconds of a pass that draws a token of each answer, beside the GPU's work: scheduling and
# launching kernels
PASS_SECONDS = 0.005
START_SECONDS = 180.0  # imports, loading models, CUDA graphs


def data_sheet(gpu: str | None) -> tuple[int, float, float]:
    """Return the bytes of memory of `gpu`, and its bytes and bf16 operations per second. Raises
    InputError.
    """
    known = {name.replace(" ", "-"): name for name in SHEETS}
    meant = [name for name in known if name == gpu] or [
        name for name in known if gpu and name.startswith(f"{gpu}-")
    ]
    if len(meant) != 1:
        raise InputError(f"--gpu: unknown GPU '{gpu}'; known: {', '.join(known)}")
    sheet = known[meant[0]]
    memory, bandwidth = SHEETS[sheet]
    return int(memory * GIB), bandwidth * 1e12, PEAKS[sheet] * 1e12


def sampling_seconds(
    inputs: Inputs, planning: Planning, answers: int, size: int, most: int = MOST_SEQUENCES
) -> float:
    """Return the seconds in which samplers on `size` GPUs each draw `answers` in bf16, `most` at
    once per sampler.

    Finished answers are replaced while others wait. The last ones take until the longest possible
    answer is done.
    """
    answers = ceil(answers / max(1, (planning.gpus or 1) // size))  # of a sampler
    shape, (_, bandwidth, operations) = inputs.shape, data_sheet(planning.gpu)
    mean = min(planning.answer_tokens, inputs.longest_answer)
    # Each pass draws a token of all answers at work
    passes = max(0, answers / most - 1) * mean + inputs.longest_answer
    # Bytes read for a token
    cache = 4 * shape.key_heads * shape.head_size * shape.layers * (inputs.prompt + mean)
    reading = (passes * 2 * shape.parameters + answers * mean * cache) / (bandwidth * BANDWIDTH_USE)
    computing = answers * mean * 2 * shape.parameters / (operations * SAMPLING_USE)
    return max(reading, computing) / size + passes * PASS_SECONDS


def step_seconds(
    config: TrainConfig, inputs: Inputs, plan: MemoryPlan, planning: Planning
) -> tuple[float, float]:
    """Return the seconds in which one step samples and updates, evaluations left out."""
    batch, shape = config.batch, inputs.shape
    _, _, operations = data_sheet(planning.gpu)
    sharing = config.hardware.sampler_ranks
    sampling = sampling_seconds(inputs, planning, inputs.answers, sharing, plan.sequences)
    # The answers to a question share its prompt. How many of their own tokens they share is not
    # known: few, if answers are long. With LoRA, the model has no gradients of its own weights.
    answer_tokens = batch.samples_per_question * min(planning.answer_tokens, inputs.longest_answer)
    tokens = batch.questions_per_step * (inputs.prompt + answer_tokens)
    of_token = (4 if config.update.lora_rank else 6) * shape.parameters  # operations
    update = of_token * tokens / ((planning.gpus or 1) * operations * MFU)
    return sampling, batch.ppo_iterations * update


def compare_sampler_ranks(config: TrainConfig, inputs: Inputs, planning: Planning) -> list[str]:
    """Return a line on the seconds per step with each value of --sampler-ranks with which the run
    fits, or no line if there is only one such value.
    """
    ranks = planning.gpus or 1
    memory, _, _ = data_sheet(planning.gpu)
    seconds = {}
    for sharing in range(1, min(ranks, RANKS_PER_MACHINE) + 1):
        try:
            check_sampler_ranks(inputs.shape, sharing, min(ranks, RANKS_PER_MACHINE))
        except InputError:
            continue
        shared = replace(config, hardware=replace(config.hardware, sampler_ranks=sharing))
        plan = plan_memory(inputs.shape, shared, inputs.longest, ranks, memory)
        if not plan.problem:
            seconds[sharing] = sum(step_seconds(shared, inputs, plan, planning))
    if len(seconds) < 2:
        return []
    values = ", ".join(f"{value:.1f} with {sharing}" for sharing, value in seconds.items())
    return [
        f"seconds per step by --sampler-ranks: {values}; the fastest is --sampler-ranks "
        f"{min(seconds, key=seconds.get)} (communication within a sampler is not counted)"
    ]


@dataclass(frozen=True)
class TrainingPlan:
    """What a run needs of its GPUs."""

    lines: list[str]  # on its memory
    seconds: dict[str, float] = field(default_factory=dict)  # by what takes them; none: see problem
    problem: str = ""  # one line on why the run does not fit and what to try


def plan_training(config: TrainConfig, inputs: Inputs, planning: Planning) -> TrainingPlan:
    """Return what a run needs. Raises InputError for an unknown GPU."""
    shape = inputs.shape
    ranks, sharing = planning.gpus or 1, config.hardware.sampler_ranks
    memory, _, _ = data_sheet(planning.gpu)
    check_sampler_ranks(shape, sharing, min(ranks, RANKS_PER_MACHINE))
    plan = plan_memory(shape, config, inputs.longest, ranks, memory)
    lines = [
        f"memory per rank on {ranks} x {planning.gpu} with {memory / GIB:.1f} GiB, estimated:",
        str(plan),
    ]
    if plan.offloaded:
        lines.append(f"CPU memory per rank: {plan.offloaded / GIB:.1f} GiB")
    lines += compare_sampler_ranks(config, inputs, planning)
    if plan.problem:
        return TrainingPlan(lines, problem=plan.problem)
    lines.append(
        f"sampler: {plan.gpu_memory:.0%} of the GPU memory, {plan.sequences} answers at once"
    )
    sampling, update = step_seconds(config, inputs, plan, planning)
    evaluating = 0.0
    if evaluation := inputs.evaluation:
        # At the start, every so many steps and at the end
        evaluations = ceil(inputs.steps / config.logging.eval_every) + 1
        evaluating = evaluations * sampling_seconds(
            evaluation, planning, evaluation.answers, sharing, plan.sequences
        )
    seconds = {
        "sampling": inputs.steps * sampling,
        "updates": inputs.steps * update,
        "evaluations": evaluating,
        "start": START_SECONDS,
    }
    return TrainingPlan(lines, seconds)
