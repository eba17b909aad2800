"""The memory of a rank: whether the learner can be loaded, and what it leaves to the sampler.

The sampler's share is measured once the learner exists. `planner` estimates the rest of a step's
memory without a GPU.
"""

import os
from collections import Counter
from contextlib import suppress
from math import ceil
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.config import TrainConfig
from bnpo.environment import ranks_here
from bnpo.files import InputError
from bnpo.policy.folder import empty_model, model_config
from bnpo.policy.learner import REDUCE_BUCKET
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import elements, layers
from bnpo.policy.sampling import MOST_SEQUENCES, PREFILL_TOKENS, EngineSettings
from bnpo.ranks import gather

GIB = 2**30
ASLEEP = 2**30  # what vLLM keeps while it sleeps: workspaces and compiled kernels
GRAPHS = 2**30  # vLLM's CUDA graphs; part of its share of the GPU, in CPU memory while it sleeps
USABLE = 0.97  # share of a GPU's memory that can be used; the rest is lost between allocations
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class ModelShape:
    """The sizes of a Hugging Face model, from its config.json."""

    def __init__(self, folder: Path):
        config = model_config(folder)
        model = empty_model(folder, config)

        def largest(setting: str, default: int) -> int:
            # Layers may differ in size, and transformers has the settings of each. Older families
            # do not have all settings.
            sizes = (getattr(layer, setting, None) for layer in config.per_layer_config[:])
            return max(size or default for size in sizes)

        self.parameters = elements(model)  # a tied head counts once
        # Number of layers, and elements of the largest
        self.layers, self.layer = config.num_hidden_layers, max(map(elements, layers(model)))
        head = model.get_output_embeddings().weight  # [vocabulary, hidden]
        self.vocabulary, self.hidden, self.head = len(head), config.hidden_size, head.numel()
        self.tied_head = head is model.get_input_embeddings().weight
        # Width of the feed-forward layer
        self.intermediate = largest("intermediate_size", 4 * self.hidden)
        self.heads = largest("num_attention_heads", 1)
        self.key_heads = largest("num_key_value_heads", self.heads)
        # Width of a query, key or value
        self.head_size = largest("head_dim", self.hidden // self.heads)
        # Inputs and outputs of all layers that LoRA adapts: elements of an adapter of rank 1
        self.adapted = sum(sum(layer.weight.shape) for layer in adapted_layers(model).values())


class SamplerNeeds:
    """The GPU memory that a sampler can use, in bytes per GPU. vLLM's needs are estimates."""

    def __init__(self, shape: ModelShape, config: TrainConfig, longest: int, ranks: int):
        batch = config.batch
        size = DTYPE_BYTES[config.hardware.dtype]
        sharing = config.hardware.sampler_ranks
        # A greedy answer, as a baseline, is an answer too
        greedy = "greedy_rewards" in config.method.estimator.needs
        per_question = batch.samples_per_question + greedy
        self.answers = batch.questions_per_step * sharing // ranks * per_question
        # Part of the weights, workspace of a prefill, CUDA graphs
        per_token = 3 * shape.intermediate // sharing + 6 * shape.hidden
        prefill = max(PREFILL_TOKENS, longest) * per_token
        self.fixed = size * (shape.parameters // sharing + prefill) + GRAPHS + ASLEEP
        # Keys and values of a token. Of fewer key heads than GPUs, each is on several.
        key_heads = max(1, ceil(shape.key_heads / sharing))
        cache = 2 * size * shape.layers * shape.head_size * key_heads * longest  # of an answer
        logits = 12 * shape.vocabulary  # of an answer: fp32 thrice
        self.least = self.fixed + logits + cache  # one answer at a time
        # Twice what all answers at once can use
        at_once = logits * min(self.answers, MOST_SEQUENCES) + cache * self.answers
        self.most = 2 * (self.fixed + at_once)
        # The cache must hold a quarter of the longest for each answer, or vLLM would evict some.
        self._per_answer = cache / 4 + logits

    def sequences(self, share: int) -> int:
        """Return how many answers a sampler with `share` bytes draws at once."""
        return max(1, min(self.answers, int((share - self.fixed) / self._per_answer)))


def held_memory(shape: ModelShape, config: TrainConfig, ranks: int) -> tuple[Counter[str], int]:
    """Return the bytes that the learner of a rank always holds: on its GPU by part, and in CPU
    memory.
    """
    hardware = config.hardware
    adapter = shape.adapted * (config.update.lora_rank or 0)
    trained = adapter or shape.parameters
    partition = ceil(trained / ranks)
    weights = DTYPE_BYTES[hardware.dtype] * ceil((shape.parameters + adapter) / ranks)
    gradients = 4 * partition  # in fp32
    optimizer = 12 * partition  # fp32 weights and two moments
    bucket = 4 * min(REDUCE_BUCKET, trained)
    on_gpu = Counter(weights=0, gradients=bucket, optimizer=0)
    in_cpu_memory = 0
    if hardware.offload_weights:
        in_cpu_memory += weights
    else:
        on_gpu["weights"] = weights
    if hardware.offload_optimizer:
        in_cpu_memory += optimizer + 2 * gradients  # DeepSpeed has them twice
    else:
        on_gpu["gradients"] += gradients
        on_gpu["optimizer"] = optimizer
    return on_gpu, in_cpu_memory


def gathered_memory(shape: ModelShape, config: TrainConfig, ranks: int) -> int:
    """Return the bytes of the weights that DeepSpeed gathers, and keeps for their next use."""
    if ranks == 1 and not config.hardware.offload_weights:
        return 0
    kept = DeepSpeedZeroConfig(stage=3).max_live_parameters + shape.layer + shape.head
    return DTYPE_BYTES[config.hardware.dtype] * min(kept, shape.parameters)


def scoring_memory(shape: ModelShape, config: TrainConfig, ranks: int, chunk: int) -> int:
    """Return the bytes with which the learner scores the longest answer. It does so after a weight
    sync, beside the sampler. The head has at most `chunk` logits at once.
    """
    size = DTYPE_BYTES[config.hardware.dtype]
    sampling = config.sampling
    longest = sampling.longest
    activations = size * longest * (6 * shape.hidden + 3 * shape.intermediate)
    logits = logit_bytes(size) * min(longest * shape.vocabulary, chunk)
    return gathered_memory(shape, config, ranks) + activations + logits


def logit_bytes(size: int) -> int:
    """Return the bytes of a logit: it is in fp32, and so is its gradient, which models in 16 bits
    (`size` 2) copy to their own format.
    """
    return 4 if size == 4 else 4 + size


def check_sampler_ranks(shape: ModelShape, size: int, ranks_here: int) -> None:
    """Raise InputError if `size` of a machine's `ranks_here` ranks cannot share a sampler."""
    keys = shape.key_heads  # vLLM repeats key heads if there are too few
    uneven = [n for n in (ranks_here, shape.heads, shape.intermediate) if n % size]
    if uneven or (keys % size and size % keys):
        raise InputError(
            f"--sampler-ranks {size}: must divide the {ranks_here} ranks of a machine, "
            f"{shape.heads} heads and a width of {shape.intermediate}, and divide or be divided "
            f"by {keys} key heads"
        )


def memory_cures(config: TrainConfig, ranks_here: int, while_updating: bool = False) -> str:
    """Return the changes that lower the memory of a GPU and that `config` does not make already, in
    the order in which docs/gpus.md recommends them, for a machine with `ranks_here` ranks.

    The activations of an update count only `while_updating`.
    """
    hardware = config.hardware
    helps = {
        "the default of --gpu-memory": hardware.gpu_memory,
        "a lower --micro-batch-tokens": while_updating,
        "--gradient-checkpointing": while_updating and not hardware.gradient_checkpointing,
        "--lora-rank 32": not config.update.lora_rank,
        "more ranks": True,
        "--offload-optimizer": not hardware.offload_optimizer,
        "--sampler-ranks 2": hardware.sampler_ranks == 1 and ranks_here % 2 == 0,
        "--offload-weights": not hardware.offload_weights,
    }
    return ", ".join(change for change, does in helps.items() if does) + " (docs/gpus.md)"


def usable_cpu_memory(root: Path = Path("/")) -> int:
    """Return the bytes of CPU memory of this machine, or of this container or Slurm job if it has
    less (control groups, version 2).
    """
    limits = [psutil.virtual_memory().total]
    with suppress(OSError):
        groups = (root / "proc" / "self" / "cgroup").read_text().splitlines()
        for line in groups:
            if not line.startswith("0::/"):
                continue
            folder = root / "sys" / "fs" / "cgroup" / line.removeprefix("0::/")
            for parent in (folder, *folder.parents):
                file = parent / "memory.max"
                limit = file.read_text().strip() if file.is_file() else "max"
                if limit.isdecimal():
                    limits.append(int(limit))
    return min(limits)


def check_memory(shape: ModelShape, config: TrainConfig) -> None:
    """Raise InputError if the learner cannot be loaded on this machine, or its ranks cannot share
    samplers.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    here = ranks_here()
    check_sampler_ranks(shape, config.hardware.sampler_ranks, here)
    held, in_cpu_memory = held_memory(shape, config, ranks)
    if torch.cuda.is_available():
        gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        gpu = min(properties.total_memory for properties in gpus)
        if held.total() > USABLE * gpu:
            part, size = held.most_common(1)[0]
            raise InputError(
                f"{config.data.model}: the learner needs {held.total() / GIB:.1f} GiB of each GPU, "
                f"of which {size / GIB:.1f} are '{part}'; a GPU has {gpu / GIB:.1f}; try "
                f"{memory_cures(config, here)}"
            )
    else:
        in_cpu_memory += held.total()
    if here * in_cpu_memory > (memory := usable_cpu_memory()):
        raise InputError(
            f"{config.data.model}: needs {here * in_cpu_memory / GIB:.0f} GiB of CPU memory, here "
            f"are {memory / GIB:.0f}; try --lora-rank 32 or more machines (docs/gpus.md)"
        )


def _allocate_nccl() -> None:
    """Let NCCL allocate its buffers, which it does with the first collective of a kind."""
    part = torch.zeros(2**20, device="cuda")
    whole = torch.zeros(2**20 * dist.get_world_size(), device="cuda")
    dist.all_reduce(part)
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)


def sampler_settings(shape: ModelShape, config: TrainConfig, longest: int) -> EngineSettings:
    """Return the settings of a sampler of prompts plus answers of up to `longest` tokens.

    On GPUs this is a collective, and the learner must hold all that it keeps from step to step.
    The sampler gets --gpu-memory, or what the learner leaves free, but no more than the answers of
    a step can use. Raises InputError on all ranks if that is too little.
    """
    hardware = config.hardware
    share = sequences = None
    if torch.cuda.is_available():
        _allocate_nccl()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        ranks = dist.get_world_size()
        needs = SamplerNeeds(shape, config, longest, ranks)
        scoring = scoring_memory(shape, config, ranks, LOGIT_CHUNK["cuda"])
        free -= scoring + int((1 - USABLE) * total)
        left = max(0, int(1000 * min(needs.most, free) / total)) / 1000  # rounded down
        # Equal on all ranks, which sample equally many answers
        share = hardware.gpu_memory or min(gather(left))
        memory = gather((int(share * total), free))  # [ranks] of (sampler's bytes, free bytes)
        smallest = min(wanted for wanted, _ in memory)
        # The rank that lacks most
        wanted, its_free = max(memory, key=lambda one: one[0] - one[1])
        if wanted > max(its_free, 0) or smallest < needs.least:
            raise InputError(
                f"beside the learner {max(0, its_free) / GIB:.1f} GiB of a GPU are left for the "
                f"sampler, which needs {needs.least / GIB:.1f} and would get {wanted / GIB:.1f}; "
                f"try {memory_cures(config, ranks_here())}"
            )
        sequences = needs.sequences(smallest)
    return EngineSettings(
        max_tokens=longest,
        dtype=hardware.dtype,
        gpu_memory=share,
        sequences=sequences,
        enforce_eager=hardware.enforce_eager,
        tensor_parallel=hardware.sampler_ranks,
    )
