"""The names that `Method.algo` takes: built-in estimators, and those of a user's own file."""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", bound=Callable[..., np.ndarray])
NEEDS = ("range", "lengths", "greedy_rewards", "separate_rewards")
FORM = "`@estimator() def name(batch: RewardBatch) -> np.ndarray`, see docs/architecture.md"


class SettingError(ValueError):
    """A wrong field of `Method`, or a fault of the file that its `algo` names. The message is one
    line. Fields are in backticks, as in `algo` or `decompose=False`, so that a program can name its
    flags instead.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # what a user typed may have line breaks


@dataclass(frozen=True)
class Estimator:
    """An estimator, and all that the program knows of it. `estimator` explains the fields."""

    function: Callable[..., np.ndarray]
    needs: frozenset[str]
    needs_range: bool  # rewards must be mapped to [0, 1]. Others may have any size and sign
    unit_interval: bool
    group: bool
    settings: tuple[str, ...]


ESTIMATORS: dict[str, Estimator] = {}
"""The built-in estimators: the functions of estimators.py by name, once it is imported."""


def estimator(
    *,
    needs: str = "",
    unit_interval: bool = False,
    group: bool = True,
    settings: tuple[str, ...] = (),
) -> Callable[[T], T]:
    """Register a function as an estimator: `function(batch: RewardBatch) -> advantages [n, m]`.

    - `needs`, separated by commas: `lengths`, `greedy_rewards` and `separate_rewards` are the
      fields of the batch that are given, too; with `range`, each reward is mapped to [0, 1], and
      an answer has their sum.
    - `unit_interval`: each reward is mapped to [0, 1], and an answer has their mean.
    - `group=False`: one answer to a question is enough to learn from.
    - `settings`: the fields of `Method` that only this estimator takes, for built-in ones.
    """
    names = frozenset(name.strip() for name in needs.split(",") if name.strip())
    if not names.issubset(NEEDS):
        raise ValueError(f"@estimator: needs={needs!r} is unknown; known: {', '.join(NEEDS)}")
    needs_range = unit_interval or "range" in names

    def register(function: T) -> T:
        found = Estimator(function, names, needs_range, unit_interval, group, settings)
        function.estimator = found  # type: ignore[attr-defined]  # for `find_estimator`
        if function.__module__ == "bnpo_estimators.estimators":
            ESTIMATORS[function.__name__] = found
        return function

    return register


def find_estimator(algo: str) -> Estimator:
    """Return the estimator with this name, or the one of a user's file: `path/to/file.py:function`.

    Raises SettingError for an unknown name, and for a file without this estimator.
    """
    return ESTIMATORS.get(algo) or _users_estimator(algo)


def _users_estimator(algo: str) -> Estimator:
    file, _, name = algo.rpartition(":")
    if not (file.endswith(".py") and name.isidentifier()):
        known = f"known: {', '.join(sorted(ESTIMATORS))}, or path/to/file.py:function"
        raise SettingError(f"`algo`: unknown estimator '{algo}'; {known}")
    if not os.path.isfile(file):
        raise SettingError(f"`algo`: there is no file '{file}'")
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        raise SettingError(f"`algo`: {file} cannot be read ({error.strerror})") from error
    function = _load(os.path.abspath(file), source).get(name)
    found = getattr(function, "estimator", None)
    if not isinstance(found, Estimator):
        raise SettingError(f"{algo}: is not a function that @estimator() registers: {FORM}")
    return replace(found, function=partial(_call, algo, function))


def _call(algo: str, function: Any, batch: Any) -> np.ndarray:
    """Return the advantages [n, m] of a user's estimator, whose faults are SettingErrors."""
    known = ~np.isnan(batch.rewards)  # [n, m]
    try:
        values = np.asarray(function(batch), dtype=np.float64)
    except (Exception, SystemExit) as error:
        raise SettingError(f"{algo}: {_fault_in(algo.rpartition(':')[0], error)}") from error
    if values.shape != known.shape:
        shapes = f"returned shape {list(values.shape)}, must be [n, m] = {list(known.shape)}"
        raise SettingError(f"{algo}: {shapes}, like batch.rewards")
    if not np.isfinite(values[known]).all():
        cure = "leave out rewards that are nan, as np.nanmean does, and do not divide by 0"
        raise SettingError(f"{algo}: returned an advantage that is not finite; {cure}")
    return values


@lru_cache
def _load(path: str, source: bytes) -> dict[str, object]:
    """Return the names that a user's file with this `source` defines. It is run once, and again
    when it has been edited. Raises SettingError if it cannot be imported.
    """
    module = ModuleType(f"users_estimator {path}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # where dataclasses look for their module
    # Behind all others: a file beside it must not take the place of a library that torch or vLLM
    # import later
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    try:
        # From bytes, which Python decodes as it does when it imports a file
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise SettingError(f"{path}: cannot be imported: {_fault_in(path, error)}") from error
    return module.__dict__


def _fault_in(file: str, error: BaseException) -> str:
    """Return an error in one line, with the line of `file` in which it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(file)]
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return (f"line {lines[-1]}: " if lines else "") + text
