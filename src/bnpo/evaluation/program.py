"""Evaluation as a program (`python eval.py`) and during training: sample, grade and score."""

import hashlib
import json
import math
import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from glob import escape
from itertools import chain
from multiprocessing import Process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro
from pydantic import Field
from tqdm import tqdm

from bnpo.batch import SampledGroup
from bnpo.config import NotNegative, Positive, Share, TrainConfig, settings
from bnpo.environment import setup_environment
from bnpo.errors import keep_tracebacks_in
from bnpo.evaluation.protocol import REPEAT, Evaluation, Samples, key_of
from bnpo.evaluation.scores import score_all
from bnpo.evaluation.suites import Suite, load_suite, override, suite_problems
from bnpo.files import ROOT, InputError, RunError, line_of, write_json, write_json_lines, writing
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS, check_function
from bnpo.policy import folder as models
from bnpo.policy.sampling import EngineSettings
from mathequal.workers import signal_when_readable

if TYPE_CHECKING:  # torch and vLLM take seconds to import: only where they run
    from bnpo.policy.sampler import Sampler


GRADER_FLAG = tyro.conf.arg(metavar=f"{{{','.join(GRADERS)},path/to/file.py:function}}")


@settings
class EvalConfig:
    """Evaluate a model: pass@1 over several repetitions of every problem, with error bars. Saves
    every sample.
    """

    ckpt: str
    """Model to evaluate: a Hugging Face folder, a LoRA adapter's folder, a hub name
    (OWNER/NAME@REVISION), or a run: <run> or <run>/last for its last checkpoint, <run>/best."""
    suite: str = "auto"
    """Evaluation suite: a name from evals/, such as paper or school, or the path of a JSON file.
    `auto` is the suite of the preset that trained --ckpt, and paper for other models."""
    repetitions: tuple[str, ...] = ()
    """Answers to each problem: N for all data sets, or NAME=N for one."""
    limit: Annotated[int | None, Field(ge=2)] = None
    """Evaluate only the first LIMIT problems of each data set, at least 2."""
    output_dir: Path | None = None
    """Folder for the results, by default evals/results/<suite>-<model>-<hash>."""
    seed: NotNegative[int] = 0
    """Seed of the sampling."""
    grader: Annotated[str | None, GRADER_FLAG] = None
    """Rule that decides what is right: this project's (`default`), the paper's released code
    (`paper`), the last number of a text (`last_number`), or a function of your own, where 1 means
    right. Without the flag, the suite decides."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number format of the sampler. `auto` is float32 on CPUs, bfloat16 on GPUs, and float16 on
    GPUs without bfloat16, such as a T4."""
    data_parallel: Positive[int | None] = None
    """Number of samplers side by side, by default as many as the GPUs allow, or one on CPUs."""
    tensor_parallel: Positive[int] = 1
    """Number of GPUs per sampler, for a model that does not fit on one."""
    gpu_memory: Share | None = None
    """Share of each GPU's memory that a sampler may use. The default is 0.9, or what other programs
    leave free."""
    enforce_eager: bool = False
    """Run without CUDA graphs: starts faster, samples more slowly."""
    dry_run: bool = False
    """Check settings and data, print the number of answers, and start nothing. scripts/plan.py also
    estimates hours on GPUs."""

    def __post_init__(self) -> None:
        if self.grader:
            check_function("grader", self.grader, GRADERS)


# The suite that `--suite auto` selects for checkpoints of these presets
SUITE_OF_PRESET = {"tiny": "arithmetic", "smollm2": "word-problems", "paper-format": "paper-format"}


class Job(NamedTuple):
    """A model to evaluate, what is sampled from it, and the samples so far."""

    model: Path
    evaluation: Evaluation
    samples: Samples


