"""The memory of one rank: bytes of every part, in each phase of a training step where the sum may be largest.

Everything follows from DeepSpeed's settings, the shapes of the parameters and what learner, sampler and loss allocate.
tests/test_memory.py compares the sum with the CPU memory of a real learner. On a GPU the sum is an upper bound, because
copies on DeepSpeed's second stream may exist beside any part of the backward pass.
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig
from bnpo.policy.engine_settings import MOST_SEQUENCES
from bnpo.policy.learner import deepspeed_settings, prefetch_bucket
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import largest_layer
from bnpo.policy.weight_sync import GROUP_BYTES
from bnpo.task import longest_sequence

GIB = 2**30
CONTEXTS = 3 * 2**29  # a rank's CUDA context with its kernels, and NCCL's buffers
ASLEEP = 2**30  # what vLLM keeps while it sleeps: workspaces and compiled kernels
GRAPHS = 2**30  # vLLM's CUDA graphs; part of its share of the GPU, in CPU memory while it sleeps


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model on which its memory and speed depend."""

    parameters: int  # elements of all parameters; a tied head counts once
    layer: int  # elements of one layer
    largest: int  # elements of the largest parameter
    persistent: int  # elements of all parameters that are so small that DeepSpeed never partitions them
    vocabulary: int  # rows of the head
    head: int  # elements of the head
    hidden: int
    intermediate: int  # width of the feed-forward layer
    queries: int  # width of all heads' queries together
    keys: int  # width of all heads' keys together
    heads: int
    layers: int
    tied: bool  # the head is the embedding
    linear: tuple[tuple[int, int], ...]  # inputs and outputs of the linear layers that LoRA adapts

    def adapter(self, config: TrainConfig) -> list[int]:
        """Return the elements of every matrix of the LoRA adapter, or nothing without LoRA."""
        rank = config.update.lora_rank or 0
        return [rank * side for sides in self.linear for side in sides] if rank else []


def read_shape(folder: Path) -> ModelShape:
    """Return the shape of the Hugging Face model in `folder`. Only config.json is read, no weights."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):  # shapes without memory
        model = AutoModelForCausalLM.from_config(config)
    sizes = [parameter.numel() for parameter in model.parameters()]
    threshold = DeepSpeedZeroConfig(stage=3).param_persistence_threshold
    head = model.get_output_embeddings().weight  # [vocabulary, hidden]
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Older families do not have all of these settings.
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    intermediate = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return ModelShape(
        parameters=sum(sizes),
        layer=largest_layer(model),
        largest=max(sizes),
        persistent=sum(size for size in sizes if size <= threshold),
        vocabulary=len(head),
        head=head.numel(),
        hidden=config.hidden_size,
        intermediate=intermediate,
        queries=config.num_attention_heads * head_size,
        keys=key_heads * head_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        tied=head is model.get_input_embeddings().weight,
        linear=tuple(tuple(layer.weight.shape) for layer in adapted_layers(model).values()),
    )


def number_bytes(config: TrainConfig) -> int:
    """Return the bytes of a number in --dtype."""
    return 4 if config.hardware.dtype == "float32" else 2


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank by phase and part, and the CPU memory of its optimizer (0: not offloaded)."""

    phases: dict[str, dict[str, int]]
    offloaded: int
    resident: int  # bytes of a GPU that the learner holds from step to step

    def total(self, phase: str) -> int:
        return sum(self.phases[phase].values())

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=self.total)

    def __str__(self) -> str:
        """Return a table in GiB: parts down, phases across, the peak marked."""
        # A phase such as "update: head" takes two lines of the header.
        header = [phase.rpartition(" ") for phase in self.phases]
        rows = [("", [group for group, _, _ in header]), ("GiB", [name for _, _, name in header])]
        for part in dict.fromkeys(part for parts in self.phases.values() for part in parts):
            sizes = [parts.get(part, 0) for parts in self.phases.values()]
            if any(sizes):
                rows.append((part, [f"{size / GIB:.2f}" if size else "" for size in sizes]))
        # The space lines the decimal points up with those above.
        rows.append(("total", [f"{self.total(phase) / GIB:.1f} " for phase in self.phases]))
        rows.append(("", ["peak" * (phase == self.peak) for phase in self.phases]))
        lines = [f"{title:<24}" + "".join(f"{cell:>11}" for cell in cells) for title, cells in rows]
        return "\n".join(line.rstrip() for line in lines)


