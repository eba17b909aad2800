"""The files of runs and evaluations, also of unfinished ones, read as the data of a page."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import ALGORITHMS, Method
from bnpo.config import FREE
from bnpo.data import Columns, built_in_problems, load_problems
from bnpo.files import ROOT, InputError, read_json, whole_json_lines
from bnpo.grading.rewards import BUILT_IN, reward_name
from bnpo.report.summary import ends, why_ended
from mathequal import final_answer

CUT_OFF, NO_BOX, FAILED = 1, 2, 4
"""Flags of an answer, added up; parts.js has their names."""
NOT_KNOWN = ("remax", "beta", "weight")
"""Estimators that need what is not kept (greedy answers) or not set (alpha and beta, or a weight)."""
EVAL_TEXTS = 2
"""Repetitions of a problem of an evaluation whose texts are on the page. The others show their verdict only."""


@dataclass
class RunFacts:
    """A training run without its answers."""

    name: str
    seed: int
    end: str  # why it ended
    config: dict  # the settings that change what is learned, without the seed
    rewards: list[str]
    reward: tuple[float, float] | None  # first and last value, as for the next two
    pass1: tuple[float, float] | None
    seconds: tuple[float, float] | None
    steps: list[int]  # [lines of metrics.jsonl]
    metrics: dict[str, np.ndarray]  # each [lines of metrics.jsonl], nan where it was not logged
    setting: int = 0  # number of its config: runs that differ only in their seed share one


def open_folder(folder: Path) -> dict:
    """Return the config.json of a run, or {"protocol": protocol.json} of an evaluation. Raises InputError."""
    for path in (folder / "config.json", folder / "protocol.json"):
        if path.is_file():
            content = read_json(path, "name another folder")
            # Other programs write config.json too, such as transformers into a model's folder.
            if "preset" in content:
                return content
            if "suite" in content:
                return {"protocol": content}
    raise InputError(f"{folder}: neither a run nor an evaluation; name a folder that train.py or eval.py wrote")


def metric_arrays(lines: Sequence[dict]) -> dict[str, np.ndarray]:
    """Return the metrics in lines of metrics.jsonl by name, each [lines]. nan: missing, or null (not finite)."""
    return {name: np.array([line.get(name) for line in lines], float) for name in sorted(set().union(*lines))}


def run_facts(folder: Path, config: dict) -> RunFacts:
    """Read the run in `folder` with the settings `config`, finished or not."""
    lines = whole_json_lines(folder / "metrics.jsonl")
    for line in lines:
        errors = [value for name, value in line.items() if name.startswith("eval/") and name.endswith("/se")]
        if errors:  # this step was evaluated
            line["eval/average/pass1"] = line["eval/average"]
            line["eval/average/se"] = np.linalg.norm(errors) / len(errors)
    compared = config.keys() - FREE - {"seed"}
    return RunFacts(
        name=folder.resolve().name,
        seed=config["seed"],
        end=why_ended(folder),
        config={name: config[name] for name in sorted(compared)},
        rewards=list(map(reward_name, config["rewards"])),
        reward=ends(lines, "reward/mean"),
        pass1=ends(lines, "eval/average"),
        seconds=ends(lines, "seconds/total"),
        steps=[line["step"] for line in lines],
        metrics=metric_arrays(lines),
    )


@dataclass(frozen=True)
class Batch:
    """The batch of a training step, as it was kept: n questions with m answers each, and K rewards for an answer."""

    ids: list[str]  # [n]
    rewards: np.ndarray  # [n, m, K]
    lengths: np.ndarray  # [n, m], in tokens
    advantages: np.ndarray  # [n, m], those that were trained on


def read_batch(path: Path, answers: int) -> Batch | None:
    """Return the batch in a file of rollouts with `answers` = m answers to each question; None: it is not whole."""
    rows = whole_json_lines(path)
    if not rows or len(rows) % answers:
        return None
    rewards = np.array([list(row["rewards"].values()) for row in rows], float).reshape(
        -1, answers, len(rows[0]["rewards"])
    )
    lengths = np.array([row["tokens"] for row in rows]).reshape(-1, answers)
    advantages = np.array([row["advantage"] for row in rows], float).reshape(-1, answers)
    return Batch([row["id"] for row in rows[::answers]], rewards, lengths, advantages)


def reward_ranges(config: Mapping) -> np.ndarray:
    """Return the lowest and the highest value [K, 2] of each reward of a run."""
    return np.array([(0, 1) if reward in BUILT_IN else config["reward_range"] for reward in config["rewards"]])


def counterfactual(batch: Batch, config: Mapping) -> dict:
    """Return the advantages of a batch by every estimator, and their cosines with those that were trained on.

    `questions` has a row for each kind of answer to a question, as [id, rewards, number of such answers, advantages by
    estimator]. Answers with the same rewards to one question have the same advantage.
    """
    estimates = {}
    for algo in ALGORITHMS.keys() - set(NOT_KNOWN):
        settings = {name: config.get(name) for name in ("beta_moments", "max_concentration", "reward_weights")}
        method = Method(algo, decompose=config["decompose"] and algo != "gdpo", **settings)
        ranges = reward_ranges(config)
        estimates[algo] = compute_advantages(method, batch.rewards, ranges=ranges, lengths=batch.lengths).values
    names = sorted(estimates)
    by_answer = np.stack([estimates[name] for name in names], axis=2)  # [n, m, estimators]
    norms = np.linalg.norm(by_answer, axis=(0, 1)) * np.linalg.norm(batch.advantages)  # [estimators]
    products = (by_answer * batch.advantages[:, :, None]).sum(axis=(0, 1))  # [estimators]
    cosines = [product / norm if norm else None for product, norm in zip(products, norms, strict=True)]
    questions = []
    for question, rewards, advantages in zip(batch.ids, batch.rewards, by_answer, strict=True):
        kinds, first, counts = np.unique(rewards, axis=0, return_index=True, return_counts=True)
        for kind, index, count in zip(kinds, first, counts, strict=True):
            shown = [float(f"{value:.3g}") for value in advantages[index]]
            questions.append([question, kind.tolist(), int(count), shown])
    return {"estimators": names, "cosines": cosines, "questions": questions}


def read_answers(config: dict, path: Path, questions: dict[str, dict]) -> tuple[list, list]:
    """Return a row for every answer in a file of rollouts or watched questions, and their texts [text, final answer,
    tokens]. Adds their questions to `questions`.

    `reward` in a row is the mean of all rewards, each mapped to [0, 1].
    """
    rows, texts = [], []
    # Token data are recorded for some rollouts only. No file: no tokens.
    tokens_by_answer = read_tokens(path.parent.parent / "tokens" / path.name) if path.parent.name == "rollouts" else {}
    lowest, highest = reward_ranges(config).T  # [K]
    tags = config["answer_tags"]
    answered: Counter[int] = Counter()  # by number of the question
    for place, row in enumerate(whole_json_lines(path)):
        # Ids need not be unique: data sets may use one id for different problems.
        key = f"{row['id']} {row['prompt']}"
        asked = {name: row[name] for name in ("id", "prompt", "reference")}
        question = questions.setdefault(key, {"number": len(questions)} | asked)["number"]
        rewards = list(row["rewards"].values())
        final = final_answer(row["answer"], tags)
        tokens = tokens_by_answer.get(place)
        rows.append(
            {
                "question": question,
                "sample": answered[question],
                "rewards": rewards,
                "reward": float(np.mean((rewards - lowest) / (highest - lowest))),
                "flags": CUT_OFF * row.get("cut_off", 0) + NO_BOX * (final is None) + FAILED * row.get("failed", 0),
                "gap": float(np.mean(np.abs(tokens["gap"]))) if tokens and tokens["gap"] else None,
                "tokens": row["tokens"],
                "advantage": row.get("advantage"),
            }
        )
        answered[question] += 1
        texts.append([row["answer"], final, tokens])
    return rows, texts


def read_tokens(path: Path) -> dict[int, dict]:
    """Return texts, log-probabilities and sampler-learner gaps of the tokens in a file, by place of the answer in the
    step."""
    answers = {}
    for row in whole_json_lines(path):
        sampler = np.nan_to_num(row["sampler"])  # log-probabilities [tokens]
        gap = None
        if row["learner"]:
            # Rounded to what a colour shows: these are most of a page's bytes.
            gap = [float(f"{x:.2g}") for x in np.nan_to_num(row["learner"]) - sampler]
        answers[row["place"]] = {"texts": row["texts"], "logprobs": sampler.round(2).tolist(), "gap": gap}
    return answers


def evaluations(folder: Path, config: dict) -> Iterator[tuple[dict, list]]:
    """Yield the evaluations of a run, or the one in `folder`: the verdicts of every problem, and texts of answers."""
    is_evaluation = "protocol" in config
    for place in [folder] if is_evaluation else sorted((folder / "evals").glob("step-*")):
        samples = whole_json_lines(place / "samples.jsonl")
        # Samples were written in the order in which they finished.
        samples.sort(key=lambda sample: (sample["dataset"], sample["index"], sample["repetition"]))
        problems, texts = [], []
        for _, group in groupby(samples, key=lambda sample: (sample["dataset"], sample["index"])):
            answers = list(group)
            verdicts = [int(answer["correct"]) for answer in answers]
            disagreements = [_disagreement(answer.get("verdicts", {})) for answer in answers]
            problems.append([answers[0]["dataset"], answers[0]["id"], verdicts, sum(map(bool, disagreements))])
            # First those on which the rules differ, then the first ones.
            shown = sorted(range(len(answers)), key=lambda k: not disagreements[k])[:EVAL_TEXTS]
            texts.append([[answers[k]["text"], answers[k]["answer"], k, disagreements[k]] for k in sorted(shown)])
        if problems:
            step = "" if is_evaluation else f", step {int(place.name[5:])}"
            yield {"name": folder.resolve().name + step, "problems": problems}, texts


def _disagreement(verdicts: dict[str, bool | str]) -> str:
    """Return the verdicts of all rules in words if the rules differ, otherwise an empty string."""
    if len({verdict is True for verdict in verdicts.values()}) < 2:
        return ""
    return ", ".join(f"{rule}: {'right' if verdict is True else 'wrong'}" for rule, verdict in verdicts.items())


def eval_problems(config: dict) -> dict[str, list]:
    """Return question, reference, subject and level of the problems that a run or an evaluation was evaluated on, by
    data set and id. Problems whose data file is missing here are left out."""
    problems = {}
    suite = config["protocol"]["suite"] if "protocol" in config else config.get("evaluated") or {}
    for name, dataset in suite.get("datasets", {}).items():
        source, rows = dataset["data"], []
        if made := built_in_problems(source, "test", dataset["problems"]):
            rows = [vars(problem) for problem in made]
        elif source.endswith(".jsonl"):
            rows = whole_json_lines(ROOT / source)  # with subject and level
        elif (ROOT / source).is_file():
            columns = Columns(**{name: dataset[name] for name in asdict(Columns())})
            rows = [vars(problem) for problem in load_problems(ROOT / source, columns)]
        for row in rows:
            problems[f"{name} {row.get('id')}"] = [row.get(key) for key in ("problem", "answer", "subject", "level")]
    return problems
