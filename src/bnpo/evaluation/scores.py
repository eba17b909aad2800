"""Scores of evaluated answers and their uncertainty."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import comb, sqrt

import numpy as np

from bnpo.evaluation.protocol import Record, key_of
from bnpo.evaluation.suites import Suite

# Standard errors of a difference that a two-sided test at 5 % finds in 80 % of all cases
DETECTED = 1.96 + 0.84
# pass1 and its standard error se, between 0 and 1; docs/evaluation.md lists other scores
Score = dict[str, float]


def pass_at_1(correct: np.ndarray) -> Score:
    """Return pass@1 and its standard error, from correct [problems, repetitions].

    Answers to one problem are not independent. The error is therefore that of the mean of the
    problems' means (clustered by problem; Miller 2024, "Adding Error Bars to Evals").

    >>> pass_at_1(np.array([[1, 1], [0, 0], [1, 0], [1, 0]]))
    {'pass1': 0.5, 'se': 0.2041241452319315}
    """
    means = correct.mean(axis=1)  # [problems]
    return {"pass1": float(means.mean()), "se": float(means.std(ddof=1) / np.sqrt(len(means)))}


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Return the probability that one of k answers is right: the unbiased estimate from correct
    [problems, n] with n >= k repetitions (Chen et al. 2021, Eq. 1).

    >>> pass_at_k(np.array([[1, 0, 0, 0], [0, 0, 0, 0]]), 2)
    0.25
    """
    n = correct.shape[1]
    return float(np.mean([1 - comb(n - int(c), k) / comb(n, k) for c in correct.sum(axis=1)]))


def detectable(error: float) -> float:
    """Return the smallest true difference to another, unrelated model that is found with 80 %
    power, from the error of pass@1.

    >>> round(detectable(0.02), 3)
    0.079
    """
    return DETECTED * sqrt(2) * error


def describe_score(score: Score, problems: int) -> str:
    """Return pass@1 in percent with its standard error or, at 0 and 100 %, its bound.

    The bound is the rule of three: no event in n trials puts the rate below 3 / n with a confidence
    of 95 %.

    >>> describe_score({"pass1": 0.25, "se": 0.01}, 500)
    '25.0 ± 1.0'
    >>> describe_score({"pass1": 0.0, "se": 0.0}, 30)
    '0.0 (below 10.0)'
    """
    percent = 100 * score["pass1"]
    bound = 100 * min(1.0, 3 / problems)
    if score["pass1"] == 1:
        return f"{percent:.1f} (above {100 - bound:.1f})"
    if score["pass1"] == 0:
        return f"{percent:.1f} (below {bound:.1f})"
    return f"{percent:.1f} ± {100 * score['se']:.1f}"


def problems_of_average(problems: Sequence[int]) -> int:
    """Return the n of the bound 3 / n of the average over data sets with `problems` each: of all
    sets, the smallest can hide the largest rate, which counts as that of one set.

    >>> describe_score({"pass1": 0.0, "se": 0.0}, problems_of_average([500, 30]))
    '0.0 (below 5.0)'
    """
    return len(problems) * min(problems)


def describe_scores(results: dict) -> str:
    """Return pass@1 of all data sets in a results.json, and of their average, in a line."""
    by_name = results["results"]
    scores = {name: describe_score(score, score["problems"]) for name, score in by_name.items()}
    if len(scores) > 1:
        problems = problems_of_average([score["problems"] for score in by_name.values()])
        scores["average"] = describe_score(results["average"], problems)
    return "pass@1 in %: " + ", ".join(f"{name} {score}" for name, score in scores.items())


def describe_difference(paired: dict) -> tuple[str, str, str, str]:
    """Return difference, 95 % interval, p-value and smallest detectable difference as cells of a
    table, in points.
    """
    interval, found = "-", "-"
    if paired["detectable"] is not None:  # None: the same difference on all problems
        interval = f"{100 * paired['low']:+.1f} to {100 * paired['high']:+.1f}"
        found = f"{100 * paired['detectable']:.1f}"
    return f"{100 * paired['difference']:+.1f}", interval, f"{paired['p_value']:.4f}", found


