"""Where the memory of a rank goes: every item in bytes, at each moment of a step where the sum may be largest.

Nothing is loaded or measured here: `account` reads DeepSpeed's settings, the shapes of the model's parameters and what
the code of learner, sampler and loss allocates. Tested on CPUs against the memory that the learner really takes
(tests/test_memory.py). What a GPU adds and no CPU can show is in the constants below; there the account is an upper
bound, since copies on DeepSpeed's second stream may live beside any part of the backward pass.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

import torch
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig
from bnpo.policy.learner import deepspeed_settings, largest_layer, prefetch_bucket
from bnpo.policy.weight_sync import GROUP_BYTES

GIB = 2**30
CONTEXTS = 3 * 2**29
"""Bytes of a rank's CUDA context with its kernels and of NCCL's buffers."""
ASLEEP = 2**30
"""Bytes of vLLM that sleep does not free: workspaces and compiled kernels."""
NOT_TORCHS = ("contexts", "sampler asleep")
"""Items that the learner's allocator does not know."""
GRAPHS = 2**30
"""Bytes of vLLM's CUDA graphs, inside its share; they sleep in CPU memory."""


@dataclass(frozen=True)
class Shape:
    """What the memory depends on of a model, in elements: all parameters (a tied head once), those of one layer and of
    the largest parameter, those small enough for DeepSpeed to keep them whole on every rank, rows of the head, sizes of
    the hidden state, the feed-forward layer, all queries and all keys; layers, attention heads and `tied` besides."""

    parameters: int
    layer: int
    largest: int
    persistent: int
    vocabulary: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    heads: int
    layers: int
    tied: bool

    @property
    def head(self) -> int:
        return self.vocabulary * self.hidden


