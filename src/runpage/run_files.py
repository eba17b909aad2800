"""The files of runs and evaluations, also of unfinished or killed ones, read as the data of a
page or in a summary.
"""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import fmean

import numpy as np

from bnpo.config import FREE, GONE, OF_ONE_RUN, PRESETS, TrainConfig, flat_settings
from bnpo.data import Columns, built_in_problems, load_problems
from bnpo.files import ROOT, InputError, read_json, read_json_lines, step_of, whole_json_lines
from bnpo.grading.rewards import BUILT_IN, reward_name, stated_answer
from bnpo_estimators import AS_THEY_ARE, ESTIMATORS, Method, compute_advantages

EVAL_TEXTS = 2
"""Repetitions of a problem of an evaluation whose texts are on the page: the first ones. Others
show a verdict only."""


def open_folder(folder: Path) -> dict:
    """Return the config.json of a run, or {"protocol": protocol.json} of an evaluation. Raises
    InputError.
    """
    for path in (folder / "config.json", folder / "protocol.json"):
        if path.is_file():
            content = read_json(path, "name another folder")
            # Other programs write config.json too, such as transformers into a model's folder.
            if "preset" in content:
                return content
            if "suite" in content:
                return {"protocol": content}
    raise InputError(
        f"{folder}: neither a run nor an evaluation; name a folder that train.py or eval.py wrote"
    )


def shown_name(folder: Path, config: dict) -> str:
    """Return the name of a folder, without the hash that eval.py puts behind those it names. The
    folders `train` and `eval` of a row of reproduce.py have the row's name in front.
    """
    folder = folder.resolve()
    if folder.name in ("train", "eval"):
        return f"{folder.parent.name}/{folder.name}"
    return re.sub("-[0-9a-f]{8}$", "", folder.name) if "protocol" in config else folder.name


def run_data(folder: Path, config: dict) -> dict:
    """Return the run in `folder` with the settings `config`, finished or not, without its answers.

    `lines` are those of metrics.jsonl. `config` has the settings that change what is learned,
    without the seed, and facts such as hashes of the data. `settings` has what a user can set, and
    `changed` the names of those that differ from the preset.
    """
    settings = {name: config[name] for name in flat_settings(TrainConfig()) if name in config}
    preset = flat_settings(PRESETS[config["preset"]]) if config["preset"] in PRESETS else settings
    return {
        "name": shown_name(folder, config),
        "seed": config["seed"],
        "end": why_ended(folder),
        "going": not (folder / "end.json").exists(),
        "config": {name: config[name] for name in sorted(config.keys() - FREE - GONE - {"seed"})},
        "settings": settings,
        "changed": [
            name
            for name in settings.keys() - OF_ONE_RUN
            if name in preset and settings[name] != preset[name]
        ],
        "findings": read_findings(folder),
        "rewards": list(map(reward_name, config["rewards"])),
        "right": signal_reward(config),
        "weights": reward_weights(config).tolist(),
        "ranges": reward_ranges(config).tolist(),
        "lines": whole_json_lines(folder / "metrics.jsonl"),
    }


def reward_ranges(config: Mapping) -> np.ndarray:
    """Return the lowest and the highest value [K, 2] of each reward of a run."""
    own = config.get("reward_range") or (0, 1)
    return np.array([(0, 1) if reward in BUILT_IN else own for reward in config["rewards"]])


def signal_reward(config: Mapping) -> int:
    """Return the index of the reward of --signal, which decides whether an answer is right: the
    first one that is trained on, unless another one is named.
    """
    names = list(map(reward_name, config["rewards"]))
    if config.get("signal") in names:
        return names.index(config["signal"])
    return int(np.flatnonzero(reward_weights(config))[0])


def reward_weights(config: Mapping) -> np.ndarray:
    """Return the weight [K] of each reward of a run."""
    weights = config.get("reward_weights") or [1.0] * len(config["rewards"])
    return np.array(weights, float)


def read_findings(run: Path) -> list[dict[str, str]]:
    """Return what the run's first answers said about its success: kinds and texts."""
    path = run / "findings.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def rewards_of(rows: Sequence[dict], answers: int) -> np.ndarray | None:
    """Return the rewards [n, m, K] in the rows of a file with m = `answers` to a question. None:
    rows are missing.
    """
    if not rows or len(rows) % answers:
        return None
    return np.array([list(row["rewards"].values()) for row in rows], float).reshape(
        len(rows) // answers, answers, -1
    )


