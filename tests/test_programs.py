"""Whole programs; test_resume.py and test_faults.py launch them as a user does."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.data import Columns, content_hash, load_problems
from bnpo.files import ROOT, write_json_lines
from bnpo.runs.checkpoint import find_checkpoint
from bnpo.tasks import built_in_problems
from bnpo_estimators import Method, compute_advantages
from conftest import json_lines, run_ranks

pytestmark = pytest.mark.sampler
EVERY_STEP = ("--rollouts-every", 1, "--watch-questions", 0)
"""Answers of all steps are kept; tests of resumed runs have watched questions."""
TINY = ("--preset", "tiny", "--questions-per-step", 8, *EVERY_STEP)
"""A quarter of the preset's questions."""


def batch(questions: int, samples: int, steps: int, eval_every: int = 0) -> tuple:
    """The flags of a tiny run of that size."""
    size = ("--questions-per-step", questions, "--samples-per-question", samples)
    return ("--preset", "tiny", *size, "--steps", steps, "--eval-every", eval_every, *EVERY_STEP)


def metrics_of(run: Path) -> list[dict]:
    """The lines of the steps, without that of the evaluation before the first."""
    lines = json_lines(run / "metrics.jsonl")
    return [line for line in lines if line["step"] > 0]


def rollouts_of(run: Path, step: int) -> list[dict]:
    return json_lines(run / "rollouts" / f"step-{step:06d}.jsonl")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("tiny") / "run"
    flags = ("--algo", "bnpo", *TINY, "--steps", 4, "--eval-every", 3, "--output-dir", run)
    output = run_ranks(2, "train.py", *flags).stdout
    (run / "console").write_text(output)
    return run


def test_console_config_and_metrics(tiny_run):
    console = (tiny_run / "console").read_text()
    config = json.loads((tiny_run / "config.json").read_text())
    assert console.startswith("preset tiny (from --preset)\n")
    assert (config["algo"], config["steps"], config["seed"]) == ("bnpo", 4, 0)
    assert re.search(r"\n  steps +4 +preset: \d+\n", console)  # what differs from the preset
    assert re.findall(r"\nstep (\d)/4: reward 0\.\d+ ", console) == ["1", "2", "3", "4"]
    assert re.findall(r"\nstep (\d): evaluation arithmetic-quick: ", console) == ["0", "3", "4"]
    assert "Traceback" not in console
    assert json.loads((tiny_run / "end.json").read_text()) == {"step": 4, "why": "done"}

    start, *lines = json_lines(tiny_run / "metrics.jsonl")
    assert start["step"] == 0
    assert 0 < start["eval/average"] < 1
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["lr"] == pytest.approx(1e-5)
    for line in lines:
        assert 0 < line["reward/mean"] == line["beta/E"] < 1
        assert line["beta/alpha"] == pytest.approx(1 + line["beta/a"] / 3)
        assert line["beta/beta"] == pytest.approx(1 + line["beta/b"] / 3)
        assert line["grad_norm"] > 0
        assert line["sync/difference"] < 1e-4
        assert line["sampler_learner_gap_max"] < 1e-4
        assert line["clipped_low"] == line["clipped_high"] == 0  # one update a step: the ratio is 1
        assert {"seconds/generate", "seconds/reward", "seconds/update", "seconds/sync"} < set(line)


def test_the_checkpoint_is_a_hugging_face_model(tiny_run):
    last = tiny_run / "last"
    assert last.resolve() == (tiny_run / "checkpoints" / "step-000004").resolve()
    trained, base = map(AutoModelForCausalLM.from_pretrained, (last, TINY_MODEL))
    assert trained.config.to_diff_dict().keys() == base.config.to_diff_dict().keys()
    pairs = zip(trained.parameters(), base.parameters(), strict=True)
    assert 1e-5 < max((a - b).abs().max().item() for a, b in pairs) < 1e-3
    assert AutoTokenizer.from_pretrained(last).get_vocab()


def test_evaluations_on_the_way_are_what_eval_says_of_the_checkpoint(tiny_run, tmp_path):
    folders = [f"step-00000{step}" for step in (0, 3, 4)]
    assert sorted(path.name for path in (tiny_run / "evals").iterdir()) == folders
    lines = metrics_of(tiny_run)
    assert ["eval/average" in line for line in lines] == [False, False, True, True]
    best = max(lines[2:], key=lambda line: line["eval/average"])  # the first of equals
    assert (tiny_run / "best").resolve().name == f"step-{best['step']:06d}"
    # The preset's suite is `arithmetic`; its quick version was evaluated on the way
    flags = ("--ckpt", tiny_run, "--suite", "arithmetic-quick", "--output-dir", tmp_path / "out")
    console = run_ranks(0, "eval.py", *flags).stdout
    files = (tmp_path / "out", tiny_run / "evals" / "step-000004")
    results, live = (json.loads((folder / "results.json").read_text()) for folder in files)
    assert results["results"] == live["results"]
    after, during = results["protocol"], live["protocol"]
    assert after["suite"] == during["suite"]
    assert after["run"] == during["run"] | {"done": True}  # the run was not done yet
    assert during["run"]["done"] is False
    assert lines[3]["eval/arithmetic/pass1"] == results["results"]["arithmetic"]["pass1"]
    average = results["average"]
    assert f"{100 * average['pass1']:.1f} ± {100 * average['se']:.1f}" in console