def read_shape(folder: Path) -> Shape:
    """The shape of the Hugging Face model in `folder`, from its config.json alone: exact, and no weight is loaded."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sizes = [parameter.numel() for parameter in model.parameters()]
    threshold = DeepSpeedZeroConfig(stage=3).param_persistence_threshold
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=sum(sizes),
        layer=largest_layer(model),
        largest=max(sizes),
        persistent=sum(size for size in sizes if size <= threshold),
        vocabulary=len(model.get_output_embeddings().weight),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        queries=config.num_attention_heads * head_size,
        keys=config.num_key_value_heads * head_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
    )


@dataclass(frozen=True)
class Account:
    """Bytes of one rank by moment and item, and of the CPU memory that the optimizer of a rank takes (0: none)."""

    moments: dict[str, dict[str, int]]
    offloaded: int

    def total(self, moment: str) -> int:
        return sum(self.moments[moment].values())

    @property
    def peak(self) -> str:
        """The moment that takes most."""
        return max(self.moments, key=self.total)

    @property
    def update_peak(self) -> int:
        """What torch allocates for the learner at the largest moment of an update. A GPU's figure to compare with is
        torch.cuda.max_memory_allocated() over an update (not the first one, which makes AdamW's moments), less
        CuMemAllocator.get_instance().get_current_usage(): torch goes on counting what the sleeping sampler gave back.
        """
        updates = [items for moment, items in self.moments.items() if moment.startswith("update")]
        return max(sum(size for name, size in items.items() if name not in NOT_TORCHS) for items in updates)

    def largest(self, count: int) -> str:
        """The largest items of the peak, for an error message."""
        items = sorted(self.moments[self.peak].items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {size / GIB:.1f}" for name, size in items[:count])

    def __str__(self) -> str:
        lines = []
        for moment, items in self.moments.items():
            lines.append(f"{self.total(moment) / GIB:7.1f} GiB  {moment}" + " (peak)" * (moment == self.peak))
            lines += [f"{size / GIB:11.2f}  {item}" for item, size in items.items() if size]
        return "\n".join(lines)


def account(shape: Shape, config: TrainConfig, ranks: int, *, share: int = 0, device: str = "cuda") -> Account:
    """What one of `ranks` ranks holds on its `device` from the second step on, AdamW's moments included; `share` is the
    sampler's bytes while it is awake.

    On "cpu" it is the learner alone (the sampler never sleeps there, and its cache has a fixed size), without contexts,
    and five items differ: of the reduce bucket only what is used is really taken, gradients are reduced after the
    backward pass and not beside it, gloo copies them once more, AdamW works on one tensor with one temporary more, and
    an offloaded optimizer counts, too.
    """
    rank = _Rank(shape, config, ranks, device)
    resident, forward = rank.resident(), rank.forward()
    asleep = resident | ({"sampler asleep": ASLEEP} if share else {})
    moments = {
        "update: head": asleep | rank.saved(rank.tokens) | rank.head_backward(),
        "update: layers": asleep | rank.saved(rank.tokens) | rank.layer_backward(),
        "update: reduction": asleep | rank.reduction(),
        "update: optimizer": asleep | rank.optimizer_step(),
        "save": asleep | rank.whole_groups(),
    }
    if share:
        weights = {"sampler's weights": rank.bytes * shape.parameters, "their reload": rank.bytes * shape.largest}
        kept = {"kept layers": rank.bytes * shape.layer * rank.kept_layers() * (ranks > 1)}
        moments = {"sample": resident | {"sampler": share} | kept} | moments
        moments["sync: weights"] = asleep | weights | rank.whole_groups()
        moments["sync: check"] = resident | {"sampler": share} | forward
    return Account(moments, rank.offloaded())


class _Rank:
    """The terms of `account`, each a method that returns items and their bytes."""

    def __init__(self, shape: Shape, config: TrainConfig, ranks: int, device: str):
        self.shape, self.config, self.ranks, self.device = shape, config, ranks, device
        self.bytes = 2 if config.hardware.dtype == "bfloat16" else 4
        self.partition = ceil(shape.parameters / ranks)
        self.longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
        own = config.batch.questions_per_step * config.batch.samples_per_question // ranks * self.longest
        self.tokens = min(own, max(config.hardware.micro_batch_tokens, self.longest))
        settings = deepspeed_settings(config)
        self.zero = DeepSpeedZeroConfig(**settings["zero_optimization"])
        self.reduced_in = 4 if settings.get("communication_data_type") == "fp32" else self.bytes

    @cached_property
    def bucket(self) -> int:
        """Elements of the gradients that are reduced together."""
        return min(self.zero.reduce_bucket_size, self.shape.parameters)

    def resident(self) -> dict[str, int]:
        """What stays from step to step."""
        on_cpu = self.device == "cpu"
        items = {"weights": self.bytes * self.partition}
        if self.config.hardware.offload_optimizer:
            items["optimizer"] = self.offloaded() if on_cpu else 0
        else:
            items["gradients"] = 4 * self.partition
            items["master weights"] = 4 * self.partition  # a copy in fp32 runs, too
            items["AdamW's moments"] = 8 * self.partition
        items["small weights"] = self.bytes * self.shape.persistent if self.ranks > 1 else 0
        items["reduce bucket"] = self.reduced_in * (self.bucket if on_cpu else self.zero.reduce_bucket_size)
        return items | ({} if on_cpu else {"contexts": CONTEXTS})

    def offloaded(self) -> int:
        """Master weights, gradients twice (as reduced, and as AdamW takes them) and moments in CPU memory."""
        return 20 * self.partition if self.config.hardware.offload_optimizer else 0

    def gathered(self, *, head: bool) -> dict[str, int]:
        """Whole weights: the layer at work, those prefetched, those kept since they are needed again soon, and the copy
        in which some have just arrived, where not all are kept anyway."""
        if self.ranks == 1:
            return {"gathered weights": 0}
        shape = self.shape
        prefetched = prefetch_bucket(shape.layer)
        whole = shape.layer * (1 + self.kept_layers()) + prefetched + shape.head * head
        arriving = prefetched if whole < shape.parameters else 0
        return {"gathered weights": self.bytes * (min(whole, shape.parameters) + arriving)}

    def kept_layers(self) -> int:
        """Layers that stay whole after a forward pass, since what comes next is near: DeepSpeed looks ahead through the
        head and the whole model, which it takes for needed soon where its root follows."""
        shape = self.shape
        return min(max((self.zero.max_reuse_distance - shape.head) // shape.layer + 1, 0), shape.layers)

    def saved(self, tokens: int) -> dict[str, int]:
        """What the forward pass of all layers keeps for the backward pass, the last norm included."""
        last = tokens * self.shape.hidden * (4 + 3 * self.bytes)
        if self.config.hardware.gradient_checkpointing:
            return {"layer inputs": last + self.shape.layers * tokens * self.shape.hidden * self.bytes}
        return {"activations": last + self.shape.layers * self.layer_activations(tokens)}

    def layer_activations(self, tokens: int) -> int:
        """What autograd keeps of one layer: inputs of all products; norms in fp32; queries, keys, values, the output of
        the attention, for two layouts; four times the feed-forward layer."""
        shape = self.shape
        norms = 2 * shape.hidden * (4 + 2 * self.bytes)
        attention = self.bytes * (3 * shape.queries + 2 * shape.keys) + 4 * shape.heads
        return tokens * (norms + attention + self.bytes * 4 * shape.intermediate)

    def logits(self, tokens: int, *, backward: bool) -> int:
        """Temporaries of loss.py: chunks of fp32 logits, of which two meet where there is more than one; on CPUs the
        factors of bf16 products are in fp32, too."""
        shape, half, on_cpu = self.shape, self.bytes < 4, self.device == "cpu"
        rows = max(1, LOGIT_CHUNK[self.device] // shape.vocabulary)
        elements, again = min(tokens, rows) * shape.vocabulary, tokens > rows
        logits = 4 * elements
        weight = 4 * shape.head * half * on_cpu
        if not backward:
            normalized = logits * (3 if self.config.logging.exact_entropy else 2)
            return max(normalized, logits * (1 + again) + weight)
        # The gradient takes the place of the logits in fp32, and comes beside them in bf16.
        chunk = logits + 2 * elements * half
        product = 4 * shape.head + logits * half * on_cpu  # a part of the weight's gradient
        return chunk + max((logits + weight) * again, product)

    def head_backward(self) -> dict[str, int]:
        """Log-probabilities, as the backward pass computes them again; the head's gradient is summed up in fp32."""
        logits = max(self.logits(self.tokens, backward=False), self.logits(self.tokens, backward=True))
        return {"logits": logits, "head's gradient": 4 * self.shape.head} | self.gathered(head=True)

    def layer_backward(self) -> dict[str, int]:
        """One layer, whose activations are first computed again if only its input was kept."""
        shape = self.shape
        again = self.layer_activations(self.tokens) if self.config.hardware.gradient_checkpointing else 0
        temporaries = self.tokens * self.bytes * (2 * shape.intermediate + 4 * shape.hidden)
        items = {"layer's activations": again + temporaries, "layer's gradients": self.bytes * shape.layer}
        # A tied head's gradient waits for the embedding's.
        items["head's gradient"] = self.bytes * shape.head * shape.tied
        beside = {} if self.device == "cpu" else self.reduction()
        return items | beside | self.gathered(head=False)

    def reduction(self) -> dict[str, int]:
        """A bucket of gradients in the order of the ranks; this rank's part in fp32. A parameter that is larger than
        the bucket comes alone. Gloo, which talks between CPUs, works on a copy."""
        elements = max(self.bucket, self.shape.largest)
        converted = self.reduced_in < 4 or self.config.hardware.offload_optimizer
        copies = 2 if self.device == "cpu" and self.ranks > 1 else 1
        return {"reduction": copies * self.reduced_in * elements + 4 * ceil(elements / self.ranks) * converted}

    def optimizer_step(self) -> dict[str, int]:
        """A part of the gradients in one piece, and AdamW's temporaries."""
        part = min(self.partition, self.zero.sub_group_size + ceil(self.shape.largest / self.ranks))
        if self.config.hardware.offload_optimizer:  # its gradients are in one piece already
            return {"optimizer's temporaries": 8 * part if self.device == "cpu" else 0}
        return {"optimizer's temporaries": part * (12 if self.device == "cpu" else 8)}

    def whole_groups(self) -> dict[str, int]:
        """Weights on their way to the sampler or to disk, a group at a time: gathered, then cloned."""
        size = min(GROUP_BYTES + self.bytes * self.shape.largest, self.bytes * self.shape.parameters)
        return {"gathered weights": size * (self.ranks > 1), "their clones": size}

    def forward(self) -> dict[str, int]:
        """The learner's score of one answer, nothing kept."""
        shape, tokens = self.shape, self.longest
        working = self.bytes * tokens * (3 * shape.intermediate + 6 * shape.hidden)
        return {"logits": self.logits(tokens, backward=False), "activations": working} | self.gathered(head=True)
