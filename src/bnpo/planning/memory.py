"""The memory of a rank, and whether a run fits its GPUs. Checked at every start, before a model is loaded.

The bytes follow from DeepSpeed's settings, the shape of the model and what learner, sampler and loss allocate. Tests
compare their sum with the CPU memory of real learners: it is off by at most 15 %.
"""

import os
from collections import Counter
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig
from bnpo.evaluation.suites import longest_sequence
from bnpo.files import InputError
from bnpo.policy.learner import REDUCE_BUCKET
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import largest_layer
from bnpo.policy.sampling import MOST_SEQUENCES, PREFILL_TOKENS
from bnpo.ranks import gather

GIB = 2**30
CONTEXTS = 3 * 2**29  # a rank's CUDA context with its kernels, and NCCL's buffers
ASLEEP = 2**30  # what vLLM keeps while it sleeps: workspaces and compiled kernels
GRAPHS = 2**30  # vLLM's CUDA graphs; part of its share of the GPU, in CPU memory while it sleeps
USABLE = 0.97  # share of a GPU's memory that a plan may use; the rest is lost between allocations
CURES = {  # what to try first, by the part that takes most
    "weights": "--offload-weights or more ranks",
    "gradients": "--offload-optimizer, --lora-rank 32 or more ranks",
    "optimizer": "--offload-optimizer, --lora-rank 32 or more ranks",
    "activations": "--gradient-checkpointing or a lower --micro-batch-tokens",
    "head": "a lower --micro-batch-tokens or --lora-rank 32",
    "sampler": "--sampler-ranks 2 or a lower --gpu-memory",
}


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

    phases: dict[str, Counter[str]]
    held: int  # bytes that stay from phase to phase
    offloaded: int  # bytes of CPU memory

    def total(self, phase: str) -> int:
        return self.phases[phase].total()

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=self.total)

    def __str__(self) -> str:
        """Return a table in GiB, parts down and phases across."""
        lines = [f"{'GiB':<14}" + "".join(f"{phase:>11}" for phase in self.phases)]
        for part in sum(self.phases.values(), Counter()):
            lines.append(f"{part:<14}" + "".join(f"{sizes[part] / GIB:11.2f}" for sizes in self.phases.values()))
        lines.append(f"{'total':<14}" + "".join(f"{self.total(phase) / GIB:11.2f}" for phase in self.phases))
        return "\n".join(lines)


def rank_memory(
    shape: ModelShape, config: TrainConfig, ranks: int, *, sampler: int | None = None, device: str = "cuda"
) -> RankMemory:
    """Return the memory of one of `ranks` ranks.

    `sampler` is the bytes of the sampler while it is awake. None leaves it out, as for "cpu", where tests measure: it
    never sleeps there, and what is offloaded counts.
    """
    hardware, size, on_cpu = config.hardware, number_bytes(config), device == "cpu"
    adapter, offloads = shape.adapter(config), hardware.offload_optimizer
    trained = adapter or shape.parameters
    partition = ceil(trained / ranks)  # elements of a rank's gradients and optimizer
    bucket = min(REDUCE_BUCKET, trained)  # elements that are reduced together
    weights = size * ceil((shape.parameters + adapter) / ranks)
    optimizer = (16 if offloads else 12) * partition  # fp32 weights, moments; if offloaded, the gradients again
    on_device = on_cpu or not offloads
    held = Counter(
        {
            "weights": weights * (on_cpu or not hardware.offload_weights),
            "gradients": 4 * partition * on_device + 4 * bucket,  # in fp32
            "optimizer": optimizer * on_device,
            "CUDA and NCCL": CONTEXTS * (not on_cpu),
        }
    )
    # DeepSpeed gathers weights, and keeps some for their next use. One rank has all of them, unless they are offloaded.
    zero = DeepSpeedZeroConfig(stage=3)
    gathered = size * min(zero.max_live_parameters + shape.layer + shape.head, shape.parameters)
    gathered *= ranks > 1 or hardware.offload_weights
    # Gradients in the order of the ranks. The embedding is reduced alone if it is larger than a bucket.
    reduction = 4 * max(bucket, 0 if adapter else shape.head) * (2 if on_cpu and ranks > 1 else 1)
    # AdamW works on groups of gradients in one piece, which offloaded ones are already.
    grouped = 4 * min(partition, zero.sub_group_size + ceil(shape.head / ranks)) * (not offloads)
    if hardware.dtype == "float16" and not offloads:
        grouped = max(grouped, 5 * partition)  # the check for overflows of the whole partition
    passed = largest_pass(shape, config, ranks, 0 if on_cpu else reduction, device)  # CPUs reduce after the pass
    phases = {
        "backward": held + passed + Counter(weights=gathered),
        "optimizer": held + Counter(gradients=max(grouped, reduction)),
    }
    if sampler is not None:
        for parts in phases.values():
            parts["sampler"] = ASLEEP
        # After the weight sync, the learner scores an answer beside the sampler, which takes more than sampling.
        longest = longest_sequence(config, None)
        scoring = longest * size * (3 * shape.intermediate + 6 * shape.hidden)
        parts = Counter(weights=gathered, activations=scoring, head=logit_bytes(shape, config, longest, device))
        phases["sampling"] = held + parts + Counter(sampler=sampler)
    in_cpu_memory = (4 * partition + optimizer) * offloads + weights * hardware.offload_weights
    return RankMemory(phases, held.total(), in_cpu_memory)


