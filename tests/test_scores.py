"""Scores, their errors, what a difference must be to be found, and the files of an evaluation."""

import errno
import json
import os
import shutil
import signal

import numpy as np
import pytest
from scipy import stats
from transformers import AutoTokenizer

import compare as compare_script
from bnpo.config import TINY_MODEL
from bnpo.evaluation.program import EvalConfig, run
from bnpo.evaluation.protocol import Evaluation, Samples, key_of
from bnpo.evaluation.scores import (
    compare,
    describe_difference,
    describe_score,
    detectable,
    paired_differences,
    pass_at_1,
    pass_at_k,
    score_all,
    summarize,
)
from bnpo.evaluation.suites import load_suite, override
from bnpo.files import InputError, write_json, write_json_lines
from conftest import python, refused
from planner.dry_run import dry_run_evaluation


def test_the_clustered_error_covers_at_its_nominal_rate():
    """2,000 evaluations of 200 problems with known probabilities, 4 runs each; the truth is the
    mean probability.
    """
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(2000):
        probabilities = rng.beta(0.5, 0.8, size=200)
        correct = (rng.random((200, 4)) < probabilities[:, None]).astype(float)
        score, error = pass_at_1(correct).values()
        truth = 0.5 / 1.3
        covered += abs(score - truth) <= 1.96 * error
        naive += abs(score - truth) <= 1.96 * correct.std() / np.sqrt(correct.size)
    assert 0.93 <= covered / 2000 <= 0.97
    assert naive / 2000 < 0.9  # what taking all answers for independent would give


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    probabilities = rng.random(50)
    estimates = [
        pass_at_k((rng.random((50, 8)) < probabilities[:, None]).astype(int), 3)
        for _ in range(2000)
    ]
    assert np.mean(estimates) == pytest.approx(np.mean(1 - (1 - probabilities) ** 3), abs=3e-3)


def test_pass_at_k_ends():
    correct = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert pass_at_k(correct, 1) == pytest.approx(correct.mean())
    assert pass_at_k(correct, 4) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("problems", "rates"), [(30, (0.08, 0.03)), (30, (0.3, 0.2)), (100, (0.08, 0.03))]
)
def test_the_paired_interval_covers_at_its_nominal_rate(problems, rates):
    """Changes of one answer to each problem, which are rare in two cases."""
    rng, (better, worse) = np.random.default_rng(1), rates
    covered, p_values = [], []
    for _ in range(2000):
        draws = rng.random(problems)
        values = (draws < better).astype(float) - (draws > 1 - worse)
        report = paired_differences({"x": values})["x"]
        covered.append(report["low"] <= better - worse <= report["high"])
        p_values.append(paired_differences({"x": values * rng.choice([-1, 1], problems)})["x"])
    assert 0.91 <= np.mean(covered) <= 0.98
    assert np.mean([report["p_value"] < 0.05 for report in p_values]) < 0.06