def rank_memory(
    shape: ModelShape, config: TrainConfig, ranks: int, *, sampler: int = 0, device: str = "cuda"
) -> RankMemory:
    """Return the memory of one of `ranks` ranks from the second step on, when AdamW's moments exist.

    `sampler` is the sampler's bytes while it is awake. 0 leaves it out, as for "cpu", where it never sleeps.
    """
    memory = _RankParts(shape, config, ranks, device)
    resident = memory.resident()
    asleep = resident | {"sampler asleep": ASLEEP if sampler else 0}
    saved = asleep | memory.saved_for_backward()
    phases = {
        "update: head": saved | memory.head_backward(),
        "update: layers": saved | memory.layer_backward(),
        "update: reduction": asleep | memory.reduction(),
        "update: optimizer": asleep | memory.optimizer_step(),
        "save": asleep | memory.weight_groups(),
    }
    if sampler:
        awake = resident | {"sampler": sampler}
        # The check of the last weight sync has left some layers gathered, and the head.
        left = {"gathered weights": memory.left_gathered()}
        # The sampler's weights are awake again, and the largest is there twice while it is loaded. Its graphs come
        # back from CPU memory at the same time.
        loaded = {"sampler weights": memory.bytes * shape.parameters, "reload": memory.bytes * shape.largest}
        loaded |= {"sampler graphs": GRAPHS, "sampler counts": memory.token_counts()}
        phases = {"sample": awake | left} | phases
        phases["sync: weights"] = asleep | loaded | memory.weight_groups()
        phases["sync: check"] = awake | memory.scoring()
    return RankMemory(phases, memory.offloaded, sum(resident.values()))


