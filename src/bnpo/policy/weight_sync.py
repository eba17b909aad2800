"""The weight sync: ZeRO-3 parameters -> whole tensors -> vLLM, and the checks that the weights arrived."""

import re
from collections.abc import Iterator
from itertools import groupby

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from transformers.core_model_loading import revert_weight_conversion

from bnpo.files import RunError
from bnpo.policy.learner import Experience, Learner
from bnpo.policy.lora import merged, named_weights
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather

COMPARED_ANSWERS = 3
"""Answers per rank that must differ after a sync before it counts as failed."""
LEAST_TOKENS = 32
"""Tokens that are compared after a sync, at least. If the answer is shorter, they begin in its prompt."""


def whole_weights(model: torch.nn.Module, *, tied_too: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, whole tensor) of a ZeRO-3 partitioned model, in layer order, and then its buffers. A collective.

    LoRA is merged into the weights. Names and shapes are those of a checkpoint: transformers renames some tensors as it
    loads them, and joins those of a layer's experts. With `tied_too` a tied head also comes under its own name: vLLM
    keeps its old head if it is left out. The tensors are clones, since the gathered ones are freed with their group.
    """
    # Layer by layer: few collectives, and little memory beside the model.
    for _, weights in groupby(named_weights(model, tied_too=tied_too), key=lambda named: layer_number(named[0])):
        group = list(weights)
        with deepspeed.zero.GatheredParameters([part for _, parts, _ in group for part in parts]):
            clones = {name: merged(parts, layer).clone() for name, parts, layer in group}
        tensors = revert_weight_conversion(model, clones)
        yield from tensors.items()
        del clones, tensors  # before the next layer is gathered
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    yield from revert_weight_conversion(model, buffers).items()


def layer_number(name: str) -> int | None:
    """Return the number of the layer that a weight belongs to, 1 for model.layers.1.mlp.up_proj.weight, or None."""
    number = re.search(r"\.(\d+)\.", name)
    return int(number[1]) if number else None


def check_equal(weights: dict[str, torch.Tensor], held: dict[str, torch.Tensor], step: int, place: int) -> None:
    """Raise RunError on all ranks if a tensor of the sampler differs from the learner's in any bit. A collective.

    `weights` are the learner's compared ones, the embedding first. `held` are those that the sampler holds: shards if
    several ranks share it, of which this one has number `place`. Bits are compared because an update at a learning rate
    of 1e-6 changes log-probabilities by less than the arithmetic of bf16 does, so `measure_sync` may not see it.
    """
    differing = [name for name, own in held.items() if not torch.equal(*comparable(weights[name], own, place))]
    embedding = next(iter(weights))
    if embedding not in held:  # nor would its changes be seen in a later version of vLLM
        differing.append(f"{embedding} (missing)")
    for rank, names in enumerate(gather(differing)):
        if names:
            raise RunError(
                f"weight sync after step {step} failed: {', '.join(names)} of rank {rank}'s sampler differ from the "
                "learner's: an update was lost, or only a part of the weights arrived"
            )


def comparable(whole: torch.Tensor, held: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equal parts of a learner's tensor and a sampler's: its shard `place` of any dimension, without padding.

    >>> [part.tolist() for part in comparable(torch.arange(5), torch.tensor([3, 4, 0]), place=1)]
    [[3, 4], [3, 4]]
    """
    sizes = zip(held.shape, whole.shape, strict=True)
    shard = [slice(place * size, place * size + size) if size < total else slice(None) for size, total in sizes]
    whole = whole[tuple(shard)].to(held.dtype)  # nothing, if the shard is nothing but padding
    return whole, held[tuple(map(slice, whole.shape))]


def refresh_sampler(learner: Learner, sampler: Sampler, step: int) -> None:
    """Wake the sampler with the learner's weights. Raises RunError if some did not arrive. A collective."""
    middle_layer = (learner.model.config.num_hidden_layers - 1) // 2
    compared: dict[str, torch.Tensor] = {}  # the weights of one layer, and all that are in no layer

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in whole_weights(learner.model, tied_too=True):
            if layer_number(name) in (None, middle_layer):
                compared[name] = tensor
            yield name, tensor

    sampler.wake("weights")
    sampler.load_weights(weights())
    check_equal(compared, sampler.parameters(list(compared)), step, sampler.place)
    sampler.wake("kv_cache")  # only now, since gathering the weights needs memory, too


def measure_sync(learner: Learner, sampler: Sampler, experience: Experience, step: int, bound: float) -> float:
    """Return the mean difference between sampler and learner over the tokens of one answer, the largest of the ranks.

    Each rank takes its longest answer, and the next longest if one differs by more than `bound`: rounding is unusually
    large in some answers, while lost weights move all. A collective. Raises RunError if COMPARED_ANSWERS do.
    """
    sampling, ranks = learner.config.sampling, dist.get_world_size()
    own_answers = np.array_split(np.arange(len(experience.answers)), ranks)[dist.get_rank()]
    by_length = sorted(own_answers, key=lambda i: len(experience.answers[i]), reverse=True)
    for i in by_length[: min(COMPARED_ANSWERS, len(experience.answers) // ranks)]:  # equally many on all ranks
        prompt, answer = experience.prompts[i], experience.answers[i]
        # vLLM scores a text only if one more token would fit behind it.
        text = (prompt + answer)[: sampling.max_prompt_tokens + sampling.max_answer_tokens - 1]
        split = max(1, min(len(prompt), len(text) - LEAST_TOKENS))
        prompt, answer = text[:split], text[split:]
        own_difference = np.abs(sampler.score(prompt, answer) - learner.score(prompt, answer)).mean()  # of this rank
        difference = float(np.max(gather(own_difference)))  # the largest, or nan: all ranks continue, or none
        if difference <= bound:
            return difference
    raise RunError(
        f"weight sync after step {step} failed: the sampler's and the learner's log-probabilities of the longest "
        f"answers differ by {difference:.2g} per token, more than the {bound:.2g} that rounding explains. The sampler "
        "lacks the learner's weights (a lost update, a head left behind), or their arithmetic differs more than at the "
        "start; --sync-tolerance sets another bound"
    )
