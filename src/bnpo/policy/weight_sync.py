"""The weight sync: ZeRO-3 parameters -> whole tensors -> vLLM, and the checks that the weights arrived.

`prove_start` compares learner and sampler with the model's own code before the first update. After every update,
`refresh_sampler` compares tensors bit by bit, and `measure_sync` compares log-probabilities.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from transformers.core_model_loading import revert_weight_conversion

from bnpo.files import InputError, RunError
from bnpo.policy.folder import running
from bnpo.policy.lora import named_weights
from bnpo.ranks import gather

if TYPE_CHECKING:  # vLLM takes seconds to import, and planning/ needs this module without it
    from bnpo.config import TrainConfig
    from bnpo.policy.learner import Experience, Learner
    from bnpo.policy.sampler import Sampler

ROUNDING_FACTOR = 3.0
"""Two correct computations may differ by this many times what one more rounding of the embeddings changes. With a real
model of 30 layers in bf16 they differ by 0.7 to 1.3 times that, and small faults (attention scores that are off by a
quarter, another rotary base) by 5 to 11 times."""
SMALLEST_BOUND = 3e-4
"""Differences per token that are never refused. In fp32 kernels differ by more than one rounding, up to 1e-4."""
COMPARED_TOKENS = 96
"""Tokens of the answer that the check at the start compares."""
MOST_WINDOW = 2048
"""The check at the start does not reach past longer sliding windows: attention by the model's own code is quadratic."""
LATER_FACTOR = 5.0
"""As ROUNDING_FACTOR, for the check after a sync: the answers are other texts than the one that was measured."""
COMPARED_ANSWERS = 3
"""Answers per rank that must differ after a sync before it counts as failed."""
LEAST_TOKENS = 32
"""Tokens that are compared after a sync, at least. If the answer is shorter, they begin in its prompt."""


class SyncError(RunError):
    """Sampler and learner disagree after a weight sync."""


def whole_weights(model: torch.nn.Module, *, tied_too: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, whole tensor) of a ZeRO-3 partitioned model, in layer order, and then its buffers. A collective.

    LoRA is merged into the weights. Names and shapes are those of a checkpoint: transformers renames some tensors as it
    loads them, and joins those of a layer's experts. With `tied_too` a tied head also comes under its own name: vLLM
    keeps its old head if it is left out. The tensors are clones, since the gathered ones are freed with their group.
    """
    # Layer by layer: few collectives, and little memory beside the model.
    for _, weights in groupby(named_weights(model, tied_too=tied_too), key=lambda named: layer_number(named[0])):
        group = list(weights)
        with deepspeed.zero.GatheredParameters([part for _, weight in group for part in weight.parts()]):
            clones = {name: weight.merged().clone() for name, weight in group}
        tensors = deque(revert_weight_conversion(model, clones).items())
        clones.clear()
        while tensors:  # hand them over one by one, so that none is held while the next group is gathered
            yield tensors.popleft()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    yield from revert_weight_conversion(model, buffers).items()


def layer_number(name: str) -> int | None:
    """Return the number of the layer that a weight belongs to, from its name. None: to no layer.

    >>> layer_number("model.layers.1.mlp.up_proj.weight"), layer_number("lm_head.weight")
    (1, None)
    """
    number = re.search(r"\.(\d+)\.", name)
    return int(number[1]) if number else None


def is_compared(name: str, layers: int) -> bool:
    """Return whether a sync compares the weight `name`, one of a middle layer or of none, in a model of `layers`."""
    return layer_number(name) in (None, (layers - 1) // 2)


def check_equal(
    weights: Mapping[str, torch.Tensor], sampler_tensors: Mapping[str, torch.Tensor], step: int, place: int = 0
) -> None:
    """Raise SyncError on all ranks if a tensor of the sampler differs from the learner's in any bit. A collective.

    `weights` are the learner's compared ones, the embedding first. `sampler_tensors` are those that the sampler holds:
    shards if several ranks share it, of which this one has number `place`. Bits are compared because an update at a
    learning rate of 1e-6 changes log-probabilities by less than the arithmetic of bf16 does, so that `measure_sync`
    alone would not see that an update was lost.
    """
    differing = [
        name
        for name, tensor in sampler_tensors.items()
        if not torch.equal(*comparable(weights[name].to(tensor.dtype), tensor, place))
    ]
    embedding = next(iter(weights))
    if embedding not in sampler_tensors:  # nor would its changes be seen in a later version of vLLM
        differing.append(f"{embedding} (missing)")
    for rank, names in enumerate(gather(differing)):
        if names:
            raise SyncError(
                f"weight sync after step {step} failed: {', '.join(names)} of rank {rank}'s sampler differ from the "
                "learner's: an update was lost, or only a part of the weights arrived"
            )


def comparable(whole: torch.Tensor, held: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equal parts of a learner's tensor and a sampler's: its shard `place` of any dimension, without padding.

    >>> [part.tolist() for part in comparable(torch.arange(5), torch.tensor([3, 4, 0]), place=1)]
    [[3, 4], [3, 4]]
    """
    for dim, size in enumerate(held.shape):
        start = place * size if size < whole.shape[dim] else 0
        length = max(0, min(size, whole.shape[dim] - start))  # a shard may be nothing but padding
        whole, held = whole.narrow(dim, min(start, whole.shape[dim]), length), held.narrow(dim, 0, length)
    return whole, held


