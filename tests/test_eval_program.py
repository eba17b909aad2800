"""python eval.py as a user runs it: real vLLM in processes of their own, real kills."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from bnpo.config import TINY_MODEL
from bnpo.environment import parse_command
from bnpo.evaluation.program import EvalConfig, prepare_job, run
from bnpo.files import ROOT
from conftest import forked, json_lines, python, refused, run_ranks

ARITHMETIC = ("--ckpt", str(TINY_MODEL), "--suite", "arithmetic")
WHOLE = ("--limit", "100", "--repetitions", "8")


def evaluate(folder, *flags):
    return run_ranks(0, "eval.py", *flags, "--output-dir", folder).stdout


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def samples_of(folder):
    rows = json_lines(folder / "samples.jsonl")
    samples = {(row["dataset"], row["index"], row["repetition"]): row for row in rows}
    assert len(samples) == len(rows)  # none twice
    return samples


def written(samples):
    return samples.read_bytes().count(b"\n") if samples.exists() else 0


def processes_of(group):
    found = []
    for process in psutil.pids():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            found += [process] if os.getpgid(process) == group else []
    return found


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """An evaluation of 100 problems x 8 repetitions by one sampler, started as a user does."""
    folder = tmp_path_factory.mktemp("once")
    command = [sys.executable, "eval.py", *ARITHMETIC, *WHOLE, "--output-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return folder


@pytest.mark.sampler
def test_an_evaluation_that_is_killed_twice_equals_one_that_is_not(once, tmp_path):
    killed = tmp_path / "killed"
    path = killed / "samples.jsonl"
    for target in (100, 450):
        with forked(0, "eval.py", *ARITHMETIC, *WHOLE, "--output-dir", killed) as job:
            while psutil.pid_exists(job.processes[0]) and written(path) <= target:
                time.sleep(0.02)
            os.kill(job.processes[0], signal.SIGKILL)
            assert job.result().returncode == 128 + signal.SIGKILL, "it ended before it was killed"
            deadline = time.monotonic() + 60
            while processes_of(job.group) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert processes_of(job.group) == []
    with path.open("ab") as file:  # a line that was cut off, as a kill in the middle of a write
        file.write(b'{"dataset": "arith')
    before = written(path)
    assert f"800 samples, {before} already there" in evaluate(killed, *ARITHMETIC, *WHOLE)
    assert samples_of(killed) == samples_of(once)
    assert len(samples_of(killed)) == 800
    assert results_of(killed) == results_of(once)
    assert results_of(once)["results"]["arithmetic"]["problems"] == 100


@pytest.mark.sampler
@pytest.mark.extra
def test_two_samplers_side_by_side_draw_what_one_does(once, tmp_path):
    flags = ("--limit", "20", "--repetitions", "arithmetic=3", "--data-parallel", "2")
    evaluate(tmp_path, *ARITHMETIC, *flags)
    two = samples_of(tmp_path)
    assert two == {key: samples_of(once)[key] for key in two}
    assert len(two) == 60


@pytest.mark.sampler
def test_results_that_are_there_are_printed_and_regraded(once, tmp_path):
    """No model is loaded."""
    out, rule = tmp_path / "out", tmp_path / "mine.py"
    shutil.copytree(once, out)
    output = evaluate(out, *ARITHMETIC, *WHOLE)
    assert "800 samples, 800 already there" in output
    assert "scores in %, with standard errors over problems, by the rule default" in output
    rule.write_text("def starts(text, reference):\n    return text.startswith(reference[:1])\n")
    output = run_ranks(0, "scripts/regrade.py", out, "--grader", f"{rule}:starts").stdout
    assert "0 verdicts changed" in output  # of the rules that had graded already
    regraded = tmp_path / "out-regraded"
    assert 0 < results_of(regraded)["results"]["arithmetic"]["pass1"] < 1
    assert {*results_of(regraded)["average"]["by_rule"]} == {f"{rule}:starts", "default", "paper"}
    for key, sample in samples_of(regraded).items():
        default = samples_of(once)[key]["verdicts"]["default"]
        assert sample["verdicts"]["default"] == default


def missing(*names: str) -> dict:
    sets = {name: {"data": f"data/nowhere/{name}.jsonl", "repetitions": 1} for name in names}
    return {"datasets": sets}


@pytest.mark.parametrize(
    ("flags", "suite", "message"),
    [
        ("--suite nowhere", {}, "no evaluation suite 'nowhere'; known: arithmetic, arithmetic-qu"),
        ("--repetitions X=1", {}, "'X=1' is not N above 0, or NAME=N with NAME one of arithmetic"),
        ("--limit 1", {}, "--limit: is 1"),
        ("--seed -1", {}, "--seed: is -1, must be greater than or equal to 0"),
        ("--grader none.py:f", {}, "--grader: unknown grader 'none.py:f'; known: default"),
        ("--ckpt no/where/else", {}, "no such model folder, nor a hub name"),
        ("--ckpt data/nope", {}, "data/nope: no such model folder, though data/ exists"),
        ("", missing("amc23"), "no such data file; `python scripts/prepare_data.py --only amc23`"),
        # Data are looked for before the model
        ("--ckpt A/b", missing("x", "y"), "y.jsonl: no such data files; `python scripts/prepare_d"),
        ("", {"max_answer_tokens": 3072}, "prompts and answers of up to 3136 tokens do not fit"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, flags, suite, message, monkeypatch):
    """`suite` changes the built-in one."""
    # Else the packages for GPUs are refused before, since tests hide the GPU
    monkeypatch.setattr("bnpo.ranks.vllm_build", lambda: "cpu")
    file, out = tmp_path / "suite.json", tmp_path / "out"
    built_in = json.loads((ROOT / "evals" / "arithmetic.json").read_text())
    file.write_text(json.dumps(built_in | suite))
    command = ["--ckpt", str(TINY_MODEL), "--suite", str(file), *flags.split()]
    with refused(re.escape(message)):
        run(parse_command(EvalConfig, [*command, "--output-dir", str(out)]))
    assert not out.exists()


@pytest.mark.sampler
def test_samplers_that_cannot_load_end_the_program(tmp_path):
    no_machine_has_it = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1000000"}  # GiB
    flags = ("--limit", 2, "--data-parallel", 2, "--output-dir", tmp_path / "out")
    # They leave files in the temporary directory, which `run_ranks` would not allow
    done = python("eval.py", *ARITHMETIC, *flags, environment=no_machine_has_it)
    assert done.returncode == 2
    # Anywhere: a sampler that is ended while it prints leaves a line without an end.
    message = r"vLLM cannot run this model \(.*\); correct that, or use another model"
    assert re.search(f"error: {TINY_MODEL}: {message}", done.stderr)
    assert "Traceback" not in done.stderr


def test_the_suite_is_the_one_of_the_preset_that_trained_ckpt(tmp_path):
    checkpoint, out = tmp_path / "run" / "checkpoints" / "step-000001", tmp_path / "out"
    shutil.copytree(TINY_MODEL, checkpoint)
    (tmp_path / "run" / "config.json").write_text('{"preset": "tiny"}')
    shutil.copytree(TINY_MODEL, checkpoint / "merged")  # of a run with LoRA
    for ckpt, folder in ((checkpoint, out), (checkpoint / "merged", tmp_path / "other")):
        job = prepare_job(EvalConfig(str(ckpt), limit=2, output_dir=folder), "float32")
        assert (job.evaluation.suite.name, job.samples.folder) == ("arithmetic", folder)


def folder_of(model) -> Path:
    """The default folder of the results of a model."""
    config = EvalConfig(str(model), suite="arithmetic", limit=2)
    samples = prepare_job(config, "float32").samples
    samples.close()
    return samples.folder


def test_a_model_is_known_by_its_files(tmp_path, monkeypatch):
    """By another path it is the same evaluation. An adapter's base is among its files."""
    monkeypatch.setattr("bnpo.evaluation.program.ROOT", tmp_path)
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    shutil.copytree(TINY_MODEL, model)
    (tmp_path / "link").symlink_to(model)
    shutil.copytree(model, tmp_path / "copy")
    names = (model, f"{model}/../model/", tmp_path / "link", tmp_path / "copy")
    [folder] = {folder_of(name) for name in names}
    base = AutoModelForCausalLM.from_pretrained(model)
    settings = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    get_peft_model(base, settings).save_pretrained(adapter)
    for file in [*model.glob("*.json"), *model.glob("*.jinja")]:
        shutil.copy(file, adapter)
    of_adapter = folder_of(adapter)
    assert of_adapter == folder_of(adapter) != folder
    changed = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    changed.model.norm.weight.data += 1
    changed.save_pretrained(model)
    assert folder_of(model) != folder
    assert folder_of(adapter) != of_adapter
