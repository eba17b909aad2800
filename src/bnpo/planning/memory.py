"""The memory of a rank, and whether a run fits its GPUs. Checked at every start, before a model is loaded.

The bytes follow from DeepSpeed's settings, the shape of the model and what learner, sampler and loss allocate.
tests/test_memory.py compares their sum with the CPU memory of a real learner.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import ceil, log2
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig, with_settings
from bnpo.evaluation.suites import longest_sequence
from bnpo.files import InputError
from bnpo.policy.learner import REDUCE_BUCKET, prefetch_bucket
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import largest_layer
from bnpo.policy.sampling import MOST_SEQUENCES, PREFILL_TOKENS
from bnpo.policy.weight_sync import GROUP_BYTES
from bnpo.ranks import gather

GIB = 2**30
CONTEXTS = 3 * 2**29  # a rank's CUDA context with its kernels, and NCCL's buffers
ASLEEP = 2**30  # what vLLM keeps while it sleeps: workspaces and compiled kernels
GRAPHS = 2**30  # vLLM's CUDA graphs; part of its share of the GPU, in CPU memory while it sleeps
USABLE = 0.97  # share of a GPU's memory that a plan may use; the rest is lost between allocations
LORA_RANK = 32  # of the adapter that is proposed where not all weights can be trained


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model on which its memory and speed depend."""

    parameters: int  # elements of all parameters; a tied head counts once
    layer: int  # elements of one layer
    vocabulary: int  # rows of the head
    hidden: int
    intermediate: int  # width of the feed-forward layer
    heads: int
    key_heads: int
    head_size: int  # width of a query, key or value
    layers: int
    tied: bool  # the head is the embedding
    adapted: int  # inputs and outputs of all linear layers that LoRA adapts: elements of an adapter of rank 1

    @property
    def head(self) -> int:
        """Elements of the head, usually the largest parameter."""
        return self.vocabulary * self.hidden

    def adapter(self, config: TrainConfig) -> int:
        """Return the elements of the LoRA adapter, 0 without LoRA."""
        return self.adapted * (config.update.lora_rank or 0)


def read_shape(folder: Path) -> ModelShape:
    """Return the shape of the Hugging Face model in `folder`. Only config.json is read, no weights."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):  # shapes without memory
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings().weight  # [vocabulary, hidden]

    def largest(setting: str, default: int) -> int:
        # Layers may differ in size. Older families do not have all settings.
        return max(getattr(layer, setting, None) or default for layer in config.per_layer_config[:])

    heads = largest("num_attention_heads", 1)
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer=largest_layer(model),
        vocabulary=len(head),
        hidden=config.hidden_size,
        intermediate=largest("intermediate_size", 4 * config.hidden_size),
        heads=heads,
        key_heads=largest("num_key_value_heads", heads),
        head_size=largest("head_dim", config.hidden_size // heads),
        layers=config.num_hidden_layers,
        tied=head is model.get_input_embeddings().weight,
        adapted=sum(sum(layer.weight.shape) for layer in adapted_layers(model).values()),
    )


def number_bytes(config: TrainConfig) -> int:
    """Return the bytes of a number in --dtype."""
    return 4 if config.hardware.dtype == "float32" else 2


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank by phase and part. The phases are those of a step in which the sum may be largest."""

    phases: dict[str, dict[str, int]]
    held: int  # bytes that stay from phase to phase
    offloaded: int  # bytes of CPU memory

    def total(self, phase: str) -> int:
        return sum(self.phases[phase].values())

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=self.total)

    def __str__(self) -> str:
        """Return a table in GiB, parts down and phases across."""
        rows = {"GiB": list(self.phases)}
        for part in self.phases[self.peak] | self.phases["sampling"]:
            rows[part] = [f"{parts[part] / GIB:.2f}" if parts.get(part) else "" for parts in self.phases.values()]
        rows["total"] = [f"{self.total(phase) / GIB:.2f}" for phase in self.phases]
        return "\n".join(
            f"{name:<14}{''.join(f'{cell:>11}' for cell in cells)}".rstrip() for name, cells in rows.items()
        )