def run(config: EvalConfig) -> tuple[Path, dict]:
    """Evaluate --ckpt, and return the folder of the evaluation and its results.json. Raises
    InputError before a model is loaded.
    """
    from bnpo.ranks import visible_gpus

    gpus = visible_gpus()
    replicas = config.data_parallel or max(1, len(gpus) // config.tensor_parallel)
    if gpus and replicas * config.tensor_parallel > len(gpus):
        raise InputError(
            f"--data-parallel {replicas} times --tensor-parallel {config.tensor_parallel}: only "
            f"{len(gpus)} GPUs are visible; lower one of the two"
        )
    job = prepare_job(config, number_format(config.dtype, gpus))
    return job.samples.folder, evaluate(job, config, gpus, replicas)


def number_format(dtype: str, gpus: Sequence[str]) -> str:
    """Return the number format that --dtype means on these GPUs, or on the CPU without any."""
    from bnpo.ranks import AMPERE, check_bfloat16, compute_capability

    if not gpus:
        return "float32" if dtype == "auto" else dtype
    if dtype == "auto":
        return "bfloat16" if compute_capability() >= AMPERE else "float16"
    if dtype == "bfloat16":
        check_bfloat16()
    return dtype


def chosen_suite(config: EvalConfig, model: Path) -> Suite:
    """Return the suite of --suite. `auto` depends on how the model in `model` was trained."""
    name = config.suite
    if name == "auto":
        training = models.training_config(model) or {}
        name = SUITE_OF_PRESET.get(training.get("preset"), "paper")
    return override(load_suite(name), config.repetitions, config.limit, config.grader)


def prepare_job(config: EvalConfig, dtype: str) -> Job:
    """Check and read all that is needed to evaluate --ckpt."""
    suite = chosen_suite(config, models.local_folder(config.ckpt) or Path(config.ckpt))
    suite_problems(suite)  # for its checks, before anything of a model is downloaded
    folder = models.model_folder(config.ckpt, weights=False)
    tokenizer = models.load_tokenizer(folder, suite.longest)
    evaluation = Evaluation.prepare(suite, tokenizer, config.seed)
    models.check_prompts(folder, tokenizer, list(chain(*evaluation.prompts.values())))
    model = models.model_folder(config.ckpt)
    models.check_one_model(model)
    models.check_finite(model)
    digest = models.model_hash(model)
    protocol = evaluation.protocol(config.ckpt, model, digest, dtype, config.limit)
    results = config.output_dir or results_folder(suite.name, config.ckpt, protocol)
    return Job(model, evaluation, Samples(results, evaluation.sample_keys(), protocol))


def results_folder(suite: str, ckpt: str, protocol: dict) -> Path:
    """Return the default folder of an evaluation: one that holds it already, or a new name."""
    # The hash is the model's identity. The settings of its training change when it is resumed.
    identity = {key: protocol[key] for key in protocol.keys() - {"ckpt", "run"}}
    digest = hashlib.sha256(json.dumps(identity, default=str, sort_keys=True).encode()).hexdigest()
    results = ROOT / "evals" / "results"
    known = sorted(results.glob(f"{escape(suite)}-*-{digest[:8]}"))
    label = "-".join(part for part in Path(ckpt).parts if part not in ("/", "..", "."))
    return known[0] if known else results / f"{suite}-{label}-{digest[:8]}"


def evaluate(job: Job, config: EvalConfig, gpus: list[str], replicas: int) -> dict:
    """Sample and grade what is missing, save every record as it comes, and return results.json."""
    model, evaluation, samples = job
    keep_tracebacks_in(samples.folder)
    grader = Grader(grader=evaluation.suite.grader, example=evaluation.first_reference)
    missing = [key for key in evaluation.sample_keys() if key not in samples.records]
    done = len(samples.records)
    print(f"{samples.folder}: {done + len(missing)} samples, {done} already there", flush=True)
    if missing:
        engine = EngineSettings(
            max_tokens=evaluation.suite.longest,
            dtype=samples.protocol["dtype"],
            gpu_memory=config.gpu_memory,
            sequences=math.ceil(len(missing) / replicas),
            enforce_eager=config.enforce_eager,
            tensor_parallel=config.tensor_parallel,
            sleeps=False,
        )
        sampling = evaluation.sampling(missing)
        correct = sum(record["correct"] for record in samples.records.values())
        with (
            models.whole_model(model) as folder,
            closing(fleet(folder, gpus, replicas, engine, sampling)) as groups,
        ):
            records = evaluation.grade(evaluation.records(missing, groups), grader)
            bar = tqdm(records, total=done + len(missing), initial=done, unit="sample")
            for record in bar:
                samples.add(record)
                correct += record["correct"]
                bar.set_postfix(correct=f"{correct / len(samples.records):.3f}", refresh=False)
    samples.close()
    grader.close()
    results = score_all(evaluation.suite, samples.records.values(), samples.protocol)
    with writing(samples.folder, REPEAT):
        write_json(samples.folder / "results.json", results)
    return results


def evaluate_live(
    evaluation: Evaluation,
    sampler: "Sampler",
    grader: Grader,
    config: TrainConfig,
    checkpoint: Path,
) -> dict:
    """Evaluate the policy that `sampler` holds, and return the results. A collective.

    Rank 0 writes them to a folder in the run's evals/, named after `checkpoint`, the folder where
    this policy would be saved.
    """
    import torch.distributed as dist

    from bnpo.ranks import gather

    keys = evaluation.sample_keys()
    own_keys = keys[dist.get_rank() :: dist.get_world_size()]
    groups = sampler.sample(**evaluation.sampling(own_keys))
    own_records = list(evaluation.grade(evaluation.records(own_keys, groups), grader))
    records = {key_of(record): record for record in chain.from_iterable(gather(own_records))}
    protocol = evaluation.protocol(str(checkpoint), checkpoint, None, config.hardware.dtype)
    results = score_all(evaluation.suite, records.values(), protocol)
    if dist.get_rank() == 0:
        folder = config.folder.output_dir / "evals" / checkpoint.name
        # In the order of the keys, whatever the number of ranks.
        write_json_lines(folder / "samples.jsonl", [records[key] for key in keys])
        with writing(folder):
            write_json(folder / "results.json", results)
    return results


def fleet(
    model: Path, gpus: Sequence[str], replicas: int, settings: EngineSettings, sampling: dict
) -> Iterator[SampledGroup]:
    """Yield the groups of `Sampler.sample(**sampling)` as they end, from `replicas` processes.

    Each has its own GPUs, or its share of the cores. Raises the RunError of a process, or
    RuntimeError if one dies.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    size = settings.tensor_parallel
    cores = max(1, len(os.sched_getaffinity(0)) // replicas)
    members: dict[Connection, Process] = {}
    try:
        for i in range(replicas):
            pipe, far_end = context.Pipe(duplex=False)
            # Neighbours are often equally long, so shares are even.
            share = range(i, len(sampling["prompts"]), replicas)
            variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores))}
            if gpus:
                variables = gpu_variables(gpus[i * size : (i + 1) * size])
            process = context.Process(
                target=_serve, args=(far_end, variables, model, settings, sampling, share)
            )
            process.start()
            # Otherwise a dead member's pipe would stay open, and `recv` would wait for ever
            far_end.close()
            members[pipe] = process
        busy = list(members)
        while busy:
            for pipe in wait(busy):
                group = _receive(pipe, members[pipe])
                if group is None:
                    busy.remove(pipe)
                else:
                    yield group
    except BaseException:
        for process in members.values():
            process.terminate()  # it may be sampling for minutes
        raise
    finally:
        for process in members.values():
            process.join()


def _receive(pipe: Connection, process: Process) -> SampledGroup | None:
    """Return the next group of a member, or None if there are no more. Raises its error."""
    try:
        message = pipe.recv()
    except (EOFError, OSError):
        process.join()
        raise RuntimeError(
            f"a sampler's process ended with status {process.exitcode}; its error is above"
        ) from None
    if isinstance(message, RunError):
        raise message
    if isinstance(message, str):
        raise RuntimeError(f"a sampler's process failed: {message}")
    return message


def gpu_variables(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of a sampler on these GPUs, as CUDA_VISIBLE_DEVICES names them."""
    # vLLM writes compiled code, not atomically, to a folder named after the model only
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.environ.get("VLLM_CACHE_ROOT") or os.path.join(caches, "vllm")
    own = os.path.join(root, "gpus-" + "-".join(name.strip() for name in gpus))
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "VLLM_CACHE_ROOT": own}


def _serve(
    pipe: Connection,
    variables: dict[str, str],
    model: Path,
    settings: EngineSettings,
    sampling: dict,
    share: range,
) -> None:
    """Send the groups of a member's share of the prompts and None, a RunError, or a traceback."""
    # A member must not outlive an evaluator that was killed
    signal_when_readable(multiprocessing.parent_process().sentinel, signal.SIGKILL)
    os.environ.update(variables)  # before torch is imported, which looks for GPUs and counts cores
    setup_environment()
    from bnpo.policy.sampler import Sampler

    own = {name: [sampling[name][i] for i in share] for name in ("prompts", "seeds")}
    try:
        tokenizer = models.load_tokenizer(model, settings.max_tokens)
        sampler = Sampler(str(model), tokenizer, settings)
        for position, greedy, answers in sampler.sample(**sampling | own):
            pipe.send(SampledGroup(share[position], greedy, answers))
    except RunError as error:
        return pipe.send(error)
    except Exception as error:  # the evaluator prints and keeps it
        return pipe.send(f"{line_of(error)}\n\n{traceback.format_exc()}")
    pipe.send(None)
    sampler.close()
