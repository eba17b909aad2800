"""Reward functions: the built-in ones, and the user's own, which are loaded from a file.

Every reward is `function(text: str, reference: str) -> float`. `text` is the decoded answer, `reference` the problem's
`answer` field.
"""

import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from bnpo.files import InputError

Reward = Callable[[str, str], float]

GRADERS = ("default", "reference")
"""Rules of grading: this project's, or those of the authors' released code, to compare with the paper."""

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
FORMAT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
RELEASED_FORMAT = re.compile(r"<think>.*</think><answer>.*</answer>", re.DOTALL)


def format_reward(text: str, reference: str) -> float:
    """Return 1 if `text` is `<think>...</think><answer>...</answer>` with each tag once, else 0 (Table 2).

    >>> format_reward("<think>hm</think> <answer>4</answer>", "4"), format_reward("<think>hm</think> 4", "4")
    (1.0, 0.0)
    """
    return float(_has_each_tag_once(text) and FORMAT.fullmatch(text) is not None)


def released_format_reward(text: str, reference: str) -> float:
    """Return `format_reward` by the authors' released code, which allows no white space around or between the parts."""
    return float(_has_each_tag_once(text) and RELEASED_FORMAT.fullmatch(text) is not None)


def _has_each_tag_once(text: str) -> bool:
    return all(text.count(tag) == 1 for tag in TAGS)


REWARDS: dict[str, Reward] = {"format": format_reward}
"""Built-in rewards that are fast and safe enough to be called in the training process. Values lie in [0, 1]."""
RELEASED_REWARDS: dict[str, Reward] = {"format": released_format_reward}
"""Those that `--grader reference` computes in another way."""
BUILT_IN = ("accuracy", *REWARDS)
"""Names of the built-in rewards. `accuracy` may take long, so grader.py has it computed in worker processes."""


def reward_name(reward: str) -> str:
    """Return `accuracy`, `format`, or the function's name in `path/to/file.py:function`."""
    return reward.rpartition(":")[2]


def check_function(flag: str, name: str, built_in: Sequence[str]) -> None:
    """Raise InputError if `name` is neither in `built_in` nor path/to/file.py:function with a file that exists."""
    file, _, function = name.rpartition(":")
    if name in built_in:
        return
    if not (file.endswith(".py") and function.isidentifier()):
        known = f"known: {', '.join(built_in)}, path/to/file.py:function"
        raise InputError(f"--{flag}: unknown {flag.removesuffix('s')} '{name}'; {known}")
    if not Path(file).is_file():
        raise InputError(f"--{flag}: no file {file}; write path/to/file.py:function")


def check_rewards(rewards: Sequence[str], users_range: tuple[float, float]) -> None:
    """Raise InputError for an unknown, missing or repeated reward. Runs none of the user's code."""
    users_rewards = [reward for reward in rewards if reward not in BUILT_IN]
    for reward in users_rewards:
        check_function("rewards", reward, BUILT_IN)
    names = [reward_name(reward) for reward in rewards]
    if len(set(names)) < len(names):
        raise InputError(f"--rewards: {', '.join(names)}: names repeat; metrics need different ones")
    reserved = {"mean", "se", "timeouts", "errors"}.intersection(names)
    if reserved:
        raise InputError(f"--rewards: reward/{reserved.pop()} is a metric of every run; give the function another name")
    low, high = users_range
    if not -math.inf < low < high < math.inf:
        raise InputError(f"--reward-range: {low:g} {high:g}: must be two finite numbers, the lower one first")
    if (low, high) != (0, 1) and not users_rewards:
        raise InputError(
            "--reward-range: is the range of your own rewards, and --rewards has none; leave it out, or add "
            "path/to/file.py:function"
        )


def check_users_reward(reward: str) -> None:
    """Raise what keeps a user's reward from being called. Runs in a worker."""
    inspect.signature(_load(reward)).bind("text", "reference")


def users_reward(reward: str, text: str, reference: str) -> float:
    """Return a user's reward of one answer. Runs in a worker."""
    return float(_load(reward)(text, reference))


@lru_cache
def _load(reward: str) -> Reward:
    """Import the file of `path/to/file.py:function` and return the function."""
    file, _, name = reward.rpartition(":")
    sys.path.insert(0, str(Path(file).resolve().parent))  # files beside it can be imported, as by a script
    spec = importlib.util.spec_from_file_location(f"{Path(file).stem} of {file}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickle look for it
    spec.loader.exec_module(module)
    return getattr(module, name)
