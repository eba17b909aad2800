"""Dry runs: what they count, their estimates compared with a computation by hand, and the page that shows them."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bnpo.config import TINY_MODEL, parse_train_config
from bnpo.files import ROOT, InputError
from bnpo.planning.dry_run import (
    TokenLengths,
    checkpoints_at_once,
    find_model,
    plan_training,
    sampling_seconds,
    speed_of,
    training_inputs,
    update_seconds,
)
from bnpo.planning.memory import PlannedRun, read_shape
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
    return PlannedRun(SHAPE, config(*flags), 4096, 4, H20.memory)


def test_the_papers_models_have_their_shapes():
    # scripts/get_model.py puts others there.
    sizes = {path.name: read_shape(path).parameters for path in (ROOT / "data" / "models").glob("Qwen*")}
    instruct, small, large = 1_543_714_304, 1_543_714_304, 7_615_616_512
    of_paper = {"Qwen2.5-1.5B-Instruct": instruct, "Qwen2.5-Math-1.5B": small, "Qwen2.5-Math-7B": large}
    assert sizes == of_paper | {"Qwen2.5-32B": 32_763_876_352, "Qwen2.5-72B": 72_706_203_648}  # as published


def test_one_answer_reads_weights_and_cache_for_every_token():
    """3.087e9 bytes of weights at 60 % of 4e12 a second are 1.286 ms, 28,672 bytes of cache for each of 200 tokens
    2.4 us, scheduling 5 ms."""
    seconds = sampling_seconds(SHAPE, H20, TokenLengths(100, 100, 100), answers=1, at_once=1)
    assert seconds == pytest.approx(100 * 0.006289, rel=1e-3)
    shared = sampling_seconds(SHAPE, H20, TokenLengths(100, 100, 100), answers=1, at_once=1, gpus=2)
    assert seconds - shared == pytest.approx(100 * 0.001289 / 2, rel=1e-3)


def test_many_answers_are_bound_by_products_and_wait_for_the_longest():
    one = sampling_seconds(SHAPE, H20, LENGTHS, answers=128, at_once=128)
    assert one > 3072 * 0.006
    # The first token of 128 answers: 2 * 1.5437e9 * 128 products at 59.2e12 a second are 6.7 ms, more than reading.
    waves = sampling_seconds(SHAPE, H20, LENGTHS, answers=1280, at_once=128)
    assert waves - one == pytest.approx(9 * 600 * (0.00668 + 0.005), rel=1e-2)


def test_an_update_has_the_operations_of_its_tokens():
    rng = np.random.default_rng(0)
    answers = rng.exponential(600, (200, 512))
    tokens = 32 * 100 + answers.sum(1).mean()
    pairs = 32 * 100**2 + (answers * (answers + 200)).sum(1).mean()
    operations = 6 * (1_543_714_304 * tokens + 28 * 1536 * pairs)
    seconds = update_seconds(on_four_gpus(), H20, LENGTHS)
    assert seconds == pytest.approx(operations / (4 * 148e12 * 0.35), rel=0.01)


def test_checkpoints_that_are_there_at_once():
    assert checkpoints_at_once(config(), 1170) == 4  # two kept, the best, one being written
    assert checkpoints_at_once(config("--keep", "0", "--eval-every", "0"), 1170) == 13
    assert checkpoints_at_once(config("--save-every", "2000"), 1170) == 3


def test_a_run_that_fits_has_hours_and_one_that_does_not_says_why():
    dry_run = ("--preset", "paper-7b", "--train-data", "arithmetic", "--eval-every", "0", "--dry-run", "--gpu", "H100")
    fits, does_not = (plan_training(c, training_inputs(c)) for c in (config(*dry_run, "--gpus", "4"), config(*dry_run)))
    assert sum(fits.seconds.values()) > 0
    assert re.search(r"\nweights +[\d.]+ ", "\n".join(fits.lines))
    assert fits.lines[-1].startswith("sampler: ")
    assert does_not.seconds == {}
    assert "paper-7b" not in does_not.lines[-1]
    assert re.match(r"Qwen/Qwen2.5-Math-7B: does not fit 1 x 79.1 GiB of GPU memory: .*; try ", does_not.lines[-1])
    offloading = config(*dry_run, "--offload-optimizer")
    assert "CPU memory per rank: 141.9 GiB" in plan_training(offloading, training_inputs(offloading)).lines


def test_a_model_that_is_nowhere_or_cannot_be_trained_is_named(tmp_path):
    with pytest.raises(InputError, match=r"^some/model: no such local folder, and the download from the model hub "):
        find_model("some/model", 4096)
    with pytest.raises(InputError, match=r"do not fit the context of .*Qwen2.5-Math-7B, 4096 tokens; lower .* by 4096"):
        find_model("Qwen/Qwen2.5-Math-7B", 8192)
    model = shutil.copytree(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text()) | {"layer_types": ["linear_attention"] * 28}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="model: cannot be trained: it has layers of linear_attention"):
        training_inputs(config("--model", str(model), "--eval-every", "0"))


def test_wrong_data_is_refused(tmp_path):
    (tmp_path / "math_train.jsonl").write_text("{}\n")
    for name, message in (("math_train", ":1: field 'problem' is missing"), ("mine", ": no such data file")):
        with pytest.raises(InputError, match=f"{name}.jsonl{message}"):
            training_inputs(config("--train-data", str(tmp_path / f"{name}.jsonl"), "--eval-every", "0"))


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


def test_the_page_has_the_commands_of_the_script(capsys):
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for table in ("table1", "table2"):
        reproduce.main(reproduce.Args(table=table, print=True))
        shown = [line.strip() for line in page.splitlines() if f"--output-dir runs/{table}/" in line]
        assert shown
        assert set(shown) <= set(capsys.readouterr().out.splitlines())


@pytest.mark.program
def test_the_page_has_the_estimates_of_the_script_which_needs_no_network(data_dir, tmp_path):
    for name in ("src", "scripts", "evals", "data"):
        ignored = shutil.ignore_patterns("*.jsonl", "results", "__pycache__", "SmolLM2*")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for file in data_dir.glob("*.jsonl"):
        shutil.copy(file, tmp_path / "data")
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(tmp_path / "src")}
    for table in ("table1", "table2"):
        command = [sys.executable, "scripts/reproduce.py", table, "--dry-run"]
        planned = subprocess.run(
            command, cwd=tmp_path, env=os.environ | nowhere, capture_output=True, text=True, check=True
        ).stdout
        assert "\n1,170 steps of 32 x 16 answers (234 steps per epoch), 1,170 optimizer steps, 599,040 " in planned
        assert "paper: MATH500: 500 problems x 16 repetitions\n" in planned.replace("paper-format:", "paper:")
        overview = planned.partition("\n| GPUs |")
        message = f"python scripts/reproduce.py {table} --dry-run has other estimates"
        assert overview[1] + overview[2] in page, message
