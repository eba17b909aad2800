"""Whether a run fits its GPUs, decided before a model is loaded: the sampler's share of the memory, how many answers it
draws at once, and the flags that would make a run fit that does not."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import ceil, floor
from pathlib import Path

import psutil
import torch

from bnpo.config import TrainConfig
from bnpo.files import InputError
from bnpo.flags import with_settings
from bnpo.planning.memory import ASLEEP, GIB, GRAPHS, Account, Shape, account, read_shape
from bnpo.policy.settings import MOST_SEQUENCES, PREFILL_TOKENS

USABLE = 0.97
"""Share of a GPU's memory that a run may plan with; the rest is lost between allocations."""


@dataclass(frozen=True)
class Machine:
    """All ranks of a run, those of this machine, and bytes of one of its GPUs and of its CPU memory."""

    ranks: int
    ranks_here: int
    gpu: int
    host: int


@dataclass(frozen=True)
class Plan:
    """The sampler's share of the GPU memory, the answers it draws at once (None, both: vLLM's defaults, on CPUs), the
    tokens that its cache holds, the account of a rank, and why the run does not fit ("": it does)."""

    gpu_memory: float | None = None
    sequences: int | None = None
    cache: int = 0
    account: Account | None = None
    lack: str = ""


def plan_here(config: TrainConfig, model: Path, longest: int) -> Plan:
    """The plan for the model in folder `model`, whose sampler takes prompts and answers of `longest` tokens together,
    on GPUs like the smallest of this machine, so that all of its ranks plan alike. Raises InputError, one line, when
    the run cannot fit. On CPUs nothing is planned."""
    if not torch.cuda.is_available():
        return Plan()
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpu = min(properties.total_memory for properties in gpus)
    ranks = int(os.environ["WORLD_SIZE"])
    machine = Machine(ranks, int(os.environ.get("LOCAL_SIZE", ranks)), gpu, psutil.virtual_memory().total)
    return require_plan(read_shape(model), config, machine, longest)


def require_plan(shape: Shape, config: TrainConfig, machine: Machine, longest: int) -> Plan:
    """`plan`, or InputError that says what is too large and names flags that make the run fit, by the same account."""
    found = plan(shape, config, machine, longest)
    if found.lack:
        cures = _flags(shape, config, machine, longest), _ranks(shape, config, machine, longest)
        cure = ", or ".join(filter(None, cures)) or "no flag makes it fit: take larger GPUs or a smaller model"
        raise InputError(f"{config.data.model}: {found.lack}; {cure}")
    return found


