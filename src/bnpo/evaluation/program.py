"""`python eval.py`: check everything, sample what is missing, score it."""

import hashlib
import json
import math
import time
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from bnpo.evaluation.config import EvalConfig
from bnpo.evaluation.fleet import fleet
from bnpo.evaluation.protocol import Evaluation, sample_records
from bnpo.evaluation.records import Request, Results
from bnpo.evaluation.regrade import regrade
from bnpo.evaluation.samples import Samples, claim_results_folder
from bnpo.evaluation.scores import compare, score_all
from bnpo.evaluation.suites import Suite, load_suite, override
from bnpo.files import ROOT, InputError, write_json
from bnpo.flags import check_marks, check_planning
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS, check_function
from bnpo.policy.engine_settings import EngineSettings
from bnpo.policy.folder import load_tokenizer, model_folder, model_hash, training_config, whole_model

# The suite that `--suite auto` selects for checkpoints of these presets. All other models get `paper`.
SUITE_OF_PRESET = {"tiny": "arithmetic", "paper-format": "paper-format"}


@dataclass(frozen=True)
class Job:
    """One model to evaluate, already checked."""

    model: Path
    evaluation: Evaluation
    folder: Path  # of its results
    protocol: dict
    samples: Samples  # so far


class Outcome(NamedTuple):
    """The files of an evaluation."""

    folder: Path
    results: list[Results]  # of --base, if given, and of --ckpt
    comparison: dict | None  # protocols of both models, and their paired differences
    changes: list[dict] | None = None  # verdicts that a regrade has changed


def run(config: EvalConfig) -> Outcome:
    """Evaluate --ckpt, and --base if given. Raises InputError before a model is loaded."""
    check(config)
    if config.regrade:
        results, changes = regrade(config.regrade, config.grader)
        return Outcome(config.regrade, [results], None, changes)
    from bnpo.devices import visible_gpus  # imports torch, which takes seconds: only after `check` has passed

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
    check_marks(config)
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
    if not 0 < config.gpu_memory <= 1:
        raise InputError(f"--gpu-memory: is {config.gpu_memory}, must be above 0 and at most 1")
    if config.base == config.ckpt and config.output_dir is None:
        raise InputError("--base: is the same as --ckpt and would use the same folder; set --output-dir")


def chosen_suite(config: EvalConfig, model: Path) -> Suite:
    """Return the suite of --suite. `auto` depends on how the model in folder `model` was trained. Raises InputError."""
    name = config.suite
    if name == "auto":
        training = training_config(model) or {}
        name = SUITE_OF_PRESET.get(training.get("preset"), "paper")
    return override(load_suite(name), config.runs, config.limit, config.grader)


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
