"""The files of an evaluation as types: samples.jsonl, protocol.json, results.json and comparison.json.

The keys are those of the files, so that old evaluations stay readable. In these files `runs` and `run` count the
repetitions of a problem, except that `run` in a protocol is the training run of the checkpoint.
"""

from typing import NamedTuple, NotRequired, TypedDict


class KeptRecord(TypedDict):
    """What scores need of a sampled answer and its verdict. The memory of a large evaluation holds no more."""

    dataset: str
    id: str  # of the problem
    index: int  # of the problem in its data set
    run: int  # repetition of the problem, from 0
    seed: int
    answer: str | None  # the final answer, None where the text has none
    correct: bool  # by the rule `grader` of the protocol
    verdicts: dict[str, bool | str]  # by rule: whether it is correct, or why grading failed (timeout, death, exception)
    vote: str | None  # the final answer in normal form, for the majority vote
    tokens: int
    finish_reason: str  # stop or length


class SampleRecord(KeptRecord):
    """One line of samples.jsonl."""

    text: str


def without_text(record: SampleRecord) -> KeptRecord:
    """Return what stays in memory of a record that has been written."""
    return {key: value for key, value in record.items() if key != "text"}  # type: ignore[return-value]


class Request(NamedTuple):
    """One answer to sample: a repetition of problem `index` of a data set. Identifies its record."""

    dataset: str
    index: int  # type: ignore[assignment]  # replaces tuple.index, which nobody calls
    repetition: int

    @classmethod
    def of(cls, record: KeptRecord) -> "Request":
        """Return the request that `record` answers. Raises KeyError or TypeError if it is no record."""
        return cls(record["dataset"], record["index"], record["run"])


class Score(TypedDict):
    """pass@1 and its standard error, as shares between 0 and 1."""

    pass1: float
    se: float


class DatasetScores(Score):
    """The scores of one data set, all as shares between 0 and 1 unless noted, by the rule `grader` of the protocol."""

    problems: int
    runs: int
    by_rule: dict[str, Score]  # of every rule; absent from old files
    sd_runs: float | None  # standard deviation of pass@1 between repetitions, None with one repetition
    pass_at_k: dict[str, float]
    majority: float
    mean_tokens: float  # tokens per answer
    truncated: float
    no_box: float


class AverageScore(Score):
    """The mean over the data sets."""

    by_rule: dict[str, Score]


class Results(TypedDict):
    """results.json: protocol and scores of one model."""

    protocol: dict
    results: dict[str, DatasetScores]
    average: AverageScore
    grading_failures: dict[str, int]  # answers that could not be graded, by rule and kind of failure
    time: NotRequired[dict]  # absent from evaluations during training and regraded ones


class PairedDifference(TypedDict):
    """comparison.json, per data set: the difference in pass@1, its 95 % interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    detectable: float  # the smallest true difference that is found with 80 % power
    p_value: float