def test_one_rank_gives_the_answers_advantages_and_gradient_of_two(tiny_run, tmp_path):
    run_ranks(1, "train.py", *TINY, "--steps", 1, "--eval-every", 0, "--output-dir", tmp_path)
    # Advantages are float64, written with all their digits
    assert rollouts_of(tmp_path, 1) == rollouts_of(tiny_run, 1)
    one, two = metrics_of(tmp_path)[0], metrics_of(tiny_run)[0]
    assert one["reward/mean"] == two["reward/mean"]
    assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-5)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5, abs=1e-8)


@pytest.mark.extra
def test_weights_in_cpu_memory_change_nothing(tiny_run, tmp_path):
    flags = ("--steps", 2, "--eval-every", 0, "--offload-weights", "--output-dir", tmp_path)
    run_ranks(2, "train.py", *TINY, *flags)
    for step in (1, 2):
        assert rollouts_of(tmp_path, step) == rollouts_of(tiny_run, step)
        for name in ("loss", "grad_norm", "sync/difference", "entropy"):
            assert metrics_of(tmp_path)[step - 1][name] == metrics_of(tiny_run)[step - 1][name]


MINE = """
import sys
def short(text, reference):
    assert 'torch' not in sys.modules  # the worker has imported train.py
    if len(text) > 30:
        raise ValueError('too long for me')
    return len(text) < 12
"""


def test_rewards_and_flags_reach_the_estimator_and_failures_are_counted(tmp_path):
    """Several rewards, one of them the user's, decomposed and weighted, with moments corrected."""
    run, file = tmp_path / "run", tmp_path / "mine.py"
    file.write_text(MINE)
    flags = ("--rewards", f"accuracy,format,{file}:short", "--reward-weights", 1, 0.5, 0.2)
    flags += ("--algo", "bnpo", "--decompose", "--beta-moments", "corrected", "--output-dir", run)
    console = run_ranks(2, "train.py", *batch(4, 8, 1), *flags).stdout
    findings = json.loads((run / "findings.json").read_text())
    assert findings[0]["kind"] == "failing"
    assert f"first 1 steps: {findings[0]['text']}\n" in console
    rows, [line] = rollouts_of(run, 1), metrics_of(run)
    # The end token is not part of the text that is graded, and the tiny model writes a character a
    # token.
    texts = [row["answer"].removesuffix("<|im_end|>") for row in rows]
    assert [row["rewards"]["short"] for row in rows] == [float(len(text) < 12) for text in texts]
    failed = np.array([row.get("failed", False) for row in rows])  # [n * m]
    assert failed.tolist() == [len(text) > 30 for text in texts]
    assert line["reward/errors"] == line["reward/errors/ValueError"] == failed.sum() > 0
    assert line["answers/left_out"] == failed.mean()
    assert line["reward/timeouts"] == 0
    fault = (
        r":short: ValueError: too long for me \(line \d+\) \(the answer is left out, and counted\)"
    )
    assert re.search(fault, console)
    rewards = np.array([list(row["rewards"].values()) for row in rows])  # [n * m, K]
    for name, values in zip(("accuracy", "format", "short"), rewards[~failed].T, strict=True):
        assert line[f"reward/{name}"] == pytest.approx(values.mean())
    weights = np.array([1, 0.5, 0.2])
    mean = (rewards[~failed] @ weights).mean() / weights.sum()
    assert line["reward/mean"] == pytest.approx(mean)
    assert (line["reward/format"], line["beta/format/edge"]) == (0, 1)  # it writes no tags
    method = Method("bnpo", decompose=True, beta_moments="corrected", reward_weights=(1, 0.5, 0.2))
    groups = (rewards.reshape(4, 8, 3), failed.reshape(4, 8))
    expected = compute_advantages(method, groups[0], failed=groups[1]).values
    np.testing.assert_array_equal([row["advantage"] for row in rows], expected.ravel())
    assert expected.any()
    assert not expected.ravel()[failed].any()
    assert line["grad_norm"] > 0
    page = (ROOT / "docs" / "is-it-working.md").read_text()
    assert {name for name in map(documented, line) if f"`{name}`" not in page} == {"step"}


