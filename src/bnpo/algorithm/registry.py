"""The names that `Method.algo` takes: built-in estimators, and those of a user's own file."""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from bnpo.files import InputError, line_of, read_text

T = TypeVar("T", bound=Callable[..., np.ndarray])
NEEDS = ("range", "lengths", "greedy_rewards", "separate_rewards")
FORM = "`@estimator() def name(batch: RewardBatch) -> np.ndarray`, see docs/architecture.md"


class SettingError(ValueError):
    """A wrong field of `Method`. Fields are in backticks, as in `algo` or `decompose=False`, so
    that a program can name its flags instead.
    """


@dataclass(frozen=True)
class Estimator:
    """An estimator, and all that the program knows of it. `estimator` explains the fields."""

    function: Callable[..., np.ndarray]
    needs: frozenset[str]
    needs_range: bool  # rewards must be mapped to [0, 1]. Others may have any size and sign
    unit_interval: bool
    group: bool
    settings: tuple[str, ...]
    logs_fit: bool


ESTIMATORS: dict[str, Estimator] = {}
"""The built-in estimators: the functions of estimators.py by name, once it is imported."""


def estimator(
    *,
    needs: str = "",
    unit_interval: bool = False,
    group: bool = True,
    settings: tuple[str, ...] = (),
    logs_fit: bool = False,
) -> Callable[[T], T]:
    """Register a function as an estimator: `function(batch: RewardBatch) -> advantages [n, m]`.
    docs/architecture.md explains the arguments.
    """
    names = frozenset(name.strip() for name in needs.split(",") if name.strip())
    if not names.issubset(NEEDS):
        raise ValueError(f"@estimator: needs={needs!r} is unknown; known: {', '.join(NEEDS)}")
    if logs_fit and not unit_interval:
        raise ValueError("@estimator: logs_fit=True needs unit_interval=True")
    needs_range = unit_interval or "range" in names

    def register(function: T) -> T:
        found = Estimator(function, names, needs_range, unit_interval, group, settings, logs_fit)
        function.estimator = found  # type: ignore[attr-defined]  # for `find_estimator`
        if function.__module__ == "bnpo.algorithm.estimators":
            ESTIMATORS[function.__name__] = found
        return function

    return register


def find_estimator(algo: str) -> Estimator:
    """Return the estimator with this name, or the one of a user's file: `path/to/file.py:function`.

    Raises SettingError for an unknown name, InputError for a file without this estimator.
    """
    return ESTIMATORS.get(algo) or _users_estimator(algo)


def _users_estimator(algo: str) -> Estimator:
    file, _, name = algo.rpartition(":")
    if not (file.endswith(".py") and name.isidentifier()):
        known = f"known: {', '.join(sorted(ESTIMATORS))}, or path/to/file.py:function"
        raise SettingError(f"`algo`: unknown estimator '{algo}'; {known}")
    if not os.path.isfile(file):
        raise SettingError(f"`algo`: there is no file '{file}'")
    function = _load(os.path.abspath(file)).get(name)
    found = getattr(function, "estimator", None)
    if not isinstance(found, Estimator):
        raise InputError(f"{algo}: is not a function that @estimator() registers: {FORM}")
    return replace(found, function=partial(_call, algo, function))


def _call(algo: str, function: Any, batch: Any) -> np.ndarray:
    """Return the advantages [n, m] of a user's estimator, whose faults are InputErrors."""
    known = ~np.isnan(batch.rewards)  # [n, m]
    try:
        values = np.asarray(function(batch), dtype=np.float64)
    except (Exception, SystemExit) as error:
        raise InputError(f"{algo}: {_fault_in(algo.rpartition(':')[0], error)}") from error
    if values.shape != known.shape:
        shapes = f"returned shape {list(values.shape)}, must be [n, m] = {list(known.shape)}"
        raise InputError(f"{algo}: {shapes}, like batch.rewards")
    if not np.isfinite(values[known]).all():
        cure = "leave out rewards that are nan, as np.nanmean does, and do not divide by 0"
        raise InputError(f"{algo}: returned an advantage that is not finite; {cure}")
    return values


@lru_cache
def _load(path: str) -> dict[str, object]:
    """Return the names that a user's file defines, which a process loads once. Raises InputError if
    it cannot be imported.
    """
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
        raise InputError(f"{path}: cannot be imported: {_fault_in(path, error)}") from error
    return module.__dict__


def _fault_in(file: str, error: BaseException) -> str:
    """Return an error in one line, with the line of `file` in which it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(file)]
    return (f"line {lines[-1]}: " if lines else "") + line_of(error)
