"""The curves of runs: seeds of one setting become one line with a band, the others lie over each other."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import betaln

CV_STEPS = 20
"""Steps over which the gradient norm's coefficient of variation is taken."""
CHARTS = {
    "reward/mean": ("Reward", "mean of the batch, with its standard error", "reward/se"),
    "eval/average/pass1": ("pass@1", "mean over the data sets, with its standard error", "eval/average/se"),
    "grad_norm": ("Gradient norm", "before clipping", ""),
    "grad_norm/cv": ("Gradient norm: variation", f"standard deviation / mean over {CV_STEPS} steps", ""),
    "beta/E": ("Accuracy of the questions", "E[p] of the batch", ""),
    "beta/V": ("Spread of the accuracies", "Var[p] of the batch", ""),
    "beta/alpha": ("Density: α", "of Beta(α, β), which divides the advantages", ""),
    "beta/beta": ("Density: β", "of Beta(α, β), which divides the advantages", ""),
    "answers/mean_tokens": ("Answer length", "mean tokens", ""),
    "answers/truncated": ("Cut off", "share of the answers", ""),
    "groups/all_equal": ("Groups without a signal", "share of questions with m equal rewards", ""),
    "sampler_learner_gap_mean": ("Sampler-learner gap", "mean |Δ log-probability| of a token", ""),
    "entropy": ("Entropy", "estimate from samples, nats a token", ""),
}
PHASES = ("generate", "reward", "gather", "update", "sync", "watch", "evaluate")


def column(run: dict, metric: str, steps: Sequence[int]) -> np.ndarray:
    """A metric at `steps`, nan where it was not logged."""
    nothing = np.full(len(run["steps"]), np.nan)
    values = run["metrics"].get(metric.removesuffix("/cv"), nothing)
    if metric.endswith("/cv"):
        windows = sliding_window_view(np.append(np.full(CV_STEPS, np.nan), values), CV_STEPS)[1:]
        values = windows.std(axis=1, ddof=1) / windows.mean(axis=1)
    known = dict(zip(run["steps"], values, strict=True))
    return np.array([known.get(step, np.nan) for step in steps])


def plain(values: np.ndarray) -> list:
    """Numbers for JSON, None for nan."""
    return np.ma.masked_invalid(values).tolist()


def charts(runs: Sequence[dict]) -> list[dict]:
    """Every chart that the runs have numbers for: its steps, and the lines of all settings."""
    specs = CHARTS | more_charts({metric for run in runs for metric in run["metrics"]} - CHARTS.keys())
    steps = sorted({step for run in runs for step in run["steps"]})
    settings = [[run for run in runs if run["setting"] == number] for number in range(len(runs))]
    found = []
    for metric, (title, says, error) in specs.items():
        lines = [setting_line(same, metric, error, steps) for same in settings if same]
        if lines := [line for line in lines if any(value is not None for value in line["y"])]:
            found.append({"metric": metric, "title": title, "says": says, "x": steps, "series": lines})
    return found + [phases(run) for run in runs]


def more_charts(metrics: set[str]) -> dict[str, tuple[str, str, str]]:
    """Charts of the data sets, where there are several, and of the fits to single rewards."""
    places = sorted(metric.removesuffix("/pass1") for metric in metrics if metric.endswith("/pass1"))
    specs = {f"{place}/pass1": (f"pass@1: {place[5:]}", "with its standard error", f"{place}/se") for place in places}
    fits = sorted(metric for metric in metrics if re.fullmatch("beta/.+/(E|V|alpha|beta)", metric))
    return (specs if len(specs) > 1 else {}) | {fit: (fit[5:], "of this reward's Beta fit", "") for fit in fits}


def setting_line(same: Sequence[dict], metric: str, error: str, steps: Sequence[int]) -> dict:
    """The mean over runs that differ in their seeds alone, with a band from the smallest to the largest; or a single
    run with one standard error on both sides."""
    values = np.ma.masked_invalid([column(run, metric, steps) for run in same])
    middle, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    if len(same) == 1:
        width = column(same[0], error, steps)
        low, high = middle - width, middle + width
    label = same[0]["name"] + (f" ({len(same)} seeds)" if len(same) > 1 else "")
    line = {"label": label, "style": same[0]["setting"], "band": len(same) > 1}
    return line | {"y": plain(middle), "low": plain(low), "high": plain(high)}


def phases(run: dict) -> dict:
    """The seconds of a run's steps, phase upon phase."""
    names = [phase for phase in PHASES if f"seconds/{phase}" in run["metrics"]]
    seconds = np.nan_to_num([column(run, f"seconds/{phase}", run["steps"]) for phase in names])
    tops = np.cumsum(seconds, axis=0)
    lines = zip(names, plain(tops), plain(tops - seconds), strict=True)
    series = [{"label": name, "style": i, "y": y, "high": y, "low": low} for i, (name, y, low) in enumerate(lines)]
    chart = {"metric": "seconds", "title": f"Seconds: {run['name']}", "says": "of a step, phase upon phase"}
    return chart | {"x": run["steps"], "series": series, "stacked": True}


def fits(run: dict) -> dict[str, dict[int, list[float | None]]]:
    """The density of every step, by the reward that it was fitted to ("": all): alpha, beta, log B(alpha, beta), and
    the accuracy at which all questions are weighed where they are taken to be equally hard, else None."""
    found = {}
    for prefix in [metric[: -len("alpha")] for metric in run["metrics"] if re.fullmatch("beta/(.+/)?alpha", metric)]:
        alpha, beta, a, b, mean = (
            column(run, prefix + name, run["steps"]) for name in ("alpha", "beta", "a", "b", "E")
        )
        alike = np.where(a + b >= 0.999 * run["config"]["max_concentration"], mean, np.nan)
        lines = zip(run["steps"], plain(np.stack([alpha, beta, betaln(alpha, beta), alike], axis=1)), strict=True)
        found[prefix[5:-1]] = {step: line for step, line in lines if line[0] is not None}
    return found
