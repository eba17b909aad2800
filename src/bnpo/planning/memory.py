"""The memory of a rank, and whether a run fits its GPUs. Checked at every start, before a model is loaded.

The bytes follow from DeepSpeed's settings, the shape of the model and what learner, sampler and loss allocate. Tests
compare their sum with the CPU memory of real learners: it is off by at most 15 %.
"""

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

import psutil
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
from bnpo.policy.model import elements, layers
from bnpo.policy.sampling import MOST_SEQUENCES, PREFILL_TOKENS
from bnpo.ranks import gather

GIB = 2**30
CONTEXTS = 3 * 2**29  # a rank's CUDA context with its kernels, and NCCL's buffers
ASLEEP = 2**30  # what vLLM keeps while it sleeps: workspaces and compiled kernels
GRAPHS = 2**30  # vLLM's CUDA graphs; part of its share of the GPU, in CPU memory while it sleeps
USABLE = 0.97  # share of a GPU's memory that a plan may use; the rest is lost between allocations
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class ModelShape:
    """The sizes of a Hugging Face model on which its memory and speed depend. Only config.json is read, no weights."""

    def __init__(self, folder: Path):
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):  # shapes without memory
            model = AutoModelForCausalLM.from_config(config)

        def largest(setting: str, default: int) -> int:
            # Layers may differ in size. Older families do not have all settings.
            return max(getattr(layer, setting, None) or default for layer in config.per_layer_config[:])

        self.parameters = elements(model)  # a tied head counts once
        self.layers, self.layer = config.num_hidden_layers, max(map(elements, layers(model)))  # number, elements of one
        self.vocabulary, self.hidden = model.get_output_embeddings().weight.shape
        self.head = self.vocabulary * self.hidden  # elements of usually the largest parameter
        self.intermediate = largest("intermediate_size", 4 * self.hidden)  # width of the feed-forward layer
        self.heads = largest("num_attention_heads", 1)
        self.key_heads = largest("num_key_value_heads", self.heads)
        self.head_size = largest("head_dim", self.hidden // self.heads)  # width of a query, key or value
        # Inputs and outputs of all linear layers that LoRA adapts: elements of an adapter of rank 1.
        self.adapted = sum(sum(layer.weight.shape) for layer in adapted_layers(model).values())


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank divides its GPU memory. On CPUs nothing is planned and vLLM's defaults hold."""

    phases: dict[str, Counter[str]] = field(default_factory=dict)  # bytes by phase of a step and by part
    offloaded: int = 0  # bytes of CPU memory
    gpu_memory: float | None = None  # the sampler's share
    sequences: int | None = None  # answers that the sampler draws at once
    least: int = 0  # bytes that the sampler needs
    most: int = 0  # bytes that it can use
    problem: str = ""  # one line on why the run does not fit and what to try

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=lambda phase: self.phases[phase].total())

    def __str__(self) -> str:
        """Return a table in GiB, parts down and phases across."""
        rows = {part: [sizes[part] for sizes in self.phases.values()] for part in sum(self.phases.values(), Counter())}
        rows["total"] = [sizes.total() for sizes in self.phases.values()]
        lines = [f"{part:<14}" + "".join(f"{size / GIB:11.2f}" for size in sizes) for part, sizes in rows.items()]
        return "\n".join([f"{'GiB':<14}" + "".join(f"{phase:>11}" for phase in self.phases), *lines])