def average(scores: Sequence[Score]) -> Score:
    """Return the mean score of the data sets, with equal weights as in the paper, and its error."""
    errors = np.array([score["se"] for score in scores])
    mean = np.mean([score["pass1"] for score in scores])
    return {"pass1": float(mean), "se": float(np.sqrt((errors**2).sum()) / len(errors))}


def summarize(records: Sequence[Record], repetitions: int) -> dict:
    """Return all scores of one data set from its records, ordered by problem and repetition."""
    # [problems, repetitions]
    correct = np.reshape([record["correct"] for record in records], (-1, repetitions))
    by_rule = {}
    for rule in records[0]["verdicts"]:
        right = [record["verdicts"][rule] is True for record in records]
        by_rule[rule] = pass_at_1(np.reshape(right, (-1, repetitions)))
    ks = [2**i for i in range(repetitions.bit_length()) if 2**i < repetitions] + [repetitions]
    return {
        "problems": len(correct),
        "repetitions": repetitions,
        **pass_at_1(correct),
        "by_rule": by_rule,
        "sd_repetitions": float(correct.mean(axis=0).std(ddof=1)) if repetitions > 1 else None,
        "pass_at_k": {str(k): pass_at_k(correct, k) for k in ks},
        "mean_tokens": float(np.mean([record["tokens"] for record in records])),
        "truncated": float(np.mean([record["finish_reason"] == "length" for record in records])),
        "no_box": float(np.mean([record["answer"] is None for record in records])),
    }


def score_all(suite: Suite, records: Collection[Record], protocol: dict) -> dict:
    """Return the content of results.json: the scores of every data set, and their average."""
    results = {}
    for name, dataset in suite.datasets.items():
        of_dataset = [record for record in records if record["dataset"] == name]
        results[name] = summarize(sorted(of_dataset, key=key_of), dataset.repetitions)
    scores = list(results.values())
    by_rule = {
        rule: average([score["by_rule"][rule] for score in scores]) for rule in scores[0]["by_rule"]
    }
    failures: Counter[str] = Counter()
    for record in records:
        verdicts = record["verdicts"].items()
        failures.update(f"{rule}: {why}" for rule, why in verdicts if isinstance(why, str))
    return {
        "protocol": protocol,
        "results": results,
        "average": {**average(scores), "by_rule": by_rule},
        "grading_failures": dict(sorted(failures.items())),
    }


def paired_differences(differences: Mapping[str, np.ndarray]) -> dict[str, dict]:
    """Return paired t-tests of two models by data set and, of several sets, of their `average`.

    `differences` [problems] are the differences of their means per problem. On sets of 30 problems,
    the interval covers the true difference more often than a bootstrap (dev/check_intervals.py).

    >>> paired_differences({"x": np.array([0.0, 0.0, 1.0, 1.0])})["x"]["high"]
    1.4186...
    """
    report, means, variances, degrees, problems = {}, [], [], [], 0
    for name, values in differences.items():
        means.append(values.mean())
        # The variances are those of the means. Equal values may differ in their last bits
        equal = np.ptp(values) < 1e-9
        variances.append(0.0 if equal else values.var(ddof=1) / len(values))
        degrees.append(len(values) - 1)
        problems += len(values)
        report[name] = _t_test(means[-1], variances[-1], degrees[-1], len(values))
    if len(differences) > 1:
        parts = np.array(variances) / len(means) ** 2  # of the variance of the average
        # Degrees of freedom by Welch and Satterthwaite
        freedom = parts.sum() ** 2 / max((parts**2 / degrees).sum(), 1e-300)
        report["average"] = _t_test(np.mean(means), parts.sum(), freedom, problems)
    return report


def _t_test(mean: float, variance: float, degrees: float, problems: int) -> dict:
    """Test a mean difference, from the variance of the mean and its degrees of freedom."""
    from scipy.special import stdtr, stdtrit  # takes a third of a second to import

    if variance == 0:  # the same difference on all problems: the p-value is that of a sign test
        p_value, half, detected = (2.0 ** (1 - problems) if mean else 1.0), 0.0, None
    else:
        error = sqrt(variance)
        half = error * float(stdtrit(degrees, 0.975))
        p_value = 2 * float(stdtr(degrees, -abs(mean) / error))
        detected = DETECTED * error
    return {
        "difference": float(mean),
        "low": float(mean - half),
        "high": float(mean + half),
        "detectable": detected,
        "p_value": p_value,
    }
