"""The memory of one rank: bytes of every part, in each phase of a training step where the sum may be largest.

Everything follows from DeepSpeed's settings, the shapes of the parameters and what learner, sampler and loss allocate.
tests/test_memory.py compares the sum with the CPU memory of a real learner. On a GPU the sum is an upper bound, because
copies on DeepSpeed's second stream may exist beside any part of the backward pass.
"""

from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path

import torch
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig
from bnpo.evaluation.suites import longest_sequence
from bnpo.policy.engine_settings import MOST_SEQUENCES
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import largest_layer
from bnpo.policy.weight_sync import GROUP_BYTES
from bnpo.policy.zero import deepspeed_settings, prefetch_bucket

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
    heads: int
    key_heads: int
    head_size: int  # width of a query, key or value
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

    def largest(setting: str, default: int) -> int:
        # Layers may differ in size. Older families do not have all settings.
        return max(getattr(layer, setting, None) or default for layer in config.per_layer_config[:])

    return ModelShape(
        parameters=sum(sizes),
        layer=largest_layer(model),
        largest=max(sizes),
        persistent=sum(size for size in sizes if size <= threshold),
        vocabulary=len(head),
        head=head.numel(),
        hidden=config.hidden_size,
        intermediate=largest("intermediate_size", 4 * config.hidden_size),
        heads=largest("num_attention_heads", 1),
        key_heads=largest("num_key_value_heads", largest("num_attention_heads", 1)),
        head_size=largest("head_dim", config.hidden_size // largest("num_attention_heads", 1)),
        layers=config.num_hidden_layers,
        tied=head is model.get_input_embeddings().weight,
        linear=tuple(tuple(layer.weight.shape) for layer in adapted_layers(model).values()),
    )


def number_bytes(config: TrainConfig) -> int:
    """Return the bytes of a number in --dtype."""
    return 4 if config.hardware.dtype == "float32" else 2


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank by phase and part, without parts of 0 bytes."""

    phases: dict[str, dict[str, int]]
    offloaded: int  # bytes of CPU memory
    resident: int  # bytes of a GPU that the learner holds from step to step

    def total(self, phase: str) -> int:
        return sum(self.phases[phase].values())

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=self.total)

    def __str__(self) -> str:
        """Return a table in GiB, parts down and phases across, with the totals and the peak marked."""
        parts = list(dict.fromkeys(chain.from_iterable(self.phases.values())))  # every part once
        lines = [f"{title:<24}" for title in ("", "GiB", *parts, "total", "")]
        for phase, sizes in self.phases.items():
            group, _, name = phase.rpartition(" ")  # such as "update: head", in two lines
            cells = [f"{sizes[part] / GIB:.2f}" if part in sizes else "" for part in parts]
            # The space lines the decimal point up with those above.
            column = [group, name, *cells, f"{self.total(phase) / GIB:.1f} ", "peak" if phase == self.peak else ""]
            lines = [f"{line}{cell:>11}" for line, cell in zip(lines, column, strict=True)]
        return "\n".join(line.rstrip() for line in lines)


def rank_memory(
    shape: ModelShape, config: TrainConfig, ranks: int, *, sampler: int = 0, device: str = "cuda"
) -> RankMemory:
    """Return the memory of one of `ranks` ranks from the second step on, when AdamW's moments exist.

    `sampler` is the sampler's bytes while it is awake. 0 leaves it out, as for "cpu", where it never sleeps.
    """
    size, hardware = _Sizes(shape, config, ranks, device), config.hardware
    resident, phases = size.resident(), size.update()
    if sampler:
        phases["sync: weights"] = size.sync()
        for phase, parts in phases.items():
            phases[phase] = {"sampler asleep": ASLEEP, **parts}
        # Sampling the answers of a step takes less than this: the learner computes nothing meanwhile.
        phases["sync: check"] = {"sampler": sampler, **size.check()}
    for phase, parts in phases.items():
        all_parts = resident | parts
        phases[phase] = {part: taken for part, taken in all_parts.items() if taken}
    offloaded = size.optimizer * hardware.offload_optimizer + size.weights * hardware.offload_weights
    return RankMemory(phases, offloaded, sum(resident.values()))


class _Sizes:
    """Computes the parts of a rank's memory in bytes.

    CPUs, where tests measure them, differ in five parts: only the used part of the reduce bucket is taken, gradients
    are reduced after the backward pass, gloo copies them, AdamW has one more temporary, an offloaded optimizer counts.
    """

    def __init__(self, shape: ModelShape, config: TrainConfig, ranks: int, device: str):
        self.shape, self.config, self.hardware, self.ranks = shape, config, config.hardware, ranks
        self.on_cpu, self.logit_chunk = device == "cpu", LOGIT_CHUNK[device]
        self.bytes = number_bytes(config)
        self.zero = DeepSpeedZeroConfig(**deepspeed_settings(config)["zero_optimization"])
        # With LoRA, the adapter's weights are trained. They come on top of the model's, which are frozen.
        self.adapter = shape.adapter(config)
        trained = sum(self.adapter) or shape.parameters
        self.bucket = min(self.zero.reduce_bucket_size, trained)  # elements that are reduced together
        self.partition = ceil(trained / ranks)
        self.weights = self.bytes * ceil((shape.parameters + sum(self.adapter)) / ranks)
        # An offloaded optimizer: master weights, two moments, and gradients twice, as they were reduced, and as AdamW
        # reads them.
        self.optimizer = 20 * self.partition
        # Weights are gathered from other ranks or from CPU memory, but for small ones, which stay.
        self.gathers = ranks > 1 or self.hardware.offload_weights
        self.longest = longest_sequence(config, None)
        self.answers = config.batch.questions_per_step * config.batch.samples_per_question // ranks  # of one step
        micro_batch_tokens = max(self.hardware.micro_batch_tokens, self.longest)
        self.tokens = min(self.answers * self.longest, micro_batch_tokens)  # of one micro-batch

    def resident(self) -> dict[str, int]:
        """What the learner holds from step to step."""
        parts = {"weights": self.weights * (self.on_cpu or not self.hardware.offload_weights)}
        if self.hardware.offload_optimizer:
            parts["optimizer"] = self.optimizer * self.on_cpu
        else:
            parts["gradients"] = parts["master weights"] = 4 * self.partition  # DeepSpeed copies fp32 weights too
            parts["AdamW's moments"] = 8 * self.partition
        small = [elements for elements in self.adapter if elements <= self.zero.param_persistence_threshold]
        parts["small weights"] = self.bytes * (self.shape.persistent + sum(small)) * self.gathers
        parts["reduce bucket"] = 4 * (self.bucket if self.on_cpu or self.adapter else self.zero.reduce_bucket_size)
        parts["CUDA context, NCCL"] = CONTEXTS * (not self.on_cpu)
        return parts

    def update(self) -> dict[str, dict[str, int]]:
        """The phases of an update: the passes of the head and of a layer, the last reduction, AdamW."""
        shape, hardware, adapter = self.shape, self.hardware, sum(self.adapter)
        saved, reduction = self.saved_for_backward(), self.reduction()
        head_pass = {
            "gathered weights": self.gathered(head=True),
            **saved,
            # The backward pass computes the log-probabilities again, so both passes count.
            "logits": max(self.logits(self.tokens, backward=backward) for backward in (False, True)),
            "head gradient": 0 if adapter else 4 * shape.head,  # summed over the chunks in fp32
        }
        again = self.layer_activations() if hardware.gradient_checkpointing else 0
        temporaries = self.tokens * self.bytes * (2 * shape.intermediate + 4 * shape.hidden)
        layer_pass = {
            "gathered weights": self.gathered(head=False),
            **saved,
            "head gradient": 0 if adapter else self.bytes * shape.head * shape.tied,  # waits for the embedding's
            "layer activations": again + temporaries,
            "layer gradients": self.bytes * (adapter // shape.layers or shape.layer),
            "reduction": 0 if self.on_cpu else reduction,
        }
        # A group of gradients in one piece, which offloaded ones are already, and AdamW's temporaries.
        group = min(self.partition, self.zero.sub_group_size + ceil(shape.largest / self.ranks))
        one_piece = 0 if hardware.offload_optimizer else 4
        adamw = 8 if self.on_cpu else one_piece
        return {
            "update: head": head_pass,
            "update: layers": layer_pass,
            "update: reduction": {"reduction": reduction},
            "update: optimizer": {"optimizer temporaries": (one_piece + adamw) * group},
        }

    def sync(self) -> dict[str, int]:
        """Weights on their way to the sampler, gathered and cloned in groups. The sampler loads its own again."""
        shape, sharing = self.shape, self.hardware.sampler_ranks
        group = min(GROUP_BYTES + self.bytes * shape.largest, self.bytes * shape.parameters)
        merged = max(inputs * outputs for inputs, outputs in shape.linear) if self.adapter else 0  # in fp32
        sequences = min(self.answers * sharing, MOST_SEQUENCES)
        return {
            "gathered weights": group * self.gathers,
            "cloned weights": group + 8 * merged,
            "sampler weights": self.bytes * shape.parameters // sharing,
            "reload": self.bytes * shape.largest // sharing,  # the largest weight is there twice
            "sampler graphs": GRAPHS,
            "sampler counts": 4 * sequences * shape.vocabulary,  # of tokens, in the same memory as its weights
        }

    def check(self) -> dict[str, int]:
        """The learner scores one answer of the longest length; nothing is saved for a backward pass."""
        activations = self.bytes * self.longest * (3 * self.shape.intermediate + 6 * self.shape.hidden)
        logits = self.logits(self.longest, backward=False)
        return {"gathered weights": self.gathered(head=True), "activations": activations, "logits": logits}

    def gathered(self, *, head: bool) -> int:
        """Weights gathered from all ranks: of this layer, fetched ahead, and kept for their next use."""
        prefetched = prefetch_bucket(self.shape.layer)
        whole = self.shape.layer * (1 + self.reused_layers()) + prefetched + self.shape.head * head
        # Weights that have just arrived are copied once, unless the whole model is gathered already.
        arriving = prefetched if whole < self.shape.parameters else 0
        return self.bytes * (min(whole, self.shape.parameters) + arriving) * self.gathers

    def reused_layers(self) -> int:
        """Return how many layers stay gathered after a forward pass, because DeepSpeed expects to use them soon."""
        layers = (self.zero.max_reuse_distance - self.shape.head) // self.shape.layer + 1  # counted through the head
        return min(max(layers, 0), self.shape.layers)

    def saved_for_backward(self) -> dict[str, int]:
        """What the forward pass of all layers and the last norm saves: inputs of layers, or their activations."""
        last = self.tokens * self.shape.hidden * (4 + 3 * self.bytes)
        if self.hardware.gradient_checkpointing:
            return {"layer inputs": last + self.shape.layers * self.tokens * self.shape.hidden * self.bytes}
        return {"activations": last + self.shape.layers * self.layer_activations()}

    def layer_activations(self) -> int:
        """Return the bytes that autograd keeps of one layer."""
        shape = self.shape
        norms = 2 * shape.hidden * (4 + 2 * self.bytes)  # computed in fp32
        heads = 3 * shape.heads + 2 * shape.key_heads  # q, k, v, output: two layouts
        attention = self.bytes * heads * shape.head_size + 4 * shape.heads
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
        chunk = logits + 2 * elements * half  # in fp32 the gradient overwrites the logits; in bf16 it is a second array
        product = 0 if self.adapter else 4 * shape.head + logits * half * self.on_cpu  # of the weight's gradient
        return chunk + max((logits + weight) * several, product)

    def reduction(self) -> int:
        """A bucket of gradients in the order of the ranks, in fp32; with offloading also a copy of this rank's part."""
        largest = max(self.adapter, default=self.shape.largest)
        elements = max(self.bucket, largest)  # a larger parameter is reduced alone
        copies = 2 if self.on_cpu and self.ranks > 1 else 1  # gloo works on a copy
        offloaded = ceil(elements / self.ranks) if self.hardware.offload_optimizer else 0
        return 4 * copies * elements + 4 * offloaded
