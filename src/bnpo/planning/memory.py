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
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import largest_layer
from bnpo.policy.weight_sync import GROUP_BYTES
from bnpo.policy.zero import deepspeed_settings, prefetch_bucket
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
    """Bytes of one rank as a table: parts down, phases across."""

    table: dict[str, dict[str, int]]  # by part, then by phase
    phases: tuple[str, ...]
    offloaded: int  # bytes of CPU memory
    resident: int  # bytes of a GPU that the learner holds from step to step

    def parts(self, phase: str) -> dict[str, int]:
        """Return the bytes of every part in a phase."""
        return {part: sizes[phase] for part, sizes in self.table.items() if sizes.get(phase)}

    def total(self, phase: str) -> int:
        return sum(self.parts(phase).values())

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=self.total)

    def __str__(self) -> str:
        """Return the table in GiB, with the totals and the peak marked."""
        # A phase such as "update: head" takes two lines of the header.
        header = [phase.rpartition(" ") for phase in self.phases]
        rows = [("", [group for group, _, _ in header]), ("GiB", [name for _, _, name in header])]
        for part, sizes in self.table.items():
            cells = [f"{sizes[phase] / GIB:.2f}" if sizes.get(phase) else "" for phase in self.phases]
            if any(cells):
                rows.append((part, cells))
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
    size, of_sampler = _Sizes(shape, config, ranks, device), bool(sampler)
    on_cpu, checkpointing = device == "cpu", config.hardware.gradient_checkpointing
    asleep = ("update: head", "update: layers", "update: reduction", "update: optimizer", "save", "sync: weights")
    phases = ("sample", *asleep, "sync: check") if of_sampler else asleep[:-1]
    resident = {"weights": size.weights * (on_cpu or not size.offload_weights)}
    if size.offload:
        resident["optimizer"] = size.optimizer * on_cpu
    else:
        resident["gradients"] = resident["master weights"] = 4 * size.partition  # DeepSpeed copies fp32 weights too
        resident["AdamW's moments"] = 8 * size.partition
    resident["small weights"] = size.small_weights
    resident["reduce bucket"] = 4 * (size.bucket if on_cpu or size.adapter else size.zero.reduce_bucket_size)
    resident["CUDA context, NCCL"] = CONTEXTS * (not on_cpu)
    # While the sampler's weights are loaded again, the largest is there twice, and its graphs come back as well.
    shard = size.bytes * shape.parameters // config.hardware.sampler_ranks
    reload = size.bytes * shape.largest // config.hardware.sampler_ranks
    table = {part: dict.fromkeys(phases, value) for part, value in resident.items()}
    table |= {
        "sampler": dict.fromkeys(("sample", "sync: check"), sampler),
        "gathered weights": dict.fromkeys(("save", "sync: weights"), size.group * size.gathers)
        | {
            "sample": size.left_gathered(),  # by the check of the last weight sync
            "update: head": size.gathered(head=True),
            "update: layers": size.gathered(head=False),
            "sync: check": size.gathered(head=True),
        },
        "sampler asleep": dict.fromkeys(asleep, ASLEEP * of_sampler),
        "layer inputs": dict.fromkeys(("update: head", "update: layers"), size.saved_for_backward() * checkpointing),
        "activations": dict.fromkeys(
            ("update: head", "update: layers"), size.saved_for_backward() * (not checkpointing)
        )
        | {"sync: check": size.scoring()},
        # The backward pass computes the log-probabilities again, so both passes count.
        "logits": {"update: head": max(size.logits(size.tokens, backward=back) for back in (False, True))}
        | {"sync: check": size.logits(size.longest, backward=False)},
        # The head's gradient is summed over the chunks in fp32. A tied head's waits for the embedding's.
        "head gradient": {"update: head": 4 * size.trained_head}
        | {"update: layers": size.bytes * size.trained_head * shape.tied},
        "layer activations": {"update: layers": size.layer_backward()},
        "layer gradients": {"update: layers": size.bytes * size.trained_layer},
        "reduction": {"update: layers": size.reduction() * (not on_cpu), "update: reduction": size.reduction()},
        "optimizer temporaries": {"update: optimizer": size.optimizer_step()},
        "cloned weights": dict.fromkeys(("save", "sync: weights"), size.cloned_group()),
        "sampler weights": {"sync: weights": shard},
        "reload": {"sync: weights": reload},
        "sampler graphs": {"sync: weights": GRAPHS},
        "sampler counts": {"sync: weights": size.token_counts()},
    }
    host = size.optimizer + size.weights * size.offload_weights
    return RankMemory(table, phases, host, sum(resident.values()))


