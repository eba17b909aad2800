"""What the sampler returns, in a module that does not import vLLM (which takes seconds)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Answer:
    """One sampled answer."""

    token_ids: list[int]  # with the stop token, if it came
    finished: bool  # it ended by itself; False: it was cut off at the length limit
    logprobs: np.ndarray | None  # [tokens], under the sampler at the sampling temperature, if asked for


class SampledGroup(NamedTuple):
    """All answers to one prompt. A greedy answer comes in a group of its own."""

    prompt_index: int
    greedy: bool
    answers: list[Answer]