def refresh_sampler(learner: "Learner", sampler: "Sampler", step: int) -> None:
    """Wake the sampler with the learner's weights. Raises SyncError if some did not arrive. A collective."""
    layers = learner.model.config.num_hidden_layers
    compared: dict[str, torch.Tensor] = {}

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in whole_weights(learner.model, tied_too=True):
            if is_compared(name, layers):
                compared[name] = tensor
            yield name, tensor

    sampler.wake("weights")
    sampler.load_weights(weights())
    check_equal(compared, sampler.parameters(list(compared)), step, sampler.place)
    sampler.wake("kv_cache")  # only now, since gathering the weights needs memory, too


@dataclass(frozen=True)
class StartCheck:
    """Mean differences of log-probabilities per token before the first update, the largest of all ranks."""

    learner: float  # between the learner and the model's own code in transformers
    sampler: float  # between the sampler and the model's own code
    apart: float  # between the two
    rounding: float  # between two runs of the model's own code, one with embeddings off by one rounding
    sync_bound: float
    """Largest difference between sampler and learner that is taken for rounding, on any answer after any sync."""


def prove_start(learner: "Learner", sampler: "Sampler", ids: list[int]) -> StartCheck:
    """Check that learner and sampler compute the log-probabilities that the model's own `forward` computes.

    The token ids `ids` are a text of the task, which is repeated or cut as needed. How far two correct computations
    differ is measured: the model's own code runs again with embeddings that are off by one rounding. Differences of
    more than ROUNDING_FACTOR times that, or --sync-tolerance, raise InputError on all ranks. A collective.
    """
    # The learner packs a second answer behind the first: layers that are no attention would let them mix. The second
    # one is the first one reversed. Models round improbable text more, as they do with the answers of base models.
    prompt, answer = _text(learner, ids)
    answers = answer, answer[::-1]
    model = learner.config.data.model
    with running(model, "transformers"):
        of_model = learner.own_score(prompt, *answers)  # [tokens of both answers], like all scores here
        of_rounded_model = learner.own_score(prompt, *answers, round_embeddings=True)
        of_learner = learner.score(prompt, *answers)
    with running(model, "vLLM"):
        # As after an update. On GPUs the sampler loses its weights as it falls asleep, so the sync must bring all.
        sampler.sleep()
        refresh_sampler(learner, sampler, 0)
        of_sampler = np.concatenate([sampler.score(prompt, each) for each in answers])
    rounding = np.abs(of_rounded_model - of_model)
    own_differences = [
        np.abs(of_learner - of_model).mean(),
        np.abs(of_sampler - of_model).mean(),
        np.abs(of_sampler - of_learner).mean(),
        rounding.mean(),
        max(half.mean() for half in np.split(rounding, 2)),  # of the text that is rounded most
    ]
    # The largest of all ranks, or nan: all ranks raise, or none.
    *differences, largest_rounding = map(float, np.max(gather(own_differences), axis=0))
    bound = learner.config.hardware.sync_tolerance or max(SMALLEST_BOUND, LATER_FACTOR * largest_rounding)
    check = StartCheck(*differences, sync_bound=bound)
    _refuse_differences(check, learner.config)
    return check


