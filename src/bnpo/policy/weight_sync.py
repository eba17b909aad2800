"""The weight sync: ZeRO-3 parameters -> whole tensors -> vLLM, and the checks of every step that
they arrived.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from transformers.core_model_loading import revert_weight_conversion

from bnpo.batch import Batch
from bnpo.files import RunError
from bnpo.policy.learner import Learner
from bnpo.policy.lora import without_adapter
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather

COMPARED_ANSWERS = 3  # of each rank: a sync has failed if some rank differs in each round
CURE = "Continue with --resume; if it happens again, please report it with config.json"
LEAST_TOKENS = 32  # that are compared; of a shorter answer, they begin in its prompt


class UnknownNames(RunError):
    """The sampler holds the embedding under another name, so that a sync could not be checked."""


class WeightSync:
    """Moves the learner's weights into the sampler, and checks that they arrived.

    `longest` is the most tokens of a prompt with an answer. All methods are collectives.
    """

    def __init__(self, learner: Learner, sampler: Sampler, longest: int):
        self._learner, self._sampler, self._longest = learner, sampler, longest
        self.bound = np.nan
        """Mean difference of log-probabilities per token up to which rounding explains it.
        `check_start` measures it.
        """
        self.difference = np.nan  # that of the last `sampler_asleep` with a batch
        self.seconds = np.nan  # that the last `sampler_asleep` took besides its block

    @contextmanager
    def sampler_asleep(self, step: int, batch: Batch | None = None) -> Iterator[None]:
        """Give the sampler's GPU memory to the block, which updates the learner. Then wake the
        sampler with the new weights, and compare the two on answers of `batch`.

        Without `batch` the block must change no weight. A sampler that stays awake, as on CPUs,
        then keeps its own. Raises RunError if weights did not arrive.
        """
        started = time.perf_counter()
        has_slept = self._sampler.sleep()
        falling_asleep = time.perf_counter() - started
        yield
        started = time.perf_counter()
        if batch or has_slept:
            self.refresh(step)
        if batch:
            self.difference = self.measure_difference(step, batch)
        self.seconds = falling_asleep + time.perf_counter() - started

    def refresh(self, step: int) -> None:
        """Wake the sampler with the learner's weights. Raises RunError, see `check_equal`."""
        middle_layer = (self._learner.model.config.num_hidden_layers - 1) // 2
        compared: dict[str, torch.Tensor] = {}  # the weights of one layer, and all in no layer

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for layer, tensors in whole_layers(self._learner.model, tied_too=True):
                if layer in (None, middle_layer):
                    compared.update(tensors)
                yield from tensors.items()
                del tensors  # before the next layer is gathered

        held = self._sampler.load_weights(weights())
        check_equal(compared, held, step, self._sampler.place)
        self._sampler.wake()  # only now, since gathering the weights needs memory, too

    def measure_difference(self, step: int, batch: Batch) -> float:
        """Return the mean difference between sampler and learner over the tokens of one answer,
        the largest of the ranks.

        Each rank takes its longest answer, and the next longest if one differs by more than
        `bound`: rounding is unusually large in some answers, while lost weights move all. Raises
        RunError if, in each of COMPARED_ANSWERS rounds, the answer of some rank does.
        """
        answers = [(prompt, answer.token_ids) for prompt, answer in batch.trained_answers]
        ranks, difference = dist.get_world_size(), np.nan
        own_answers = np.array_split(np.arange(len(answers)), ranks)[dist.get_rank()]
        by_length = sorted(own_answers, key=lambda i: len(answers[i][1]), reverse=True)
        # Equally many on all ranks
        for i in by_length[: min(COMPARED_ANSWERS, len(answers) // ranks)]:
            prompt, answer = answers[i]
            # vLLM scores a text only if one more token would fit behind it.
            text = (prompt + answer)[: self._longest - 1]
            split = max(1, min(len(prompt), len(text) - LEAST_TOKENS))
            prompt, answer = text[:split], text[split:]
            gap = np.abs(self._sampler.score(prompt, answer) - self._learner.score(prompt, answer))
            # The largest of all ranks, or nan: all ranks continue, or none
            difference = float(np.max(gather(gap.mean())))
            if difference <= self.bound:
                return difference
        raise RunError(
            f"weight sync after step {step} failed: the sampler's and the learner's "
            f"log-probabilities of the longest answers differ by {difference:.2g} per token, more "
            f"than the {self.bound:.2g} that rounding explains. Weights were lost, or the "
            "arithmetic differs more than at the start; --sync-tolerance sets another bound. "
            f"{CURE}"
        )


def layer_of(name: str) -> int | None:
    """Return the number of a weight's layer, 1 for model.layers.1.mlp.up_proj.weight."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else None


def whole_layers(
    model: torch.nn.Module, *, tied_too: bool
) -> Iterator[tuple[int | None, dict[str, torch.Tensor]]]:
    """Yield the whole tensors of a ZeRO-3 partitioned model by name: those of each layer with the
    layer's number, and others, the model's buffers included, with None. A collective.

    LoRA is merged into the weights. Names and shapes are those of a checkpoint: transformers
    renames some tensors as it loads them, and joins those of a layer's experts. With `tied_too` a
    tied head also comes under its own name: vLLM keeps its old head if it is left out.
    """
    parameters = dict(model.named_parameters(remove_duplicate=not tied_too))
    # Layer by layer: few collectives, and little memory beside the model.
    for layer, names in groupby(parameters, key=layer_of):
        group = {name: parameters[name] for name in names}
        with deepspeed.zero.GatheredParameters(list(group.values())):
            tensors = without_adapter(model, group) if hasattr(model, "peft_config") else group
            # The gathered tensors are freed with their group
            clones = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        yield layer, revert_weight_conversion(model, clones)
        del tensors, clones  # before the next layer is gathered
    parameters = dict(model.named_parameters(remove_duplicate=False))
    state = model.state_dict()
    buffers = {name: tensor for name, tensor in state.items() if name not in parameters}
    yield None, revert_weight_conversion(model, buffers)


def check_equal(
    learned: dict[str, torch.Tensor], held: dict[str, torch.Tensor], step: int, place: int
) -> None:
    """Raise RunError on all ranks if a tensor of the sampler differs from the learner's in any bit.
    A collective.

    `learned` are tensors of the learner, the embedding first. `held` are those of the sampler:
    shards if several ranks share it, of which this one has number `place`. Bits are compared
    because an update at a learning rate of 1e-6 changes log-probabilities by less than the rounding
    of bf16 does.
    """
    differing = [
        name
        for name, tensor in learned.items()
        if name in held and not torch.equal(*comparable(tensor, held[name], place))
    ]
    embedding = next(iter(learned))
    if embedding not in held:  # nor would its changes be seen in a later version of vLLM
        differing.append(f"{embedding} (missing)")
    for rank, names in enumerate(gather(differing)):
        if names:
            kind = RunError if embedding in held else UnknownNames
            raise kind(
                f"weight sync after step {step} failed: {', '.join(names)} of rank {rank}'s "
                f"sampler differ from the learner's; some of the update was lost. {CURE}"
            )


def comparable(
    whole: torch.Tensor, held: torch.Tensor, place: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equal parts of a learner's tensor and a sampler's: its shard `place` of any dimension,
    without padding.

    >>> [part.tolist() for part in comparable(torch.arange(5), torch.tensor([3, 4, 0]), place=1)]
    [[3, 4], [3, 4]]
    >>> [part.tolist() for part in comparable(torch.arange(5), torch.zeros(32), place=1)]
    [[], []]
    """
    sizes = zip(held.shape, whole.shape, strict=True)
    shard = [
        slice(place * size, place * size + size) if size != total else slice(None)
        for size, total in sizes
    ]
    whole = whole[tuple(shard)].to(held.dtype)  # nothing, if the shard is nothing but padding
    return whole, held[tuple(map(slice, whole.shape))]
