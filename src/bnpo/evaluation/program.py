"""Evaluation as a program (`python eval.py`), and during training: sample what is missing, grade and score it."""

import hashlib
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro
from tqdm import tqdm

from bnpo.config import NotNegative, Planning, Positive, Share, TrainConfig, check_planning, validate
from bnpo.environment import setup_environment
from bnpo.evaluation.protocol import Evaluation, sample_records
from bnpo.evaluation.records import Protocol, Request, Results, Samples, claim_results_folder
from bnpo.evaluation.regrade import regrade
from bnpo.evaluation.scores import compare, score_all
from bnpo.evaluation.suites import Suite, load_suite, override
from bnpo.files import ROOT, InputError, RunError, write_json, write_json_lines, writing
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS, check_function
from bnpo.grading.workers import signal_at_program_end
from bnpo.policy.folder import load_tokenizer, model_folder, model_hash, training_config, whole_model
from bnpo.policy.sampling import EngineSettings, SampledGroup

if TYPE_CHECKING:  # torch and vLLM take seconds to import: only where they run
    from bnpo.policy.sampler import Sampler


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a model: pass@1 over several repetitions of every problem, with error bars. Saves every sample."""

    ckpt: str = ""
    """Model to evaluate: a Hugging Face folder, a LoRA adapter's folder, a hub name, or the folder of a training run
    (<run> or <run>/last for its last checkpoint, <run>/best for its best)."""
    regrade: Path | None = None
    """Grade the samples in this folder of an evaluation again by all rules, without a model, and show which verdicts
    change. Goes with --grader only."""
    base: str | None = None
    """Second model, evaluated in the same way and compared with --ckpt problem by problem."""
    suite: str = "auto"
    """Evaluation suite: a name from evals/ (such as paper, school, olympiad, contests-2025, contests-2026) or the path
    of a JSON file. `auto` uses the suite of the preset that trained --ckpt, and paper for other models."""
    repetitions: tuple[str, ...] = ()
    """Answers to each problem, in place of the suite's number: N for all data sets, or NAME=N for one."""
    limit: int | None = None
    """Evaluate only the first LIMIT problems of each data set."""
    output_dir: Path | None = None
    """Folder for samples.jsonl and results.json, by default evals/results/<suite>-<model>-<hash>. Repeat an interrupted
    command to continue it."""
    seed: NotNegative[int] = 0
    """Seed of the sampling."""
    grader: Annotated[str | None, tyro.conf.arg(metavar=f"{{{','.join(GRADERS)},path/to/file.py:function}}")] = None
    """Rule of the scores: `default` is this project's, `paper` that of the paper's released code. A function of your
    own is like a reward, and an answer is correct if it returns 1. The default is the suite's rule."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number format of the sampler. `auto` is bfloat16 on GPUs and float32 on CPUs."""
    data_parallel: Positive[int] | None = None
    """Number of samplers that work side by side, by default as many as the GPUs allow."""
    tensor_parallel: Positive[int] = 1
    """Number of GPUs per sampler. Raise it for a model that does not fit on one GPU."""
    gpu_memory: Share = 0.9
    """Share of each GPU's memory that a sampler may use."""
    enforce_eager: bool = False
    """Start faster, but sample more slowly: without CUDA graphs."""
    planning: Planning = Planning()


# The suite that `--suite auto` selects for checkpoints of these presets. All other models get `paper`.
SUITE_OF_PRESET = {"tiny": "arithmetic", "smollm2": "word-problems", "paper-format": "paper-format"}


@dataclass(frozen=True)
class Job:
    """One model to evaluate, already checked."""

    model: Path
    evaluation: Evaluation
    folder: Path  # of its results
    protocol: Protocol
    samples: Samples  # so far


class Outcome(NamedTuple):
    """The files of an evaluation."""

    folder: Path
    results: list[Results]  # of --base, if given, and of --ckpt
    comparison: dict | None  # comparison.json
    changes: list[dict] | None = None  # verdicts that a regrade has changed


