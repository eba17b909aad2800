"""The metrics of training runs by step: read from their folders, grouped by method, pooled over
seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnpo.config import PRESETS, flat_settings
from bnpo.files import InputError, short_name, whole_json_lines
from paper.results import NOT_COMPARED, length_of, load_results, method_name
from paper.tables import ROW_ORDER
from runpage.run_files import open_folder


@dataclass(frozen=True)
class RunCurves:
    """A training run: method, seed, the settings by which runs are grouped, and its metrics by
    name, each [steps] with nan where it was not logged. `score` is its evaluation, if there is one:
    pass@1 averaged over the data sets, by the suite, limit and grader that `evaluated` names.
    """

    folder: Path
    method: str
    seed: int
    settings: dict[str, str]
    metrics: dict[str, np.ndarray]
    score: float | None = None
    evaluated: str = ""


@dataclass(frozen=True)
class Band:
    """A metric by step, pooled over a window of steps and all seeds: the mean, and the first and
    last decile, two of the values, which enclose at least 80 % of them: all, if there are fewer
    than ten. All arrays are [steps with a value].
    """

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_run(folder: Path) -> RunCurves:
    """Read the run in `folder`, finished or not. Raises InputError with the file and what is
    wrong with it.
    """
    config = open_folder(folder)
    if "protocol" in config:
        raise InputError(f"{folder}: is an evaluation; figures are drawn from training runs")
    # The model is not compared in tables, which have a block for each; here it separates groups.
    compared = flat_settings(PRESETS["tiny"]).keys() - (NOT_COMPARED - {"model"})
    settings = {}
    for name in sorted(compared & config.keys()):
        settings[name] = short_name(str(config[name])) if name == "model" else str(config[name])
    path = folder / "metrics.jsonl"
    # 0: the evaluation before training
    lines = [line for line in whole_json_lines(path) if line.get("step", 0) > 0]
    if not lines:
        raise InputError(f"{path}: holds no step yet; draw the run when it has some")
    # nan: missing, or null (not finite)
    metrics = {
        name: np.array([line.get(name) for line in lines], float)
        for name in sorted(set().union(*lines))
    }
    score, evaluated = _score(folder)
    if score is not None:  # it is that of the last step, while curves may end earlier
        settings["length"] = length_of(config)
    method = method_name(config)
    return RunCurves(folder, method, config["seed"], settings, metrics, score, evaluated)


def _score(folder: Path) -> tuple[float | None, str]:
    """Return the score in the run's results.json, and what was evaluated. The file is beside the
    run (a row of reproduce.py), below it (a run of compare.py) or in it (a recorded row).
    """
    beside = [folder.parent / "eval"] if folder.resolve().name == "train" else []
    for path in (*beside, folder / "eval", folder):
        if (path / "results.json").exists():
            [result] = load_results([path / "results.json"])
            *_, (mean, _) = result.scores.values()  # the average comes last
            used = (result.settings[name].value for name in ("suite", "limit", "grader"))
            return mean, "suite {}, limit {}, grader {}".format(*used)
    return None, ""


def group_runs(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Group the runs that differ only in their seeds. A label is the method, and the settings that
    differ within it.

    Raises InputError for two runs of a group with the same seed.
    """
    runs_by_method: dict[str, list[RunCurves]] = {}
    for run in runs:
        runs_by_method.setdefault(run.method, []).append(run)
    groups: dict[str, list[RunCurves]] = {}
    # In the order of the tables
    known = [method for method in ROW_ORDER if method in runs_by_method]
    for method in (*known, *sorted(runs_by_method.keys() - set(known))):
        members = runs_by_method[method]
        varying = [
            name
            for name in sorted(set().union(*(run.settings for run in members)))
            if len({run.settings.get(name) for run in members}) > 1
        ]
        for run in members:
            label = ", ".join([method, *(f"{name} {run.settings.get(name)}" for name in varying)])
            group = groups.setdefault(label, [])
            for other in group:
                if other.seed == run.seed:
                    both = f"{other.folder} and {run.folder}: both are {label} with seed {run.seed}"
                    raise InputError(f"{both}; leave one out")
            group.append(run)
    return groups


def band(runs: Sequence[RunCurves], name: str, window: int) -> Band:
    """Pool metric `name` over the runs of one group and over `window` steps around every step.

    At the ends, and where runs are shorter, fewer values are pooled. nan is left out.
    """
    length = int(max(run.metrics["step"][-1] for run in runs))
    values = np.full((len(runs), length), np.nan)  # [runs, steps]
    for row, run in zip(values, runs, strict=True):
        if name in run.metrics:
            row[run.metrics["step"].astype(int) - 1] = run.metrics[name]
    # Pad with nan, so that the first and the last step have a window too.
    margin = np.full((len(runs), window), np.nan)
    padded = np.hstack([margin[:, : (window - 1) // 2], values, margin[:, : window // 2]])
    # [runs, steps, window]
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)
    pooled = windows.transpose(1, 0, 2).reshape(length, -1)  # [steps, runs * window]
    has_value = ~np.isnan(pooled).all(axis=1)  # [steps]
    low, high = np.nanquantile(pooled[has_value], [0.1, 0.9], axis=1, method="inverted_cdf")
    return Band(1 + np.flatnonzero(has_value), np.nanmean(pooled[has_value], axis=1), low, high)


def variation(values: np.ndarray) -> float:
    """Return the coefficient of variation of values [steps]: sample standard deviation over
    mean, without nan.
    """
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / known.mean()) if len(known) > 1 else float("nan")