def all_advantages(rows: Sequence[dict], config: Mapping) -> dict[str, list[float]] | None:
    """Return the advantages [answers] of the rows of a file of rollouts by every estimator.
    None: as above.
    """
    rewards = rewards_of(rows, config["samples_per_question"])
    if rewards is None:
        return None
    lengths = np.reshape([row["tokens"] for row in rows], rewards.shape[:2])
    settings = {name: config.get(name) for name in ("beta_moments", "reward_weights")}
    failed = np.reshape([row.get("failed", False) for row in rows], rewards.shape[:2])
    ranges, takes_any = reward_ranges(config), False
    inside = (rewards >= ranges[:, 0]) & (rewards <= ranges[:, 1])  # [n, m, K]
    if not inside[~failed].all():  # the run's method takes any values, these do not
        ranges, takes_any = np.broadcast_to(AS_THEY_ARE, ranges.shape), True
    estimates = {}
    for algo, found in sorted(ESTIMATORS.items()):
        # Greedy answers are not kept, and settings of another estimator, such as alpha and beta of
        # `beta`, not known
        if "greedy_rewards" in found.needs or found.settings or (takes_any and found.needs_range):
            continue
        decompose = config["decompose"] and "separate_rewards" not in found.needs
        method = Method(algo, decompose=decompose, **settings)
        advantages = compute_advantages(
            method, rewards, ranges=ranges, lengths=lengths, failed=failed
        ).values
        estimates[algo] = advantages.ravel().round(9).tolist()  # sums that should be 0 may be 1e-17
    return estimates


def read_answers(path: Path, rows: Sequence[dict], config: Mapping) -> Iterator[tuple[dict, list]]:
    """Yield the facts of every answer in the `rows` of a file, and its text as [text, final answer,
    tokens].

    `rewards` are as recorded, and None for an answer that did not count because a reward failed.
    Tokens are texts, log-probabilities
    and sampler-learner gaps, or None where they were not recorded.
    """
    recorded = {}
    # Only batches that are trained on are recorded token by token
    tokens_file = path.parent.parent / "tokens" / path.name
    for row in whole_json_lines(tokens_file) if path.parent.name == "rollouts" else []:
        sampler = np.array(row["sampler"], dtype=float)  # log-probabilities [tokens]
        gap = None
        if row["learner"]:  # rounded to what a colour shows: these are most of a page's bytes
            gaps = np.array(row["learner"], dtype=float) - sampler
            # A value that is not finite is a fault, and gets the full colour
            gap = [float(f"{value:.2g}") for value in np.nan_to_num(gaps, nan=99.0)]
        recorded[row["place"]] = {
            "texts": row["texts"],
            "logprobs": np.nan_to_num(sampler, nan=-99.0).round(2).tolist(),
            "gap": gap,
        }
    for place, row in enumerate(rows):
        tokens = recorded.get(place)
        final = stated_answer(row["answer"], config.get("grader", ""), config["answer_tags"])
        flags = {
            "cut off": row.get("cut_off"),
            "no final answer": final is None,
            "grading failed": row.get("failed"),
        }
        facts = {
            "place": place,  # of the text in its chunk
            "rewards": list(row["rewards"].values()),
            "flags": [name for name, is_set in flags.items() if is_set],
            "gap": float(np.mean(np.abs(tokens["gap"]))) if tokens and tokens["gap"] else None,
            "tokens": row["tokens"],
            "advantage": row.get("advantage"),
        }
        if row.get("failed"):
            facts["rewards"] = [None] * len(row["rewards"])
        yield facts, [row["answer"], final, tokens]


def evaluations(folder: Path, config: dict) -> Iterator[tuple[dict, list]]:
    """Yield the evaluations of a run, or the one in `folder`: the verdicts of every problem, and
    texts of answers.
    """
    is_evaluation = "protocol" in config
    during_run = (path for path in (folder / "evals").glob("step-*") if step_of(path) is not None)
    for place in [folder] if is_evaluation else sorted(during_run):
        samples = whole_json_lines(place / "samples.jsonl")
        # Samples were written in the order in which they finished.
        samples.sort(key=lambda sample: (sample["dataset"], sample["index"], sample["repetition"]))
        problems, texts = [], []
        for _, group in groupby(samples, key=lambda sample: (sample["dataset"], sample["index"])):
            answers = list(group)
            problems.append(
                [
                    answers[0]["dataset"],
                    answers[0]["id"],
                    [int(answer["correct"]) for answer in answers],
                ]
            )
            texts.append([[answer["text"], answer["answer"]] for answer in answers[:EVAL_TEXTS]])
        if problems:
            which = f", step {step_of(place)}"
            if is_evaluation:
                sets = config["protocol"]["suite"]["datasets"].values()
                expected = sum(dataset["problems"] * dataset["repetitions"] for dataset in sets)
                # The missing ones are the longest, so the score may be too high
                unfinished = f" (unfinished: {len(samples)} of {expected} answers)"
                which = unfinished if len(samples) < expected else ""
            facts = {"name": shown_name(folder, config) + which, "problems": problems}
            yield facts | {"protocol": readable_protocol(config)}, texts


