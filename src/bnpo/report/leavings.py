"""What runs and evaluations have left in their folders, whole or not, as the data of a page."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from bnpo.arithmetic import arithmetic_problems
from bnpo.config import TrainConfig
from bnpo.files import ROOT, whole_json_lines
from bnpo.flags import Free, marked
from bnpo.grading.rewards import BUILT_IN, reward_name
from bnpo.problems import asks_for_tags
from bnpo.summary import ends, why_ended
from mathequal.equality import final_answer

CUT_OFF, NO_BOX, FAILED = 1, 2, 4
"""Flags of an answer."""
EVAL_TEXTS = 2
"""Answers to a problem of an evaluation whose texts are shown."""


def run_facts(folder: Path, config: dict) -> dict:
    """A run without its answers: what it is, how it ended, and every metric [lines], nan where it was not logged."""
    lines = whole_json_lines(folder / "metrics.jsonl")
    for line in lines:
        errors = [value for name, value in line.items() if name.startswith("eval/") and name.endswith("/se")]
        if errors:
            line["eval/average/pass1"] = line["eval/average"]
            line["eval/average/se"] = np.linalg.norm(errors) / len(errors)
    names = sorted({name for line in lines for name in line})
    facts = {"name": folder.resolve().name, "seed": config["seed"], "end": why_ended(folder)}
    facts["config"] = {name: config[name] for name in sorted(config.keys() - marked(TrainConfig, Free) - {"seed"})}
    facts["rewards"] = [reward_name(reward) for reward in config["rewards"]]
    told = {"reward": "reward/mean", "pass1": "eval/average", "seconds": "seconds/total"}
    facts |= {name: ends(lines, metric) for name, metric in told.items()} | {"steps": [line["step"] for line in lines]}
    return facts | {"metrics": {name: np.array([line.get(name) for line in lines], float) for name in names}}


def read_answers(config: dict, path: Path, questions: dict[str, dict], only: set[str]) -> tuple[list, list]:
    """The rows of a file of answers to the questions `only` (if it names any), with `reward` as the mean of all rewards
    mapped to [0, 1], and their texts: [text, final answer, tokens]. What is asked is added to `questions`."""
    rows, texts = [], []
    tokens = read_tokens(path.parent.parent / "tokens" / path.name) if path.parent.name == "rollouts" else {}
    ranges = np.array([(0, 1) if reward in BUILT_IN else config["reward_range"] for reward in config["rewards"]])
    for identity, group in groupby(whole_json_lines(path), key=lambda row: row["id"]):
        for place, row in enumerate(group if not only or identity in only else ()):
            question = {"number": len(questions)} | {name: row[name] for name in ("id", "prompt", "reference")}
            number = questions.setdefault(f"{identity} {row['prompt']}", question)["number"]
            rewards = list(row["rewards"].values())
            unit = float(np.mean((rewards - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0])))
            found = final_answer(row["answer"], asks_for_tags(config["template"]))
            flags = CUT_OFF * row.get("cut_off", 0) + NO_BOX * (found is None) + FAILED * row.get("failed", 0)
            kept = tokens.get((identity, place))
            gap = float(np.mean(np.abs(kept["gap"]))) if kept and kept["gap"] else None
            rows.append({"question": number, "sample": place, "rewards": rewards, "reward": unit, "flags": flags})
            rows[-1] |= {"gap": gap, "tokens": row["tokens"], "advantage": row.get("advantage")}
            texts.append([row["answer"], found, kept])
    return rows, texts


def read_tokens(path: Path) -> dict[tuple[str, int], dict]:
    """Texts, log-probabilities and gaps of the answers of a file of tokens, rounded to what a colour shows."""
    kept = {}
    for row in whole_json_lines(path):
        sampler, learner = np.nan_to_num(row["sampler"]), row["learner"]
        gap = learner and [float(f"{x:.2g}") for x in np.nan_to_num(learner) - sampler]
        kept[row["id"], row["sample"]] = {"texts": row["texts"], "logprobs": sampler.round(2).tolist(), "gap": gap}
    return kept


def evaluations(folder: Path, config: dict) -> Iterator[tuple[dict, list]]:
    """Those of a run, or the one that `folder` is: facts with the verdicts of every problem, and their texts."""
    for place in [folder] if "protocol" in config else sorted((folder / "evals").glob("step-*")):
        step = "" if place == folder else f", step {int(place.name[5:])}"
        samples = sorted(whole_json_lines(place / "samples.jsonl"), key=lambda s: (s["dataset"], s["index"], s["run"]))
        groups = [list(group) for _, group in groupby(samples, key=lambda s: (s["dataset"], s["index"]))]
        problems = [[g[0]["dataset"], g[0]["id"], [int(answer["correct"]) for answer in g]] for g in groups]
        if problems:
            texts = [[[answer["text"], answer["answer"]] for answer in g[:EVAL_TEXTS]] for g in groups]
            yield {"name": folder.resolve().name + step, "problems": problems}, texts


def eval_problems(config: dict) -> dict[str, list]:
    """Question, reference, subject and level of the problems that a run or an evaluation names, by data set and id, as
    far as the data are here."""
    known, suite = {}, config["protocol"]["suite"] if "protocol" in config else config.get("evaluated") or {}
    for name, dataset in suite.get("datasets", {}).items():
        rows = whole_json_lines(ROOT / dataset["data"])
        if dataset["data"] == "arithmetic":
            rows = [vars(problem) for problem in arithmetic_problems("test", dataset["problems"])]
        for row in rows:
            known[f"{name} {row.get('id')}"] = [row.get(part) for part in ("problem", "answer", "subject", "level")]
    return known
