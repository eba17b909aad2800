"""The charts of a page: one line per setting, with a band over seeds; lines of different settings share a chart."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import betaln

from bnpo.report.run_files import RunFacts


class ChartText(NamedTuple):
    """Title and caption of a chart, and the metric with its standard error, if there is one."""

    title: str
    caption: str
    error_metric: str = ""


CV_STEPS = 20
"""Steps over which the gradient norm's coefficient of variation is computed."""
DENSITY = "advantages are divided by Beta(α, β)"
CHARTS = {
    "reward/mean": ChartText("Reward", "mean of the batch ± standard error", "reward/se"),
    "eval/average/pass1": ChartText("pass@1", "mean over the data sets ± standard error", "eval/average/se"),
    "grad_norm": ChartText("Gradient norm", "before clipping"),
    "grad_norm/cv": ChartText("Variation of the gradient norm", f"standard deviation / mean over {CV_STEPS} steps"),
    "beta/E": ChartText("Accuracy of the questions", "mean E[p] over the batch"),
    "beta/V": ChartText("Spread of the accuracies", "variance Var[p] over the batch"),
    "beta/alpha": ChartText("Density: α", DENSITY),
    "beta/beta": ChartText("Density: β", DENSITY),
    "answers/mean_tokens": ChartText("Answer length", "mean tokens per answer"),
    "answers/truncated": ChartText("Cut off", "share of answers that reach the length limit"),
    "groups/all_equal": ChartText("Questions without a gradient", "share of those whose m rewards are equal"),
    "sampler_learner_gap_mean": ChartText("Sampler-learner gap", "mean |Δ log-probability| per token"),
    "entropy": ChartText("Entropy", "nats per token, estimated from samples"),
}
PHASES = ("generate", "reward", "gather", "update", "sync", "watch", "evaluate")


def column(run: RunFacts, metric: str, steps: Sequence[int]) -> np.ndarray:
    """Return a metric [steps] at `steps`, nan where it was not logged. The suffix /cv asks for its variation."""
    values = run.metrics.get(metric.removesuffix("/cv"))
    if values is None:
        return np.full(len(steps), np.nan)
    if metric.endswith("/cv"):
        padded = np.append(np.full(CV_STEPS - 1, np.nan), values)  # nan until a window is full
        windows = sliding_window_view(padded, CV_STEPS)  # [lines, CV_STEPS]
        values = windows.std(axis=1, ddof=1) / windows.mean(axis=1)
    value_at = dict(zip(run.steps, values, strict=True))
    return np.array([value_at.get(step, np.nan) for step in steps])


def to_json(values: np.ndarray) -> list:
    """Return an array as lists, with None for nan, which JSON does not have."""
    return np.ma.masked_invalid(values).tolist()


def charts(runs: Sequence[RunFacts]) -> list[dict]:
    """Return every chart that the runs have values for: its texts, its steps, and the lines of all settings."""
    metrics, all_steps = set(), set()
    runs_by_setting: dict[int, list[RunFacts]] = {}
    for run in runs:
        metrics.update(run.metrics)
        all_steps.update(run.steps)
        runs_by_setting.setdefault(run.setting, []).append(run)
    steps = sorted(all_steps)
    result = []
    for metric, text in (CHARTS | more_charts(metrics - CHARTS.keys())).items():
        lines = []
        for same in runs_by_setting.values():
            line = setting_line(same, metric, text.error_metric, steps)
            if any(value is not None for value in line["y"]):
                lines.append(line)
        if lines:
            chart = {"metric": metric, "title": text.title, "caption": text.caption, "x": steps, "series": lines}
            result.append(chart)
    return result + [phases(run) for run in runs]


def more_charts(metrics: Iterable[str]) -> dict[str, ChartText]:
    """Return charts for the data sets, if there are several, and for the densities fitted to single rewards."""
    dataset_charts, fit_charts = {}, {}
    for metric in sorted(metrics):
        if metric.endswith("/pass1"):
            place = metric.removesuffix("/pass1")
            text = ChartText(f"pass@1: {place.removeprefix('eval/')}", "± standard error", f"{place}/se")
            dataset_charts[metric] = text
        elif re.fullmatch("beta/.+/(E|V|alpha|beta)", metric):
            fit_charts[metric] = ChartText(metric.removeprefix("beta/"), "of the density fitted to this reward")
    return (dataset_charts if len(dataset_charts) > 1 else {}) | fit_charts


def setting_line(same: Sequence[RunFacts], metric: str, error_metric: str, steps: Sequence[int]) -> dict:
    """Return the line of runs that differ only in their seeds: their mean, and a band from the smallest to the largest
    value. For a single run the band is one standard error on both sides."""
    values = np.ma.masked_invalid([column(run, metric, steps) for run in same])  # [runs, steps]
    mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    label = same[0].name
    if len(same) == 1:
        width = column(same[0], error_metric, steps)
        low, high = mean - width, mean + width
    else:
        label += f" ({len(same)} seeds)"
    line = {"label": label, "style": same[0].setting, "band": len(same) > 1}
    return line | {"y": to_json(mean), "low": to_json(low), "high": to_json(high)}


def phases(run: RunFacts) -> dict:
    """Return the chart of the seconds per step of a run, its phases stacked."""
    series, bottom = [], np.zeros(len(run.steps))
    for phase in PHASES:
        if f"seconds/{phase}" in run.metrics:
            top = bottom + np.nan_to_num(column(run, f"seconds/{phase}", run.steps))
            line = {"label": phase, "style": len(series), "y": to_json(top)}
            series.append(line | {"low": to_json(bottom), "high": to_json(top)})
            bottom = top
    chart = {"metric": "seconds", "title": f"Seconds: {run.name}", "caption": "per step, stacked by phase"}
    return chart | {"x": run.steps, "series": series, "stacked": True}


def fits(run: RunFacts) -> dict[str, dict[int, list[float | None]]]:
    """Return the fitted density of every step, by the reward it was fitted to ("" for all rewards).

    A density is [alpha, beta, log B(alpha, beta), p]. p is None, except where the questions are taken to be equally
    hard: then all of them get the weight of the accuracy p.
    """
    densities = {}
    for metric in run.metrics:
        if not re.fullmatch("beta/(.+/)?alpha", metric):
            continue
        prefix = metric.removesuffix("alpha")
        alpha, beta, a, b, mean = [column(run, prefix + name, run.steps) for name in ("alpha", "beta", "a", "b", "E")]
        # The fit was stopped at the largest concentration (but for rounding).
        equally_hard = a + b >= 0.999 * run.config["max_concentration"]
        shared_p = np.where(equally_hard, mean, np.nan)
        rows = to_json(np.stack([alpha, beta, betaln(alpha, beta), shared_p], axis=1))  # [steps][4]
        of_reward = {step: row for step, row in zip(run.steps, rows, strict=True) if row[0] is not None}
        densities[prefix.removeprefix("beta/").removesuffix("/")] = of_reward
    return densities
