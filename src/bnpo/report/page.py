"""The page of runs: one HTML file with all its data, which needs no server and no network."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import betaln

from bnpo.files import step_of, writing
from bnpo.report.run_files import (
    RunFacts,
    counterfactual,
    eval_problems,
    evaluations,
    open_folder,
    read_answers,
    read_batch,
    run_facts,
)

PARTS, VENDOR = Path(__file__).with_name("page"), Path(__file__).with_name("vendor")
MAX_ANSWERS = 10_000
"""Texts of answers on a page from training batches, unless --steps chooses, and as many from evaluations."""
Steps = tuple[int, int] | None
"""First and last step whose answers are shown; None for as many as fit."""


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
        names = ("alpha", "beta", "a", "E", "edge")
        alpha, beta, a, mean, edge = [column(run, prefix + name, run.steps) for name in names]
        # At its other edges a fit has a = b = 0: this one stopped at the largest concentration.
        equally_hard = (edge == 1) & (a > 0)
        shared_p = np.where(equally_hard, mean, np.nan)
        rows = to_json(np.stack([alpha, beta, betaln(alpha, beta), shared_p], axis=1))  # [steps][4]
        of_reward = {step: row for step, row in zip(run.steps, rows, strict=True) if row[0] is not None}
        densities[prefix.removeprefix("beta/").removesuffix("/")] = of_reward
    return densities


def write_page(path: Path, folders: Sequence[Path], steps: Steps = None) -> None:
    """Write the page of the runs and evaluations in `folders`, with answers of `steps`. Raises InputError."""
    opened = [(folder, open_folder(folder)) for folder in folders]
    runs = [(folder, config) for folder, config in opened if "protocol" not in config]
    all_facts = [run_facts(folder, config) for folder, config in runs]
    configs = [facts.config for facts in all_facts]
    for facts in all_facts:
        facts.setting = configs.index(facts.config)  # the first run with the same config
    data = {"made": f"{datetime.now():%Y-%m-%d %H:%M}", "charts": charts(all_facts), "leftOut": []}
    # The charts hold the metrics that are shown.
    data["runs"] = [vars(facts) | {"fits": fits(facts), "metrics": None} for facts in all_facts]
    chunks: list[str] = []
    add_answers(data, chunks, runs, steps)
    add_evaluations(data, chunks, opened)
    title = ", ".join(folder.resolve().name for folder in folders)
    with writing(path, "-o names another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill_template(title, data, chunks), encoding="utf-8")


def answer_files(runs: Sequence[tuple[Path, dict]], kind: str, steps: Steps) -> list[tuple[int, int, Path]]:
    """Return (run, step, path) of the files of answers of one kind (`watch` or `rollouts`), ordered by run and step."""
    files = []
    for run, (folder, _) in enumerate(runs):
        for path in sorted((folder / kind).glob("step-*.jsonl")):
            step = step_of(path)  # None: a file that only looks like a step's, such as a user's copy
            if step is not None and (not steps or steps[0] <= step <= steps[1]):
                files.append((run, step, path))
    return files


def add_answers(data: dict, chunks: list[str], runs: Sequence[tuple[Path, dict]], steps: Steps) -> None:
    """Add all answers, their questions and their batches to `data`, and the texts to `chunks`, one per file.

    Unless `steps` choose, files of rollouts are left out if the page would have more than MAX_ANSWERS.
    """
    watched_files, rollout_files = (answer_files(runs, kind, steps) for kind in ("watch", "rollouts"))
    all_files = watched_files + rollout_files
    if not steps:
        configs = [runs[run][1] for run, _, _ in rollout_files]
        shown = thinned([config["questions_per_step"] * config["samples_per_question"] for config in configs])
        rollout_files = [file for index, file in enumerate(rollout_files) if index in shown]
    files = watched_files + rollout_files
    if len(files) < len(all_files):
        missing = f"{len(all_files) - len(files)} of {len(all_files)} answer files"
        data["leftOut"].append(f"{missing}; choose others with --steps 41 60")
    rows, batches, questions = [], [], {}
    for run, step, path in files:
        watched, config = path.parent.name == "watch", runs[run][1]
        answers, texts = read_answers(config, path, questions)
        for place, answer in enumerate(answers):  # `chunk` and `place` say where the answer's text is
            where = {"run": run, "step": step, "watched": watched, "chunk": len(chunks), "place": place}
            rows.append(where | answer)
        chunks.append(packed(texts))
        batch = None if watched else read_batch(path, config["samples_per_question"])
        if batch is not None:
            batches.append({"run": run, "step": step} | counterfactual(batch, config))
    data["batches"] = batches
    data["rows"] = sorted(rows, key=lambda row: (row["run"], row["step"], row["watched"], row["place"]))
    data["questions"] = list(questions.values())


def add_evaluations(data: dict, chunks: list[str], opened: Sequence[tuple[Path, dict]]) -> None:
    """Add the evaluations and their problems to `data`, and texts of at most MAX_ANSWERS answers to `chunks`."""
    facts_and_texts, problems = [], {}
    for folder, config in opened:
        facts_and_texts += evaluations(folder, config)
        problems |= eval_problems(config)
    shown = thinned([sum(map(len, texts)) for _, texts in facts_and_texts])
    for index, (facts, texts) in enumerate(facts_and_texts):
        facts["chunk"] = len(chunks) if index in shown else None
        if index in shown:
            chunks.append(packed(texts))
    if len(shown) < len(facts_and_texts):
        missing = f"the answers of {len(facts_and_texts) - len(shown)} of {len(facts_and_texts)} evaluations"
        data["leftOut"].append(f"{missing}; name fewer folders to see them")
    data["evals"] = [facts for facts, _ in facts_and_texts]
    data["problems"] = problems


def thinned(sizes: Sequence[int]) -> set[int]:
    """Return the indices of items with `sizes` texts that are shown: every k-th and the last, MAX_ANSWERS at most."""
    every = max(1, -(-sum(sizes) // MAX_ANSWERS))
    return set(range(len(sizes) - 1, -1, -every))


def packed(content: object) -> str:
    """Return `content` as JSON, compressed, in base64, which has no character with a meaning in HTML."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)).decode()


def fill_template(title: str, data: dict, chunks: Sequence[str]) -> str:
    """Return the page: the template with styles, scripts and data.

    Answers are untrusted text. The page's policy allows only the script with this hash and no network access, so that
    text which became part of the document could do nothing.
    """
    font = base64.b64encode((VENDOR / "Temml.woff2").read_bytes()).decode()
    # Libraries come first: our styles override theirs, and our scripts call them.
    style = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.css")), PARTS / "page.css"])
    script = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.js")), *sorted(PARTS.glob("*.js"))])
    blocks = [f'<script type="text/plain" id="data">{packed(data)}</script>']
    for number, chunk in enumerate(chunks):
        blocks.append(f'<script type="text/plain" id="chunk{number}">{chunk}</script>')
    return Template((PARTS / "page.html").read_text("utf-8")).substitute(
        title=escape(title),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style.replace("Temml.woff2", f"data:font/woff2;base64,{font}"),
        script=script,
        blocks="\n".join(blocks),
    )