class _Sizes:
    """Computes the parts of a rank's memory in bytes.

    CPUs, where tests measure them, differ in five parts: only the used part of the reduce bucket is taken, gradients
    are reduced after the backward pass, gloo copies them, AdamW has one more temporary, an offloaded optimizer counts.
    """

    def __init__(self, shape: ModelShape, config: TrainConfig, ranks: int, device: str):
        self.shape, self.config, self.ranks = shape, config, ranks
        self.on_cpu, self.logit_chunk = device == "cpu", LOGIT_CHUNK[device]
        self.offload, self.offload_weights = config.hardware.offload_optimizer, config.hardware.offload_weights
        self.bytes = number_bytes(config)
        self.zero = DeepSpeedZeroConfig(**deepspeed_settings(config)["zero_optimization"])
        # With LoRA, the adapter's weights are trained. They come on top of the model's, which are frozen.
        self.adapter = shape.adapter(config)
        self.trained = sum(self.adapter) if self.adapter else shape.parameters
        self.trained_head = 0 if self.adapter else shape.head
        self.trained_layer = sum(self.adapter) // shape.layers if self.adapter else shape.layer
        self.bucket = min(self.zero.reduce_bucket_size, self.trained)  # elements that are reduced together
        self.partition = ceil(self.trained / ranks)
        self.weights = self.bytes * ceil((shape.parameters + sum(self.adapter)) / ranks)
        # Weights are gathered from other ranks or from CPU memory, but for small ones, which stay.
        self.gathers = ranks > 1 or self.offload_weights
        kept = sum(size for size in self.adapter if size <= self.zero.param_persistence_threshold)
        self.small_weights = self.bytes * (shape.persistent + kept) * self.gathers
        # Weights on their way to the sampler or to disk are gathered and cloned in groups.
        self.group = min(GROUP_BYTES + self.bytes * shape.largest, self.bytes * shape.parameters)
        # An offloaded optimizer: master weights, two moments, and gradients twice, as they were reduced, and as AdamW
        # reads them.
        self.optimizer = 20 * self.partition * self.offload
        self.longest = longest_sequence(config, None)
        answers_per_step = config.batch.questions_per_step * config.batch.samples_per_question
        self.answers = answers_per_step // ranks  # of one step, on this rank
        micro_batch_tokens = max(config.hardware.micro_batch_tokens, self.longest)
        self.tokens = min(self.answers * self.longest, micro_batch_tokens)  # of one micro-batch

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

    def left_gathered(self) -> int:
        """Weights that stay gathered after a forward pass without a backward pass: some layers, and the head."""
        weights = self.shape.head + self.shape.layer * self.reused_layers()
        return self.bytes * min(weights, self.shape.parameters) * self.gathers

    def token_counts(self) -> int:
        """vLLM's counts of tokens per sequence, which share the memory of its weights."""
        sequences = min(self.answers * self.config.hardware.sampler_ranks, MOST_SEQUENCES)
        return 4 * sequences * self.shape.vocabulary

    def saved_for_backward(self) -> int:
        """What the forward pass of all layers and the last norm saves: inputs of layers, or their activations."""
        last = self.tokens * self.shape.hidden * (4 + 3 * self.bytes)
        if self.config.hardware.gradient_checkpointing:
            return last + self.shape.layers * self.tokens * self.shape.hidden * self.bytes
        return last + self.shape.layers * self.layer_activations()

    def layer_activations(self) -> int:
        """Return the bytes that autograd keeps of one layer."""
        shape = self.shape
        norms = 2 * shape.hidden * (4 + 2 * self.bytes)  # computed in fp32
        attention = self.bytes * (3 * shape.queries + 2 * shape.keys) + 4 * shape.heads  # q, k, v, output: two layouts
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

    def layer_backward(self) -> int:
        """Activations of a layer, computed again from its input with gradient checkpointing, and temporaries."""
        again = self.layer_activations() if self.config.hardware.gradient_checkpointing else 0
        return again + self.tokens * self.bytes * (2 * self.shape.intermediate + 4 * self.shape.hidden)

    def reduction(self) -> int:
        """A bucket of gradients in the order of the ranks, in fp32; with offloading also a copy of this rank's part."""
        largest = max(self.adapter, default=self.shape.largest)
        elements = max(self.bucket, largest)  # a larger parameter is reduced alone
        copies = 2 if self.on_cpu and self.ranks > 1 else 1  # gloo works on a copy
        return 4 * copies * elements + 4 * ceil(elements / self.ranks) * self.offload

    def optimizer_step(self) -> int:
        """One group of gradients in one piece (offloaded ones are already), and AdamW's temporaries."""
        group = min(self.partition, self.zero.sub_group_size + ceil(self.shape.largest / self.ranks))
        size = (8 if self.offload else 12) if self.on_cpu else (0 if self.offload else 8)  # bytes per parameter
        return size * group

    def cloned_group(self) -> int:
        """Clones of weights on their way to the sampler or to disk, and with LoRA the fp32 temporaries of merging."""
        return self.group + 8 * max(inputs * outputs for inputs, outputs in self.shape.linear) * bool(self.adapter)

    def scoring(self) -> int:
        """The learner scores one answer of the longest length; nothing is saved for a backward pass."""
        return self.bytes * self.longest * (3 * self.shape.intermediate + 6 * self.shape.hidden)
