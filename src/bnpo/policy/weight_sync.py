"""The weight sync: ZeRO-3 parameters -> whole tensors -> vLLM, and the checks of it, at the
start and in every step.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from transformers.core_model_loading import revert_weight_conversion

from bnpo.algorithm.loss import head_output
from bnpo.files import InputError, RunError
from bnpo.policy.learner import Experience, Learner
from bnpo.policy.lora import merged, named_weights
from bnpo.policy.model import ATTENTION
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather

COMPARED_ANSWERS = 3  # per rank: a sync has failed if all of them differ after it
# Least tokens that are compared after a sync; of a shorter answer, they begin in its prompt
LEAST_TOKENS = 32
ROUNDING_FACTOR = 3.0
"""Two correct computations may differ by this many times what one more rounding of the embeddings
changes. With a real model of 30 layers in bf16 they differ by 0.7 to 1.3 times that, and small
faults (attention scores that are off by a quarter, another rotary base) by 5 to 11 times."""
# The same after a sync, whose answers are other texts than the one that was measured
LATER_FACTOR = 5.0
# Difference per token that is never refused: in fp32, kernels differ by more than one rounding, up
# to 1e-4
SMALLEST_BOUND = 3e-4
COMPARED_TOKENS = 96  # of the answer, in the check at the start
# This check reaches past no longer sliding window: attention by the model's own code is quadratic
MOST_WINDOW = 2048


def whole_weights(model: torch.nn.Module, *, tied_too: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, whole tensor) of a ZeRO-3 partitioned model, in layer order, and then its
    buffers. A collective.

    LoRA is merged into the weights. Names and shapes are those of a checkpoint: transformers
    renames some tensors as it loads them, and joins those of a layer's experts. With `tied_too` a
    tied head also comes under its own name: vLLM keeps its old head if it is left out. The tensors
    are clones, since the gathered ones are freed with their group.
    """
    # Layer by layer: few collectives, and little memory beside the model.
    for _, weights in groupby(
        named_weights(model, tied_too=tied_too), key=lambda named: layer_number(named[0])
    ):
        group = list(weights)
        with deepspeed.zero.GatheredParameters([part for _, parts, _ in group for part in parts]):
            clones = {name: merged(parts, layer).clone() for name, parts, layer in group}
        tensors = revert_weight_conversion(model, clones)
        yield from tensors.items()
        del clones, tensors  # before the next layer is gathered
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = {
        name: tensor for name, tensor in model.state_dict().items() if name not in parameters
    }
    yield from revert_weight_conversion(model, buffers).items()


def layer_number(name: str) -> int | None:
    """Return the number of the layer that a weight belongs to, 1 for
    model.layers.1.mlp.up_proj.weight, or None.
    """
    number = re.search(r"\.(\d+)\.", name)
    return int(number[1]) if number else None


class UnknownNames(RunError):
    """The sampler holds the embedding under another name, so that a sync could not be checked."""


def check_equal(
    weights: dict[str, torch.Tensor], held: dict[str, torch.Tensor], step: int, place: int
) -> None:
    """Raise RunError on all ranks if a tensor of the sampler differs from the learner's in any bit.
    A collective.

    `weights` are the learner's compared ones, the embedding first. `held` are those that the
    sampler holds: shards if several ranks share it, of which this one has number `place`. Bits are
    compared because an update at a learning rate of 1e-6 changes log-probabilities by less than the
    arithmetic of bf16 does, so `measure_sync` may not see it.
    """
    differing = [
        name
        for name, own in held.items()
        if not torch.equal(*comparable(weights[name], own, place))
    ]
    embedding = next(iter(weights))
    has_names = embedding in held
    if not has_names:  # nor would its changes be seen in a later version of vLLM
        differing.append(f"{embedding} (missing)")
    for rank, names in enumerate(gather(differing)):
        if names:
            problem = f"{', '.join(names)} of rank {rank}'s sampler differ from the learner's"
            raise (RunError if has_names else UnknownNames)(
                f"weight sync after step {step} failed: {problem}; some of the update was lost"
            )


