"""The check of a start: learner and sampler compute what the model's own code in transformers
computes.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from bnpo.algorithm.loss import linear
from bnpo.config import TrainConfig
from bnpo.files import InputError
from bnpo.policy.learner import Learner
from bnpo.policy.model import ATTENTION
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import UnknownNames, WeightSync
from bnpo.ranks import gather

ROUNDING_FACTOR = 3.0
"""Two correct computations may differ by this many times what one more rounding of the embeddings
changes. With a real model of 30 layers in bf16 they differ by 0.7 to 1.3 times that, and small
faults (attention scores that are off by a quarter, another rotary base) by 5 to 11 times."""
# The same after a sync, whose answers are other texts than the one that was measured
LATER_FACTOR = 5.0
# Difference per token that is never refused: in fp32, kernels differ by more than one rounding, up
# to 1e-4
SMALLEST_BOUND = 3e-4
COMPARED_TOKENS = 96  # of the answer
# This check reaches past no longer sliding window: attention by the model's own code is quadratic
MOST_WINDOW = 2048


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


def check_start(
    learner: Learner, sampler: Sampler, sync: WeightSync, ids: list[int], config: TrainConfig
) -> StartCheck:
    """Check that learner and sampler compute the log-probabilities that the model's own `forward`
    computes.

    The token ids `ids` are a text of the task, which is repeated or cut as needed. How far two
    correct computations differ is measured: the model's own code runs again with embeddings that
    are off by one rounding. Differences of more than ROUNDING_FACTOR times that, or
    --sync-tolerance, raise InputError on all ranks. Sets the bound of `sync`. A collective.
    """
    # The learner packs a second answer behind the first: layers that are no attention would let
    # them mix. The second is the first one reversed, since improbable text is rounded more.
    longest = config.sampling.longest
    prompt, answer = _text(learner, ids, longest)
    answers, model = (answer, answer[::-1]), config.data.model
    # As after an update: on GPUs a sampler that falls asleep loses its weights. The logits of the
    # model's own code take memory that only a sleeping sampler leaves free.
    sampler.sleep()
    # [tokens of both answers], like all scores here
    of_model = own_score(learner, prompt, *answers)
    of_rounded_model = own_score(learner, prompt, *answers, rounded=True)
    of_learner = learner.score(prompt, *answers)
    try:
        sync.refresh(0)
    except UnknownNames as error:  # vLLM has no code for this family, and takes transformers' own
        raise InputError(
            f"{model}: vLLM cannot run this model ({error}); use another one"
        ) from error
    of_sampler = np.concatenate([sampler.score(prompt, each) for each in answers])
    rounding = np.abs(of_rounded_model - of_model)
    differences = {
        "learner": np.abs(of_learner - of_model).mean(),
        "sampler": np.abs(of_sampler - of_model).mean(),
        "apart": np.abs(of_sampler - of_learner).mean(),
        "rounding": rounding.mean(),
        # Of the answer that is rounded most
        "largest_rounding": max(half.mean() for half in np.split(rounding, 2)),
    }
    # The largest of all ranks, or nan: all ranks raise, or none
    of_ranks = gather(differences)
    differences = {name: float(np.max([rank[name] for rank in of_ranks])) for name in differences}
    largest_rounding = differences.pop("largest_rounding")
    tolerance, dtype = config.hardware.sync_tolerance, config.hardware.dtype
    sync.bound = tolerance or max(SMALLEST_BOUND, LATER_FACTOR * largest_rounding)
    check = StartCheck(**differences, sync_bound=sync.bound)
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


def _text(learner: Learner, ids: list[int], longest: int) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer of at most `longest` tokens, made of `ids`, which must not be
    empty. The answer lies past sliding windows.
    """
    window = getattr(learner.model.config, "sliding_window", None) or 0
    length = max(2 * COMPARED_TOKENS, min(window, MOST_WINDOW) + COMPARED_TOKENS)
    # vLLM scores a text only if one more token would fit behind it
    length = min(longest - 1, length)
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
    model, policy_head = learner.model, learner.policy.head
    head = model.get_output_embeddings()
    rows = torch.tensor([prompt + answer for answer in answers], device=learner.device)

    def move(_module: torch.nn.Module, _args: tuple, embeddings: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        signs = 2 * torch.randint(2, embeddings.shape, generator=generator) - 1
        signs = signs.to(embeddings.device, torch.float64)
        factors = 1 + torch.finfo(embeddings.dtype).eps * signs
        return (embeddings * factors).to(embeddings.dtype)

    embeddings = model.get_input_embeddings()
    # A handle of torch is a context that removes its hook
    hook = embeddings.register_forward_hook(move) if rounded else nullcontext()
    # The model calls its head with [answers, row, hidden], and `linear` takes [tokens, hidden]. The
    # model expects logits with three dimensions, too: hence [None].
    head.forward = lambda hidden: linear(hidden.flatten(0, 1), head.weight, policy_head.bias)[None]
    model.set_attn_implementation("eager")
    with hook, learner.forward_only():
        logits = model(input_ids=rows, use_cache=False).logits[0]  # [answers * row, head rows]
    model.set_attn_implementation(ATTENTION)
    del head.forward  # that of its class is back
    # [answers, row - 1, vocabulary]
    logits = logits[:, : policy_head.vocab_size].unflatten(0, rows.shape)[:, :-1]
    logprobs = (logits - logits.logsumexp(-1, keepdim=True)).gather(2, rows[:, 1:, None])[..., 0]
    return logprobs[:, len(prompt) - 1 :].flatten().double().cpu().numpy()
