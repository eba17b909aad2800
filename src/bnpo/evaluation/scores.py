"""Scores of evaluated answers and their uncertainty, most of them functions of correct [problems, runs] in {0, 1}."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from statistics import multimode

import numpy as np

from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import Request

RESAMPLES = 10_000
Records = Mapping[Request, Mapping]


def pass_at_1(correct: np.ndarray) -> tuple[float, float]:
    """Mean and standard error of pass@1 from correct [problems, runs].

    The problems are the independent draws, not the answers: the error is that of the mean of the problems' means
    (clustered by problem; Miller 2024, "Adding Error Bars to Evals").

    >>> score, error = pass_at_1(np.array([[1, 1], [0, 0], [1, 0], [1, 0]]))
    >>> score, round(error, 4)
    (0.5, 0.2041)
    """
    means = correct.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Probability that one of k answers is right, from n >= k runs without bias (Chen et al. 2021, Eq. 1).

    >>> pass_at_k(np.array([[1, 0, 0, 0], [0, 0, 0, 0]]), 2)
    0.25
    """
    n = correct.shape[1]
    return float(np.mean([1 - comb(n - int(c), k) / comb(n, k) for c in correct.sum(axis=1)]))


def majority_vote(correct: np.ndarray, answers: Sequence[Sequence[str | None]]) -> float:
    """Share of problems whose most frequent answer is right; of tied answers each counts as likely.

    Right answers are one party however they are spelled; `answers` [problems][runs] in `normal_form` tell the others
    apart, and None does not vote, unless it is right (as the released grader may find without a box).

    >>> majority_vote(np.array([[1, 1, 0, 0], [1, 0, 0, 0]]), [["1/2", "0.5", "3", "3"], ["1", "2", "2", None]])
    0.25
    """
    shares = []
    for row, texts in zip(correct, answers, strict=True):
        voters = [(c, text) for c, text in zip(row, texts, strict=True) if c or text is not None]
        best = multimode("right" if c else ("wrong", text) for c, text in voters)
        shares.append(best.count("right") / len(best) if best else 0.0)
    return float(np.mean(shares))


def average(scores: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean of the data sets' scores, each counting the same as in the paper's tables, and its standard error."""
    means, errors = np.array(scores).T
    return float(means.mean()), float(np.sqrt((errors**2).sum()) / len(errors))


def summarize(records: Sequence[Mapping], runs: int) -> dict:
    """All scores of one data set from its records, problem by problem, `runs` of each."""
    correct = verdicts(records, runs)
    votes = np.array([record["vote"] for record in records], object).reshape(-1, runs)
    score, error = pass_at_1(correct)
    powers = [2**i for i in range(runs.bit_length()) if 2**i < runs]
    return {
        "problems": len(correct),
        "runs": runs,
        "pass1": score,
        "se": error,
        "sd_runs": float(correct.mean(axis=0).std(ddof=1)) if runs > 1 else None,
        "pass_at_k": {str(k): pass_at_k(correct, k) for k in [*powers, runs]},
        "majority": majority_vote(correct, votes.tolist()),
        "mean_tokens": float(np.mean([record["tokens"] for record in records])),
        "truncated": float(np.mean([record["finish_reason"] == "length" for record in records])),
        "no_box": float(np.mean([record["answer"] is None for record in records])),
    }


def scores(evaluation: Evaluation, records: Records) -> dict:
    """Scores of every data set and their average, from all records."""
    results = {
        name: summarize(of_dataset(evaluation, records, name), dataset.runs)
        for name, dataset in evaluation.suite.datasets.items()
    }
    mean, error = average([(result["pass1"], result["se"]) for result in results.values()])
    failures = Counter(record["failure"] for record in records.values() if record["failure"])
    return {
        "results": results,
        "average": {"pass1": mean, "se": error},
        "grading_failures": dict(sorted(failures.items())),
    }


def compare(evaluation: Evaluation, base: Records, other: Records) -> dict[str, dict[str, float]]:
    """Paired bootstrap of `other` against `base`, all records of two models."""
    differences = {}
    for name, dataset in evaluation.suite.datasets.items():
        correct = [verdicts(of_dataset(evaluation, records, name), dataset.runs) for records in (base, other)]
        differences[name] = (correct[1] - correct[0]).mean(axis=1)
    return paired_bootstrap(differences, evaluation.seed)


def of_dataset(evaluation: Evaluation, records: Records, name: str) -> list[Mapping]:
    """The records of a data set, problem by problem."""
    return [records[request] for request in evaluation.requests() if request.dataset == name]


def verdicts(records: Sequence[Mapping], runs: int) -> np.ndarray:
    """correct [problems, runs] of a data set's records, problem by problem."""
    return np.array([record["correct"] for record in records], float).reshape(-1, runs)


def paired_bootstrap(differences: Mapping[str, np.ndarray], seed: int) -> dict[str, dict[str, float]]:
    """Compare two models on the same problems: `differences` [problems] of their problems' means, by data set.

    Problems are drawn again with replacement RESAMPLES times. Gives for each data set, and for their average as
    `average`, the difference, its 95 % interval (percentiles) and the two-sided p-value of no difference.
    """
    rng = np.random.default_rng(seed)
    draws = {
        name: rng.choice(values, (RESAMPLES, len(values))).mean(axis=1)  # [RESAMPLES]
        for name, values in differences.items()
    }
    observed = {name: values.mean() for name, values in differences.items()}
    if len(differences) > 1:
        draws["average"] = np.mean(list(draws.values()), axis=0)
        observed["average"] = np.mean(list(observed.values()))
    report = {}
    for name, means in draws.items():
        low, high = np.percentile(means, [2.5, 97.5])
        # With one added to both counts a p-value is never 0 (Davison and Hinkley 1997, Section 4.2).
        tails = [1 + (means <= 0).sum(), 1 + (means >= 0).sum()]
        report[name] = {
            "difference": float(observed[name]),
            "low": float(low),
            "high": float(high),
            "p_value": float(min(1.0, 2 * min(tails) / (RESAMPLES + 1))),
        }
    return report