def comparable(
    whole: torch.Tensor, held: torch.Tensor, place: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equal parts of a learner's tensor and a sampler's: its shard `place` of any dimension,
    without padding.

    >>> [part.tolist() for part in comparable(torch.arange(5), torch.tensor([3, 4, 0]), place=1)]
    [[3, 4], [3, 4]]
    """
    sizes = zip(held.shape, whole.shape, strict=True)
    shard = [
        slice(place * size, place * size + size) if size < total else slice(None)
        for size, total in sizes
    ]
    whole = whole[tuple(shard)].to(held.dtype)  # nothing, if the shard is nothing but padding
    return whole, held[tuple(map(slice, whole.shape))]


def refresh_sampler(learner: Learner, sampler: Sampler, step: int) -> None:
    """Wake the sampler with the learner's weights. Raises RunError if some did not arrive. A
    collective.
    """
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


def measure_sync(
    learner: Learner, sampler: Sampler, experience: Experience, step: int, bound: float
) -> float:
    """Return the mean difference between sampler and learner over the tokens of one answer, the
    largest of the ranks.

    Each rank takes its longest answer, and the next longest if one differs by more than `bound`:
    rounding is unusually large in some answers, while lost weights move all. A collective. Raises
    RunError if COMPARED_ANSWERS do.
    """
    sampling, ranks = learner.config.sampling, dist.get_world_size()
    own_answers = np.array_split(np.arange(len(experience.answers)), ranks)[dist.get_rank()]
    by_length = sorted(own_answers, key=lambda i: len(experience.answers[i]), reverse=True)
    # Equally many on all ranks
    for i in by_length[: min(COMPARED_ANSWERS, len(experience.answers) // ranks)]:
        prompt, answer = experience.prompts[i], experience.answers[i]
        # vLLM scores a text only if one more token would fit behind it.
        text = (prompt + answer)[: sampling.max_prompt_tokens + sampling.max_answer_tokens - 1]
        split = max(1, min(len(prompt), len(text) - LEAST_TOKENS))
        prompt, answer = text[:split], text[split:]
        own_difference = np.abs(
            sampler.score(prompt, answer) - learner.score(prompt, answer)
        ).mean()
        # The largest of all ranks, or nan: all ranks continue, or none
        difference = float(np.max(gather(own_difference)))
        if difference <= bound:
            return difference
    raise RunError(
        f"weight sync after step {step} failed: the sampler's and the learner's log-probabilities "
        f"of the longest answers differ by {difference:.2g} per token, more than the {bound:.2g} "
        "that rounding explains. Weights were lost, or the arithmetic differs more than at the "
        "start; --sync-tolerance sets another bound"
    )


@dataclass(frozen=True)
class StartCheck:
    """Mean differences of log-probabilities per token before the first update, the largest of
    all ranks.
    """

    learner: float  # between the learner and the model's own code in transformers
    sampler: float  # between the sampler and the model's own code
    apart: float  # between the two
    # Between two runs of the model's own code, one with embeddings off by one rounding
    rounding: float
    # Largest difference of sampler and learner after a sync that is taken for rounding
    sync_bound: float


def prove_start(learner: Learner, sampler: Sampler, ids: list[int]) -> StartCheck:
    """Check that learner and sampler compute the log-probabilities that the model's own `forward`
    computes.

    The token ids `ids` are a text of the task, which is repeated or cut as needed. How far two
    correct computations differ is measured: the model's own code runs again with embeddings that
    are off by one rounding. Differences of more than ROUNDING_FACTOR times that, or
    --sync-tolerance, raise InputError on all ranks. A collective.
    """
    # The learner packs a second answer behind the first: layers that are no attention would let
    # them mix. The second one is the first one reversed. Models round improbable text more, as they
    # do with the answers of base models.
    prompt, answer = _text(learner, ids)
    answers, model = (answer, answer[::-1]), learner.config.data.model
    # [tokens of both answers], like all scores here
    of_model = own_score(learner, prompt, *answers)
    of_rounded_model = own_score(learner, prompt, *answers, rounded=True)
    of_learner = learner.score(prompt, *answers)
    # As after an update. On GPUs the sampler loses its weights as it falls asleep, so the sync must
    # bring all.
    sampler.sleep()
    try:
        refresh_sampler(learner, sampler, 0)
    except UnknownNames as error:  # vLLM has no code for this family, and takes transformers' own
        raise InputError(
            f"{model}: vLLM cannot run this model ({error}); use another one"
        ) from error
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
    tolerance, dtype = learner.config.hardware.sync_tolerance, learner.config.hardware.dtype
    sync_bound = tolerance or max(SMALLEST_BOUND, LATER_FACTOR * largest_rounding)
    check = StartCheck(*differences, sync_bound=sync_bound)
    bound = tolerance or max(SMALLEST_BOUND, ROUNDING_FACTOR * check.rounding)
    if check.learner <= bound and check.apart <= bound:
        return check
    wrong = "vLLM computes" if check.learner <= bound else "the learner computes"
    cure = "use another model, or set --sync-tolerance if you know the reason"
    if dtype == "float16" and np.isnan([check.learner, check.sampler]).any():
        cure = "its activations overflow in float16, so use --dtype bfloat16 or float32"
    raise InputError(
        f"{model}: {wrong} this model otherwise than its own code in transformers. The "
        f"log-probabilities of a text differ from the model's own by {check.learner:.2g} per token "
        f"in the learner and by {check.sampler:.2g} in the sampler. Rounding in {dtype} explains "
        f"{check.rounding:.2g}, and more than {bound:.2g} is refused; {cure}"
    )


def _text(learner: Learner, ids: list[int]) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer made of `ids`, which must not be empty. The answer lies past
    sliding windows.
    """
    sampling = learner.config.sampling
    # vLLM scores a text only if one more token would fit behind it
    longest = sampling.max_prompt_tokens + sampling.max_answer_tokens - 1
    window = getattr(learner.model.config, "sliding_window", None) or 0
    length = min(longest, max(2 * COMPARED_TOKENS, min(window, MOST_WINDOW) + COMPARED_TOKENS))
    ids = (ids * length)[: max(2, length)]
    split = max(len(ids) // 2, len(ids) - COMPARED_TOKENS)
    return ids[:split], ids[split:]


def own_score(
    learner: Learner, prompt: list[int], *answers: list[int], rounded: bool = False
) -> np.ndarray:
    """Return what `learner.score` returns, by the model's own `forward` and attention. The answers
    are equally long.

    Only the product with the head is the loss's, in fp32: the rounding of logits to bf16 would hide
    small faults. If `rounded`, the embeddings are moved to the next number of their format, up or
    down at random.
    """
    model, policy_head, head = (
        learner.model,
        learner.policy.head,
        learner.model.get_output_embeddings(),
    )
    rows = torch.tensor([prompt + answer for answer in answers], device=learner.device)

    def move(_module: torch.nn.Module, _args: tuple, embeddings: torch.Tensor) -> torch.Tensor:
        signs = (
            2 * torch.randint(2, embeddings.shape, generator=torch.Generator().manual_seed(0)) - 1
        )
        factors = 1 + rounded * torch.finfo(embeddings.dtype).eps * signs.to(
            embeddings.device, torch.float64
        )
        return (embeddings * factors).to(embeddings.dtype)

    hook = model.get_input_embeddings().register_forward_hook(move)
    head.forward = lambda hidden: head_output(hidden.flatten(0, 1), head.weight, policy_head.bias)[
        None
    ]
    model.set_attn_implementation("eager")
    with learner.forward_only():
        logits = model(input_ids=rows, use_cache=False).logits[0]  # [answers * row, head rows]
    model.set_attn_implementation(ATTENTION)
    hook.remove()
    del head.forward  # that of its class is back
    # [answers, row - 1, vocabulary]
    logits = logits[:, : policy_head.vocab_size].unflatten(0, rows.shape)[:, :-1]
    logprobs = (logits - logits.logsumexp(-1, keepdim=True)).gather(2, rows[:, 1:, None])[..., 0]
    return logprobs[:, len(prompt) - 1 :].flatten().double().cpu().numpy()
