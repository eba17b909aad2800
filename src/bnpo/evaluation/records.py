"""The files of an evaluation: their types, and the folder, in which every sample is saved as soon as it is graded.

A repetition is one of several answers to the same problem. A run is always a training run.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

from bnpo.files import InputError, lock, read_json, write_json, writing


class KeptRecord(TypedDict):
    """What scores need of a sampled answer and its verdict. The memory of a large evaluation holds no more."""

    dataset: str
    id: str  # of the problem
    index: int  # of the problem in its data set
    repetition: int  # from 0
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
        return cls(record["dataset"], record["index"], record["repetition"])


class Score(TypedDict):
    """pass@1 and its standard error, as shares between 0 and 1."""

    pass1: float
    se: float


class DatasetScores(Score):
    """The scores of one data set, all as shares between 0 and 1 unless noted, by the rule `grader` of the protocol."""

    problems: int
    repetitions: int
    by_rule: dict[str, Score]  # of every rule that has graded
    sd_repetitions: float | None  # standard deviation of pass@1 between repetitions, None with one repetition
    pass_at_k: dict[str, float]
    majority: float
    mean_tokens: float  # tokens per answer
    truncated: float
    no_box: float


class GraderIdentity(TypedDict):
    """The part of a protocol that a regrade replaces."""

    grader: str  # rule of the scores
    graded_by: list[str]  # all rules that have graded the samples, that of the scores first
    grader_sha256: NotRequired[str]  # of the file of a user's rule


class Protocol(GraderIdentity):
    """protocol.json: everything that samples and verdicts depend on."""

    ckpt: str
    checkpoint_sha256: str | None
    run: dict | None  # config.json of the training run that the checkpoint belongs to
    suite: dict
    prompts_sha256: str  # of the token ids
    seed: int
    limit: int | None
    dtype: str
    answer_tags: bool
    versions: dict[str, str]


class Results(TypedDict):
    """results.json: protocol and scores of one model."""

    protocol: Protocol
    results: dict[str, DatasetScores]
    average: dict  # the mean over the data sets: a Score, and `by_rule` as of a data set
    grading_failures: dict[str, int]  # answers that could not be graded, by rule and kind of failure
    time: NotRequired[dict]  # absent from evaluations during training and regraded ones


class PairedDifference(TypedDict):
    """comparison.json, per data set: the difference in pass@1, its 95 % interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    detectable: float | None  # smallest true difference found with 80 % power; None: it is the same for all problems
    p_value: float


def claim_results_folder(folder: Path, protocol: Protocol) -> Protocol:
    """Create `folder` for results under `protocol`, or open it to continue an interrupted evaluation.

    Returns the protocol in the folder. Only its `run` may differ: the training run may have been resumed since, which
    leaves the checkpoint as it was. Raises InputError if the folder holds anything else.
    """
    path = folder / "protocol.json"
    with writing(folder, "choose another --output-dir"):
        if not path.exists():
            if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
                raise InputError(f"{folder}: is not empty and holds no evaluation; --output-dir names another folder")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, protocol)
        saved = read_json(path, advice="--output-dir names another folder")
    # Through JSON, which turns paths into texts and tuples into lists, as in the file.
    given = json.loads(json.dumps(protocol, default=str))
    keys = (given | saved).keys() - {"run"}
    differing = sorted(key for key in keys if given.get(key) != saved.get(key))
    if differing:
        difference = f"different {', '.join(differing)}; see {path.name}"
        raise InputError(
            f"{folder}: holds results of another evaluation ({difference}); --output-dir names another folder"
        )
    return saved


class Samples:
    """The records in <folder>/samples.jsonl, written as they come. `records` holds them without their texts.

    Opening reads the records of an interrupted evaluation and removes a last line that was cut off. Raises InputError
    for a record that answers none of `requests`, or if another process writes the file.
    """

    def __init__(self, folder: Path, requests: Iterable[Request]):
        self._path = folder / "samples.jsonl"
        self.records: dict[Request, KeptRecord] = {}
        refusal = (
            f"{self._path}: another evaluation is writing it; wait for it, or name another folder with --output-dir"
        )
        self._lock = lock(folder, refusal)
        self._file = self._path.open("a", encoding="utf-8")
        expected = set(requests)
        for where, record, request in self.read():
            if request not in expected or request in self.records:
                reason = "is repeated" if request in self.records else "is not of this suite"
                raise InputError(f"{where}: sample {tuple(request)} {reason}; delete the folder to start again")
            self.records[request] = without_text(record)

    def read(self) -> Iterator[tuple[str, SampleRecord, Request]]:
        """Yield each record, text included, with its place and its request. A last line that was cut off is removed."""
        complete = 0  # bytes
        with self._path.open("rb") as file:
            for line_number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.truncate(self._path, complete)
                    return
                complete += len(line)
                where = f"{self._path}:{line_number}"
                try:
                    record = json.loads(line)
                    request = Request.of(record)
                except (ValueError, KeyError, TypeError) as error:
                    raise InputError(f"{where}: not a sample ({error}); delete the folder to start again") from error
                yield where, record, request

    def add(self, record: SampleRecord) -> None:
        """Add a record. When this returns, a killed process no longer loses it."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records[Request.of(record)] = without_text(record)

    def close(self) -> None:
        """Close the file, and let other processes write it."""
        self._file.close()
        self._lock.release()
