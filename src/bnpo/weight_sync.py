"""ZeRO-3 parameters -> whole tensors -> vLLM, and the check that the weights arrived."""

from collections import deque
from collections.abc import Iterator

import deepspeed
import torch

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
