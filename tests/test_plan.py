"""Dry runs: what they count, their estimates compared with a computation by hand, and the page that shows them."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import fitting
from bnpo.config import TINY_MODEL, Planning, parse_train_config
from bnpo.files import ROOT, InputError
from bnpo.planning.dry_run import (
    TokenLengths,
    checkpoints_at_once,
    find_model,
    plan_training,
    run_on,
    sampling_seconds,
    speed_of,
    training_inputs,
    update_seconds,
)
from bnpo.planning.memory import PlannedRun, flags_text, read_shape
from conftest import run_ranks

SPEC = importlib.util.spec_from_file_location("reproduce", ROOT / "scripts" / "reproduce.py")
reproduce = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reproduce)

SHAPE = read_shape(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B")
H20 = speed_of("H20")
LENGTHS = TokenLengths(prompt=100, answer=600, longest=3072)


def config(*flags: str):
    return parse_train_config(["--preset", "paper-1.5b", *flags], has_cuda=True)[0]


def on_four_gpus(*flags: str) -> PlannedRun:
    return run_on(4, H20, SHAPE, config(*flags), 4096)


def test_the_papers_models_have_their_shapes():
    # scripts/get_model.py puts others there.
    sizes = {path.name: read_shape(path).parameters for path in (ROOT / "data" / "models").glob("Qwen*")}
    instruct, small, large = 1_543_714_304, 1_543_714_304, 7_615_616_512
    of_paper = {"Qwen2.5-1.5B-Instruct": instruct, "Qwen2.5-Math-1.5B": small, "Qwen2.5-Math-7B": large}
    assert sizes == of_paper | {"Qwen2.5-32B": 32_763_876_352, "Qwen2.5-72B": 72_706_203_648}  # as published


def test_one_answer_reads_weights_and_cache_for_every_token():
    """3.087e9 bytes of weights at 60 % of 4e12 a second are 1.286 ms, 28,672 bytes of cache for each of some 140 tokens
    1.7 us, scheduling 5 ms."""
    seconds = sampling_seconds(SHAPE, H20, TokenLengths(100, 100, 100), answers=1, at_once=1, samplers=1)
    tokens = np.exp(-np.arange(100) / 100).sum()  # of an answer of 100 on average, cut off there
    assert seconds == pytest.approx(tokens * 0.006288, rel=1e-3)


def test_many_answers_are_bound_by_products_and_wait_for_the_longest():
    one = sampling_seconds(SHAPE, H20, LENGTHS, answers=128, at_once=128, samplers=1)
    four = sampling_seconds(SHAPE, H20, LENGTHS, answers=128, at_once=128, samplers=4)
    assert 0 < four - one < 0.3 * one  # the longest of 512, not of 128
    # The first token of 128 answers: 2 * 1.5437e9 * 128 products at 59.2e12 a second are 6.7 ms, more than reading.
    waves = sampling_seconds(SHAPE, H20, LENGTHS, answers=1280, at_once=128, samplers=1)
    assert waves - one == pytest.approx(9 * 600 * (0.00668 + 0.005), rel=1e-2)


def test_an_update_has_the_operations_of_its_tokens():
    rng = np.random.default_rng(0)
    answers = rng.exponential(600, (200, 512))
    tokens = 32 * 100 + answers.sum(1).mean()
    pairs = 32 * 100**2 + (answers * (answers + 200)).sum(1).mean()
    operations = 6 * (1_543_714_304 * tokens + 28 * 1536 * pairs)
    seconds = update_seconds(on_four_gpus(), H20, LENGTHS)
    assert seconds == pytest.approx(operations / (4 * 148e12 * 0.35), rel=0.01)
    # 310,400 tokens of 4 ranks are 5 micro-batches each, and fp32 gradients go to the CPU and back in each of them.
    # That takes less than the backward pass, beside which it happens.
    assert 2 / 3 * seconds > 4 * 1_543_714_304 / 4 * 10 / 50e9
    assert update_seconds(on_four_gpus("--offload-optimizer"), H20, LENGTHS) == pytest.approx(seconds)
    # Smaller micro-batches copy more: 304 of 256 tokens.
    often = update_seconds(on_four_gpus("--offload-optimizer", "--micro-batch-tokens", "256"), H20, LENGTHS)
    assert often == pytest.approx(seconds / 3 + 4 * 1_543_714_304 / 4 * 608 / 50e9)


def test_checkpoints_that_are_there_at_once():
    assert checkpoints_at_once(config(), 1170) == 4  # two kept, the best, one being written
    assert checkpoints_at_once(config("--keep", "0", "--eval-every", "0"), 1170) == 13
    assert checkpoints_at_once(config("--save-every", "2000"), 1170) == 3


@pytest.mark.parametrize(
    ("preset", "gpus", "gpu", "flags"),
    [("paper-1.5b", 1, "A100-80GB", ""), ("paper-7b", 4, "H100", ""), ("paper-7b", 1, "H200", "--offload-optimizer")],
)
def test_what_does_not_fit_is_planned_with_the_flags_that_make_it_fit(preset, gpus, gpu, flags):
    planning = Planning(dry_run=True, gpus=gpus, gpu=gpu)
    config = replace(parse_train_config(["--preset", preset], has_cuda=True)[0], planning=planning)
    plan = plan_training(config, training_inputs(config))
    assert flags_text(plan.changes) == flags
    assert sum(plan.seconds.values()) > 0
    text = "\n".join(plan.lines)
    assert "\nweights  " in text
    assert f"{flags} makes it fit" in text if flags else "fit" not in text
    if flags:
        assert f" with {flags}, estimated:\n" in text
        assert "CPU memory per rank: 152.7 GiB\nsampler: " in text


def test_a_model_that_is_nowhere_or_cannot_be_trained_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"^some/model: no config.json in a folder of this name, .* downloads nothing: "
    ):
        find_model("some/model", 4096)
    with pytest.raises(InputError, match=r"do not fit the context of .*Qwen2.5-Math-7B, 4096 tokens; lower .* by 4096"):
        find_model("Qwen/Qwen2.5-Math-7B", 8192)
    model = shutil.copytree(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text()) | {"layer_types": ["linear_attention"] * 28}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="model: cannot be trained: it has layers of linear_attention"):
        training_inputs(config("--model", str(model)))


def test_wrong_data_is_refused_and_missing_data_is_named(tmp_path):
    (tmp_path / "math_train.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"math_train.jsonl:1: field 'problem' is missing"):
        training_inputs(config("--train-data", str(tmp_path / "math_train.jsonl")))
    with pytest.raises(InputError, match=r"mine.jsonl: no such data file"):
        training_inputs(config("--train-data", str(tmp_path / "mine.jsonl")))
    inputs = training_inputs(config("--train-data", str(tmp_path / "absent" / "math_train.jsonl")))
    assert inputs.problems == 7500
    assert "math_train.jsonl: missing, so the plan assumes its 7,500 problems" in inputs.lines[0]


@pytest.mark.program
def test_the_programs_plan_and_write_nothing(tmp_path):
    run = tmp_path / "run"
    printed = run_ranks(0, "train.py", "--preset", "tiny", "--dry-run", "--output-dir", run).stdout
    assert "arithmetic: 7,500 problems, 0 of them left out: prompt over 64 tokens\nthe longest of the " in printed
    assert "prompts has 31 tokens" in printed
    assert "100 steps of 32 x 16 answers (234 steps per epoch), 100 optimizer steps, 51,200 answers" in printed
    evaluation = ("--ckpt", TINY_MODEL, "--suite", "arithmetic", "--limit", "10", "--output-dir", run)
    printed = run_ranks(0, "eval.py", *evaluation, "--dry-run", "--gpus", "2", "--gpu", "H100").stdout
    settings = json.loads(printed[: printed.index("\n}\n") + 2])
    assert (settings["ckpt"], settings["suite"]["name"], settings["limit"]) == (str(TINY_MODEL), "arithmetic", 10)
    assert "\n40 answers\n" in printed
    assert re.search(r"\nestimate: 0\.\d hours, 0\.\d GPU-hours \(in hours: sampling 0\.\d+, start 0\.05\)\n", printed)
    assert not run.exists()


@pytest.fixture(scope="module")
def checkout(data_dir, qwen_tokenizer_dir, tmp_path_factory):
    """A checkout with the paper's data sets, and beside it the 1.5B's tokenizer and config.json."""
    place = tmp_path_factory.mktemp("checkout")
    for name in ("src", "scripts", "evals", "data"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.jsonl", "results", "__pycache__"))
    for file in data_dir.glob("*.jsonl"):
        shutil.copy(file, place / "data")
    for model in ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B"):
        shutil.copytree(place / "data" / "models" / model, place / model)
        for file in qwen_tokenizer_dir.glob("tokenizer*"):
            shutil.copy(file, place / model)
    return place


@pytest.mark.program
def test_a_table_is_planned_without_network_or_model(checkout):
    command = [sys.executable, "scripts/reproduce.py", "table1", "--dry-run", "--gpus", "4", "--gpu", "H20"]
    command += ["--models", "./Qwen2.5-Math-1.5B", "./Qwen2.5-Math-7B"]
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(checkout / "src")}
    began = time.monotonic()
    printed = subprocess.run(
        command, cwd=checkout, env=os.environ | nowhere, capture_output=True, text=True, check=True
    ).stdout
    print(f"planned in {time.monotonic() - began:.1f} s")
    assert printed.count("data/math_train.jsonl: 7,500 problems, ") == 2
    assert printed.count("1,170 steps of 32 x 16 answers (234 steps per epoch), 1,170 optimizer steps, 599,040 ") == 2
    for name, problems in (("MATH500", 500), ("AMC23", 40), ("AIME2024", 30), ("AIME2025", 30)):
        assert printed.count(f"paper: {name}: {problems} problems x 16 repetitions\n") == 2
    [row] = re.findall(r"^\| 4 x H20 \|(.+)\|", printed, re.MULTILINE)
    # Hours, and GPU-hours in brackets.
    small, large, both = [list(map(float, re.findall(r"[\d.]+", cell))) for cell in row.split("|")[:3]]
    for hours, gpu_hours in (small, large, both):
        assert gpu_hours == pytest.approx(4 * hours, rel=0.02)
    assert 5 < small[0] < large[0] / 2 < both[0] / 4
    assert " GB for all rows\n" in printed
    assert "missing" not in printed
    assert "9,600 answers per evaluation" in printed


def test_the_page_on_gpus_has_the_table_of_what_fits():
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    assert "\n".join(fitting.table()) in page, "python scripts/fitting.py prints another table"


def test_a_sampler_on_several_gpus_reads_less_and_exchanges_sums():
    settings = {"answers": 1, "at_once": 1, "samplers": 1}
    one, two = (sampling_seconds(SHAPE, H20, TokenLengths(100, 100, 100), **settings, gpus=gpus) for gpus in (1, 2))
    tokens = np.exp(-np.arange(100) / 100).sum()
    # Half of the reading, and two sums per layer of 20 us each and of 2 x 1536 bytes at 50 GB/s.
    assert one - two == pytest.approx(tokens * (0.001288 / 2 - 2 * 28 * (20e-6 + 2 * 1536 / 50e9)), rel=2e-2)


def test_the_page_has_the_commands_and_the_estimates_of_the_script(capsys):
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for table in ("table1", "table2"):
        reproduce.main(reproduce.Args(table=table, print=True))
        shown = [line.strip() for line in page.splitlines() if f"--output-dir runs/{table}/" in line]
        assert shown
        assert set(shown) <= set(capsys.readouterr().out.splitlines())
        reproduce.main(reproduce.Args(table=table, dry_run=True))
        overview = capsys.readouterr().out.partition("\n| GPUs |")
        message = f"python scripts/reproduce.py {table} --dry-run has other estimates"
        assert overview[1] + overview[2] in page, message
        # What the estimate assumes.
        assert all(f"\n  {gpu}: " in overview[0] for gpu in ("H20", "A100-80GB", "H100", "H200"))
