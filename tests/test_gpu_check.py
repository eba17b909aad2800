"""What GPU machines run, without a GPU: scripts/gpu_check.py, benchmarks/gpu.py, and the tests on a CUDA build."""

import importlib
import os
import re
import subprocess
import sys
from itertools import product

import pytest

from bnpo.files import ROOT
from conftest import users_environment
from programs.check_outcomes import OUTCOMES

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("gpu_check")


def run(script, *flags):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, script, *flags], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.program
def test_the_list_names_every_check(gpu_check):
    done = run("scripts/gpu_check.py", "--list")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [check.name for check in gpu_check.CHECKS]
    kinds = {"-".join(kind) for kind in product(("fp32", "bf16"), ("eager", "graphs"))}
    assert kinds | {f"{kind}-all" for kind in kinds} <= {check.name for check in gpu_check.CHECKS}


@pytest.mark.program
def test_the_list_of_rows():
    done = run("benchmarks/gpu.py", "--list")
    assert done.returncode == 0, done.stderr
    names = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert "1.5b_mfu" in names
    assert "7b_sync_seconds" in names
    assert "7b_mfu" not in names  # its optimizer does not fit


@pytest.mark.program
@pytest.mark.parametrize("script", ["scripts/gpu_check.py", "benchmarks/gpu.py"])
def test_without_a_gpu_one_line_says_so(script):
    done = run(script)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no CUDA device; ")
    assert len(done.stderr.splitlines()) == 1


def metrics(**changes):
    """Return metrics.jsonl of a run of two steps that was resumed for two more, with `changes` in step 3."""
    step = {"updates/skipped": 0, "tokens/trained": 900, "sync/difference": 0.01, "sampler_learner_gap_mean": 0.002}
    rows = [{"step": 0}, *({"step": index} | step | {"tokens/per_second": 1000.0} for index in (1, 2, 3, 4))]
    for index in (0, 2, 4):
        rows[index]["eval/average"] = 0.4
    rows[3] |= changes
    return rows


def test_a_good_run_is_summarized_in_numbers(gpu_check):
    measurements = gpu_check.verify_metrics(metrics(), 2, 0.05)
    assert measurements == "sync/difference up to 0.01, sampler_learner_gap_mean up to 0.002, tokens/per_second 1e+03"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"step": 2}, r"metrics\.jsonl has steps \[0, 1, 2, 2, 4\], not 0 to 4"),
        ({"eval/average": 0.4}, r"evaluations after steps \[0, 2, 3, 4\]"),
        ({"updates/skipped": 1}, "step 3: the update was skipped"),
        ({"tokens/trained": 0}, "step 3: no token had a gradient"),
        ({"sync/difference": 0.06}, "sync/difference is up to 0.06, more than 0.05"),
        ({"sampler_learner_gap_mean": 0.06}, "sampler_learner_gap_mean is up to 0.06, more than 0.05"),
    ],
)
def test_a_faulty_run_is_refused_with_the_reason(gpu_check, changes, fault):
    with pytest.raises(gpu_check.CheckError, match=fault):
        gpu_check.verify_metrics(metrics(**changes), 2, 0.05)


@pytest.mark.program
def test_every_check_gets_a_result_however_it_ends(gpu_check, capfd):
    checks = [gpu_check.Check(work.__name__, "", work, all_gpus=True) for work in OUTCOMES]
    assert [gpu_check.check_passes(check, gpu_check.Args(), 4) for check in checks] == [True, False, False]
    first, second, third = capfd.readouterr().out.splitlines()
    assert first.startswith("PASSED passes (")
    assert first.endswith("s): 4 GPUs")
    assert second.startswith("FAILED finds_a_fault (")
    assert second.endswith("s): the sampler kept its memory")
    assert third.startswith("FAILED crashes (")
    assert "BrokenProcessPool" in third


def test_checks_that_cannot_run_say_what_they_need(gpu_check):
    check, args = gpu_check.Check("any", "", OUTCOMES[0], all_gpus=True, large=True), gpu_check.Args()
    assert gpu_check.obstacle(check, args, gpus=1) == "needs two GPUs"
    assert gpu_check.obstacle(check, args, gpus=2) == "needs --tokenizer-dir and --config"


def python_on_a_cuda_build(code):
    """Run `code` in a process where torch says that it was built for CUDA."""
    patched = f"import torch; torch.version.cuda = '13.0'; {code}"
    environment = users_environment() | {"CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-c", patched]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.program
def test_on_a_cuda_build_tests_of_the_sampler_are_deselected_and_the_last_line_names_gpu_check():
    flags = ["--collect-only", "-q", "-p", "no:cacheprovider", "tests/test_sampler.py", "tests/test_weight_sync.py"]
    done = python_on_a_cuda_build(f"import pytest; pytest.main({flags}); import os; print(os.environ[{VISIBLE!r}])")
    *_, last, visible_gpus = done.stdout.splitlines()
    assert "test_sampler" not in done.stdout
    assert "tests/test_weight_sync.py: " in done.stdout
    assert re.match(r"\d\d tests deselected: they need vLLM's build for CPUs, ", last)
    assert last.endswith("run: python scripts/gpu_check.py")
    assert visible_gpus == ""


@pytest.mark.program
def test_on_a_cuda_build_no_rank_is_forked_from_a_process_with_placeholders_for_streams():
    imported = "'bnpo.loop' in sys.modules, 'vllm.v1.worker.cpu_worker' in sys.modules, torch.cuda.Stream.__module__"
    code = f"import runpy, sys; runpy.run_path('tests/programs/rank_server.py', run_name='__main__'); print({imported})"
    done = python_on_a_cuda_build(code)
    # The server prints what it imports to standard error.
    assert "True False torch.cuda.streams" in done.stdout + done.stderr, done.stderr[-2000:]