def readable_protocol(config: dict) -> dict:
    """Return the settings of an evaluation by eval.py that its scores depend on, without hashes.
    {} for evaluations of a run, whose settings are the run's.
    """
    protocol = config.get("protocol", {})
    suite = protocol.get("suite", {})
    named = {"model": protocol.get("ckpt"), "data sets": list(suite.get("datasets", {}))}
    named |= {
        name: suite[name]
        for name in ("temperature", "top_p", "template", "system_prompt", "max_answer_tokens")
        if name in suite
    }
    named |= {name: protocol.get(name) for name in ("grader", "dtype", "seed", "limit")}
    return {name: value for name, value in named.items() if value not in (None, [])}


def eval_problems(config: dict) -> Iterator[tuple[str, list]]:
    """Yield the problems that a run or an evaluation was evaluated on: data set and id, and
    question, reference, subject and level. Problems whose data file is missing here are left out.
    """
    suite = config["protocol"]["suite"] if "protocol" in config else config.get("evaluated") or {}
    for name, dataset in suite.get("datasets", {}).items():
        path, rows = ROOT / dataset["data"], []
        problems = built_in_problems(dataset["data"], "test", dataset["problems"] or 500)
        if not problems and path.is_file():
            columns = Columns(**{key: dataset[key] for key in asdict(Columns()) if key in dataset})
            problems = load_problems(path, columns)
            rows = [row for _, row in read_json_lines(path)] if ".jsonl" in path.suffixes else []
        # Only JSON lines have subjects and levels
        for problem, row in zip_longest(problems, rows, fillvalue={}):
            answer = (dataset.get("references") or {}).get(problem.id, problem.answer)
            yield (
                f"{name} {problem.id}",
                [problem.text, answer, row.get("subject"), row.get("level")],
            )


def why_ended(run: Path) -> str:
    """Return the reason in the run's end.json."""
    end = run / "end.json"
    return (
        json.loads(end.read_text(encoding="utf-8"))["why"]
        if end.exists()
        else "still running or killed"
    )


def summary(run: Path) -> str:
    """Return a run's last step, why it ended, its first and last scores, what failed, and its
    seconds per phase.

    Raises InputError for a folder without metrics.
    """
    lines = whole_json_lines(run / "metrics.jsonl")
    if not lines:
        raise InputError(
            f"{run}: has no metrics.jsonl with a step in it. Name the folder of a run that has "
            "started; of an evaluation, the page without --text shows the scores"
        )
    # The values of every metric, without those of steps that did not log it
    values: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name, value in line.items():
            if value is not None:
                values[name].append(value)
    rows = {"run": f"{run}: {why_ended(run)} after step {lines[-1]['step']}"}
    metrics = {
        "reward": "reward/mean",
        "pass@1": "eval/average",
        "answer tokens": "answers/mean_tokens",
    }
    for name, metric in metrics.items():
        if metric in values:
            first, last = values[metric][0], values[metric][-1]
            rows[name] = f"{first:.4g} -> {last:.4g}" if len(values[metric]) > 1 else f"{first:.4g}"
    kinds = [
        name for name in values if name == "reward/timeouts" or name.startswith("reward/errors/")
    ]
    failures = [
        f"{name.rpartition('/')[2]} {sum(values[name]):.0f}" for name in kinds if any(values[name])
    ]
    if failures:
        rows["failed rewards"] = ", ".join(failures)
    for finding in read_findings(run):
        rows[f"first steps: {finding['kind']}"] = finding["text"]
    # `total` is that of a step, in which neither evaluations nor watched questions count.
    seconds = {
        name.removeprefix("seconds/"): fmean(values[name])
        for name in values
        if name.startswith("seconds/")
    }
    phases = sorted(seconds, key=seconds.get, reverse=True)
    rows["mean seconds"] = ", ".join(f"{phase} {seconds[phase]:.3g}" for phase in phases)
    page = run / "report.html"
    rows["page"] = str(page) if page.exists() else shlex.join(["python", "-m", "runpage", str(run)])
    return "\n".join(f"{name:<14} {value}" for name, value in rows.items())