def rank_memory(
    shape: ModelShape, config: TrainConfig, ranks: int, *, sampler: int | None = None, device: str = "cuda"
) -> RankMemory:
    """Return the memory of one of `ranks` ranks.

    `sampler` is the bytes of the sampler while it is awake. None leaves it out, as for "cpu", where it never sleeps.
    CPUs, where tests measure, differ: gradients are reduced after the backward pass and copied by gloo, bf16 factors
    are multiplied in fp32, and what is offloaded counts.
    """
    hardware, size, on_cpu = config.hardware, number_bytes(config), device == "cpu"
    zero, adapter, offloads = DeepSpeedZeroConfig(stage=3), shape.adapter(config), hardware.offload_optimizer
    trained = adapter or shape.parameters
    partition = ceil(trained / ranks)  # elements of a rank's gradients and optimizer
    weights = size * ceil((shape.parameters + adapter) / ranks)
    bucket = min(REDUCE_BUCKET, trained)  # elements that are reduced together
    on_device = on_cpu or not offloads
    held = Counter(
        {
            "weights": weights if on_cpu or not hardware.offload_weights else 0,
            # In fp32, and the buffer in which they are reduced.
            "gradients": 4 * partition * on_device + 4 * (bucket if on_cpu or adapter else REDUCE_BUCKET),
            "optimizer": (16 if offloads else 12) * partition * on_device,  # fp32 weights, moments, gradients again
            "CUDA and NCCL": CONTEXTS * (not on_cpu),
        }
    )
    # Of gradients in the order of the ranks. The embedding is reduced alone if it is larger than a bucket.
    reduced = max(bucket, 0 if adapter else shape.head)
    reduction = 4 * reduced * (2 if on_cpu and ranks > 1 else 1) + 4 * ceil(reduced / ranks) * offloads
    # AdamW works on groups of gradients in one piece, which offloaded ones are already. It is fused: no temporaries.
    adamw = 4 * min(partition, zero.sub_group_size + ceil(shape.head / ranks)) * (not offloads)
    if hardware.dtype == "float16" and not offloads:
        adamw = max(adamw, 5 * partition)  # the check for overflows
    gathered = gathered_bytes(shape, config, ranks)
    phases = {
        "backward": held + _largest_pass(shape, config, ranks, reduction, device) + Counter(weights=gathered),
        "optimizer": held + Counter(optimizer=max(adamw, reduction * on_cpu)),
    }
    if sampler is not None:
        for parts in phases.values():
            parts["sampler"] = ASLEEP
        # Groups of weights on their way to the sampler are gathered and cloned. On one rank nothing is gathered, but
        # for a parameter that is a group of its own. vLLM has its largest weight twice while it loads.
        copied = min(GROUP_BYTES + size * shape.head, size * shape.parameters)
        copies = 2 * copied if gathered else copied + size * shape.head
        loading = ASLEEP + GRAPHS + size * (shape.parameters + shape.head) // hardware.sampler_ranks
        phases["sync"] = held + Counter(weights=copies, sampler=loading)
        # The learner scores an answer beside the sampler, which takes more than sampling.
        longest = longest_sequence(config, None)
        scoring = longest * size * (3 * shape.intermediate + 6 * shape.hidden)
        scoring += logit_bytes(shape, config, longest, device, backward=False)
        phases["sampling"] = held + Counter(weights=gathered, activations=scoring, sampler=sampler)
    offloaded = optimizer_in_cpu_memory(partition) * offloads + weights * hardware.offload_weights
    return RankMemory(phases, held.total(), offloaded)