def test_the_paired_interval_is_that_of_a_t_test():
    """Student's sleep data; the interval of the mean difference is 0.70 to 2.46, p 0.00283."""
    values = np.array([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    report = paired_differences({"x": values})["x"]
    assert (report["low"], report["high"]) == pytest.approx((0.7001142, 2.4598858))
    assert report["p_value"] == pytest.approx(0.002833, rel=1e-3)
    # Two equal sets: half the variance and twice the degrees of freedom
    both = paired_differences({"x": values, "y": values})["average"]
    expected = stats.t.interval(0.95, 18, values.mean(), stats.sem(values) / np.sqrt(2))
    assert (both["low"], both["high"]) == pytest.approx(expected)


def test_a_comparison_sees_a_difference_and_its_average():
    rng = np.random.default_rng(2)
    report = paired_differences({"x": rng.normal(0.2, 0.3, 200), "y": rng.normal(0.0, 0.3, 100)})
    assert report["x"]["low"] > 0
    assert report["x"]["p_value"] < 0.001
    assert report["y"]["low"] < 0 < report["y"]["high"]
    assert report["average"]["difference"] == pytest.approx(
        (report["x"]["difference"] + report["y"]["difference"]) / 2
    )
    assert (
        report["average"]["high"] - report["average"]["low"]
        < report["y"]["high"] - report["y"]["low"]
    )


def test_summary():
    def record(index, run, correct, answer, tokens, finish_reason):
        fields = {"index": index, "repetition": run, "correct": correct, "answer": answer}
        fields |= {"verdicts": {"default": correct, "paper": "timeout"}}
        return fields | {"tokens": tokens, "finish_reason": finish_reason}

    records = [
        record(0, 0, True, "1", 10, "stop"),
        record(0, 1, False, "2", 20, "stop"),
        record(1, 0, False, None, 30, "length"),
        record(1, 1, False, "5", 40, "stop"),
    ]
    summary = summarize(records, repetitions=2)
    assert summary == {
        "problems": 2,
        "repetitions": 2,
        "pass1": 0.25,
        "se": pytest.approx(0.25),
        "by_rule": {
            "default": {"pass1": 0.25, "se": pytest.approx(0.25)},
            "paper": {"pass1": 0.0, "se": 0.0},
        },
        "sd_repetitions": pytest.approx(0.5 / np.sqrt(2)),
        "pass_at_k": {"1": 0.25, "2": 0.5},
        "mean_tokens": 25.0,
        "truncated": 0.25,
        "no_box": 0.25,
    }


def test_a_difference_of_the_detectable_size_is_found_in_80_percent():
    """Between models whose scores on the problems are unrelated."""
    rng = np.random.default_rng(0)
    # Of 300 uniform rates, 8 repetitions each
    error = np.sqrt((0.8**2 / 12 + 0.8 * (1 / 2 - 0.8 / 3) / 8) / 300)
    found = 0
    for _ in range(1000):
        first, second = (
            rng.binomial(8, 0.8 * rng.random(300) + shift) / 8 for shift in (0, detectable(error))
        )
        d = second - first
        found += abs(d.mean()) > 1.96 * d.std(ddof=1) / np.sqrt(300)
    assert 0.75 < found / 1000 < 0.85


def test_a_difference_that_cannot_be_estimated_is_no_0():
    """All answers wrong, all right, and every problem with the same score."""
    zeros = paired_differences({"a": np.zeros(30)})["a"]
    assert describe_difference(zeros) == ("+0.0", "-", "1.0000", "-")
    assert paired_differences({"a": np.ones(5)})["a"]["p_value"] == 2 / 2**5
    both = paired_differences({"a": np.zeros(30), "b": np.arange(30) / 30})
    assert [report["detectable"] is None for report in both.values()] == [True, False, False]
    assert describe_score({"pass1": 0.0, "se": 0.0}, problems=500) == "0.0 (below 0.6)"
    assert describe_score({"pass1": 1.0, "se": 0.0}, problems=2) == "100.0 (above 0.0)"


def test_a_dry_run_prints_the_detectable_difference(capsys):
    dry_run_evaluation(EvalConfig(str(TINY_MODEL), suite="arithmetic", dry_run=True))
    printed = capsys.readouterr().out
    assert (
        "arithmetic: 500 problems x 4 repetitions; a true difference of 8.9 points to any other "
        "model" in printed
    )


def test_with_unrelated_scores_a_comparison_finds_that_difference():
    rng = np.random.default_rng(1)
    first = rng.beta(0.5, 0.5, 400)
    expected = detectable(first.std(ddof=1) / 20)
    differences = {"x": rng.beta(0.5, 0.5, 400) - first}
    assert paired_differences(differences)["x"]["detectable"] == pytest.approx(expected, rel=0.1)


def evaluated(folder, right, suite="mine"):
    datasets = {"a": {"problems": len(right), "repetitions": 2, "sha256": "0"}}
    samples = [
        {"dataset": "a", "index": i, "repetition": j, "correct": right[i][j]}
        for i, j in np.ndindex(np.shape(right))
    ]
    write_json_lines(folder / "samples.jsonl", samples)
    write_json(
        folder / "protocol.json",
        {"suite": {"name": suite, "datasets": datasets}, "grader": "default"},
    )
    return folder


def test_several_checkpoints_are_corrected_by_holm(tmp_path, capsys):
    rng = np.random.default_rng(0)
    right = [(rng.random((200, 2)) < p).tolist() for p in (0.5, 0.62, 0.5)]
    folders = [
        evaluated(tmp_path / name, answers) for name, answers in zip("xyz", right, strict=True)
    ]
    compare_script.main(compare_script.Args(tuple(folders)))
    lines = [
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if str(tmp_path) in line and "to" in line
    ]
    assert [line[0] for line in lines] == [str(folder) for folder in folders[1:]]
    p_values = [float(line[5]) for line in lines]
    holm = [float(line[6]) for line in lines]
    assert holm[0] == pytest.approx(2 * p_values[0], abs=1e-3) or holm[0] == p_values[0]
    assert max(holm) >= max(p_values)
    assert float(lines[0][1]) == pytest.approx(
        100 * (np.mean(right[1]) - np.mean(right[0])), abs=0.06
    )


@pytest.fixture(scope="module")
def evaluation():
    suite = override(load_suite("arithmetic"), ("2",), limit=3)
    return Evaluation.prepare(suite, AutoTokenizer.from_pretrained(TINY_MODEL), seed=0)


@pytest.fixture(scope="module")
def records(evaluation):
    """Right on the first repetition, without a box on the second, the last one cut off."""
    rows = []
    for key in evaluation.sample_keys():
        right = key[2] == 0
        answer, reason = "5" if right else None, "length" if key == ("arithmetic", 2, 1) else "stop"
        fields = dict(zip(("dataset", "index", "repetition"), key, strict=True)) | {
            "answer": answer
        }
        fields |= {"correct": right, "verdicts": {"default": right, "paper": False}}
        rows.append(fields | {"tokens": 10, "finish_reason": reason})
    return rows


def test_scores(evaluation, records):
    result = score_all(evaluation.suite, records[::-1], {"seed": 0})  # in any order
    arithmetic = result["results"]["arithmetic"]
    assert (arithmetic["pass1"], arithmetic["no_box"]) == (0.5, 0.5)
    assert arithmetic["truncated"] == pytest.approx(1 / 6)
    by_rule = {"default": {"pass1": 0.5, "se": 0.0}, "paper": {"pass1": 0.0, "se": 0.0}}
    assert arithmetic["by_rule"] == by_rule
    assert result["average"] == {"pass1": 0.5, "se": 0.0, "by_rule": by_rule}
    assert result["grading_failures"] == {}
    assert compare(evaluation.suite, records, records[::-1])["arithmetic"]["difference"] == 0


def claimed(folder, protocol) -> dict:
    samples = Samples(folder, [], protocol)
    samples.close()
    return samples.protocol


def test_other_prompts_of_the_same_suite_make_another_protocol(tmp_path, evaluation):
    """The template may come from a file of the model, which no hash of the suite covers."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template = "Be brief. " + tokenizer.chat_template
    other = Evaluation.prepare(evaluation.suite, tokenizer, seed=0)
    first, second = (one.protocol("x", TINY_MODEL, None, "float32") for one in (evaluation, other))
    assert {key for key in first if first[key] != second[key]} == {"prompts_sha256"}
    claimed(tmp_path / "out", first)
    with pytest.raises(
        InputError, match=r"protocol\.json: is of another evaluation \(different prompts_sha256\)"
    ):
        claimed(tmp_path / "out", second)


def test_samples_are_taken_up_again_without_the_line_that_was_cut_off(
    tmp_path, evaluation, records
):
    samples = Samples(tmp_path, evaluation.sample_keys(), {})
    for record in records[:4]:
        samples.add(record)
    samples.close()
    path = tmp_path / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Samples(tmp_path, evaluation.sample_keys(), {})
    again.close()
    assert list(again.records) == [key_of(record) for record in records[:3]]
    assert path.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]


def test_two_evaluations_do_not_write_the_same_samples(tmp_path, evaluation):
    first = Samples(tmp_path, evaluation.sample_keys(), {})
    with pytest.raises(InputError, match="another evaluation is writing it"):
        Samples(tmp_path, evaluation.sample_keys(), {})
    first.close()
    Samples(tmp_path, evaluation.sample_keys(), {}).close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_a_line(number, tmp_path, evaluation, monkeypatch):
    def no_locks(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with refused(
        rf"{tmp_path}: cannot be written \({os.strerror(number)}\); choose another --output"
    ):
        Samples(tmp_path, evaluation.sample_keys(), {})


def test_samples_that_cannot_be_written_are_a_line(tmp_path, evaluation):
    (tmp_path / "samples.jsonl").mkdir()
    write_json(tmp_path / "protocol.json", {})
    with refused(r"cannot be written \(Is a directory\); choose another --output-dir"):
        Samples(tmp_path, evaluation.sample_keys(), {})


@pytest.mark.program
def test_a_regrade_that_is_killed_between_two_files_mixes_no_rules(tmp_path, evaluation):
    """By the old rule all boxes are right, and by the new one the numbers behind them wrong."""
    folder, protocol = tmp_path / "out", evaluation.protocol("x", TINY_MODEL, "0", "float32")
    samples = Samples(folder, evaluation.sample_keys(), protocol)
    for key in evaluation.sample_keys():
        answer = evaluation.problems[key[0]][key[1]].answer
        record = dict(zip(("dataset", "index", "repetition"), key, strict=True))
        record |= {"id": evaluation.problems[key[0]][key[1]].id, "seed": 0, "tokens": 9}
        record |= {"text": rf"\boxed{{{answer}}}, not -7", "finish_reason": "stop"}
        samples.add(record | {"answer": answer, "correct": True, "verdicts": {"default": True}})
    samples.close()
    write_json(
        folder / "results.json",
        score_all(evaluation.suite, samples.records.values(), samples.protocol),
    )
    rules = []
    for change in range(100):
        copy = tmp_path / str(change)
        shutil.copytree(folder, copy)
        done = python("tests/programs/killed_regrade.py", copy, change)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        rule = json.loads((copy / "protocol.json").read_text())["grader"]
        right = rule == "default"
        # Who opens the folder again, or compares it, sees the rule of its protocol.
        again = Samples(
            copy, evaluation.sample_keys(), json.loads((copy / "protocol.json").read_text())
        )
        again.close()
        assert {record["correct"] for record in again.records.values()} == {right}
        assert {record["answer"] == "-7" for record in again.records.values()} == {not right}
        means = compare_script.problem_means(copy, again.protocol)["arithmetic"]
        assert means.tolist() == [right] * 3
        results = json.loads((copy / "results.json").read_text())
        assert results["average"]["pass1"] == (results["protocol"]["grader"] == "default")
        rules.append(rule)
        finished = run(EvalConfig(regrade=copy, grader="last_number")).results[0]
        assert finished["average"]["pass1"] == 0
        assert set(finished["average"]["by_rule"]) == {"last_number", "default", "paper"}
        if done.returncode == 0:
            break
    assert rules[-1] == "last_number"
    assert rules.count("default") >= 4


def test_a_full_disk_is_a_line_that_says_how_to_continue(tmp_path, evaluation, records):
    samples = Samples(tmp_path, evaluation.sample_keys(), {})
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), samples._file.fileno())
    with pytest.raises(
        InputError,
        match=r"cannot be written \(No space left on device\); free some disk space, then",
    ):
        samples.add(records[0])


@pytest.mark.parametrize(
    "line", ['{"dataset": "other", "index": 0, "repetition": 0}', "[]", "nonsense", "twice"]
)
def test_samples_of_something_else_are_refused(tmp_path, evaluation, records, line):
    first = json.dumps(records[0])
    write_json(tmp_path / "protocol.json", {})
    (tmp_path / "samples.jsonl").write_text(f"{first}\n{first if line == 'twice' else line}\n")
    with pytest.raises(InputError, match=r"samples\.jsonl:2: "):
        Samples(tmp_path, evaluation.sample_keys(), {})


def test_a_results_folder_is_only_taken_up_under_the_same_protocol(tmp_path):
    folder = tmp_path / "results"
    protocol = {"ckpt": "mine", "seed": 0, "checkpoint_sha256": "a", "suite": {"repetitions": 16}}
    protocol |= {"run": {"steps": 2}}
    claimed(folder, protocol)
    assert claimed(folder, protocol | {"run": {"steps": 4}}) == protocol  # resumed since
    # Another spelling of the path of the same model
    assert claimed(folder, protocol | {"ckpt": "./mine/../mine"}) == protocol
    (folder / "samples.jsonl").write_text("precious")
    for change, name in (
        ({"checkpoint_sha256": "b"}, "checkpoint_sha256"),
        ({"suite": {"repetitions": 1}}, "suite"),
    ):
        with pytest.raises(
            InputError, match=rf"protocol\.json: is of another evaluation \(different {name}\)"
        ):
            claimed(folder, protocol | change)
    assert (folder / "samples.jsonl").read_text() == "precious"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="is not empty and holds no evaluation"):
        claimed(tmp_path, {})
    blocked = tmp_path / "thesis.tex" / "results"
    with pytest.raises(InputError, match="cannot be written"):
        claimed(blocked, {})