def run(config: EvalConfig) -> Outcome:
    """Evaluate --ckpt, and --base if given. Raises InputError before a model is loaded."""
    check(config)
    if config.regrade:
        results, changes = regrade(config.regrade, config.grader)
        return Outcome(config.regrade, [results], None, changes)
    from bnpo.ranks import visible_gpus  # imports torch, which takes seconds: only after `check` has passed

    gpus = visible_gpus()
    replicas = config.data_parallel or max(1, len(gpus) // config.tensor_parallel)
    if gpus and replicas * config.tensor_parallel > len(gpus):
        flags = f"--data-parallel {replicas} times --tensor-parallel {config.tensor_parallel}"
        raise InputError(f"{flags}: only {len(gpus)} GPUs are visible; lower one of the two")
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bfloat16" if gpus else "float32"
    jobs = prepare_jobs(config, dtype)
    grader = Grader(grader=jobs[0].evaluation.suite.grader)
    results = [evaluate(job, config, gpus, replicas, grader) for job in jobs]
    grader.close()
    folder, comparison = jobs[0].folder, None
    if config.base:
        ckpt, base = jobs
        differences = compare(ckpt.evaluation, base.samples.records, ckpt.samples.records)
        comparison = {"base": base.protocol, "ckpt": ckpt.protocol, "paired": differences}
        write_json(folder / "comparison.json", comparison)
    return Outcome(folder, results[::-1], comparison)


def check(config: EvalConfig) -> None:
    """Raise InputError, one line, for flags that cannot work. Reads no file."""
    validate(EvalConfig, asdict(config))
    check_planning(config.planning)
    if config.grader:
        check_function("grader", config.grader, GRADERS)
    if config.regrade:
        for setting in fields(EvalConfig):
            if setting.name not in ("regrade", "grader") and getattr(config, setting.name) != setting.default:
                flag = setting.name.replace("_", "-")
                raise InputError(f"--{flag}: has no effect with --regrade, which keeps the samples; leave it out")
    elif not config.ckpt:
        raise InputError("--ckpt: name the model to evaluate, or a folder of samples with --regrade")
    if config.base == config.ckpt and config.output_dir is None:
        raise InputError("--base: is the same as --ckpt and would use the same folder; set --output-dir")


def chosen_suite(config: EvalConfig, model: Path) -> Suite:
    """Return the suite of --suite. `auto` depends on how the model in folder `model` was trained. Raises InputError."""
    name = config.suite
    if name == "auto":
        training = training_config(model) or {}
        name = SUITE_OF_PRESET.get(training.get("preset"), "paper")
    return override(load_suite(name), config.repetitions, config.limit, config.grader)


def prepare_jobs(config: EvalConfig, dtype: str) -> list[Job]:
    """Check and read everything that is needed to evaluate --ckpt, and --base if given. Raises InputError."""
    models = [(config.ckpt, model_folder(config.ckpt), config.output_dir)]
    if config.base:
        models.append((config.base, model_folder(config.base), config.output_dir and config.output_dir / "base"))
    suite = chosen_suite(config, models[0][1])  # for both models: only answers to the same prompts can be compared
    return [_prepare_job(config, *model, suite, dtype) for model in models]


def _prepare_job(config: EvalConfig, ckpt: str, model: Path, folder: Path | None, suite: Suite, dtype: str) -> Job:
    tokenizer = load_tokenizer(model, suite.max_prompt_tokens + suite.max_answer_tokens)
    evaluation = Evaluation.prepare(suite, tokenizer, config.seed)
    protocol = evaluation.protocol(ckpt, model, model_hash(model), dtype, config.limit)
    if folder is None:
        label = "-".join(part for part in Path(ckpt).parts if part not in ("/", "..", "."))
        # Without the settings of training, which change when the run is resumed.
        identity = {key: value for key, value in protocol.items() if key != "run"}
        digest = hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()
        folder = ROOT / "evals" / "results" / f"{suite.name}-{label}-{digest[:8]}"
    protocol = claim_results_folder(folder, protocol)
    return Job(model, evaluation, folder, protocol, Samples(folder, evaluation.requests()))


def evaluate(job: Job, config: EvalConfig, gpus: list[str], replicas: int, grader: Grader) -> Results:
    """Sample what is missing, write results.json, and return its content."""
    samples, requests = job.samples, job.evaluation.requests()
    missing = [request for request in requests if request not in samples.records]
    print(f"{job.folder}: {len(requests)} samples, {len(requests) - len(missing)} already there", flush=True)
    started = time.perf_counter()
    if missing:
        _sample_missing(job, missing, config, gpus, replicas, grader)
    samples.close()
    path = job.folder / "results.json"
    if not missing and path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    results = score_all(job.evaluation, samples.records, job.protocol)
    results["time"] = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - started,
        "sampled": len(missing),
    }
    write_json(path, results)
    return results


def _sample_missing(
    job: Job, missing: list[Request], config: EvalConfig, gpus: list[str], replicas: int, grader: Grader
) -> None:
    """Sample and grade `missing`, save every record as it comes, and show the progress."""
    suite, samples = job.evaluation.suite, job.samples
    settings = EngineSettings(
        max_tokens=suite.max_prompt_tokens + suite.max_answer_tokens,
        dtype=job.protocol["dtype"],
        gpu_memory=config.gpu_memory,
        sequences=math.ceil(len(missing) / replicas),
        enforce_eager=config.enforce_eager,
        tensor_parallel=config.tensor_parallel,
    )
    with whole_model(job.model) as folder, fleet(folder, gpus, replicas, settings) as sample:
        done = len(samples.records)
        correct = sum(record["correct"] for record in samples.records.values())
        records = sample_records(job.evaluation, missing, sample, grader)
        bar = tqdm(records, total=done + len(missing), initial=done, unit="sample")
        for record in bar:
            samples.add(record)
            correct += record["correct"]
            bar.set_postfix(correct=f"{correct / len(samples.records):.3f}", refresh=False)


