import numpy as np
import pytest

from bnpo.evaluation.scores import average, majority_vote, paired_bootstrap, pass_at_1, pass_at_k, summarize


def test_the_clustered_error_covers_at_its_nominal_rate():
    """2,000 evaluations of 200 problems with known probabilities, 4 runs each; the truth is the mean probability."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(2000):
        probabilities = rng.beta(0.5, 0.8, size=200)
        correct = (rng.random((200, 4)) < probabilities[:, None]).astype(float)
        score, error = pass_at_1(correct)
        truth = 0.5 / 1.3
        covered += abs(score - truth) <= 1.96 * error
        naive += abs(score - truth) <= 1.96 * correct.std() / np.sqrt(correct.size)
    assert 0.93 <= covered / 2000 <= 0.97
    assert naive / 2000 < 0.9  # what taking all answers for independent would give


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    probabilities = rng.random(50)
    estimates = [pass_at_k((rng.random((50, 8)) < probabilities[:, None]).astype(int), 3) for _ in range(2000)]
    assert np.mean(estimates) == pytest.approx(np.mean(1 - (1 - probabilities) ** 3), abs=3e-3)


def test_pass_at_k_ends():
    correct = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert pass_at_k(correct, 1) == pytest.approx(correct.mean())
    assert pass_at_k(correct, 4) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("correct", "answers", "share"),
    [
        ([1, 1, 0], ["2", "2.0", "3"], 1.0),
        ([1, 0, 0], ["2", "3", "3"], 0.0),
        ([1, 0, 0], ["2", "3", "4"], 1 / 3),
        ([0, 0, 0], [None, None, None], 0.0),
        ([1, 0, 0], ["2", None, None], 1.0),
        ([1, 0, 0], [None, None, None], 1.0),
    ],
)
def test_majority(correct, answers, share):
    assert majority_vote(np.array([correct]), [answers]) == pytest.approx(share)


def test_average_of_data_sets():
    scores = [{"pass1": 0.5, "se": 0.03}, {"pass1": 0.1, "se": 0.04}]
    assert average(scores) == {"pass1": pytest.approx(0.3), "se": pytest.approx(0.025)}


def test_the_bootstrap_interval_covers_and_p_values_are_uniform_under_no_difference():
    rng = np.random.default_rng(1)
    reports = [paired_bootstrap({"x": rng.normal(0, 0.3, 100)}, seed=i)["x"] for i in range(300)]
    assert np.mean([r["low"] <= 0 <= r["high"] for r in reports]) > 0.9
    assert 0.4 < np.mean([r["p_value"] for r in reports]) < 0.6


def test_the_bootstrap_sees_a_difference_and_its_average():
    rng = np.random.default_rng(2)
    report = paired_bootstrap({"x": rng.normal(0.2, 0.3, 200), "y": rng.normal(0.0, 0.3, 100)}, seed=0)
    assert report["x"]["low"] > 0
    assert report["x"]["p_value"] < 0.001
    assert report["y"]["low"] < 0 < report["y"]["high"]
    assert report["average"]["difference"] == pytest.approx((report["x"]["difference"] + report["y"]["difference"]) / 2)
    assert report["average"]["high"] - report["average"]["low"] < report["y"]["high"] - report["y"]["low"]


def test_summary():
    def record(index, run, correct, answer, tokens, finish_reason):
        fields = {"index": index, "repetition": run, "correct": correct, "answer": answer, "vote": answer}
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
        "majority": 0.25,
        "mean_tokens": 25.0,
        "truncated": 0.25,
        "no_box": 0.25,
    }
