"""The curves of runs: seeds of one setting become one line with a band, the others lie over each other."""

from collections.abc import Sequence

import numpy as np
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
    known = dict(zip(run["steps"], run["metrics"].get(metric, ()), strict=False))
    if metric.endswith("/cv"):
        known = coefficient_of_variation(run["steps"], run["metrics"].get(metric[:-3], ()))
    return np.array([known.get(step) for step in steps], float)


def coefficient_of_variation(steps: Sequence[int], values: Sequence[float | None]) -> dict[int, float]:
    """Standard deviation (divisor n - 1) over mean of the last CV_STEPS values, by step, from the first with all."""
    known = [(step, value) for step, value in zip(steps, values, strict=False) if value is not None]
    windows = ((known[i - 1][0], [v for _, v in known[i - CV_STEPS : i]]) for i in range(CV_STEPS, len(known) + 1))
    return {step: np.std(window, ddof=1) / np.mean(window) for step, window in windows}


def charts(runs: Sequence[dict]) -> list[dict]:
    """Every chart that the runs have numbers for: its steps, and of every setting the values with their band: the
    smallest and largest of its seeds, or one standard error on both sides."""
    steps = sorted({step for run in runs for step in run["steps"]})
    specs = dict(CHARTS)
    for metric in sorted({metric for run in runs for metric in run["metrics"]} - CHARTS.keys()):
        place, _, last = metric.rpartition("/")
        if place.startswith("eval/") and last == "pass1":
            specs[metric] = (f"pass@1: {place[5:]}", "with its standard error", f"{place}/se")
        elif place.startswith("beta/") and last in ("E", "V", "alpha", "beta"):
            specs[metric] = (metric[5:], "of this reward's Beta fit", "")
    if sum(metric.endswith("/pass1") for metric in specs) == 2:  # one data set is its own average
        specs = {metric: spec for metric, spec in specs.items() if not spec[0].startswith("pass@1: ")}
    found = []
    for metric, (title, says, error) in specs.items():
        lines = []
        for number in sorted({run["setting"] for run in runs}):
            same = [run for run in runs if run["setting"] == number]
            values = np.ma.masked_invalid([column(run, metric, steps) for run in same])
            if not values.count():
                continue
            middle, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
            if len(same) == 1:
                width = np.ma.masked_invalid(column(same[0], error, steps))
                low, high = middle - width, middle + width
            label = same[0]["name"] + (f" and {len(same) - 1} more" if len(same) > 1 else "")
            line = {"label": label, "style": number, "band": len(same) > 1, "y": middle.tolist()}
            lines.append(line | {"low": low.tolist(), "high": high.tolist()})
        if lines:
            found.append({"metric": metric, "title": title, "says": says, "x": steps, "series": lines})
    return found + [phases(run) for run in runs]


def phases(run: dict) -> dict:
    """The seconds of a run's steps, phase upon phase."""
    names = [phase for phase in PHASES if f"seconds/{phase}" in run["metrics"]]
    seconds = np.nan_to_num([column(run, f"seconds/{phase}", run["steps"]) for phase in names])
    tops = np.cumsum(seconds, axis=0)
    series = [{"label": name, "style": i, "y": tops[i].tolist()} for i, name in enumerate(names)]
    for i, line in enumerate(series):
        line |= {"low": (tops[i] - seconds[i]).tolist(), "high": line["y"]}
    chart = {"metric": "seconds", "title": f"Seconds: {run['name']}", "says": "of a step, phase upon phase"}
    return chart | {"x": run["steps"], "series": series, "stacked": True}


def fits(run: dict) -> dict[str, dict[int, list[float]]]:
    """The density of every step, by the reward that it was fitted to ("": all): alpha, beta, log B(alpha, beta), and
    the accuracy at which all questions are weighed where they are taken to be equally hard, else None."""
    found = {}
    for metric in run["metrics"]:
        if metric.startswith("beta/") and metric.endswith("/alpha"):
            prefix = metric[: -len("alpha")]
            parts = [column(run, prefix + name, run["steps"]) for name in ("alpha", "beta", "a", "b", "E")]
            lines = zip(run["steps"], *parts, strict=True)
            bound = 0.999 * run["config"]["max_concentration"]
            found[prefix[5:-1]] = {
                step: [alpha, beta, betaln(alpha, beta), e if a + b >= bound else None]
                for step, alpha, beta, a, b, e in lines
                if np.isfinite(alpha)
            }
    return found
