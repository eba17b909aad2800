"""Scores, their errors, what a difference must be to be found, and the folder of an evaluation."""

import json
import os
import runpy
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from transformers import AutoTokenizer

import compare_evaluations
from bnpo.batch import sampling_seeds
from bnpo.config import TINY_MODEL
from bnpo.evaluation.protocol import Evaluation, Samples, key_of
from bnpo.evaluation.scores import (
    average,
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
from bnpo.files import ROOT, write_json, write_json_lines
from bnpo.runs.metrics import eval_metrics
from conftest import refused


def test_the_clustered_error_covers_at_its_nominal_rate():
    """2,000 evaluations of 200 problems with known probabilities, 4 repetitions each; the truth is
    the mean probability.
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
    draws = [(rng.random((50, 8)) < probabilities[:, None]).astype(int) for _ in range(2000)]
    estimate = np.mean([pass_at_k(correct, 3) for correct in draws])
    assert estimate == pytest.approx(np.mean(1 - (1 - probabilities) ** 3), abs=3e-3)
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
        signs = rng.choice([-1, 1], problems)
        p_values.append(paired_differences({"x": values * signs})["x"]["p_value"])
    assert 0.91 <= np.mean(covered) <= 0.98
    assert np.mean(np.array(p_values) < 0.05) < 0.06


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
    rng = np.random.default_rng(2)
    report = paired_differences({"x": rng.normal(0.2, 0.3, 200), "y": rng.normal(0.0, 0.3, 100)})
    means = report["x"]["difference"], report["y"]["difference"]
    assert report["average"]["difference"] == pytest.approx(np.mean(means))


def test_a_difference_of_the_detectable_size_is_found_in_80_percent():
    """Between models whose scores on the problems are unrelated."""
    rng = np.random.default_rng(0)
    # Of 300 uniform rates, 8 repetitions each
    error = np.sqrt((0.8**2 / 12 + 0.8 * (1 / 2 - 0.8 / 3) / 8) / 300)
    found = 0
    for _ in range(1000):
        shifts = (0, detectable(error))
        first, second = (rng.binomial(8, 0.8 * rng.random(300) + shift) / 8 for shift in shifts)
        d = second - first
        found += abs(d.mean()) > 1.96 * d.std(ddof=1) / np.sqrt(300)
    assert 0.75 < found / 1000 < 0.85
    first = rng.beta(0.5, 0.5, 400)  # a comparison with such a model says the same
    report = paired_differences({"x": rng.beta(0.5, 0.5, 400) - first})["x"]
    assert report["detectable"] == pytest.approx(detectable(first.std(ddof=1) / 20), rel=0.1)


def test_a_difference_that_cannot_be_estimated_is_no_0():
    """All answers wrong, all right, and every problem with the same score."""
    zeros = paired_differences({"a": np.zeros(30)})["a"]
    assert describe_difference(zeros) == ("+0.0", "-", "1.0000", "-")
    assert paired_differences({"a": np.ones(5)})["a"]["p_value"] == 2 / 2**5
    averages = np.array([(0.01 + 0.02 + 0.04) / 3, (0.04 + 0.02 + 0.01) / 3])
    assert np.ptp(averages) > 0  # of two seeds, equal but for the last bit
    assert paired_differences({"seeds": averages})["seeds"]["p_value"] == 2 / 2**2
    both = paired_differences({"a": np.zeros(30), "b": np.arange(30) / 30})
    assert [report["detectable"] is None for report in both.values()] == [True, False, False]
    assert describe_score({"pass1": 0.0, "se": 0.0}, problems=500) == "0.0 (below 0.6)"
    assert describe_score({"pass1": 1.0, "se": 0.0}, problems=2) == "100.0 (above 0.0)"


def test_several_checkpoints_are_corrected_by_holm(tmp_path, capsys):
    rng, folders, right = np.random.default_rng(0), [], []
    datasets = {"a": {"problems": 200, "repetitions": 2, "sha256": "0"}}
    protocol = {"suite": {"name": "mine", "datasets": datasets}, "grader": "default"}
    for name, p in zip("xyz", (0.5, 0.62, 0.5), strict=True):
        folders.append(tmp_path / name)
        right.append(rng.random((200, 2)) < p)
        rows = [
            {"dataset": "a", "index": i, "repetition": j, "correct": bool(right[-1][i, j])}
            for i, j in np.ndindex(200, 2)
        ]
        write_json_lines(folders[-1] / "samples.jsonl", rows)
        protocol["prompts_sha256"] = "other" if name == "z" else "same"
        write_json(folders[-1] / "protocol.json", protocol)
    compare_evaluations.main(compare_evaluations.Args(tuple(folders)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines if "prompts" in line] == [f"{folders[2]}:"]
    lines = [line for line in lines if line and str(tmp_path) in line[0] and "to" in line]
    assert [line[0] for line in lines] == [str(folder) for folder in folders[1:]]
    p_values, holm = ([float(line[i]) for line in lines] for i in (6, 7))
    assert holm[0] == pytest.approx(2 * p_values[0], abs=2e-4)
    assert max(holm) >= max(p_values)
    first = folders[1]
    for other, message in (
        ({"grader": "paper"}, "has another grader than .*; scripts/regrade.py changes the grader"),
        ({"grader_sha256": "0"}, "has another grader_sha256 than .*; scripts/regrade.py changes"),
        ({"limit": 10}, "has another limit than .*; evaluate both with the same suite"),
    ):
        write_json(first / "protocol.json", protocol | other)
        with refused(message):
            compare_evaluations.read(tuple(folders))
    write_json(first / "protocol.json", protocol)
    lines_of_file = (first / "samples.jsonl").read_text().splitlines(keepends=True)
    (first / "samples.jsonl").write_text("".join(lines_of_file[:-1]))
    with refused("has 399 of 400 samples; finish it by repeating its command"):
        compare_evaluations.read(tuple(folders))
    points = 100 * (right[1].mean() - right[0].mean())
    assert float(lines[0][2]) == pytest.approx(points, abs=0.06)


@pytest.fixture(scope="module")
def evaluation():
    suite = override(load_suite("arithmetic"), ("2",), limit=3)
    return Evaluation.prepare(suite, AutoTokenizer.from_pretrained(TINY_MODEL), seed=0)


@pytest.fixture(scope="module")
def records(evaluation):
    """Right on the first repetition, without a box on the second, the last one cut off."""
    rows = []
    for tokens, key in enumerate(evaluation.sample_keys()):
        right, is_last = key[2] == 0, key == ("arithmetic", 2, 1)
        fields = dict(zip(("dataset", "index", "repetition"), key, strict=True))
        fields |= {"answer": "5" if right else None, "correct": right, "tokens": tokens}
        fields |= {"verdicts": {"default": right, "paper": "timeout" if is_last else False}}
        rows.append(fields | {"finish_reason": "length" if is_last else "stop"})
    return rows


def test_scores(evaluation, records):
    result = score_all(evaluation.suite, records[::-1], {"seed": 0})  # in any order
    by_rule = {"default": {"pass1": 0.5, "se": 0.0}, "paper": {"pass1": 0.0, "se": 0.0}}
    assert result["results"]["arithmetic"] == {
        **{"problems": 3, "repetitions": 2, "pass1": 0.5, "se": 0.0, "by_rule": by_rule},
        "sd_repetitions": pytest.approx(np.sqrt(0.5)),
        "pass_at_k": {"1": 0.5, "2": 1.0},
        **{"mean_tokens": 2.5, "truncated": pytest.approx(1 / 6), "no_box": 0.5},
    }
    assert result["average"] == {"pass1": 0.5, "se": 0.0, "by_rule": by_rule}
    assert result["grading_failures"] == {"paper: timeout": 1}
    uneven = [record | {"correct": i == 0} for i, record in enumerate(records)]
    assert summarize(uneven, 2)["se"] == pytest.approx(np.std([0.5, 0, 0], ddof=1) / np.sqrt(3))


def test_answers_are_sampled_as_the_suite_says_each_with_its_own_seed(evaluation):
    changed = {"temperature": 0.3, "top_p": 0.9, "max_answer_tokens": 5}
    other = replace(evaluation, suite=replace(evaluation.suite, **changed), seed=7)
    keys = other.sample_keys()
    assert keys == [("arithmetic", i, j) for i in range(3) for j in range(2)]
    sampling = other.sampling(keys)
    of_problems = sampling_seeds(7, zlib.crc32(b"arithmetic"), range(3))
    assert sampling["seeds"] == [seed + j for seed in of_problems for j in range(2)]
    assert sampling["prompts"] == [other.prompts["arithmetic"][i] for _, i, _ in keys]
    names = ("temperature", "top_p", "max_tokens")
    assert tuple(sampling[name] for name in names) == (0.3, 0.9, 5)


def test_each_data_set_has_its_own_scores_and_the_average_weighs_them_equally(records):
    """Two sets of three problems: of x 1 of 3 is right, and of y 2 of 3."""
    x = [row | {"dataset": "x", "verdicts": {"default": row["index"] == 0}} for row in records]
    y = [row | {"dataset": "y", "verdicts": {"default": row["index"] != 0}} for row in records]
    x, y = ([row | {"correct": row["verdicts"]["default"]} for row in rows] for rows in (x, y))
    datasets = {name: SimpleNamespace(repetitions=2) for name in "xy"}
    results = score_all(SimpleNamespace(datasets=datasets), y + x, {})
    error = 1 / 3  # of the means 1, 0, 0 and 0, 1, 1
    for name, pass1 in (("x", 1 / 3), ("y", 2 / 3)):
        found = {key: results["results"][name][key] for key in ("pass1", "se")}
        assert found == pytest.approx({"pass1": pass1, "se": error})
    both = {"pass1": 0.5, "se": error / 2**0.5}
    assert {key: results["average"][key] for key in both} == pytest.approx(both)
    metrics = eval_metrics(results)
    assert metrics["eval/average"] == pytest.approx(0.5)
    assert metrics["eval/y/pass1"] == pytest.approx(2 / 3)


def test_an_average_whose_error_leaves_out_data_sets_says_so(records, capsys):
    print_scores = runpy.run_path(str(ROOT / "eval.py"))["print_scores"]
    none_right = [record | {"correct": False, "verdicts": {"default": False}} for record in records]
    some_right = [row | {"correct": row["index"] == 0} for row in none_right]
    scores = {"some": summarize(some_right, 2), "none": summarize(none_right, 2)}
    results = {"protocol": {"ckpt": "mine"}, "grading_failures": {}, "results": scores}
    results["average"] = average([*scores.values()])
    results["average"]["by_rule"] = {"default": results["average"]}
    note = "the error of the average is too small: none (all right or all wrong) has none\n"
    print_scores(results)
    assert capsys.readouterr().out.endswith(note)
    results["results"] = {"some": scores["some"]}
    print_scores(results)
    assert "too small" not in capsys.readouterr().out


def claimed(folder, protocol) -> dict:
    samples = Samples(folder, [], protocol)
    samples.close()
    return samples.protocol


def test_a_results_folder_is_only_taken_up_under_the_same_protocol(tmp_path, evaluation):
    folder = tmp_path / "results"
    protocol = {"ckpt": "mine", "seed": 0, "checkpoint_sha256": "a", "suite": {"repetitions": 16}}
    protocol |= {"run": {"steps": 2}}
    claimed(folder, protocol)
    assert claimed(folder, protocol | {"run": {"steps": 4}}) == protocol  # resumed since
    # Another spelling of the path of the same model
    assert claimed(folder, protocol | {"ckpt": "./mine/../mine"}) == protocol
    (folder / "samples.jsonl").write_text("precious")
    for name, value in (("checkpoint_sha256", "b"), ("suite", {"repetitions": 1})):
        with refused(rf"protocol\.json: is of another evaluation \(different {name}\)"):
            claimed(folder, protocol | {name: value})
    assert (folder / "samples.jsonl").read_text() == "precious"
    # The template may come from a file of the model, which no hash of the suite covers.
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template = "Be brief. " + tokenizer.chat_template
    other = Evaluation.prepare(evaluation.suite, tokenizer, seed=0)
    first, second = (one.protocol("x", TINY_MODEL, None, "float32") for one in (evaluation, other))
    assert {key for key in first if first[key] != second[key]} == {"prompts_sha256"}


def test_samples_are_taken_up_again_without_the_line_that_was_cut_off(
    tmp_path, evaluation, records
):
    samples = Samples(tmp_path, evaluation.sample_keys(), {})
    for record in records[:4]:
        samples.add(record)
    with refused("another evaluation is writing it; wait for it, or name another folder"):
        Samples(tmp_path, evaluation.sample_keys(), {})
    samples.close()
    path = tmp_path / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Samples(tmp_path, evaluation.sample_keys(), {})
    again.close()
    assert list(again.records) == [key_of(record) for record in records[:3]]
    assert path.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]


def test_a_folder_that_cannot_be_written_is_a_line(tmp_path, evaluation, records):
    samples = Samples(tmp_path / "full", evaluation.sample_keys(), {})
    with open("/dev/full", "w") as full:
        os.dup2(full.fileno(), samples._file.fileno())
    with refused(r"cannot be written \(No space left on device\); free some disk space, then rep"):
        samples.add(records[0])
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("precious")
    with refused("is not empty and holds no evaluation; --output-dir names another folder"):
        claimed(tmp_path / "thesis", {})
    with refused("cannot be written"):
        claimed(tmp_path / "thesis" / "thesis.tex" / "results", {})


OTHER = '{"dataset": "other", "index": 0, "repetition": 0}'


@pytest.mark.parametrize("line", [OTHER, "[]", "nonsense", "twice"])
def test_samples_of_something_else_are_refused(tmp_path, evaluation, records, line):
    first = json.dumps(records[0])
    write_json(tmp_path / "protocol.json", {})
    (tmp_path / "samples.jsonl").write_text(f"{first}\n{first if line == 'twice' else line}\n")
    with refused(r"samples\.jsonl:2: "):
        Samples(tmp_path, evaluation.sample_keys(), {})
