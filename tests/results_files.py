"""Files of finished evaluations, as eval.py writes them, for tests of tables."""

import json
from pathlib import Path

import pytest

from bnpo.config import PRESETS, flat_settings, with_settings
from paper.results import load_results
from paper.tables import make_tables

BASE = "Qwen/Qwen2.5-Math-1.5B"
SIZES = {"MATH500": (500, 1), "AMC23": (40, 16), "AIME2024": (30, 16), "AIME2025": (30, 16)}
SCORES = {"MATH500": (0.734, 0.016), "AMC23": (0.545, 0.05), "AIME2024": (0.183, 0.05), "AIME2025": (0.115, 0.04)}
MATH500 = {"MATH500": (0.734, 0.016)}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a results.json under the paper's protocol and returns its path.

    It is of a run with the settings of `preset` and `run`, or of the model `ckpt` without training. With `ours` it has
    the scores of both rules, and `scores` are the released code's. Other keywords replace parts of suite or protocol.
    """

    def write_file(name, preset=None, scores=SCORES, sizes=SIZES, run=(), suite=(), ours=(), **protocol) -> Path:
        config = with_settings(PRESETS[preset], **dict(run)) if preset else None
        names = {key: {"data": f"data/{key}.jsonl", "sha256": 64 * "a"} for key in scores}
        usual_suite = {"name": "paper", "datasets": names, "temperature": 0.6, "top_p": 1.0, "template": "chat"}
        usual_suite |= {"max_prompt_tokens": 1024, "max_answer_tokens": 3072}
        usual = {"ckpt": "runs/x/last", "checkpoint_sha256": 64 * "b", "seed": 0, "dtype": "bfloat16"}
        usual |= {"grader": "paper", "limit": None, "versions": {"vllm": "0.32.0"}}
        results = {}
        for key, (score, error) in scores.items():
            problems, runs = sizes.get(key, (500, 4))
            results[key] = {"problems": problems, "repetitions": runs, "pass1": score, "se": error}
        average = {"pass1": sum(score for score, _ in scores.values()) / len(scores), "se": 0.02}
        for key, (score, error) in dict(ours).items():
            both = {"default": {"pass1": score, "se": error}, "paper": results[key]}
            results[key] = both["default"] | results[key] | both["default"] | {"by_rule": both}
        if ours:
            average |= {"by_rule": {"default": {"pass1": 0.5, "se": 0.02}, "paper": dict(average)}}
        content = {
            "protocol": usual
            | {"run": config and flat_settings(config), "suite": usual_suite | dict(suite)}
            | protocol,
            "results": results,
            "average": average,
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content, default=str), encoding="utf-8")
        return path

    return write_file


def tables(*paths):
    return make_tables(load_results(paths))


def setting_notes(*paths) -> list[str]:
    """The notes of the only table, without those that every table has."""
    [table] = tables(*paths)
    return [
        note for note in table.notes if not note.startswith(("Ours:", "Bold in our rows:", "Paper:", "In brackets:"))
    ]
