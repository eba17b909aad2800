"""The proof before the first update: learner and sampler compute what the model's own code computes."""

import numpy as np

from bnpo.config import HardwareSettings
from bnpo.files import InputError
from bnpo.policy.folder import running
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import sync_weights
from bnpo.ranks import gather

MOST_TOKENS = 128


def prove_start(learner: Learner, sampler: Sampler, ids: list[int]) -> tuple[float, float]:
    """Return by how much the log-probabilities of learner and sampler differ from those of the model's own `forward`.

    The sampler gets the learner's weights first. The first half of the token ids `ids` is taken as a prompt, the second
    as an answer to it. Differences are means per token. Raises InputError on all ranks if they are larger than
    --sync-tolerance. A collective.
    """
    ids = (ids if len(ids) > 1 else ids * 2)[:MOST_TOKENS]  # at least a prompt and an answer of one token each
    prompt, answer = ids[: len(ids) // 2], ids[len(ids) // 2 :]
    # The learner packs a second answer behind the first. Layers that are no attention would let them mix.
    answers = answer, answer[::-1]
    model = learner.config.data.model
    with running(model, "transformers"):
        of_model = learner.own_score(prompt, *answers)  # [tokens of both answers]
        of_learner = learner.score(prompt, *answers)  # [tokens of both answers]
    with running(model, "vLLM"):
        # As after an update. On GPUs the sampler loses its weights as it falls asleep, so the sync must bring all.
        sampler.sleep()
        sampler.wake("weights")
        sync_weights(learner, sampler, 0)
        sampler.wake("kv_cache")
        of_sampler = sampler.score(prompt, answer)  # [tokens]
    tokens = len(answer)
    pairs = (of_learner, of_model), (of_sampler, of_model[:tokens]), (of_sampler, of_learner[:tokens])
    own_differences = [np.abs(a - b).mean() for a, b in pairs]
    # The largest of all ranks, or nan: all ranks raise, or none.
    learner_off, sampler_off, apart = (float(gap) for gap in np.max(gather(own_differences), axis=0))
    tolerance = learner.config.hardware.sync_tolerance
    if learner_off <= tolerance and apart <= tolerance:
        return learner_off, sampler_off
    if learner.config.hardware.dtype == "float16" and np.isnan([learner_off, sampler_off]).any():
        raise InputError(
            f"{model}: its activations overflow in float16: the log-probabilities of an answer are nan. Use --dtype "
            "bfloat16 or float32"
        )
    cure = "use another model"
    usual, dtype = HardwareSettings.sync_tolerance, learner.config.hardware.dtype
    if dtype != "float32" and tolerance < usual:  # as with --preset tiny, which is for float32
        cure = f"{dtype} rounds more than float32: add --sync-tolerance {usual}"
    wrong = "vLLM computes" if learner_off <= tolerance else "the learner computes"
    raise InputError(
        f"{model}: {wrong} this model otherwise than its own code in transformers. The "
        f"log-probabilities of an answer differ from the model's own by {learner_off:.2g} per token in the learner, by "
        f"{sampler_off:.2g} in the sampler. More than --sync-tolerance {tolerance:g} is refused; {cure}"
    )
