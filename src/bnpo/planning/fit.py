"""Whether a run fits its GPUs, and how the sampler shares them with the learner. Decided before a model is loaded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import combinations, product
from math import ceil, floor
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from bnpo.config import TrainConfig, with_settings
from bnpo.devices import check_free_memory
from bnpo.evaluation.suites import longest_sequence
from bnpo.files import InputError
from bnpo.planning.gpus import GpuSpeed
from bnpo.planning.memory import ASLEEP, GIB, GRAPHS, ModelShape, RankMemory, number_bytes, rank_memory, read_shape
from bnpo.policy.engine_settings import MOST_SEQUENCES, PREFILL_TOKENS
from bnpo.ranks import gather

USABLE = 0.97  # share of a GPU's memory that a plan may use; the rest is lost between allocations
FEW = 0.25  # share of a rank's answers, below which a warning says that it draws few at once
GPUS_PER_MACHINE = 8  # at most, where a plan may choose
LORA_RANK = 32  # of the adapter that is proposed where not all weights can be trained


@dataclass(frozen=True)
class PlannedRun:
    """All that the memory of a run depends on."""

    shape: ModelShape
    config: TrainConfig
    longest: int  # tokens of the longest prompt plus answer that the sampler gets
    ranks: int
    ranks_here: int  # ranks that share one machine's CPU memory
    gpu: int  # bytes of one GPU
    host: int  # bytes of CPU memory of one machine

    @classmethod
    def on_gpus(cls, gpus: int, speed: GpuSpeed, shape: ModelShape, config: TrainConfig, longest: int) -> "PlannedRun":
        """Return a run for a dry run, on machines with the assumed CPU memory."""
        here = min(gpus, GPUS_PER_MACHINE)
        return cls(shape, config, longest, gpus, here, speed.memory, here * speed.host)

    def with_settings(self, **changes: object) -> "PlannedRun":
        return replace(self, config=with_settings(self.config, **changes))


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank divides its GPU memory. On CPUs nothing is planned and vLLM's defaults hold."""

    gpu_memory: float | None = None  # the sampler's share
    sequences: int | None = None  # answers that the sampler draws at once
    rank: RankMemory | None = None
    problem: str = ""  # why the run does not fit; empty if it does
    warning: str = ""  # why sampling will be slow; empty if it will not
    least: int = 0  # bytes with which the sampler can draw one answer


