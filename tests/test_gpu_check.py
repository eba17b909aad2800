"""What GPU machines run, without a GPU: scripts/gpu_check.py, and the tests on a CUDA build."""

import json
import os
import re
import shutil

import numpy as np
import pytest

import gpu_check
from bnpo.config import TINY_MODEL
from bnpo.files import InputError
from bnpo.policy.memory import ModelShape
from bnpo.policy.speed import TIMINGS, peak_tflops, speed_metrics
from conftest import CUDA_BUILD, python, report_of
from gpu_check_parts import TOLERANCE, CheckError, verify_metrics


def run(script, *flags):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return python(script, *flags, environment=environment)


@pytest.mark.program
def test_the_list_names_every_check_and_without_a_gpu_one_line_says_so():
    *lines, last = run("scripts/gpu_check.py", "--list").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [check.name for check in gpu_check.CHECKS]
    assert last.startswith("Estimated for one H200: ")
    done = run("scripts/gpu_check.py")
    if CUDA_BUILD:  # and this process hides any GPU
        assert done.returncode == 2
        assert re.fullmatch("error: .* the installed vLLM can only use GPUs.*\n", done.stderr)
    else:
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert done.stderr.startswith("error: no CUDA device; ")


def test_only_what_the_same_checks_wrote_is_deleted(tmp_path):
    names = ("attention.log", "fp32-eager/metrics.jsonl", "fp32-eager.log", "verdicts.json")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    fp32_eager = [check for check in gpu_check.CHECKS if check.name == "fp32-eager"]
    gpu_check.clear(tmp_path, tmp_path / "verdicts.json", fp32_eager)
    assert {path.name for path in tmp_path.iterdir()} == {"attention.log", "verdicts.json"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thesis.tex", "thesis.tex: is of no check; choose another --output-dir"),
        ("", "cannot be written (File exists); choose another --output-dir"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_kept(name, message, tmp_path):
    folder = tmp_path / "folder"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("text")  # without a name, the folder is a file
    with pytest.raises(InputError, match=re.escape(message)):
        gpu_check.clear(folder, tmp_path / "verdicts.json", gpu_check.CHECKS)
    assert (folder / name).read_text() == "text"


@pytest.mark.extra
@pytest.mark.sampler
def test_the_first_step_measures_a_learner_and_a_sampler(bfloat16, tmp_path):
    """The tiny model, with the context that the step's model has, on the CPU."""
    model = shutil.copytree(TINY_MODEL, tmp_path / "model")
    file = model / "config.json"
    context = {"max_position_embeddings": 4096}
    file.write_text(json.dumps(json.loads(file.read_text()) | context), encoding="utf-8")
    rows = report_of(1, "first_step_check", model)
    assert 0 < rows["fresh_gap_mean"] < rows["fresh_gap_max"]
    assert rows["fresh_gap_mean"] < TOLERANCE["bfloat16"]
    assert rows["fresh_entropy"] > 0
    synced = rows["sync_gb_per_second"] * rows["sync_seconds"]  # in 10^9 bytes
    assert synced == pytest.approx(2 * ModelShape(TINY_MODEL).parameters / 1e9)
    assert {"load_seconds", "start_seconds", "fresh_sleep_gib", "sync_free_gib"} <= rows.keys()


def metrics(**changes):
    """Return metrics.jsonl of a run of two steps that was resumed for two more, with `changes`
    in step 3.
    """
    step = {"updates/skipped": 0, "tokens/trained": 900, "sync/difference": 0.01}
    step |= {"sampler_learner_gap_mean": 0.002, "tokens/per_second": 1000.0}
    rows = [{"step": 0}, *({"step": index} | step for index in (1, 2, 3, 4))]
    for index in (0, 2, 4):
        rows[index]["eval/average"] = 0.4
    rows[3] |= changes
    return rows


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"step": 2}, r"metrics\.jsonl has steps \[0, 1, 2, 2, 4\], not 0 to 4"),
        ({"eval/average": 0.4}, r"evaluations after steps \[0, 2, 3, 4\]"),
        ({"updates/skipped": 1}, "step 3: the update was skipped"),
        ({"tokens/trained": 0}, "step 3: no token had a gradient"),
        ({"sync/difference": float("nan")}, "sync/difference is up to nan, more than 0.05"),
        ({"sampler_learner_gap_mean": 0.06}, "sampler_learner_gap_mean is up to 0.06, more than"),
    ],
)
def test_a_faulty_run_is_refused_with_the_reason(changes, fault):
    with pytest.raises(CheckError, match=fault):
        verify_metrics(metrics(**changes), 2, 2, 0.05, {})


@pytest.mark.parametrize(
    ("name", "peak"),  # as in the data sheets; None: not in the table
    [
        ("NVIDIA H20", 148),
        ("NVIDIA H200", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", None),
    ],
)
def test_peaks_by_the_names_of_gpus(name, peak):
    assert peak_tflops(name) == peak


def test_rates_of_a_step():
    seconds = {"total": 4.0, "update": 2.0}
    metrics = {"tokens/sampled": 100, "update/tflop": 3000.0}
    rates = {"seconds/total": 4.0, "seconds/update": 2.0}
    rates |= {"tokens/per_second": 25.0, "tflops/per_second": 750.0}
    rates |= {"sampling/seconds_0": 1.0, "sampling/seconds_1": 3.0, "sampling/imbalance": 1.5}
    sampling = np.array([1.0, 3.0])
    assert speed_metrics(metrics, seconds, sampling, gpu="NVIDIA L40") == rates
    assert speed_metrics(metrics, seconds, sampling, gpu="NVIDIA H20") == rates | {"mfu": 750 / 148}
    assert all(name.startswith(TIMINGS) for name in rates)
