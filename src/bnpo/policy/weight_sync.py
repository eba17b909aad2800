"""The weight sync: ZeRO-3 parameters -> whole tensors -> vLLM, and the checks that the weights arrived."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from transformers.core_model_loading import revert_weight_conversion

from bnpo.files import RunError
from bnpo.policy.lora import Weight, named_weights
from bnpo.ranks import gather

if TYPE_CHECKING:  # vLLM takes seconds to import, and planning.py needs this module without it
    from bnpo.policy.learner import Learner
    from bnpo.policy.sampler import Sampler
    from bnpo.policy.update import Experience

GROUP_BYTES = 2**30
"""Bytes of parameters gathered at once: few collectives, and little memory beside the model."""


class SyncError(RunError):
    """Sampler and learner disagree after a weight sync."""


def whole_weights(model: torch.nn.Module, *, tied_too: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, whole tensor) of a ZeRO-3 partitioned model, in layer order, and then its buffers. A collective.

    LoRA is merged into the weights. Names and shapes are those of a checkpoint. transformers renames some tensors as it
    loads them, and joins those of all experts of a layer to one. With `tied_too` a tied head also comes under its own
    name: vLLM keeps its old head if it is left out. The tensors are clones, since the gathered ones are freed with
    their group, and the receiver may hold them for longer.
    """
    for group in _weight_groups(model, tied_too):
        with gathered(part for _, weight in group for part in weight.parts()):
            clones = {name: weight.merged().clone() for name, weight in group}
        tensors = deque(revert_weight_conversion(model, clones).items())
        clones.clear()
        while tensors:  # hand them over one by one, so that none is held while the next group is gathered
            yield tensors.popleft()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    yield from revert_weight_conversion(model, buffers).items()


def gathered(parameters: Iterable[torch.nn.Parameter]) -> deepspeed.zero.GatheredParameters:
    """Return a context in which partitioned `parameters` are whole. A collective.

    Parameters that are so small that DeepSpeed keeps them whole stay so. Its context alone would free them at its end,
    and the next forward pass would have to gather them again.
    """
    available = ZeroParamStatus.AVAILABLE
    partitioned = [p for p in parameters if not (p.ds_persist and p.ds_status is available)]
    return deepspeed.zero.GatheredParameters(partitioned)


def _weight_groups(model: torch.nn.Module, tied_too: bool) -> Iterator[list[tuple[str, Weight]]]:
    """Yield the named weights of a model in groups of at least GROUP_BYTES, the last one smaller."""
    group, size = [], 0
    for name, weight in named_weights(model, tied_too=tied_too):
        size += weight.parameter.ds_numel * weight.parameter.element_size()
        group.append((name, weight))
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def compared_names(model: torch.nn.Module) -> dict[str, str]:
    """Return the compared weights: the first (embedding), the middle layer's, the last (head).

    Keys are the names of their tensors in a checkpoint, values those of the model's own weights.
    """
    weights = dict(named_weights(model, tied_too=True))
    names = list(weights)
    layers = [int(match[1]) for match in (re.search(r"\.(\d+)\.", name) for name in names) if match]
    middle_layer = f".{max(layers) // 2}."
    compared = {}
    for name in (names[0], *(name for name in names if middle_layer in name), names[-1]):
        shape_only = torch.empty(weights[name].parameter.ds_shape, device="meta")
        compared |= dict.fromkeys(revert_weight_conversion(model, {name: shape_only}), name)
    return compared