def learner_memory(shape: ModelShape, config: TrainConfig, ranks: int, device: str = "cuda") -> MemoryPlan:
    """Return the memory of one of `ranks` ranks without its sampler. Tests compare it with learners on the CPU."""
    batch, hardware, size = config.batch, config.hardware, DTYPE_BYTES[config.hardware.dtype]
    adapter, on_gpu = shape.adapted * (config.update.lora_rank or 0), not hardware.offload_optimizer
    trained = adapter or shape.parameters
    partition, weights = ceil(trained / ranks), size * ceil((shape.parameters + adapter) / ranks)  # of a rank
    bucket = min(REDUCE_BUCKET, trained)  # elements of gradients that are reduced together
    held = Counter(weights=weights * (not hardware.offload_weights))
    held["gradients"] = 4 * partition * on_gpu + 4 * bucket  # in fp32
    held["optimizer"] = 12 * partition * on_gpu  # fp32 weights and moments
    held["CUDA and NCCL"] = CONTEXTS
    # Beside gradients, fp32 weights and moments, an offloaded optimizer has the gradients again.
    offloaded = 20 * partition * (not on_gpu) + weights * hardware.offload_weights
    # DeepSpeed gathers weights, and keeps some for their next use. One rank has all of them, unless they are offloaded.
    zero = DeepSpeedZeroConfig(stage=3)
    gathered = size * min(zero.max_live_parameters + shape.layer + shape.head, shape.parameters)
    gathered *= ranks > 1 or hardware.offload_weights
    # Gradients in the order of the ranks. The embedding is reduced alone if it is larger than a bucket.
    reduction = 4 * max(bucket, 0 if adapter else shape.head)
    # AdamW copies gradients group by group, but not offloaded ones. Those in fp16 are all checked for overflows.
    copied = 5 * partition if hardware.dtype == "float16" else 4 * min(partition, zero.sub_group_size)
    # Activations in elements per token. For its backward pass, a layer saves those of norms, attention and feed-forward
    # layer, or with gradient checkpointing only its input.
    of_layer = 11 * shape.hidden + 4 * shape.intermediate
    saved = 4 * shape.hidden + shape.layers * (shape.hidden if hardware.gradient_checkpointing else of_layer)
    backward = 4 * shape.hidden + 2 * shape.intermediate + of_layer * hardware.gradient_checkpointing  # of one layer
    longest = longest_sequence(config, None)
    answers = batch.questions_per_step * batch.samples_per_question // ranks
    tokens = min(answers * longest, max(hardware.micro_batch_tokens, longest))  # of a micro-batch
    # A chunk of logits in fp32, and its gradient if in 16 bits.
    logits = (4 if size == 4 else 6) * max(shape.vocabulary, min(tokens * shape.vocabulary, LOGIT_CHUNK[device]))
    # The layer also has the gradient of its weights, which CPUs reduce later. The head has two of its own in fp32.
    in_layer = size * (tokens * backward + (adapter // shape.layers or shape.layer)) + reduction * (device != "cpu")
    in_head = logits + (0 if adapter else 2 * 4 * shape.head)
    passes = gathered + size * tokens * saved + max(in_layer, in_head)
    # After the weight sync, the learner scores an answer beside the sampler, which takes more than sampling.
    scoring = gathered + size * longest * (6 * shape.hidden + 3 * shape.intermediate) + logits
    work = {"update": max(passes, copied * on_gpu, 2 * reduction), "sampling": scoring}
    return MemoryPlan({phase: held + Counter(activations=taken) for phase, taken in work.items()}, offloaded)


def plan_memory(shape: ModelShape, config: TrainConfig, longest: int, ranks: int, gpu: int) -> MemoryPlan:
    """Return how each of `ranks` ranks divides the `gpu` bytes of its GPU.

    The sampler gets prompts plus answers of up to `longest` tokens. Its share is --gpu-memory. By default it is what
    the learner leaves, but at most what the answers of a step can use. In a run it is measured once the learner exists
    (`sampler_share`).
    """
    batch, hardware, size = config.batch, config.hardware, DTYPE_BYTES[config.hardware.dtype]
    sharing, given = hardware.sampler_ranks, hardware.gpu_memory
    per_question = batch.samples_per_question + (config.method.algo == "remax")  # its baseline is an answer too
    answers = batch.questions_per_step * sharing // ranks * per_question  # of a sampler
    # What a GPU needs for all answers: its part of the weights, the workspace of a prefill, CUDA graphs.
    prefill = max(PREFILL_TOKENS, longest) * (3 * shape.intermediate // sharing + 6 * shape.hidden)
    fixed = size * (shape.parameters // sharing + prefill) + GRAPHS + ASLEEP
    # For a token, keys and values: of fewer key heads than GPUs, each is on several. For an answer, fp32 logits thrice.
    token = 2 * size * shape.layers * shape.head_size * max(1, ceil(shape.key_heads / sharing))
    logits = 12 * shape.vocabulary
    least = fixed + logits + token * longest  # for one answer at a time
    # Twice what all answers at once can use, because vLLM's needs are an estimate.
    most = 2 * (fixed + logits * min(answers, MOST_SEQUENCES) + token * longest * answers)
    plan = learner_memory(shape, config, ranks)
    left = USABLE * gpu - plan.phases["sampling"].total()
    share = int(given * gpu) if given else int(max(least, min(left, most)))
    # The cache must hold a quarter of the longest for each answer. Of more answers vLLM would evict some.
    sequences = max(1, min(answers, int((share - fixed) / (token * longest / 4 + logits))))
    plan.phases["update"]["sampler"], plan.phases["sampling"]["sampler"] = ASLEEP, share
    parts, problem = plan.phases[plan.peak], ""
    if parts.total() > USABLE * gpu:
        part, taken = parts.most_common(1)[0]
        problem = f"'{plan.peak}' takes {parts.total() / GIB:.1f} GiB per rank, of which {taken / GIB:.1f} are '{part}'"
        problem += "; try a lower --micro-batch-tokens or --gpu-memory, --gradient-checkpointing, --lora-rank 32, "
        problem += "more ranks, --offload-optimizer, --sampler-ranks 2 or --offload-weights (docs/gpus.md)"
    elif share < least:
        problem = f"the sampler needs {least / GIB:.1f} GiB; raise --gpu-memory, or leave it out"
    if problem:
        problem = f"{config.data.model}: does not fit {ranks} x {gpu / GIB:.1f} GiB of GPU memory: {problem}"
    gpu_memory = given or int(1000 * share / gpu) / 1000
    return replace(plan, gpu_memory=gpu_memory, sequences=sequences, least=least, most=most, problem=problem)


def check_sampler_ranks(shape: ModelShape, size: int, ranks_here: int) -> None:
    """Raise InputError if `size` ranks cannot share a sampler of this model, on a machine of `ranks_here` ranks."""
    keys = shape.key_heads  # vLLM repeats key heads if there are too few
    if any(count % size for count in (ranks_here, shape.heads, shape.intermediate)) or (keys % size and size % keys):
        raise InputError(
            f"--sampler-ranks {size}: must divide the {ranks_here} ranks of a machine, the model's {shape.heads} heads "
            f"and its feed-forward width {shape.intermediate}, and divide or be divided by its {keys} key heads"
        )


def plan_here(config: TrainConfig, model: Path, longest: int) -> MemoryPlan:
    """Return the plan of a run on this machine's GPUs. Raises InputError if GPUs or CPU memory are too small for it."""
    shape, ranks, cuda = ModelShape(model), int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.is_available()
    ranks_here = int(os.environ.get("LOCAL_SIZE", ranks))
    check_sampler_ranks(shape, config.hardware.sampler_ranks, ranks_here)
    learner = learner_memory(shape, config, ranks, "cuda" if cuda else "cpu")
    held = learner.offloaded + (0 if cuda else learner.phases[learner.peak].total() - CONTEXTS)
    if ranks_here * held > (memory := psutil.virtual_memory().total):
        problem = f"needs {ranks_here * held / GIB:.0f} GiB of CPU memory, this machine has {memory / GIB:.0f}"
        raise InputError(f"{config.data.model}: {problem}; try --lora-rank 32, or more machines (docs/gpus.md)")
    if not cuda:
        return MemoryPlan()
    # The smallest GPU, so that all ranks here plan alike.
    gpu = min(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(torch.cuda.device_count()))
    plan = plan_memory(shape, config, longest, ranks, gpu)
    if plan.problem:
        raise InputError(plan.problem)
    return plan


def sampler_share(plan: MemoryPlan, config: TrainConfig) -> float | None:
    """Return the share of its GPU that the sampler gets: what the learner leaves free. A collective on GPUs.

    The learner must hold all that it keeps from step to step. Raises InputError on all ranks if too little is left.
    """
    if not plan.phases or config.hardware.gpu_memory is not None:
        return plan.gpu_memory
    dist.all_reduce(torch.zeros(1, device="cuda"))  # NCCL allocates its buffers with the first collective
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    left = min(plan.most, free - plan.phases["sampling"]["activations"] - (1 - USABLE) * total)
    # Rounded down, and equal on all ranks, which sample equally many answers.
    share = min(gather(max(0, int(1000 * left / total)) / 1000))
    if share * total < plan.least:
        problem = f"beside the learner {share * total / GIB:.1f} GiB of a GPU are left for the sampler"
        raise InputError(f"{problem}, which needs {plan.least / GIB:.1f}. Use --offload-optimizer or more ranks")
    return share
