"""ZeRO-3 parameters -> whole tensors -> vLLM, and the checks that the weights arrived."""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from bnpo.ranks import gather

if TYPE_CHECKING:  # vLLM takes seconds to import, and the account of memory needs this module without it
    from bnpo.policy.learner import Experience, Learner
    from bnpo.policy.sampler import Sampler

GROUP_BYTES = 2**30
"""Parameters gathered at once: few collectives, and little memory beside the model."""


class SyncError(RuntimeError):
    """Sampler and learner disagree on the probabilities of an answer after a weight sync."""


def whole_weights(
    model: torch.nn.Module, *, tied_too: bool, group_bytes: int = GROUP_BYTES
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, whole tensor) of a ZeRO-3 partitioned model, in layer order; a collective on all ranks.

    With `tied_too` a tied head comes under its own name as well: vLLM keeps its old head if it is left out. The
    tensors are clones, since the gathered ones are freed with their group while the receiver may still hold them.
    """
    for group in _groups(model, tied_too, group_bytes):
        with deepspeed.zero.GatheredParameters([parameter for _, parameter in group]):
            clones = deque((name, parameter.detach().clone()) for name, parameter in group)
        while clones:  # not held any longer while the next group is gathered
            yield clones.popleft()


def _groups(model: torch.nn.Module, tied_too: bool, group_bytes: int) -> Iterator[list[tuple[str, torch.nn.Parameter]]]:
    group, size = [], 0
    for name, parameter in model.named_parameters(remove_duplicate=not tied_too):
        size += parameter.ds_numel * parameter.element_size()
        group.append((name, parameter))
        if size >= group_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def compared_names(model: torch.nn.Module) -> list[str]:
    """Names of a few parameters to compare after a sync: the first (the embedding), those of the middle layer, the
    last (the head, under its own name where it is tied)."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    layers = [int(found[1]) for name in names if (found := re.search(r"\.(\d+)\.", name))]
    middle = f".{max(layers) // 2}."
    return [names[0], *(name for name in names if middle in name), names[-1]]


def check_equal(model: torch.nn.Module, held: Mapping[str, torch.Tensor], step: int) -> None:
    """Raise SyncError on all ranks where a parameter of the partitioned `model` is not, to the last bit, the tensor
    that this rank's sampler holds under its name (its rows past the parameter's are padding). A collective.

    An update at a learning rate of 1e-6 changes log-probabilities by less than the arithmetic of bf16 does, so
    `check_sync` cannot see that it was lost; bits can.
    """
    ends = compared_names(model)
    if missing := [name for name in (ends[0], ends[-1]) if name not in held]:
        raise SyncError(f"weight sync after step {step}: the sampler holds no tensor {missing[0]} to compare")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    differing = []
    for name, tensor in held.items():
        with deepspeed.zero.GatheredParameters([parameters[name]]):
            whole = parameters[name].detach()
            if not torch.equal(whole, tensor[: len(whole)]):
                differing.append(name)
    for rank, names in enumerate(gather(differing)):
        if names:
            raise SyncError(
                f"weight sync after step {step} failed: {', '.join(names)} of rank {rank}'s sampler are not the "
                "learner's: an update was lost, or only a part of the weights arrived"
            )


def check_sync(difference: float, tolerance: float, step: int) -> None:
    """Raise SyncError where the log-probabilities of sampler and learner differ by more than `tolerance`.

    `difference` is the mean over the tokens of one answer: in bf16 the largest is a matter of luck (measured: means of
    0.002 with single tokens at 0.5), while a lost update or head moves all of them.
    """
    # Not `difference > tolerance`: nan must fail too.
    if not difference <= tolerance:
        raise SyncError(
            f"weight sync after step {step} failed: the sampler's and the learner's log-probabilities of one answer "
            f"differ by {difference:.2g} a token, more than --sync-tolerance {tolerance:g}. The sampler lacks the "
            "learner's weights (a lost update, a head left behind), or their arithmetic differs more than allowed"
        )


def sync_weights(learner: "Learner", sampler: "Sampler", step: int) -> None:
    """Give the sampler the learner's weights, and raise SyncError on all ranks if a few of them are not the same to the
    last bit; its cache takes memory only after the gathering has given it back."""
    sampler.wake("weights")
    sampler.load_weights(whole_weights(learner.model, tied_too=True))
    check_equal(learner.model, sampler.parameters(compared_names(learner.model)), step)
    sampler.wake("kv_cache")


def measure_sync(learner: "Learner", sampler: "Sampler", experience: "Experience", step: int) -> float:
    """Mean difference between sampler and learner over the tokens of one answer a rank, the largest of the ranks.

    Each rank takes the longest answer of its own part. Raises SyncError on all ranks past the tolerance.
    """
    mine = np.array_split(np.arange(len(experience.answers)), dist.get_world_size())[dist.get_rank()]
    longest = max(mine, key=lambda i: len(experience.answers[i]))
    prompt, config = experience.prompts[longest], learner.config
    # The sampler scores a prompt only if it can go on by one token.
    room = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens - len(prompt) - 1
    answer = experience.answers[longest][:room]
    own = np.abs(sampler.score(prompt, answer) - learner.score(prompt, answer)).mean()
    difference = float(np.max(gather(own)))  # the largest, or nan: all ranks raise, or none
    check_sync(difference, config.hardware.sync_tolerance, step)
    return difference