def evaluate_live(
    evaluation: Evaluation, sampler: "Sampler", grader: Grader, config: TrainConfig, checkpoint: Path
) -> Results:
    """Evaluate the policy that `sampler` holds, and return the results. All ranks must call this together.

    `checkpoint` is the folder where this policy would be saved. Rank 0 writes samples.jsonl and results.json to a
    folder of the same name in the run's evals/, like `python eval.py`. Raises InputError if they cannot be written.
    """
    import torch.distributed as dist

    from bnpo.ranks import gather

    own_requests = evaluation.requests()[dist.get_rank() :: dist.get_world_size()]
    own_records = list(sample_records(evaluation, own_requests, sampler.sample, grader))
    records = {Request.of(record): record for record in chain.from_iterable(gather(own_records))}
    protocol = evaluation.protocol(str(checkpoint), checkpoint, None, config.hardware.dtype)
    results = score_all(evaluation, records, protocol)
    if dist.get_rank() == 0:
        folder = config.folder.output_dir / "evals" / checkpoint.name
        # In the order of the requests, whatever the number of ranks.
        write_json_lines(folder / "samples.jsonl", [records[request] for request in evaluation.requests()])
        with writing(folder):
            write_json(folder / "results.json", results)
    return results


class Member(NamedTuple):
    """One sampler: the pipe to its process, and the process."""

    connection: Connection
    process: multiprocessing.Process

    def receive(self) -> object:
        """Return the next message. Raises RuntimeError if the process has died, RunError if it says so."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            raise RuntimeError(f"a sampler's process ended with status {status}; its error is above") from None
        if isinstance(message, RunError):
            raise message
        return message


@contextmanager
def fleet(model: Path, gpus: Sequence[str], replicas: int, settings: EngineSettings) -> Iterator[Callable]:
    """Start `replicas` samplers of the model in a folder. Each has its own GPUs, or its share of the cores.

    Yields a function like `Sampler.sample` (without `greedy_too`) that shares the prompts among them. The samplers end
    with the context. Raises RuntimeError when one of them dies.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    members = []
    try:
        for i in range(replicas):
            connection, far_end = context.Pipe()
            variables = member_environment(i, gpus, replicas, settings.tensor_parallel)
            process = context.Process(target=_serve, args=(far_end, variables, str(model), settings))
            process.start()
            far_end.close()  # otherwise a dead member's pipe would stay open, and `receive` would wait for ever
            members.append(Member(connection, process))
        # All models load at the same time: wait only after every process has been started.
        for member in members:
            member.receive()
        yield partial(_sample, members)
    except BaseException:
        for member in members:
            member.process.terminate()  # it may be sampling, and would not notice the closed pipe for minutes
        raise
    finally:
        for member in members:
            member.connection.close()
            member.process.join()


def member_environment(member: int, gpus: Sequence[str], replicas: int, size: int) -> dict[str, str]:
    """Return the variables of a sampler: which of `gpus` are its own, or how many threads it has.

    >>> member_environment(1, ["4", "5", "6", "7"], replicas=2, size=2)
    {'CUDA_VISIBLE_DEVICES': '6,7'}
    """
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[member * size : (member + 1) * size])}
    cores = max(1, len(os.sched_getaffinity(0)) // replicas)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores))}


def _sample(
    members: Sequence[Member], prompts: Sequence[list[int]], seeds: Sequence[int], **sampling
) -> Iterator[SampledGroup]:
    # Member i of M gets the prompts i, i + M, i + 2 M, ...: neighbours are often equally long, so shares are even.
    count = len(members)
    for i, member in enumerate(members):
        member.connection.send((prompts[i::count], seeds[i::count], sampling))
    busy = {member.connection: i for i, member in enumerate(members)}
    while busy:
        for connection in wait(list(busy)):
            i = busy[connection]
            message = members[i].receive()
            if message is None:  # this member has answered all its prompts
                del busy[connection]
            else:
                own_position, greedy, answers = message
                yield SampledGroup(own_position * count + i, greedy, answers)


def _serve(connection: Connection, variables: dict[str, str], model: str, settings: EngineSettings) -> None:
    """Run a member's process: load the model, then answer requests until the connection closes."""
    signal_at_program_end(signal.SIGKILL)  # a member must not outlive an evaluator that was killed
    os.environ.update(variables)  # before torch is imported, which looks for GPUs and counts cores
    setup_environment()
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.sampler import Sampler

    try:
        sampler = Sampler(model, load_tokenizer(Path(model), settings.max_tokens), settings)
    except RunError as error:
        return connection.send(error)
    connection.send(None)  # loaded
    try:
        while True:
            prompts, seeds, sampling = connection.recv()
            for message in sampler.sample(prompts, seeds, **sampling):
                connection.send(message)
            connection.send(None)  # all prompts of this request are answered
    except EOFError:
        sampler.close()
