"""The names that `Method.algo` takes: built-in estimators, and those of a user's own file."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import TypeVar

import numpy as np

from bnpo.files import InputError, line_of, read_text

T = TypeVar("T", bound=Callable[..., np.ndarray])
NEEDS = ("range", "lengths", "greedy_rewards", "separate_rewards")
FORM = "It must be `@estimator() def name(batch: Batch) -> np.ndarray`, see docs/architecture.md"


class SettingError(ValueError):
    """A wrong field of `Method`. The message is one line. Fields are in backticks, as in `algo`
    or `decompose=False`, so that a program can name its flags instead.
    """


@dataclass(frozen=True)
class Estimator:
    """An estimator, and all that the program knows of it. `estimator` explains the fields."""

    function: Callable[..., np.ndarray]
    needs: frozenset[str]
    unit_interval: bool
    group: bool
    settings: tuple[str, ...]
    logs_fit: bool

    @property
    def needs_range(self) -> bool:
        """Whether rewards must be mapped to [0, 1]. Others take rewards of any size and sign."""
        return self.unit_interval or "range" in self.needs


ESTIMATORS: dict[str, Estimator] = {}
"""The built-in estimators: the functions of estimators.py by name, once it is imported."""
_REGISTERED: dict[Callable, Estimator] = {}  # also those of users' files


def estimator(
    *,
    needs: str = "",
    unit_interval: bool = False,
    group: bool = True,
    settings: tuple[str, ...] = (),
    logs_fit: bool = False,
) -> Callable[[T], T]:
    """Register a function as an estimator: `function(batch: Batch) -> advantages [n, m]`.

    - needs: what `Batch` must have besides rewards: `lengths`, `greedy_rewards` (one greedy answer
      per question is sampled and graded), or `separate_rewards`; or `range`: each reward is mapped
      to [0, 1], and an answer has their sum. Several are separated by commas.
    - unit_interval: each reward is mapped to [0, 1], and an answer has their mean, not their sum.
    - group: False if one answer per question is enough to learn from.
    - settings: fields of `Method` that only this estimator takes.
    - logs_fit: record BNPO's Beta fit of every batch. Needs `unit_interval`.
    """
    names = frozenset(name.strip() for name in needs.split(",") if name.strip())
    if not names.issubset(NEEDS):
        raise ValueError(f"@estimator: needs={needs!r} is unknown; known: {', '.join(NEEDS)}")
    if logs_fit and not unit_interval:
        raise ValueError("@estimator: logs_fit=True needs unit_interval=True")

    def register(function: T) -> T:
        found = Estimator(function, names, unit_interval, group, settings, logs_fit)
        _REGISTERED[function] = found
        if function.__module__ == "bnpo.algorithm.estimators":
            ESTIMATORS[function.__name__] = found
        return function

    return register


def find_estimator(algo: str) -> Estimator:
    """Return the estimator with this name, or the one of a user's file: `path/to/file.py:function`.

    A process loads a file once. Raises SettingError for an unknown name and for no such file,
    InputError for a file or a function that is not an estimator.
    """
    if algo in ESTIMATORS:
        return ESTIMATORS[algo]
    file, _, name = algo.rpartition(":")
    if not (file.endswith(".py") and name.isidentifier()):
        known = f"known: {', '.join(sorted(ESTIMATORS))}, or path/to/file.py:function"
        raise SettingError(f"`algo`: unknown estimator '{algo}'; {known}")
    if not os.path.isfile(file):
        raise SettingError(f"`algo`: there is no file '{file}'")
    function = _load(os.path.abspath(file)).get(name)
    if function is None:
        raise InputError(f"{file}: has no function '{name}'. {FORM}")
    if not isinstance(function, FunctionType) or function not in _REGISTERED:
        raise InputError(f"{algo}: is not registered by @estimator(). {FORM}")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise InputError(f"{algo}: must take one argument, the batch. {FORM}") from None
    return _REGISTERED[function]


@lru_cache
def _load(path: str) -> dict[str, object]:
    """Return the names that a user's file defines. Raises InputError if it cannot be imported."""
    source = read_text(path)
    module = ModuleType(f"users_estimator {path}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # where dataclasses look for their module
    # Behind all others: a file beside it must not take the place of a library that torch or vLLM
    # import later
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: cannot be imported: {fault_in(path, error)}") from error
    return module.__dict__


def fault_in(file: str, error: BaseException) -> str:
    """Return an error in one line, with the line of `file` in which it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(file)]
    return (f"line {lines[-1]}: " if lines else "") + line_of(error)
