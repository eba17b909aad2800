"""What training runs recorded step by step: read from their folders, grouped by method, pooled over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnpo.config import TrainConfig
from bnpo.files import InputError, whole_json_lines
from bnpo.flags import settings_of
from bnpo.report.read import NOT_COMPARED, method_name, open_folder
from bnpo.report.tables import ROW_ORDER


@dataclass(frozen=True)
class Run:
    """A training run: method, seed and settings, and its metrics by name: arrays [steps], nan where one is absent."""

    folder: Path
    method: str
    seed: int
    settings: dict[str, str]
    metrics: dict[str, np.ndarray]


@dataclass(frozen=True)
class Band:
    """A metric by step, over a window of steps and all seeds: the mean, and the deciles that enclose 80 % of it."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_run(folder: Path) -> Run:
    """The run in `folder`, finished or not. Raises InputError naming the file and what is wrong with it."""
    config = open_folder(folder)
    if "protocol" in config:
        raise InputError(f"{folder}: is an evaluation; figures are drawn from training runs")
    known = settings_of(TrainConfig).keys() - (NOT_COMPARED - {"model"})
    settings = {name: _short(name, config[name]) for name in sorted(known & config.keys())}
    return Run(folder, method_name(config), config["seed"], settings, _read_metrics(folder / "metrics.jsonl"))


def _short(name: str, value: object) -> str:
    return Path(str(value)).name if name == "model" else str(value)


def _read_metrics(path: Path) -> dict[str, np.ndarray]:
    rows = [row for row in whole_json_lines(path) if row.get("step", 0) > 0]
    if not rows:
        raise InputError(f"{path}: holds no step yet; draw the run when it has some")
    names = sorted({name for row in rows for name in row})
    # null stands for what was not finite.
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but their seeds, by label: the method, and the settings that set its groups apart.

    Raises InputError for two runs of one seed.
    """
    groups: dict[str, list[Run]] = {}
    for method in sorted({run.method for run in runs}, key=_rank):
        members = [run for run in runs if run.method == method]
        names = members[0].settings
        varying = [name for name in names if len({run.settings.get(name) for run in members}) > 1]
        for run in members:
            label = ", ".join([method, *(f"{name} {run.settings.get(name)}" for name in varying)])
            group = groups.setdefault(label, [])
            if twin := next((other.folder for other in group if other.seed == run.seed), None):
                raise InputError(f"{twin} and {run.folder}: both are {label} with seed {run.seed}; leave one out")
            group.append(run)
    return groups


def _rank(method: str) -> tuple[int, str]:
    return (ROW_ORDER.index(method) if method in ROW_ORDER else len(ROW_ORDER), method)


def band(runs: Sequence[Run], name: str, window: int) -> Band:
    """Metric `name` of the runs of one group, each step together with those around it, `window` in all.

    At the ends, and where runs are shorter, there are fewer values; nan is left out.
    """
    length = int(max(run.metrics["step"][-1] for run in runs))
    values = np.full((len(runs), length), np.nan)
    for row, run in zip(values, runs, strict=True):
        if name in run.metrics:
            row[run.metrics["step"].astype(int) - 1] = run.metrics[name]
    margin = np.full((len(runs), window), np.nan)
    padded = np.hstack([margin[:, : (window - 1) // 2], values, margin[:, : window // 2]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)  # [runs, steps, window]
    pooled = windows.transpose(1, 0, 2).reshape(length, -1)
    kept = ~np.isnan(pooled).all(axis=1)
    low, high = np.nanquantile(pooled[kept], [0.1, 0.9], axis=1)
    return Band(1 + np.flatnonzero(kept), np.nanmean(pooled[kept], axis=1), low, high)


def variation(steps: np.ndarray) -> float:
    """Coefficient of variation over [steps] of a run, nan left out: standard deviation (divisor n - 1) over mean."""
    values = steps[~np.isnan(steps)]
    return float(values.std(ddof=1) / values.mean()) if len(values) > 1 else float("nan")