def documented(metric: str) -> str:
    """Return the name under which the page has a metric."""
    name = re.sub(r"/(accuracy|format|short)\b", "/NAME", metric).replace("beta/NAME", "beta")
    return re.sub(r"(?<=reward/errors/)\w+", "KIND", re.sub(r"(?<=seconds_)\d+", "RANK", name))


@pytest.mark.extra
@pytest.mark.parametrize("shared", [(), ("--sampler-ranks", 2)])
def test_more_questions_are_drawn_until_there_are_enough_and_a_resumed_run_draws_the_same(
    shared, tmp_path
):
    data = tmp_path / "data.jsonl"
    # Two steps per epoch, whatever is drawn.
    write_json_lines(data, map(asdict, built_in_problems("arithmetic", "train", 8)))

    def train(name: str, epochs: int, *flags: str) -> list[dict]:
        common = (*batch(4, 2, 0), "--resample-rounds", 2, "--train-data", data, "--save-every", 2)
        run = ("--epochs", epochs, "--output-dir", tmp_path / name)
        run_ranks(2, "train.py", *common, *shared, *run, *flags)
        return json_lines(tmp_path / name / "metrics.jsonl")

    whole = train("whole", 2)
    assert len(whole) == 4
    drawn = [line["groups/drawn"] for line in whole]
    assert set(drawn) <= {4, 8, 12}
    assert max(drawn) > 4
    for step, (line, count) in enumerate(zip(whole, drawn, strict=True), start=1):
        rows = rollouts_of(tmp_path / "whole", step)
        rewards = np.array([row["rewards"]["accuracy"] for row in rows]).reshape(int(count), 2)
        differ = rewards[:, 0] != rewards[:, 1]  # [questions drawn]
        assert differ.sum() >= 4 or count == 12
        assert differ[:-4].sum() < 4  # no draw was in vain
        assert line["groups/all_equal"] == pytest.approx(1 - differ.mean())
    train("resumed", 1)
    assert [line["groups/drawn"] for line in train("resumed", 2, "--resume")] == drawn
    weights = [tmp_path / name / "last" / "model.safetensors" for name in ("whole", "resumed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_gsm8k_trains_from_a_local_parquet_file_and_has_a_model_card(tmp_path):
    """With a template and a suite of the user's, whose data set has other names for its fields."""
    run, data, suite = tmp_path / "run", tmp_path / "train.parquet", tmp_path / "suite.json"
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}it:")
    asked = [
        {"question": f"Tom has {n} pens, buys {n}.", "answer": f"{n} + {n}\n#### {2 * n}"}
        for n in range(1, 9)
    ]
    pq.write_table(pa.Table.from_pylist(asked), data)
    fields = {"problem_field": "question", "answer_pattern": r"####\s*(.*)"}
    dataset = {"data": str(data), "repetitions": 1, "problems": 4, **fields}
    settings = {"datasets": {"GSM8K": dataset}, "temperature": 1.0, "top_p": 1.0}
    settings |= {"template": "chat", "max_prompt_tokens": 64, "max_answer_tokens": 8}
    suite.write_text(json.dumps(settings))
    flags = ("--train-data", data, "--problem-field", "question", "--answer-pattern")
    flags += (fields["answer_pattern"], "--max-answer-tokens", 8, "--eval-suite", suite)
    flags += ("--template", template, "--system-prompt", "Be exact.", "--output-dir", run)
    run_ranks(2, "train.py", *batch(4, 2, 1, eval_every=1), *flags)
    for row in rollouts_of(run, 1):
        source = asked[int(row["id"]) - 1]
        assert row["prompt"] == f"system: Be exact.\nuser: {source['question']}\nit:"
        assert row["reference"] == source["answer"].rpartition("#### ")[2]
    config = json.loads((run / "config.json").read_text())
    digest = content_hash(load_problems(data, Columns(**fields)))
    facts = {str(data): {"problems": 8, "sha256": digest, "revision": None}}
    assert (config["data_sources"], config["data_sha256"]) == (facts, digest)
    assert config["evaluated"]["datasets"]["GSM8K"]["problems"] == 4

    card = ModelCard.load(run / "last" / "README.md")
    assert card.data.base_model is None  # a path is no name on the hub
    assert f"- **Data**: {data}, problems 8, sha256 {digest}, revision None\n" in card.text
    assert "deepspeed --num_gpus 2 train.py --preset tiny --questions-per-step 4" in card.text
    (run / "last" / "README.md").write_text("a better one")
    assert find_checkpoint(run, 2).step == 1
