"""Scores of evaluated answers and their uncertainty, from arrays correct [problems, repetitions] in {0, 1}."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb, hypot, sqrt
from statistics import multimode

import numpy as np

from bnpo.evaluation.protocol import LoadedSuite
from bnpo.evaluation.records import DatasetScores, KeptRecord, PairedDifference, Protocol, Request, Results, Score

RESAMPLES = 10_000  # of the bootstrap
DETECTED = 2.8
"""Standard errors of a difference that a two-sided test at 5 % finds with a probability of 80 %: 1.96 + 0.84."""
Records = Mapping[Request, KeptRecord]


def pass_at_1(correct: np.ndarray) -> tuple[float, float]:
    """Return pass@1 and its standard error, from correct [problems, repetitions].

    Answers to one problem are not independent. The error is therefore that of the mean of the problems' means
    (clustered by problem; Miller 2024, "Adding Error Bars to Evals").

    >>> score, error = pass_at_1(np.array([[1, 1], [0, 0], [1, 0], [1, 0]]))
    >>> score, round(error, 4)
    (0.5, 0.2041)
    """
    means = correct.mean(axis=1)  # [problems]
    return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Return the probability that at least one of k answers is correct: the unbiased estimate from correct
    [problems, n] with n >= k repetitions (Chen et al. 2021, Eq. 1).

    >>> pass_at_k(np.array([[1, 0, 0, 0], [0, 0, 0, 0]]), 2)
    0.25
    """
    n = correct.shape[1]
    return float(np.mean([1 - comb(n - int(c), k) / comb(n, k) for c in correct.sum(axis=1)]))


def majority_vote(correct: np.ndarray, answers: Sequence[Sequence[str | None]]) -> float:
    """Return the share of problems whose most frequent answer is correct. A tie counts with the correct share of it.

    `correct` is [problems, repetitions], `answers` [problems][repetitions] are in `normal_form`. All correct answers
    are one party. None votes only if it is correct: the released code's grader may accept an answer without a box.

    >>> majority_vote(np.array([[1, 1, 0, 0], [1, 0, 0, 0]]), [["1/2", "0.5", "3", "3"], ["1", "2", "2", None]])
    0.25
    """
    shares = []
    for correct_row, answer_row in zip(correct, answers, strict=True):
        votes: list[object] = []
        for is_correct, answer in zip(correct_row, answer_row, strict=True):
            if is_correct:
                votes.append("correct")
            elif answer is not None:
                votes.append(("wrong", answer))
        winners = multimode(votes)
        shares.append(winners.count("correct") / len(winners) if winners else 0.0)
    return float(np.mean(shares))


def detectable(problems: int, repetitions: int, within: float, error: float) -> tuple[float, float]:
    """Return the smallest true difference to another model that is found with 80 % power, paired by problem.

    The first is for a model that solves every problem about as often, so that only the answers are random. The second
    is for a model whose scores on the problems are unrelated. `within` is the variance of an answer to a problem,
    E[p (1 - p)] over problems with solve rates p, and `error` the standard error of pass@1.

    >>> low, high = detectable(problems=500, repetitions=16, within=0.1, error=0.02)
    >>> round(low, 3), round(high, 3)
    (0.014, 0.079)
    """
    return DETECTED * sqrt(2 * within / (problems * repetitions)), DETECTED * sqrt(2) * error


def describe_detectable(limits: Mapping[str, tuple[float, float]]) -> str:
    """Return the differences of `detectable` by data set, and that of the average over the data sets, in points.

    A limit of 0 is no estimate: all answers are wrong, say, so that none differs from another.
    """
    limits = dict(limits)
    lows, highs = np.array(list(limits.values())).round(9).T  # means of equal values may differ in their last bits
    if len(limits) > 1 and lows.all() and highs.all():
        limits["average"] = hypot(*lows) / len(lows), hypot(*highs) / len(highs)
    texts = []
    for name, (low, high) in limits.items():
        if round(high, 9) == 0:
            texts.append(f"{name} cannot be estimated, as all its problems have the same score")
        else:
            texts.append(f"{name} {f'{100 * low:.1f}' if round(low, 9) else '?'} to {100 * high:.1f}")
    return ", ".join(texts)


def describe_score(score: Score, problems: int) -> str:
    """Return pass@1 in percent with its standard error or, if every answer is right or every one wrong, its bound.

    The bound is the rule of three: no event in n trials puts the rate below 3 / n with a confidence of 95 %.

    >>> describe_score({"pass1": 0.25, "se": 0.01}, 500), describe_score({"pass1": 0.0, "se": 0.0}, 30)
    ('25.0 ± 1.0', '0.0 (below 10.0)')
    """
    if score["pass1"] in (0, 1):
        bound = min(1.0, 3 / problems)
        side = f"above {100 - 100 * bound:.1f}" if score["pass1"] else f"below {100 * bound:.1f}"
        return f"{100 * score['pass1']:.1f} ({side})"
    return f"{100 * score['pass1']:.1f} ± {100 * score['se']:.1f}"


def describe_difference(paired: PairedDifference) -> tuple[str, str, str, str]:
    """Return difference, 95 % interval, p-value and smallest detectable difference as cells of a table, in points.

    There is no interval if the difference is the same on all problems.
    """
    interval, found = "-", "-"
    if paired["detectable"] is not None:
        interval = f"{100 * paired['low']:+.1f} to {100 * paired['high']:+.1f}"
        found = f"{100 * paired['detectable']:.1f}"
    return f"{100 * paired['difference']:+.1f}", interval, f"{paired['p_value']:.4f}", found


