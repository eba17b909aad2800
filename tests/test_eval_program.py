"""python eval.py as a user runs it: real vLLM in processes of their own, real kills."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from bnpo.config import TINY_MODEL
from bnpo.environment import parse_command
from bnpo.evaluation.program import EvalConfig, chosen_suite, prepare_jobs, run
from bnpo.files import ROOT, InputError
from conftest import forked, json_lines, run_ranks

ARITHMETIC = ("--ckpt", str(TINY_MODEL), "--suite", "arithmetic")


def command(folder, *flags):
    return [sys.executable, "eval.py", *flags, "--output-dir", str(folder)]


def evaluate(folder, *flags, environment=MappingProxyType({})):
    return run_ranks(0, "eval.py", *flags, "--output-dir", folder, environment=environment).stdout


def refused(folder, *flags):
    """The message with which `eval.py` refuses; in this process, since starting one costs
    seconds.
    """
    with pytest.raises(InputError) as error:
        run(parse_command(EvalConfig, [*flags, "--output-dir", str(folder)]))
    return str(error.value)


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def samples_of(folder):
    samples = json_lines(folder / "samples.jsonl")
    return {
        (sample["dataset"], sample["index"], sample["repetition"]): sample for sample in samples
    }


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
    """An evaluation of 100 problems x 8 repetitions by one sampler."""
    folder = tmp_path_factory.mktemp("once")
    evaluate(folder, *ARITHMETIC, "--limit", "100", "--repetitions", "8")
    return folder


@pytest.mark.sampler
def test_what_a_user_starts_draws_the_same(once, tmp_path):
    out = tmp_path / "out"
    flags = (*ARITHMETIC, "--limit", "4", "--repetitions", "2")
    subprocess.run(command(out, *flags), cwd=ROOT, capture_output=True, check=True)
    assert len(samples_of(out)) == 8
    assert samples_of(out).items() <= samples_of(once).items()


@pytest.mark.sampler
def test_two_evaluations_are_equal_though_one_is_killed_three_times(once, tmp_path):
    flags = (*ARITHMETIC, "--limit", "100", "--repetitions", "8")
    expected = results_of(once)
    assert expected["results"]["arithmetic"]["problems"] == 100

    killed = tmp_path / "killed"
    path = killed / "samples.jsonl"
    for target in sorted(random.Random(0).sample(range(800), 3)):
        with forked(0, "eval.py", *flags, "--output-dir", killed) as job:
            while psutil.pid_exists(job.processes[0]) and written(path) <= target:
                time.sleep(0.02)
            os.kill(job.processes[0], signal.SIGKILL)
            assert job.result().returncode == 128 + signal.SIGKILL, "it ended before it was killed"
            deadline = time.monotonic() + 10
            while processes_of(job.group) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert processes_of(job.group) == []
    # A line that was cut off, as a kill in the middle of a write leaves it
    with path.open("ab") as file:
        file.write(b'{"dataset": "arith')
    before = written(path)
    assert f"800 samples, {before} already there" in evaluate(killed, *flags)
    assert written(path) == 800
    assert samples_of(killed) == samples_of(once)
    assert len(samples_of(killed)) == 800  # none twice
    assert results_of(killed) == expected


@pytest.mark.sampler
def test_two_samplers_side_by_side_draw_what_one_does(once, tmp_path):
    two = tmp_path / "two"
    evaluate(
        two, *ARITHMETIC, "--limit", "20", "--repetitions", "arithmetic=3", "--data-parallel", "2"
    )
    assert samples_of(two) == {key: samples_of(once)[key] for key in samples_of(two)}
    assert len(samples_of(two)) == 60
    sample = samples_of(two)["arithmetic", 19, 2]
    assert {"id", "seed", "text", "answer", "correct", "verdicts", "tokens", "finish_reason"} < set(
        sample
    )


@pytest.mark.sampler
def test_a_comparison_of_results_that_are_there(once, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(once, out)
    shutil.copytree(once, out / "base")
    flags = (*ARITHMETIC, "--limit", "100", "--repetitions", "8", "--base", TINY_MODEL)
    # Narrow, but the titles of tables stay whole
    output = evaluate(out, *flags, environment={"COLUMNS": "60"})
    assert output.count("800 samples, 800 already there") == 2
    comparison = json.loads((out / "comparison.json").read_text())["paired"]["arithmetic"]
    assert comparison == {
        "difference": 0.0,
        "low": 0.0,
        "high": 0.0,
        "detectable": None,
        "p_value": 1.0,
    }
    assert "paired by problem" in output


@pytest.mark.sampler
def test_a_regrade_equals_sampling_anew(once, tmp_path):
    kept, anew = tmp_path / "kept", tmp_path / "anew"
    shutil.copytree(once, kept)
    rule = tmp_path / "mine.py"
    rule.write_text(
        "def starts_well(text, reference):\n    return text.startswith(reference[:1])\n"
    )
    flags = ("--grader", f"{rule}:starts_well")
    suite = tmp_path / "arithmetic.json"  # one that grades by all rules at once, as a regrade does
    suite.write_text(
        json.dumps(
            json.loads((ROOT / "evals" / "arithmetic.json").read_text()) | {"both_rules": True}
        )
    )
    model = ("--ckpt", str(TINY_MODEL), "--suite", str(suite))
    evaluate(anew, *model, "--limit", "100", "--repetitions", "8", *flags)
    output = run_ranks(0, "eval.py", "--regrade", kept, *flags).stdout
    assert "0 verdicts changed" in output  # of the rules that had graded already
    assert samples_of(kept) == samples_of(anew)
    regraded = json.loads((kept / "results.json").read_text())
    assert regraded == results_of(anew)
    assert 0 < regraded["results"]["arithmetic"]["pass1"] < 1

    samples = kept / "samples.jsonl"
    samples.write_text(samples.read_text().replace('"default": true', '"default": false', 2))
    output = run_ranks(0, "eval.py", "--regrade", kept, "--grader", "default").stdout
    assert "2 verdicts changed\n  default: False -> True: 2\n" in output
    regraded = json.loads((kept / "results.json").read_text())
    for key, sample in samples_of(once).items():
        assert set(sample["verdicts"]) == {"default"}  # the suite's rule alone
        assert samples_of(kept)[key] == sample | {"verdicts": samples_of(kept)[key]["verdicts"]}
    assert regraded["results"]["arithmetic"] | {"by_rule": None} == results_of(once)["results"][
        "arithmetic"
    ] | {"by_rule": None}


@pytest.mark.sampler
def test_the_papers_data_sets_pass_through(tmp_path, data_dir, qwen_model):
    """A few real problems of each, with the real tokenizer, through prompt, sampler and grader."""
    suite = json.loads((ROOT / "evals" / "paper.json").read_text())
    for dataset in suite["datasets"].values():
        dataset |= {"data": str(data_dir / Path(dataset["data"]).name), "repetitions": 4}
    suite |= {"max_answer_tokens": 24}
    (tmp_path / "short.json").write_text(json.dumps(suite))
    evaluate(
        tmp_path / "out",
        "--ckpt",
        str(qwen_model),
        "--suite",
        str(tmp_path / "short.json"),
        "--limit",
        "5",
    )
    results = results_of(tmp_path / "out")
    samples = samples_of(tmp_path / "out")
    assert list(results["results"]) == ["MATH500", "AMC23", "AIME2024", "AIME2025"]
    assert len(samples) == 4 * 5 * 4
    for name, result in results["results"].items():
        mine = [sample for sample in samples.values() if sample["dataset"] == name]
        assert result["pass1"] == sum(sample["correct"] for sample in mine) / len(mine)
        assert result["truncated"] == sum(
            sample["finish_reason"] == "length" for sample in mine
        ) / len(mine)
    # What the model was taught to say
    assert {sample["answer"] for sample in samples.values()} & {"1", "2", "3"}


NO_DATA = {"datasets": {"MATH500": {"data": "data/nowhere/math500.jsonl", "repetitions": 1}}}
NO_SETS = NO_DATA["datasets"] | {"AMC": {"data": "data/nowhere/amc23.jsonl", "repetitions": 1}}


@pytest.mark.parametrize(
    ("flags", "suite", "message"),
    [
        (
            ("--suite", "nowhere"),
            {},
            "no evaluation suite 'nowhere'; known: arithmetic, arithmetic-quick, ",
        ),
        (
            ("--repetitions", "MATH500=1"),
            {},
            "'MATH500=1' is not N above 0, or NAME=N with NAME one of arithmetic",
        ),
        (("--repetitions", "many"), {}, "'many' is not N above 0"),
        (("--limit", "1"), {}, "--limit: is 1"),
        (("--seed", "-1"), {}, "--seed: is -1, must be greater than or equal to 0"),
        (
            ("--regrade", "x"),
            {},
            "--regrade: keeps the samples, so --ckpt has no effect: only --grader",
        ),
        (
            ("--grader", "strict"),
            {},
            "--grader: unknown grader 'strict'; known: default, paper, last_nu",
        ),
        (("--grader", "none.py:f"), {}, "--grader: unknown grader 'none.py:f'; known: default"),
        (("--ckpt", "no/where/else"), {}, "no such model folder, nor a hub name"),
        (
            (),
            NO_DATA,
            "math500.jsonl: no such data file; `python scripts/prepare_data.py --only math500` "
            "downloads",
        ),
        (
            ("--ckpt", "Qwen/never-downloaded"),  # data are looked for before the model
            {"datasets": NO_SETS},
            "amc23.jsonl: no such data files; `python scripts/prepare_data.py --only math500 amc",
        ),
        (
            (),
            {"max_answer_tokens": 3072},
            "prompts and answers of up to 3136 tokens do not fit the context of",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, flags, suite, message, monkeypatch):
    """`suite` changes the built-in one."""
    # Else the packages for GPUs are refused before, since tests hide the GPU
    monkeypatch.setattr("bnpo.ranks.vllm_build", lambda: "cpu")
    file = tmp_path / "suite.json"
    file.write_text(
        json.dumps(json.loads((ROOT / "evals" / "arithmetic.json").read_text()) | suite)
    )
    error = refused(tmp_path / "out", "--ckpt", str(TINY_MODEL), "--suite", str(file), *flags)
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.sampler
def test_samplers_that_cannot_load_end_the_program(tmp_path):
    flags = ("--suite", "arithmetic", "--limit", "2", "--data-parallel", "2")
    start = [sys.executable, "eval.py", "--ckpt", str(TINY_MODEL), *flags]
    start += ["--output-dir", str(tmp_path / "out")]
    no_machine_has_it = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1000000"}  # GiB
    result = subprocess.run(
        start, cwd=ROOT, env=no_machine_has_it, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    # Anywhere: a sampler that is ended while it prints leaves a line without an end.
    message = r"vLLM cannot run this model \(.*\); correct that, or use another model"
    assert re.search(f"error: {TINY_MODEL}: {message}", result.stderr)
    assert "Traceback" not in result.stderr


def test_both_models_of_a_comparison_get_the_suite_that_ckpt_was_trained_for(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000001"
    shutil.copytree(TINY_MODEL, checkpoint)
    (tmp_path / "run" / "config.json").write_text('{"preset": "tiny"}')
    jobs = prepare_jobs(
        EvalConfig(str(checkpoint), base=str(TINY_MODEL), limit=2, output_dir=tmp_path / "out"),
        "float32",
    )
    assert [evaluation.suite.name for _, evaluation, _ in jobs] == ["arithmetic", "arithmetic"]
    assert [samples.folder for _, _, samples in jobs] == [
        tmp_path / "out",
        tmp_path / "out" / "base",
    ]


def test_the_same_model_by_another_path_is_the_same_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr("bnpo.evaluation.program.ROOT", tmp_path)
    model = tmp_path / "model"
    shutil.copytree(TINY_MODEL, model)
    (tmp_path / "link").symlink_to(model)
    shutil.copytree(model, tmp_path / "copy")
    folders = set()
    for name in (model, f"{model}/../model/", tmp_path / "link", tmp_path / "copy"):
        config = EvalConfig(str(name), suite="arithmetic", limit=2)
        [(_, _, samples)] = prepare_jobs(config, "float32")
        samples.close()
        folders.add(samples.folder)
    assert len(folders) == 1
    with pytest.raises(InputError, match=f"--base: {model} is the same model as {TINY_MODEL}"):
        prepare_jobs(
            EvalConfig(str(TINY_MODEL), base=str(model), suite="arithmetic", limit=2), "float32"
        )
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    [(_, _, samples)] = prepare_jobs(EvalConfig(str(model), suite="arithmetic", limit=2), "float32")
    samples.close()
    assert samples.folder not in folders


def test_greedy_answers_are_sampled_once_and_a_line_says_so(tmp_path, capsys):
    flags = ("--suite", "word-problems-greedy", "--limit", "2", "--repetitions", "16")
    folder = ("--output-dir", str(tmp_path / "out"))
    config = parse_command(EvalConfig, ["--ckpt", str(TINY_MODEL), *flags, *folder])
    suite = chosen_suite(config, TINY_MODEL)
    assert [dataset.repetitions for dataset in suite.datasets.values()] == [1]
    printed = capsys.readouterr().out
    assert printed.startswith(
        "suite word-problems-greedy: at temperature 0 all answers to a problem "
    )
    assert printed.endswith("once (repetitions asked for: word-problems 16)\n")
    chosen_suite(replace(config, repetitions=()), TINY_MODEL)
    assert capsys.readouterr().out == ""