def _text(learner: "Learner", ids: list[int]) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer made of `ids`, which must not be empty. The answer lies past sliding windows."""
    sampling = learner.config.sampling
    longest = sampling.max_prompt_tokens + sampling.max_answer_tokens - 1  # vLLM scores texts that one more token fits
    window = getattr(learner.model.config, "sliding_window", None) or 0
    length = min(longest, max(2 * COMPARED_TOKENS, min(window, MOST_WINDOW) + COMPARED_TOKENS))
    ids = (ids * length)[: max(2, length)]
    split = max(len(ids) // 2, len(ids) - COMPARED_TOKENS)
    return ids[:split], ids[split:]


def _refuse_differences(check: StartCheck, config: "TrainConfig") -> None:
    """Raise InputError if learner or sampler are further from the model's own code than rounding explains."""
    bound = config.hardware.sync_tolerance or max(SMALLEST_BOUND, ROUNDING_FACTOR * check.rounding)
    if check.learner <= bound and check.apart <= bound:
        return
    model, dtype = config.data.model, config.hardware.dtype
    if dtype == "float16" and np.isnan([check.learner, check.sampler]).any():
        raise InputError(
            f"{model}: its activations overflow in float16: the log-probabilities of an answer are nan. Use --dtype "
            "bfloat16 or float32"
        )
    wrong = "vLLM computes" if check.learner <= bound else "the learner computes"
    raise InputError(
        f"{model}: {wrong} this model otherwise than its own code in transformers. The log-probabilities of a text "
        f"differ from the model's own by {check.learner:.2g} per token in the learner and by {check.sampler:.2g} in "
        f"the sampler. Rounding in {dtype} explains {check.rounding:.2g}, and more than {bound:.2g} is refused; use "
        "another model, or set --sync-tolerance if you know the reason"
    )


def measure_sync(learner: "Learner", sampler: "Sampler", experience: "Experience", step: int, bound: float) -> float:
    """Return the mean difference between sampler and learner over the tokens of one answer, the largest of the ranks.

    Each rank takes its longest answer, and the next longest if one differs by more than `bound`: rounding is unusually
    large in some answers, while lost weights move all. Raises SyncError on all ranks if COMPARED_ANSWERS do. A
    collective.
    """
    own_answers = np.array_split(np.arange(len(experience.answers)), dist.get_world_size())[dist.get_rank()]
    by_length = sorted(own_answers, key=lambda i: len(experience.answers[i]), reverse=True)
    for i in by_length[:COMPARED_ANSWERS]:
        own_difference = _difference(learner, sampler, experience.prompts[i], experience.answers[i])
        difference = float(np.max(gather(own_difference)))  # the largest, or nan: all ranks continue, or none
        if difference <= bound:
            return difference
    raise SyncError(
        f"weight sync after step {step} failed: the sampler's and the learner's log-probabilities of the longest "
        f"answers differ by {difference:.2g} per token, more than the {bound:.2g} that rounding explains. The sampler "
        "lacks the learner's weights (a lost update, a head left behind), or their arithmetic differs more than at the "
        "start; --sync-tolerance sets another bound"
    )


def _difference(learner: "Learner", sampler: "Sampler", prompt: list[int], answer: list[int]) -> float:
    """Return the mean difference of this rank's sampler and learner over the tokens of `answer`. A collective."""
    sampling = learner.config.sampling
    # vLLM scores a text only if one more token would fit behind it.
    text = (prompt + answer)[: sampling.max_prompt_tokens + sampling.max_answer_tokens - 1]
    split = max(1, min(len(prompt), len(text) - LEAST_TOKENS))
    scores = sampler.score(text[:split], text[split:]), learner.score(text[:split], text[split:])
    return float(np.abs(scores[0] - scores[1]).mean())
