"""The check before the first update: learner and sampler compute what the model's own code in transformers computes."""

from dataclasses import dataclass

import numpy as np
import torch

from bnpo.algorithm.loss import head_output
from bnpo.files import InputError
from bnpo.policy.folder import running
from bnpo.policy.learner import Learner
from bnpo.policy.model import ATTENTION
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import refresh_sampler
from bnpo.ranks import gather

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


@dataclass(frozen=True)
class StartCheck:
    """Mean differences of log-probabilities per token before the first update, the largest of all ranks."""

    learner: float  # between the learner and the model's own code in transformers
    sampler: float  # between the sampler and the model's own code
    apart: float  # between the two
    rounding: float  # between two runs of the model's own code, one with embeddings off by one rounding
    sync_bound: float
    """Largest difference between sampler and learner that is taken for rounding, on any answer after any sync."""


def prove_start(learner: Learner, sampler: Sampler, ids: list[int]) -> StartCheck:
    """Check that learner and sampler compute the log-probabilities that the model's own `forward` computes.

    The token ids `ids` are a text of the task, which is repeated or cut as needed. How far two correct computations
    differ is measured: the model's own code runs again with embeddings that are off by one rounding. Differences of
    more than ROUNDING_FACTOR times that, or --sync-tolerance, raise InputError on all ranks. A collective.
    """
    # The learner packs a second answer behind the first: layers that are no attention would let them mix. The second
    # one is the first one reversed. Models round improbable text more, as they do with the answers of base models.
    prompt, answer = _text(learner, ids)
    answers, model = (answer, answer[::-1]), learner.config.data.model
    with running(model, "transformers"):
        of_model = own_score(learner, prompt, *answers)  # [tokens of both answers], like all scores here
        of_rounded_model = own_score(learner, prompt, *answers, rounded=True)
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
        f"{model}: {wrong} this model otherwise than its own code in transformers. The log-probabilities of a text "
        f"differ from the model's own by {check.learner:.2g} per token in the learner and by {check.sampler:.2g} in "
        f"the sampler. Rounding in {dtype} explains {check.rounding:.2g}, and more than {bound:.2g} is refused; {cure}"
    )


def _text(learner: Learner, ids: list[int]) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer made of `ids`, which must not be empty. The answer lies past sliding windows."""
    sampling = learner.config.sampling
    longest = sampling.max_prompt_tokens + sampling.max_answer_tokens - 1  # vLLM scores texts that one more token fits
    window = getattr(learner.model.config, "sliding_window", None) or 0
    length = min(longest, max(2 * COMPARED_TOKENS, min(window, MOST_WINDOW) + COMPARED_TOKENS))
    ids = (ids * length)[: max(2, length)]
    split = max(len(ids) // 2, len(ids) - COMPARED_TOKENS)
    return ids[:split], ids[split:]


def own_score(learner: Learner, prompt: list[int], *answers: list[int], rounded: bool = False) -> np.ndarray:
    """Return what `learner.score` returns, by the model's own `forward` and attention. The answers are equally long.

    Only the product with the head is the loss's, in fp32: the rounding of logits to bf16 would hide small faults. If
    `rounded`, the embeddings are moved to the next number of their format, up or down at random.
    """
    model, policy_head, head = learner.model, learner.policy.head, learner.model.get_output_embeddings()
    rows = torch.tensor([prompt + answer for answer in answers], device=learner.device)

    def move(_module: torch.nn.Module, _args: tuple, embeddings: torch.Tensor) -> torch.Tensor:
        signs = 2 * torch.randint(2, embeddings.shape, generator=torch.Generator().manual_seed(0)) - 1
        factors = 1 + rounded * torch.finfo(embeddings.dtype).eps * signs.to(embeddings.device, torch.float64)
        return (embeddings * factors).to(embeddings.dtype)

    hook = model.get_input_embeddings().register_forward_hook(move)
    head.forward = lambda hidden: head_output(hidden.flatten(0, 1), head.weight, policy_head.bias)[None]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(input_ids=rows, use_cache=False).logits[0]  # [answers * row, head rows]
    model.set_attn_implementation(ATTENTION)
    hook.remove()
    del head.forward  # that of its class is back
    logits = logits[:, : policy_head.vocab_size].unflatten(0, rows.shape)[:, :-1]  # [answers, row - 1, vocabulary]
    logprobs = (logits - logits.logsumexp(-1, keepdim=True)).gather(2, rows[:, 1:, None])[..., 0]
    return logprobs[:, len(prompt) - 1 :].flatten().double().cpu().numpy()