def check_equal(model: torch.nn.Module, sampler_tensors: Mapping[str, torch.Tensor], step: int, place: int = 0) -> None:
    """Raise SyncError on all ranks if a compared parameter differs from the sampler's in any bit. A collective.

    `sampler_tensors` are this rank's, by name: shards if several ranks share a sampler, of which this one has number
    `place`. vLLM keeps a few tensors in bf16, whatever the number format of the model. Bits are compared because an
    update at a learning rate of 1e-6 changes log-probabilities by less than the arithmetic of bf16 does, so
    `check_sync` alone would not see that an update was lost.
    """
    own_names = compared_names(model)
    weights = dict(named_weights(model, tied_too=True))
    first, *_, last = own_names
    # A sampler may hold a tied head under the name of the embedding alone.
    tied = weights[own_names[first]].parameter is weights[own_names[last]].parameter
    ends = (first,) if tied else (first, last)
    if missing := [name for name in ends if name not in sampler_tensors]:
        raise SyncError(f"weight sync after step {step}: the sampler holds no tensor {missing[0]} to compare")
    # Every rank holds the same names in the same order, so that all of them gather the same parameters.
    compared = {own_names[name]: weights[own_names[name]] for name in sampler_tensors}
    with gathered(part for weight in compared.values() for part in weight.parts()):
        tensors = revert_weight_conversion(model, {name: weight.merged() for name, weight in compared.items()})
        differing = [
            name
            for name, tensor in sampler_tensors.items()
            if not torch.equal(*comparable(tensors[name].to(tensor.dtype), tensor, place))
        ]
    for rank, names in enumerate(gather(differing)):
        if names:
            raise SyncError(
                f"weight sync after step {step} failed: {', '.join(names)} of rank {rank}'s sampler differ from the "
                "learner's: an update was lost, or only a part of the weights arrived"
            )


def comparable(whole: torch.Tensor, held: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equal parts of a learner's tensor and a sampler's: the sampler's shard number `place`, without padding.

    A sampler may hold a shard along any dimension, and rows of padding behind the last.

    >>> [part.tolist() for part in comparable(torch.arange(5), torch.tensor([3, 4, 0]), place=1)]
    [[3, 4], [3, 4]]
    """
    for dim, size in enumerate(held.shape):
        start = place * size if size < whole.shape[dim] else 0
        length = max(0, min(size, whole.shape[dim] - start))  # a shard may be nothing but padding
        whole, held = whole.narrow(dim, min(start, whole.shape[dim]), length), held.narrow(dim, 0, length)
    return whole, held


def check_sync(difference: float, tolerance: float, step: int) -> None:
    """Raise SyncError if the log-probabilities of sampler and learner differ by more than `tolerance`.

    `difference` is the mean over the tokens of one answer. In bf16 the largest difference is a matter of luck
    (measured: means of 0.002 with single tokens at 0.5), while a lost update or head moves all tokens.
    """
    # Not `difference > tolerance`: nan must fail too.
    if not difference <= tolerance:
        raise SyncError(
            f"weight sync after step {step} failed: the sampler's and the learner's log-probabilities of one answer "
            f"differ by {difference:.2g} per token, more than --sync-tolerance {tolerance:g}. The sampler lacks the "
            "learner's weights (a lost update, a head left behind), or their arithmetic differs more than allowed"
        )


def sync_weights(learner: "Learner", sampler: "Sampler", step: int) -> None:
    """Give the sampler the learner's weights. Raise SyncError on all ranks if compared tensors differ. A collective.

    The sampler's weights must be awake. Its cache should still be asleep: gathering needs memory.
    """
    sampler.load_weights(whole_weights(learner.model, tied_too=True))
    check_equal(learner.model, sampler.parameters(list(compared_names(learner.model))), step, sampler.place)


def measure_sync(learner: "Learner", sampler: "Sampler", experience: "Experience", step: int) -> float:
    """Return the mean difference between sampler and learner over the tokens of one answer, the largest of the ranks.

    Each rank takes the longest answer of its own part. Raises SyncError on all ranks past --sync-tolerance. A
    collective.
    """
    own_answers = np.array_split(np.arange(len(experience.answers)), dist.get_world_size())[dist.get_rank()]
    longest = max(own_answers, key=lambda i: len(experience.answers[i]))
    prompt, sampling = experience.prompts[longest], learner.config.sampling
    # vLLM scores a prompt only if one more token would fit behind it.
    most_tokens = sampling.max_prompt_tokens + sampling.max_answer_tokens - len(prompt) - 1
    answer = experience.answers[longest][:most_tokens]
    own_difference = np.abs(sampler.score(prompt, answer) - learner.score(prompt, answer)).mean()
    difference = float(np.max(gather(own_difference)))  # the largest, or nan: all ranks raise, or none
    check_sync(difference, learner.config.hardware.sync_tolerance, step)
    return difference