@dataclass(frozen=True)
class SamplerSizes:
    """Bytes that each GPU of a sampler needs."""

    fixed: int  # weights, the workspace of a prefill, CUDA graphs
    token: int  # of the cache: keys and values
    logits: int  # of one answer: in fp32, with two copies

    @classmethod
    def of(cls, shape: ModelShape, size: int, gpus: int, longest: int) -> "SamplerSizes":
        """Return those of a sampler on `gpus` GPUs with numbers of `size` bytes and sequences of `longest` tokens."""
        prefill = max(PREFILL_TOKENS, longest) * (3 * shape.intermediate // gpus + 6 * shape.hidden)
        weights = size * shape.parameters // gpus
        # Of fewer key heads than GPUs, each is on several GPUs.
        width = max(ceil(shape.key_heads * shape.head_size / gpus), shape.head_size)
        token = 2 * size * width * shape.layers
        return cls(weights + size * prefill + GRAPHS + ASLEEP, token, 12 * shape.vocabulary)


def plan_here(config: TrainConfig, model: Path, longest: int) -> MemoryPlan:
    """Return the plan of a run on this machine's GPUs. Raises InputError if it does not fit."""
    on_gpu, sharing = torch.cuda.is_available(), config.hardware.sampler_ranks
    if not on_gpu and sharing == 1:
        return MemoryPlan()
    ranks = int(os.environ["WORLD_SIZE"])
    ranks_here = int(os.environ.get("LOCAL_SIZE", ranks))
    shape = read_shape(model)
    check_sampler_ranks(shape, sharing, ranks_here)
    if not on_gpu:
        return MemoryPlan()
    # The smallest GPU, so that all ranks here plan alike.
    gpu = min(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(torch.cuda.device_count()))
    run = PlannedRun(shape, config, longest, ranks, ranks_here, gpu, psutil.virtual_memory().total)
    plan = plan_memory(run)
    if plan.problem:
        raise InputError(explain_problem(run, plan.problem))
    check_free_memory(plan.rank.total(plan.rank.peak))
    return plan


def check_sampler_ranks(shape: ModelShape, size: int, ranks_here: int) -> None:
    """Raise InputError if `size` ranks cannot share a sampler of this model, on a machine of `ranks_here` ranks."""
    if problem := sharing_problem(shape, size, ranks_here):
        raise InputError(f"--sampler-ranks {size}: {problem}. Use a common divisor")


def sharing_problem(shape: ModelShape, size: int, ranks_here: int) -> str:
    """Return what cannot be divided among `size` ranks that share a sampler, or an empty string."""
    keys = shape.key_heads
    counts = {
        f"the {ranks_here} ranks of a machine": ranks_here,
        f"the model's {shape.heads} heads": shape.heads,
        f"its feed-forward width {shape.intermediate}": shape.intermediate,
        f"its {keys} key heads": max(keys, size) if size % keys == 0 else keys,  # vLLM repeats key heads if too few
    }
    return next((f"{name} cannot be divided by {size}" for name, count in counts.items() if count % size), "")


def sampler_share(plan: MemoryPlan, config: TrainConfig) -> float | None:
    """Return the share of its GPU that the sampler gets beside the learner that now exists. A collective on GPUs.

    A planned share is corrected by what the ranks really have left. Raises InputError on all ranks if it is too small.
    """
    if plan.rank is None or config.hardware.gpu_memory is not None:
        return plan.gpu_memory
    dist.all_reduce(torch.zeros(1, device="cuda"))  # NCCL allocates its buffers with the first collective
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    share = min(gather(share_left(plan, total, free)))  # equal on all ranks, which sample equally many answers
    if share * total < plan.least:
        problem = f"beside the learner {share * total / GIB:.1f} GiB of a GPU are left for the sampler"
        raise InputError(f"{problem}, which needs {plan.least / GIB:.1f}. Use --offload-optimizer or more ranks")
    return share


def share_left(plan: MemoryPlan, total: int, free: int) -> float:
    """Return the planned share less what the learner takes beyond its plan, on a GPU with `free` of `total` bytes."""
    excess = max(0, total - free - plan.rank.resident)  # contexts and NCCL's buffers are estimates
    return max(0, round(100 * plan.gpu_memory) - ceil(100 * excess / total)) / 100


def plan_memory(run: PlannedRun) -> MemoryPlan:
    """Return how a rank divides its GPU memory.

    The sampler's share is --gpu-memory. By default it is what the learner leaves, but at most twice what the answers of
    a step can use (twice, because vLLM's own needs are an estimate).
    """
    config, longest = run.config, run.longest
    sharing, gpu_memory = config.hardware.sampler_ranks, config.hardware.gpu_memory
    # Of a sampler per step.
    answers = config.batch.questions_per_step * sharing // run.ranks * answers_per_question(config)
    sampler = SamplerSizes.of(run.shape, number_bytes(config), sharing, longest)
    least = sampler.fixed + sampler.logits + sampler.token * longest  # one answer must fit
    if gpu_memory is None:
        learner = rank_memory(run.shape, config, run.ranks, sampler=1)  # any number above 0 plans for a sampler
        free = USABLE * run.gpu - learner.total("sync: check")
        most = sampler.fixed + sampler.logits * min(answers, MOST_SEQUENCES) + sampler.token * longest * answers
        # In whole percents, rounded down. The least that works is rounded up.
        percent = max(ceil(100 * least / run.gpu), floor(100 * min(free, 2 * most) / run.gpu))
        gpu_memory = percent / 100
    share = int(gpu_memory * run.gpu)
    memory = rank_memory(run.shape, config, run.ranks, sampler=share)
    cached = (share - sampler.fixed) / (sampler.token + sampler.logits / (longest / 4))  # tokens
    sequences = answers_at_once(answers, cached, longest)
    problem, warning = _problem(run, memory, share, least), _warning(run, sequences, answers)
    return MemoryPlan(gpu_memory, sequences, memory, problem, warning, least)


def answers_per_question(config: TrainConfig) -> int:
    """Return how many answers a training question gets per step."""
    return config.batch.samples_per_question + (config.method.algo == "remax")  # ReMax's baseline is a greedy answer


def answers_at_once(answers: int, cache: int, longest: int) -> int:
    """Return how many of `answers` a sampler draws at once if its cache holds `cache` tokens."""
    # The cache must hold a quarter of the longest for each. Of more answers vLLM would evict some and recompute them.
    return max(1, min(answers, int(cache / (longest / 4))))


def _problem(run: PlannedRun, memory: RankMemory, share: int, least: int) -> str:
    """Return why the run does not fit, or an empty string."""
    hardware, needed = run.config.hardware, memory.total(memory.peak)
    offloaded = run.ranks_here * memory.offloaded
    if needed > USABLE * run.gpu:
        parts = memory.phases[memory.peak]
        largest = ", ".join(f"{part} {parts[part] / GIB:.1f}" for part in nlargest(3, parts, key=parts.get))
        given = f"{run.ranks} x {run.gpu / GIB:.1f} GiB of GPU memory"
        return f"{given} are too little: '{memory.peak}' takes {needed / GIB:.1f} GiB per rank ({largest})"
    if share < least:
        given = f"--gpu-memory {hardware.gpu_memory:g} is {share / GIB:.1f} GiB"
        return f"{given}, but the sampler needs {least / GIB:.1f} GiB"
    if offloaded > USABLE * run.host:
        return f"offloading takes {offloaded / GIB:.1f} GiB of {run.host / GIB:.1f} GiB of CPU memory"
    return ""


def _warning(run: PlannedRun, sequences: int, answers: int) -> str:
    """Return a line if a rank draws few of its `answers` per step at once, so that its GPU has little to do."""
    if sequences >= FEW * min(answers, MOST_SEQUENCES):
        return ""
    cure = "more GPUs" if run.config.hardware.offload_optimizer else "--offload-optimizer or more GPUs"
    return f"slow: each sampler has memory for {sequences} of its {answers} answers at once. Use {cure}"


def explain_problem(run: PlannedRun, problem: str) -> str:
    """Return one line: the problem of a run that does not fit, and the flags with which it does."""
    flags = flags_text(fitting_changes(run))
    advice = f"{flags} makes it fit" if flags else "no flag makes it fit: use more or larger GPUs, or a smaller model"
    return f"{run.config.data.model}: {problem}; {advice}"


def flags_text(changes: dict[str, object]) -> str:
    """Return the command-line flags of settings by name."""
    flags = []
    for name, value in changes.items():
        flag = name.replace("_", "-")
        switches = {True: f"--{flag}", False: f"--no-{flag}"}
        flags.append(switches[value] if isinstance(value, bool) else f"--{flag} {value}")
    return " ".join(flags)


def fitting_changes(run: PlannedRun) -> dict[str, object]:
    """Return the fewest settings with which the run fits, by name; empty if there are none.

    LoRA is proposed only where no settings fit that train all weights.
    """
    for lora in ({}, {"lora_rank": LORA_RANK})[: 1 if run.config.update.lora_rank else 2]:
        for changes in _possible_changes(run):
            plan = plan_memory(run.with_settings(**lora, **changes))
            if not plan.problem:
                # "By default" cannot be written as a flag, so name the share that was found.
                return lora | changes | ({"gpu_memory": plan.gpu_memory} if "gpu_memory" in changes else {})
    return {}


def _possible_changes(run: PlannedRun) -> Iterator[dict[str, object]]:
    """Yield settings that take less memory: none, then fewer changes first, then those that cost less time."""
    hardware, least_tokens = run.config.hardware, longest_sequence(run.config, None)
    halves = [hardware.micro_batch_tokens // 2**count for count in range(1, 64)]
    # A value that is set already does no harm: the same settings without it have been tried before.
    choices: dict[str, list] = {
        "gpu_memory": [None],
        "micro_batch_tokens": [tokens for tokens in halves if tokens >= least_tokens],
        "gradient_checkpointing": [True],
        "offload_optimizer": [not hardware.offload_optimizer],  # False saves CPU memory
        "sampler_ranks": [size for size in (2, 4, 8) if not sharing_problem(run.shape, size, run.ranks_here)],
        "offload_weights": [True],
    }
    for count in range(len(choices) + 1):
        for names in combinations(choices, count):
            for values in product(*[choices[name] for name in names]):
                yield dict(zip(names, values, strict=True))