def plan(shape: Shape, config: TrainConfig, machine: Machine, longest: int) -> Plan:
    """The sampler's share, given or as large as the learner's memory allows and the answers can use (twice that, since
    what vLLM needs for itself is an estimate), and the answers drawn at once: all of a rank, as far as the cache holds
    a quarter of the longest of each (more would be thrown out and computed again)."""
    questions = config.batch.questions_per_step // machine.ranks
    answers = questions * (config.batch.samples_per_question + (config.method.algo == "remax"))
    size = 2 if config.hardware.dtype == "bfloat16" else 4
    token = token_bytes(shape, size)
    fixed = sampler_bytes(shape, size, max(PREFILL_TOKENS, longest), min(answers, MOST_SEQUENCES))
    least, most = fixed + token * longest, fixed + token * longest * answers
    if config.hardware.gpu_memory is None:
        awake = account(shape, config, machine.ranks, share=1)
        room = USABLE * machine.gpu - max(awake.total("sample"), awake.total("sync: check"))
        # In whole percents: rounded down, but for the least.
        gpu_memory = max(ceil(100 * least / machine.gpu), floor(100 * min(room, 2 * most) / machine.gpu)) / 100
    else:
        gpu_memory = config.hardware.gpu_memory
    share = int(gpu_memory * machine.gpu)
    cache = max(0, (share - fixed) // token)
    sequences = at_once(answers, cache, longest)
    whole = account(shape, config, machine.ranks, share=share)
    return Plan(gpu_memory, sequences, cache, whole, _lack(whole, config, machine, share, least))


def at_once(answers: int, cache: int, longest: int) -> int:
    """Of `answers`, those drawn at once with a cache of so many tokens."""
    return max(1, min(answers, int(cache / (longest / 4))))


def token_bytes(shape: Shape, size: int) -> int:
    """What a token takes in the sampler's cache, with numbers of `size` bytes."""
    return size * 2 * shape.keys * shape.layers


def sampler_bytes(shape: Shape, size: int, tokens: int, sequences: int) -> int:
    """vLLM without its cache: weights, a prefill of `tokens`, logits of `sequences` in fp32 with two copies, graphs."""
    prefill = size * tokens * (3 * shape.intermediate + 6 * shape.hidden)
    return size * shape.parameters + prefill + 12 * sequences * shape.vocabulary + GRAPHS + ASLEEP


def _lack(whole: Account, config: TrainConfig, machine: Machine, share: int, least: int) -> str:
    host = machine.ranks_here * whole.offloaded
    if whole.total(whole.peak) > USABLE * machine.gpu:
        return (
            f"{machine.ranks} x {machine.gpu / GIB:.1f} GiB of GPU memory are too little: {whole.peak} takes "
            f"{whole.total(whole.peak) / GIB:.1f} GiB a rank ({whole.largest(3)})"
        )
    if share < least:
        return (
            f"--gpu-memory {config.hardware.gpu_memory:g} is {share / GIB:.1f} GiB, the sampler needs {least / GIB:.1f}"
        )
    if host > USABLE * machine.host:
        return f"--offload-optimizer takes {host / GIB:.1f} GiB of {machine.host / GIB:.1f} GiB of CPU memory"
    return ""


def _flags(shape: Shape, config: TrainConfig, machine: Machine, longest: int) -> str:
    """The fewest flags with which the run fits, "" if there are none."""
    changes = fitting_changes(shape, config, machine, longest)
    return " ".join(flag(name, value) for name, value in changes.items()) + " makes it fit" if changes else ""


def fitting_changes(shape: Shape, config: TrainConfig, machine: Machine, longest: int) -> dict:
    """The fewest settings with which the run fits, by name; empty if there are none."""
    for changes in _changes(config):
        found = plan(shape, with_settings(config, **changes), machine, longest)
        if not found.lack:
            return changes | ({"gpu_memory": found.gpu_memory} if "gpu_memory" in changes else {})
    return {}


def flag(name: str, value: object) -> str:
    """What a command line says for the setting `name`."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words} {value}"


def _changes(config: TrainConfig) -> Iterator[dict]:
    """Settings that take less memory, fewest changes first, dearer ones later."""
    tokens, longest = (
        config.hardware.micro_batch_tokens,
        config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens,
    )
    smaller = []
    while (tokens := tokens // 2) >= longest:
        smaller.append(tokens)
    choices = {
        "gpu_memory": [None] if config.hardware.gpu_memory is not None else [],
        "micro_batch_tokens": smaller,
        "gradient_checkpointing": [True] if not config.hardware.gradient_checkpointing else [],
        "offload_optimizer": [not config.hardware.offload_optimizer],
    }
    for count in range(1, len(choices) + 1):
        for names in combinations(choices, count):
            for values in product(*(choices[name] for name in names)):
                yield dict(zip(names, values, strict=True))


def _ranks(shape: Shape, config: TrainConfig, machine: Machine, longest: int) -> str:
    """The smallest number of ranks, of up to eight a machine, with which the run fits, "" if there is none."""
    for ranks in range(machine.ranks + 1, config.batch.questions_per_step + 1):
        more = replace(machine, ranks=ranks, ranks_here=min(ranks, 8))
        if config.batch.questions_per_step % ranks == 0 and not plan(shape, config, more, longest).lack:
            return f"{ranks} ranks hold it, with a GPU each"
    return ""
