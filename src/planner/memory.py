"""The memory of a rank, estimated without a GPU.

The bytes follow from DeepSpeed's settings, the shape of the model and what learner, sampler and
loss allocate. Tests compare their sum with the CPU memory of real learners: it is off by at most
15 %. What a pass of a large model takes is compared with what it allocates on fake tensors: it is
off by at most 5 %.
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil

from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig
from bnpo.policy.learner import REDUCE_BUCKET
from bnpo.policy.memory import (
    ASLEEP,
    DTYPE_BYTES,
    GIB,
    USABLE,
    ModelShape,
    SamplerNeeds,
    gathered_memory,
    held_memory,
    logit_bytes,
    memory_cures,
    scoring_memory,
)

RANKS_PER_MACHINE = 8  # that are assumed: GPUs of a usual server
CONTEXTS = 3 * 2**29  # a rank's CUDA context with its kernels, and NCCL's buffers


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank divides its GPU memory."""

    phases: dict[str, Counter[str]]  # bytes by phase of a step and by part
    offloaded: int = 0  # bytes of CPU memory
    gpu_memory: float = 0.0  # the sampler's share
    sequences: int = 1  # answers that the sampler draws at once
    problem: str = ""  # one line on why the run does not fit and what to try

    def __str__(self) -> str:
        """Return a table in GiB, parts down and phases across."""
        rows = {
            part: [sizes[part] for sizes in self.phases.values()]
            for part in sum(self.phases.values(), Counter())
        }
        rows["total"] = [sizes.total() for sizes in self.phases.values()]
        lines = [
            f"{part:<14}" + "".join(f"{size / GIB:11.2f}" for size in sizes)
            for part, sizes in rows.items()
        ]
        return "\n".join(
            [f"{'GiB':<14}" + "".join(f"{phase:>11}" for phase in self.phases), *lines]
        )


def learner_memory(
    shape: ModelShape, config: TrainConfig, ranks: int, device: str = "cuda"
) -> MemoryPlan:
    """Return the memory of one of `ranks` ranks without its sampler. Tests compare it with
    learners on the CPU.
    """
    batch, hardware = config.batch, config.hardware
    held, offloaded = held_memory(shape, config, ranks)
    held["CUDA and NCCL"] = CONTEXTS
    lora = config.update.lora_rank or 0
    trained = shape.adapted * lora or shape.parameters
    partition, bucket = ceil(trained / ranks), min(REDUCE_BUCKET, trained)
    # Gradients in the order of the ranks. The embedding is reduced alone if it is larger than a
    # bucket.
    reduction = 4 * max(bucket, 0 if lora else shape.head)
    # AdamW copies gradients group by group, but not offloaded ones. Those in fp16 are all checked
    # for overflows.
    group = DeepSpeedZeroConfig(stage=3).sub_group_size
    copied = 5 * partition if hardware.dtype == "float16" else 4 * min(partition, group)
    if hardware.offload_optimizer:
        copied = 0
    longest = config.sampling.longest
    answers = batch.questions_per_step * batch.samples_per_question // ranks
    tokens = min(answers * longest, max(hardware.micro_batch_tokens, longest))  # of a micro-batch
    gathered, chunk = gathered_memory(shape, config, ranks), LOGIT_CHUNK[device]
    passes = gathered + pass_memory(shape, config, tokens, chunk)
    scoring = scoring_memory(shape, config, ranks, chunk)
    # `activations` are all that exists only for a while.
    work = {"update": max(passes, copied, 2 * reduction), "sampling": scoring}
    return MemoryPlan(
        {phase: held + Counter(activations=taken) for phase, taken in work.items()}, offloaded
    )


def pass_memory(shape: ModelShape, config: TrainConfig, tokens: int, chunk: int) -> int:
    """Return the bytes of activations, and of gradients until they are reduced, in a forward and
    backward pass over `tokens`.

    The head has at most `chunk` logits at once. Tests compare this with what the learner's model
    allocates on fake tensors.
    """
    size, lora = DTYPE_BYTES[config.hardware.dtype], bool(config.update.lora_rank)
    checkpointing = config.hardware.gradient_checkpointing
    # Activations in elements per token. For its backward pass, a layer saves those of norms,
    # attention and feed-forward layer, or with gradient checkpointing only its input. Norms that
    # LoRA freezes save less.
    of_layer = (
        (5 if lora else 7) * shape.hidden
        + (3 * shape.heads + 2 * shape.key_heads) * shape.head_size
        + 4 * shape.intermediate
    )
    saved = shape.layers * (shape.hidden if checkpointing else of_layer)
    # In the backward pass of a layer, which computes its activations again. The gradient of a tied
    # head waits for that of the embedding. A layer's gradients of weights come when it has freed
    # more than they take.
    backward = shape.hidden + 2 * shape.intermediate + (of_layer if checkpointing else 0)
    waiting = shape.head if shape.tied_head and not lora else 0  # elements
    in_layer = size * (tokens * backward + waiting)
    # The head has its input, and the gradient of it, and a chunk of logits.
    logits = min(tokens * shape.vocabulary, max(shape.vocabulary, chunk))
    of_logits = logit_bytes(size) * logits
    if lora:
        of_head = of_logits
    elif logits == tokens * shape.vocabulary:
        # DeepSpeed then copies the gradient of its weights to fp32.
        of_head = size * shape.head + max(of_logits, 4 * shape.head)
    else:
        # The gradient of its weights is a sum over the chunks, in fp32. When a chunk is added to
        # it, there are two of them, but the logits are no longer there.
        of_head = max(of_logits + 4 * shape.head, size * logits + 8 * shape.head)
    in_head = size * tokens * 5 * shape.hidden + of_head
    return size * tokens * saved + max(in_layer, in_head)


def plan_memory(
    shape: ModelShape, config: TrainConfig, longest: int, ranks: int, gpu: int
) -> MemoryPlan:
    """Return how each of `ranks` ranks divides the `gpu` bytes of its GPU.

    The sampler gets prompts plus answers of up to `longest` tokens. Its share is what a run would
    measure (`bnpo.policy.memory.sampler_settings`) if the learner takes what is planned.
    """
    given, needs = config.hardware.gpu_memory, SamplerNeeds(shape, config, longest, ranks)
    plan = learner_memory(shape, config, ranks)
    left = USABLE * gpu - plan.phases["sampling"].total()
    share = int(given * gpu) if given else int(max(needs.least, min(left, needs.most)))
    plan.phases["update"]["sampler"], plan.phases["sampling"]["sampler"] = ASLEEP, share
    phase, parts = max(plan.phases.items(), key=lambda item: item[1].total())
    problem = ""
    if parts.total() > USABLE * gpu:
        part, taken = parts.most_common(1)[0]
        cures = memory_cures(config, min(ranks, RANKS_PER_MACHINE), phase == "update")
        problem = (
            f"'{phase}' takes {parts.total() / GIB:.1f} GiB per rank, of which {taken / GIB:.1f} "
            f"are '{part}'; try {cures}"
        )
    elif share < needs.least:
        problem = (
            f"the sampler needs {needs.least / GIB:.1f} GiB; raise --gpu-memory, or leave it out"
        )
    if problem:
        size = f"{ranks} x {gpu / GIB:.1f} GiB of GPU memory"
        problem = f"{config.data.model}: does not fit {size}: {problem}"
    return replace(
        plan,
        gpu_memory=given or int(1000 * share / gpu) / 1000,
        sequences=needs.sequences(share),
        problem=problem,
    )