class _RankParts:
    """Computes the parts of a rank's memory in bytes.

    CPUs, where tests measure them, differ in five parts: only the used part of the reduce bucket is taken, gradients
    are reduced after the backward pass, gloo copies them, AdamW has one more temporary, an offloaded optimizer counts.
    """

    def __init__(self, shape: ModelShape, config: TrainConfig, ranks: int, device: str):
        self.shape, self.config, self.ranks = shape, config, ranks
        self.on_cpu, self.logit_chunk = device == "cpu", LOGIT_CHUNK[device]
        self.offload = config.hardware.offload_optimizer
        self.bytes = number_bytes(config)
        # With LoRA, the adapter's weights are trained. They come on top of the model's, which are frozen.
        self.adapter = shape.adapter(config)
        self.trained = sum(self.adapter) if self.adapter else shape.parameters
        self.partition = ceil(self.trained / ranks)
        # Master weights, two moments, and gradients twice: as they were reduced, and as AdamW reads them.
        self.offloaded = 20 * self.partition if self.offload else 0
        self.longest = longest_sequence(config, None)
        answers_per_step = config.batch.questions_per_step * config.batch.samples_per_question
        self.answers = answers_per_step // ranks  # of one step, on this rank
        micro_batch_tokens = max(config.hardware.micro_batch_tokens, self.longest)
        self.tokens = min(self.answers * self.longest, micro_batch_tokens)  # of one micro-batch
        self.zero = DeepSpeedZeroConfig(**deepspeed_settings(config)["zero_optimization"])
        self.bucket = min(self.zero.reduce_bucket_size, self.trained)  # elements that are reduced together

    def resident(self) -> dict[str, int]:
        """What stays from step to step."""
        parts = {"weights": self.bytes * ceil((self.shape.parameters + sum(self.adapter)) / self.ranks)}
        if self.offload:
            parts["optimizer"] = self.offloaded if self.on_cpu else 0
        else:
            parts["gradients"] = 4 * self.partition
            parts["master weights"] = 4 * self.partition  # DeepSpeed copies fp32 weights too
            parts["AdamW's moments"] = 8 * self.partition
        kept = sum(size for size in self.adapter if size <= self.zero.param_persistence_threshold)
        parts["small weights"] = self.bytes * (self.shape.persistent + kept) if self.ranks > 1 else 0
        parts["reduce bucket"] = 4 * (self.bucket if self.on_cpu or self.adapter else self.zero.reduce_bucket_size)
        parts["CUDA context, NCCL"] = 0 if self.on_cpu else CONTEXTS
        return parts

    def gathered(self, *, head: bool) -> dict[str, int]:
        """Weights gathered from all ranks: of this layer, fetched ahead, and kept for their next use."""
        if self.ranks == 1:
            return {"gathered weights": 0}
        prefetched = prefetch_bucket(self.shape.layer)
        whole = self.shape.layer * (1 + self.reused_layers()) + prefetched + self.shape.head * head
        # Weights that have just arrived are copied once, unless the whole model is gathered already.
        arriving = prefetched if whole < self.shape.parameters else 0
        return {"gathered weights": self.bytes * (min(whole, self.shape.parameters) + arriving)}

    def reused_layers(self) -> int:
        """Return how many layers stay gathered after a forward pass, because DeepSpeed expects to use them soon."""
        # DeepSpeed measures the distance to the next use through the head.
        layers = (self.zero.max_reuse_distance - self.shape.head) // self.shape.layer + 1
        return min(max(layers, 0), self.shape.layers)

    def left_gathered(self) -> int:
        """Return the bytes of the weights that stay gathered after a forward pass without a backward pass."""
        weights = self.shape.head + self.shape.layer * self.reused_layers()
        return self.bytes * min(weights, self.shape.parameters) * (self.ranks > 1)

    def token_counts(self) -> int:
        """Return the bytes of vLLM's counts of tokens per sequence, which share the memory of its weights."""
        return 4 * min(self.answers, MOST_SEQUENCES) * self.shape.vocabulary

    def saved_for_backward(self) -> dict[str, int]:
        """What the forward pass of all layers and the last norm saves for the backward pass."""
        last = self.tokens * self.shape.hidden * (4 + 3 * self.bytes)
        if self.config.hardware.gradient_checkpointing:
            return {"layer inputs": last + self.shape.layers * self.tokens * self.shape.hidden * self.bytes}
        return {"activations": last + self.shape.layers * self.layer_activations()}

    def layer_activations(self) -> int:
        """Return the bytes that autograd keeps of one layer."""
        shape = self.shape
        norms = 2 * shape.hidden * (4 + 2 * self.bytes)  # computed in fp32
        # Queries, keys, values and the output, for two layouts.
        attention = self.bytes * (3 * shape.queries + 2 * shape.keys) + 4 * shape.heads
        feed_forward = self.bytes * 4 * shape.intermediate  # gate, up, activation, product
        return self.tokens * (norms + attention + feed_forward)

    def logits(self, tokens: int, *, backward: bool) -> int:
        """Return the bytes of the temporaries of algorithm/loss.py, which computes fp32 logits in chunks."""
        shape, half = self.shape, self.bytes < 4
        rows = max(1, self.logit_chunk // shape.vocabulary)
        elements = min(tokens, rows) * shape.vocabulary
        logits = 4 * elements
        several = tokens > rows  # the next chunk is allocated before the last one is freed
        weight = 4 * shape.head * half * self.on_cpu  # CPUs multiply bf16 in fp32, so they copy the factors
        if not backward:
            normalized = logits * (3 if self.config.logging.exact_entropy else 2)
            return max(normalized, logits * (1 + several) + weight)
        # In fp32 the gradient overwrites the logits; in bf16 it is a second array.
        chunk = logits + 2 * elements * half
        # This chunk's part of the weight's gradient.
        product = 0 if self.adapter else 4 * shape.head + logits * half * self.on_cpu
        return chunk + max((logits + weight) * several, product)

    def head_backward(self) -> dict[str, int]:
        # The backward pass computes the log-probabilities again, so both passes count.
        logits = max(self.logits(self.tokens, backward=False), self.logits(self.tokens, backward=True))
        # The head's gradient is summed over the chunks in fp32.
        gradient = 0 if self.adapter else 4 * self.shape.head
        return {"logits": logits, "head gradient": gradient} | self.gathered(head=True)

    def layer_backward(self) -> dict[str, int]:
        shape = self.shape
        # With gradient checkpointing the activations of a layer are computed again from its input.
        again = self.layer_activations() if self.config.hardware.gradient_checkpointing else 0
        temporaries = self.tokens * self.bytes * (2 * shape.intermediate + 4 * shape.hidden)
        trained = sum(self.adapter) // shape.layers if self.adapter else shape.layer
        parts = {"layer activations": again + temporaries, "layer gradients": self.bytes * trained}
        # A tied head's gradient waits for the embedding's.
        parts["head gradient"] = self.bytes * shape.head * (shape.tied and not self.adapter)
        return parts | ({} if self.on_cpu else self.reduction()) | self.gathered(head=False)

    def reduction(self) -> dict[str, int]:
        """A bucket of gradients in the order of the ranks, in fp32; with offloading also a copy of this rank's part."""
        largest = max(self.adapter, default=self.shape.largest)
        elements = max(self.bucket, largest)  # a larger parameter is reduced alone
        copies = 2 if self.on_cpu and self.ranks > 1 else 1  # gloo works on a copy
        return {"reduction": 4 * copies * elements + 4 * ceil(elements / self.ranks) * self.offload}

    def optimizer_step(self) -> dict[str, int]:
        """One group of gradients in one piece (offloaded ones are already), and AdamW's temporaries."""
        group = min(self.partition, self.zero.sub_group_size + ceil(self.shape.largest / self.ranks))
        size = (8 if self.offload else 12) if self.on_cpu else (0 if self.offload else 8)  # bytes per parameter
        return {"optimizer temporaries": size * group}

    def weight_groups(self) -> dict[str, int]:
        """Weights on their way to the sampler or to disk: a group at a time is gathered, then cloned."""
        size = min(GROUP_BYTES + self.bytes * self.shape.largest, self.bytes * self.shape.parameters)
        merging = 8 * max(inputs * outputs for inputs, outputs in self.shape.linear) if self.adapter else 0  # in fp32
        return {"gathered weights": size * (self.ranks > 1), "cloned weights": size + merging}

    def scoring(self) -> dict[str, int]:
        """The learner scores one answer of the longest length; nothing is saved for a backward pass."""
        working = self.bytes * self.longest * (3 * self.shape.intermediate + 6 * self.shape.hidden)
        parts = {"logits": self.logits(self.longest, backward=False), "activations": working}
        return parts | self.gathered(head=True)