def _largest_pass(shape: ModelShape, config: TrainConfig, ranks: int, reduction: int, device: str) -> Counter[str]:
    """Return the parts of the backward pass through head or layers, whichever takes more.

    `reduction` is the bytes of gradients on their way to their ranks.
    """
    hardware, size, adapter = config.hardware, number_bytes(config), shape.adapter(config)
    longest = longest_sequence(config, None)
    answers = config.batch.questions_per_step * config.batch.samples_per_question // ranks
    tokens = min(answers * longest, max(hardware.micro_batch_tokens, longest))  # of a micro-batch
    norms = 2 * shape.hidden * (4 + 2 * size)  # computed in fp32
    attention = size * (3 * shape.heads + 2 * shape.key_heads) * shape.head_size + 4 * shape.heads  # two layouts
    per_layer = tokens * (norms + attention + size * 4 * shape.intermediate)  # gate, up, activation, product
    saved = tokens * shape.hidden * (4 + 3 * size)  # of the last norm
    saved += shape.layers * (tokens * shape.hidden * size if hardware.gradient_checkpointing else per_layer)
    head_gradient = 0 if adapter else shape.head  # elements
    logits = max(logit_bytes(shape, config, tokens, device, backward=backward) for backward in (False, True))
    layer = tokens * size * (2 * shape.intermediate + 4 * shape.hidden) + per_layer * hardware.gradient_checkpointing
    layer += size * (adapter // shape.layers or shape.layer)  # its gradient
    layer += size * head_gradient * shape.tied  # the embedding's gradient waits
    through_head = Counter(activations=saved + logits + 4 * head_gradient)
    through_layers = Counter(activations=saved + layer, gradients=reduction * (device != "cpu"))
    return max(through_head, through_layers, key=Counter.total)


def logit_bytes(shape: ModelShape, config: TrainConfig, tokens: int, device: str, *, backward: bool) -> int:
    """Return the bytes of the temporaries of algorithm/loss.py, which computes fp32 logits in chunks."""
    half, on_cpu = number_bytes(config) < 4, device == "cpu"
    rows = max(1, LOGIT_CHUNK[device] // shape.vocabulary)
    elements = min(tokens, rows) * shape.vocabulary
    several = tokens > rows  # the next chunk is allocated before the last one is freed
    weight = 4 * shape.head * half * on_cpu  # CPUs multiply bf16 in fp32, so they hold a wide copy of the weight
    if not backward:
        normalized = 4 * elements * (3 if config.logging.exact_entropy else 2)
        return weight + max(normalized, 4 * elements * (1 + several))
    chunk = (6 if half else 4) * elements  # in fp32 the gradient overwrites the logits; in bf16 it is a second array
    product = 0 if shape.adapter(config) else 4 * shape.head + 4 * elements * half * on_cpu  # of the weight's gradient
    return chunk + weight * several + max(4 * elements * several, product)


def gathered_bytes(shape: ModelShape, config: TrainConfig, ranks: int) -> int:
    """Return the bytes of gathered weights: of this layer, the head, fetched ahead, and kept for their next use."""
    if ranks == 1 and not config.hardware.offload_weights:
        return 0  # nothing is gathered
    zero, prefetched = DeepSpeedZeroConfig(stage=3), prefetch_bucket(shape.layer)
    # Layers stay gathered after a forward pass if DeepSpeed expects to use them again soon, through the head.
    reused = min(max(0, (zero.max_reuse_distance - shape.head) // shape.layer + 1), shape.layers)
    whole = shape.layer * (1 + reused) + prefetched + shape.head
    # Weights that have just arrived are copied once, unless the whole model is gathered already.
    arriving = prefetched if whole < shape.parameters else 0
    return number_bytes(config) * (min(whole, shape.parameters) + arriving)


def optimizer_in_cpu_memory(partition: int) -> int:
    """Return the bytes of an offloaded optimizer: fp32 weights, gradients twice, moments."""

    def pinned(size: float) -> int:
        return 2 ** ceil(log2(max(size, 1)))  # torch rounds up

    groups = ceil(partition / DeepSpeedZeroConfig(stage=3).sub_group_size)
    return pinned(4 * partition) + 2 * groups * pinned(4 * partition / groups) + 8 * partition


@dataclass(frozen=True)
class SamplerNeeds:
    """Bytes that each GPU of a sampler needs, for sequences of `longest` tokens."""

    fixed: int  # weights, the workspace of a prefill, CUDA graphs
    token: int  # of the cache: keys and values
    logits: int  # of one answer: in fp32, with two copies
    longest: int

    @classmethod
    def of(cls, shape: ModelShape, size: int, gpus: int, longest: int) -> "SamplerNeeds":
        """Return those of a sampler on `gpus` GPUs with numbers of `size` bytes."""
        prefill = max(PREFILL_TOKENS, longest) * (3 * shape.intermediate // gpus + 6 * shape.hidden)
        # Of fewer key heads than GPUs, each is on several GPUs.
        width = max(ceil(shape.key_heads * shape.head_size / gpus), shape.head_size)
        fixed = size * shape.parameters // gpus + size * prefill + GRAPHS + ASLEEP
        return cls(fixed, 2 * size * width * shape.layers, 12 * shape.vocabulary, longest)

    @property
    def least(self) -> int:
        """Bytes with which one answer can be drawn at a time."""
        return self.fixed + self.logits + self.token * self.longest

    def most(self, answers: int) -> int:
        """Return twice the bytes that `answers` at once can use: twice, because vLLM's needs are an estimate."""
        return 2 * (self.fixed + self.logits * min(answers, MOST_SEQUENCES) + self.token * self.longest * answers)

    def at_once(self, share: float, answers: int) -> int:
        """Return how many of `answers` are drawn at once with `share` bytes."""
        # The cache must hold a quarter of the longest for each. Of more answers vLLM would evict some.
        return max(1, min(answers, int((share - self.fixed) / (self.token * self.longest / 4 + self.logits))))


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

    def with_settings(self, **changes: object) -> "PlannedRun":
        return replace(self, config=with_settings(self.config, **changes))


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank divides its GPU memory. On CPUs nothing is planned and vLLM's defaults hold."""

    gpu_memory: float | None = None  # the sampler's share
    sequences: int | None = None  # answers that the sampler draws at once
    rank: RankMemory | None = None
    least: int = 0  # bytes that the sampler needs
    most: int = 0  # bytes that it can use
    problem: str = ""  # why the run does not fit; empty if it does

    @property
    def scoring(self) -> int:
        """Bytes that the learner takes beside the awake sampler, beyond what it holds."""
        return self.rank.total("sampling") - self.rank.phases["sampling"]["sampler"] - self.rank.held


def plan_memory(run: PlannedRun) -> MemoryPlan:
    """Return how a rank divides its GPU memory.

    The sampler's share is --gpu-memory. By default it is what the learner leaves, but at most what the answers of a
    step can use. In a run it is measured once the learner exists (`sampler_share`).
    """
    config, sharing, given = run.config, run.config.hardware.sampler_ranks, run.config.hardware.gpu_memory
    answers = config.batch.questions_per_step * sharing // run.ranks * answers_per_question(config)  # of a sampler
    needs = SamplerNeeds.of(run.shape, number_bytes(config), sharing, run.longest)
    left = USABLE * run.gpu - rank_memory(run.shape, config, run.ranks, sampler=0).total("sampling")
    share = int(given * run.gpu) if given else int(max(needs.least, min(left, needs.most(answers))))
    memory = rank_memory(run.shape, config, run.ranks, sampler=share)
    gpu_memory = given or int(1000 * share / run.gpu) / 1000
    problem, sequences = _problem(run, memory, share, needs.least), needs.at_once(share, answers)
    return MemoryPlan(gpu_memory, sequences, memory, needs.least, needs.most(answers), problem)


def answers_per_question(config: TrainConfig) -> int:
    """Return how many answers a training question gets per step."""
    return config.batch.samples_per_question + (config.method.algo == "remax")  # ReMax's baseline is a greedy answer


def _problem(run: PlannedRun, memory: RankMemory, share: int, least: int) -> str:
    """Return why the run does not fit, or an empty string."""
    needed, offloaded = memory.total(memory.peak), run.ranks_here * memory.offloaded
    if needed > USABLE * run.gpu:
        parts = Counter(memory.phases[memory.peak]).most_common(3)
        largest = ", ".join(f"{part} {size / GIB:.1f}" for part, size in parts)
        given = f"{run.ranks} x {run.gpu / GIB:.1f} GiB of GPU memory"
        return f"{given} are too little: '{memory.peak}' takes {needed / GIB:.1f} GiB per rank ({largest})"
    if share < least:
        given = f"--gpu-memory {run.config.hardware.gpu_memory:g} is {share / GIB:.1f} GiB"
        return f"{given}, but the sampler needs {least / GIB:.1f} GiB"
    if offloaded > USABLE * run.host:
        return f"offloading takes {offloaded / GIB:.1f} GiB of {run.host / GIB:.1f} GiB of CPU memory"
    return ""


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
    """Return the fewest settings with which the run fits, by name; empty if there are none, or none is needed.

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
    hardware, longest = run.config.hardware, longest_sequence(run.config, None)
    choices: dict[str, list] = {
        "gpu_memory": [None],
        "micro_batch_tokens": [hardware.micro_batch_tokens // 2, longest],
        "gradient_checkpointing": [True],
        "offload_optimizer": [not hardware.offload_optimizer],  # False saves CPU memory
        "sampler_ranks": [size for size in (2, 4, 8) if not sharing_problem(run.shape, size, run.ranks_here)],
        "offload_weights": [True],
    }
    for count in range(len(choices) + 1):
        for names in combinations(choices, count):
            for values in product(*[choices[name] for name in names]):
                yield dict(zip(names, values, strict=True))


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
    # With the least that the sampler needs: what is free decides about its share.
    spare = int(plan.gpu_memory * gpu) - plan.least if config.hardware.gpu_memory is None else 0
    needed = max(plan.rank.total("sampling") - spare, plan.rank.total("backward"))
    rank_here = int(os.environ.get("LOCAL_RANK", "0"))
    free, total = torch.cuda.mem_get_info(rank_here)
    if free < needed:
        raise InputError(
            f"GPU {rank_here}: {free / GIB:.1f} of {total / GIB:.1f} GiB are free, but a rank of this run takes "
            f"{needed / GIB:.1f}. Another program uses this GPU. End it (nvidia-smi lists programs), or use other "
            "GPUs: deepspeed --include localhost:1 train.py ..."
        )
    return plan


def sampler_share(plan: MemoryPlan, config: TrainConfig) -> float | None:
    """Return the share of its GPU that the sampler gets: what the learner leaves free. A collective on GPUs.

    The learner must hold all that it keeps from step to step. Raises InputError on all ranks if too little is left.
    """
    if plan.rank is None or config.hardware.gpu_memory is not None:
        return plan.gpu_memory
    dist.all_reduce(torch.zeros(1, device="cuda"))  # NCCL allocates its buffers with the first collective
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    share = min(gather(share_of_free(plan, free, total)))  # equal on all ranks, which sample equally many answers
    if share * total < plan.least:
        problem = f"beside the learner {share * total / GIB:.1f} GiB of a GPU are left for the sampler"
        raise InputError(f"{problem}, which needs {plan.least / GIB:.1f}. Use --offload-optimizer or more ranks")
    return share


def share_of_free(plan: MemoryPlan, free: int, total: int) -> float:
    """Return the sampler's share of a GPU with `free` of `total` bytes, rounded down."""
    left = free - plan.scoring - (1 - USABLE) * total
    return max(0, int(1000 * min(left, plan.most) / total)) / 1000