def average(scores: Sequence[Score]) -> Score:
    """Return the mean of the data sets' scores with its standard error. The weights are equal, as in the paper."""
    errors = np.array([score["se"] for score in scores])
    mean = np.mean([score["pass1"] for score in scores])
    return {"pass1": float(mean), "se": float(np.sqrt((errors**2).sum()) / len(errors))}


def summarize(records: Sequence[KeptRecord], repetitions: int) -> DatasetScores:
    """Return all scores of one data set from its records, ordered by problem, `repetitions` of each."""
    correct = verdicts(records, repetitions)
    by_rule: dict[str, Score] = {}
    for rule in records[0]["verdicts"]:
        rule_score, rule_error = pass_at_1(verdicts(records, repetitions, rule))
        by_rule[rule] = {"pass1": rule_score, "se": rule_error}
    votes = np.array([record["vote"] for record in records], object).reshape(-1, repetitions)
    score, error = pass_at_1(correct)
    ks = [2**i for i in range(repetitions.bit_length()) if 2**i < repetitions] + [repetitions]
    return {
        "problems": len(correct),
        "repetitions": repetitions,
        "pass1": score,
        "se": error,
        "by_rule": by_rule,
        "sd_repetitions": float(correct.mean(axis=0).std(ddof=1)) if repetitions > 1 else None,
        "pass_at_k": {str(k): pass_at_k(correct, k) for k in ks},
        "majority": majority_vote(correct, votes.tolist()),
        "mean_tokens": float(np.mean([record["tokens"] for record in records])),
        "truncated": float(np.mean([record["finish_reason"] == "length" for record in records])),
        "no_box": float(np.mean([record["answer"] is None for record in records])),
    }


def score_all(evaluation: LoadedSuite, records: Records, protocol: Protocol) -> Results:
    """Return the content of results.json from all records: the scores of every data set, and their average."""
    results = {}
    for name, dataset in evaluation.suite.datasets.items():
        results[name] = summarize(of_dataset(evaluation, records, name), dataset.repetitions)
    scores = list(results.values())
    by_rule = {rule: average([score["by_rule"][rule] for score in scores]) for rule in scores[0]["by_rule"]}
    failures: Counter[str] = Counter()
    for record in records.values():
        failures.update(f"{rule}: {why}" for rule, why in record["verdicts"].items() if isinstance(why, str))
    return {
        "protocol": protocol,
        "results": results,
        "average": {**average(scores), "by_rule": by_rule},
        "grading_failures": dict(sorted(failures.items())),
    }


def compare(evaluation: LoadedSuite, base: Records, other: Records) -> dict[str, PairedDifference]:
    """Compare all records of `other` with those of `base` by a paired bootstrap over problems."""
    differences = {}
    for name, dataset in evaluation.suite.datasets.items():
        base_correct = verdicts(of_dataset(evaluation, base, name), dataset.repetitions)  # [problems, repetitions]
        other_correct = verdicts(of_dataset(evaluation, other, name), dataset.repetitions)
        differences[name] = (other_correct - base_correct).mean(axis=1)
    return paired_bootstrap(differences, evaluation.seed)


def of_dataset(evaluation: LoadedSuite, records: Records, name: str) -> list[KeptRecord]:
    """Return the records of data set `name`, ordered by problem and repetition."""
    return [records[request] for request in evaluation.requests() if request.dataset == name]


def verdicts(records: Sequence[KeptRecord], repetitions: int, rule: str | None = None) -> np.ndarray:
    """Return correct [problems, repetitions] by `rule`, or by that of the protocol, from a data set's records."""
    if rule is None:
        correct = [record["correct"] for record in records]
    else:
        correct = [record["verdicts"][rule] is True for record in records]
    return np.array(correct, float).reshape(-1, repetitions)


def paired_bootstrap(differences: Mapping[str, np.ndarray], seed: int) -> dict[str, PairedDifference]:
    """Compare two models on the same problems, from the differences [problems] of their means per problem by data set.

    The problems are drawn again with replacement RESAMPLES times. The interval is that of the percentiles. With several
    data sets, `average` is their mean.
    """
    rng = np.random.default_rng(seed)
    resampled, observed = {}, {}
    varies = {name: bool((values != values[0]).any()) for name, values in differences.items()}
    for name, values in differences.items():
        resampled[name] = rng.choice(values, (RESAMPLES, len(values))).mean(axis=1)  # [RESAMPLES]
        observed[name] = values.mean()
    if len(differences) > 1:
        resampled["average"] = np.mean(list(resampled.values()), axis=0)
        observed["average"] = np.mean(list(observed.values()))
        varies["average"] = any(varies.values())
    report: dict[str, PairedDifference] = {}
    for name, means in resampled.items():
        low, high = np.percentile(means, [2.5, 97.5])
        # With one added to both counts a p-value is never 0 (Davison and Hinkley 1997, Section 4.2).
        tails = [1 + (means <= 0).sum(), 1 + (means >= 0).sum()]
        report[name] = {
            "difference": float(observed[name]),
            "low": float(low),
            "high": float(high),
            "detectable": DETECTED * float(means.std()) if varies[name] else None,
            "p_value": float(min(1.0, 2 * min(tails) / (RESAMPLES + 1))),
        }
    return report