def largest_pass(shape: ModelShape, config: TrainConfig, ranks: int, reduction: int, device: str) -> Counter[str]:
    """Return the parts of the backward pass through head or layers, whichever takes more.

    `reduction` is the bytes of gradients on their way to their ranks during the pass.
    """
    hardware, size, adapter = config.hardware, number_bytes(config), shape.adapter(config)
    longest = longest_sequence(config, None)
    answers = config.batch.questions_per_step * config.batch.samples_per_question // ranks
    tokens = min(answers * longest, max(hardware.micro_batch_tokens, longest))  # of a micro-batch
    norms = 2 * shape.hidden * (4 + 2 * size)  # computed in fp32
    attention = size * (3 * shape.heads + 2 * shape.key_heads) * shape.head_size
    per_layer = tokens * (norms + attention + size * 4 * shape.intermediate)  # gate, up, activation, product
    saved = tokens * shape.hidden * (4 + 3 * size)  # of the last norm
    saved += shape.layers * (tokens * shape.hidden * size if hardware.gradient_checkpointing else per_layer)
    layer = tokens * size * (2 * shape.intermediate + 4 * shape.hidden) + per_layer * hardware.gradient_checkpointing
    layer += size * (adapter // shape.layers or shape.layer)  # its gradient
    # The gradient of the head's weight in fp32, and a product that is added to it.
    head = logit_bytes(shape, config, tokens, device) + (0 if adapter else 2 * 4 * shape.head)
    if head > layer + reduction:
        return Counter(activations=saved, head=head)
    return Counter(activations=saved + layer, gradients=reduction)


def logit_bytes(shape: ModelShape, config: TrainConfig, tokens: int, device: str) -> int:
    """Return the bytes of the fp32 logits of algorithm/loss.py, which has two arrays of a chunk, or three."""
    rows = min(tokens, max(1, LOGIT_CHUNK[device] // shape.vocabulary))
    return 4 * rows * shape.vocabulary * (3 if config.logging.exact_entropy else 2)


def sampler_bytes(shape: ModelShape, size: int, gpus: int, longest: int) -> tuple[int, int, int]:
    """Return what each of the `gpus` GPUs of a sampler needs for all answers, for a token, and for an answer's logits.

    For all answers: weights with numbers of `size` bytes, the workspace of a prefill, CUDA graphs. For a token: keys
    and values. Logits are in fp32, with two copies. `longest` are the tokens of the longest prompt plus answer.
    """
    prefill = max(PREFILL_TOKENS, longest) * (3 * shape.intermediate // gpus + 6 * shape.hidden)
    # Of fewer key heads than GPUs, each is on several GPUs.
    width = max(ceil(shape.key_heads * shape.head_size / gpus), shape.head_size)
    fixed = size * shape.parameters // gpus + size * prefill + GRAPHS + ASLEEP
    return fixed, 2 * size * width * shape.layers, 12 * shape.vocabulary


@dataclass(frozen=True)
class PlannedRun:
    """All that the memory of a run depends on."""

    shape: ModelShape
    config: TrainConfig
    longest: int  # tokens of the longest prompt plus answer that the sampler gets
    ranks: int
    gpu: int  # bytes of one GPU


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank divides its GPU memory. On CPUs nothing is planned and vLLM's defaults hold."""

    gpu_memory: float | None = None  # the sampler's share
    sequences: int | None = None  # answers that the sampler draws at once
    rank: RankMemory | None = None
    least: int = 0  # bytes that the sampler needs
    most: int = 0  # bytes that it can use
    problem: str = ""  # one line if the run does not fit

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
    fixed, token, logits = sampler_bytes(run.shape, number_bytes(config), sharing, run.longest)
    least = fixed + logits + token * run.longest  # for one answer at a time
    # Twice what all answers at once can use, because vLLM's needs are an estimate.
    most = 2 * (fixed + logits * min(answers, MOST_SEQUENCES) + token * run.longest * answers)
    left = USABLE * run.gpu - rank_memory(run.shape, config, run.ranks, sampler=0).total("sampling")
    share = int(given * run.gpu) if given else int(max(least, min(left, most)))
    # The cache must hold a quarter of the longest for each answer. Of more answers vLLM would evict some.
    sequences = max(1, min(answers, int((share - fixed) / (token * run.longest / 4 + logits))))
    memory = rank_memory(run.shape, config, run.ranks, sampler=share)
    gpu_memory, problem = given or int(1000 * share / run.gpu) / 1000, find_problem(run, memory, share, least)
    return MemoryPlan(gpu_memory, sequences, memory, least, most, problem)


def answers_per_question(config: TrainConfig) -> int:
    """Return how many answers a training question gets per step."""
    return config.batch.samples_per_question + (config.method.algo == "remax")  # ReMax's baseline is a greedy answer


def find_problem(run: PlannedRun, memory: RankMemory, share: int, least: int) -> str:
    """Return in one line why the run does not fit and what to try, or an empty string."""
    needed = memory.total(memory.peak)
    text = f"{run.config.data.model}: does not fit {run.ranks} x {run.gpu / GIB:.1f} GiB of GPU memory: "
    if needed > USABLE * run.gpu:
        part, size = memory.phases[memory.peak].most_common(1)[0]
        text += f"'{memory.peak}' takes {needed / GIB:.1f} GiB per rank, of which {size / GIB:.1f} are '{part}'"
        return f"{text}; try {CURES.get(part, 'larger GPUs')} (docs/gpus.md)"
    if share < least:
        return f"{text}the sampler needs {least / GIB:.1f} GiB; raise --gpu-memory, or leave it out"
    return ""


def check_sampler_ranks(shape: ModelShape, size: int, ranks_here: int) -> None:
    """Raise InputError if `size` ranks cannot share a sampler of this model, on a machine of `ranks_here` ranks."""
    keys = shape.key_heads  # vLLM repeats key heads if there are too few
    indivisible = any(count % size for count in (ranks_here, shape.heads, shape.intermediate))
    if indivisible or (keys % size and size % keys):
        raise InputError(
            f"--sampler-ranks {size}: must divide the {ranks_here} ranks of a machine, the model's {shape.heads} heads "
            f"and its feed-forward width {shape.intermediate}, and divide or be divided by its {keys} key heads"
        )


def plan_here(config: TrainConfig, model: Path, longest: int) -> MemoryPlan:
    """Return the plan of a run on this machine's GPUs. Raises InputError if it does not fit."""
    on_gpu, sharing = torch.cuda.is_available(), config.hardware.sampler_ranks
    if not on_gpu and sharing == 1:
        return MemoryPlan()
    ranks, shape = int(os.environ["WORLD_SIZE"]), read_shape(model)
    check_sampler_ranks(shape, sharing, int(os.environ.get("LOCAL_SIZE", ranks)))
    if not on_gpu:
        return MemoryPlan()
    # The smallest GPU, so that all ranks here plan alike.
    gpu = min(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(torch.cuda.device_count()))
    plan = plan_memory(PlannedRun(shape, config, longest, ranks, gpu))
    if plan.problem:
        raise InputError(plan.problem)
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
