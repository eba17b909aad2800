"""`python eval.py`: check everything, sample what is missing, score them."""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

from bnpo.evaluation.config import EvalConfig
from bnpo.evaluation.fleet import fleet
from bnpo.evaluation.protocol import Evaluation, sample_records
from bnpo.evaluation.samples import Samples, claim_results_folder
from bnpo.evaluation.scores import compare, scores
from bnpo.evaluation.suites import Suite, load_suite, override
from bnpo.files import ROOT, InputError, write_json
from bnpo.flags import check_marks, check_planning
from bnpo.grading.grader import Grader
from bnpo.policy.folder import load_tokenizer, model_folder, model_hash, training_config
from bnpo.policy.settings import SamplerSettings


def run(config: EvalConfig) -> tuple[Path, Sequence[dict], dict | None]:
    """Evaluate --ckpt, and --base if given; raises InputError before a model is loaded.

    Gives the folder with all of it, the contents of each results.json, that of --base first, and of comparison.json.
    """
    check(config)
    from bnpo.devices import visible_gpus  # imports torch: seconds that no refusal above waits for

    gpus = visible_gpus()
    replicas = config.data_parallel or max(1, len(gpus) // config.tensor_parallel)
    if gpus and replicas * config.tensor_parallel > len(gpus):
        raise InputError(
            f"--data-parallel {replicas} times --tensor-parallel {config.tensor_parallel}: {len(gpus)} GPUs are visible"
        )
    dtype = config.dtype if config.dtype != "auto" else "bfloat16" if gpus else "float32"
    jobs = plan(config, dtype)
    grader = Grader(grader=config.grader)
    results, records = zip(*(evaluate(job, config, gpus, replicas, grader) for job in jobs), strict=True)
    grader.close()
    comparison = None
    if config.base:
        protocols = {"base": jobs[1].protocol, "ckpt": jobs[0].protocol}
        comparison = protocols | {"paired": compare(jobs[0].evaluation, records[1], records[0])}
        write_json(jobs[0].folder / "comparison.json", comparison)
    return jobs[0].folder, results[::-1], comparison


def check(config: EvalConfig) -> None:
    """Raise InputError, one line, for flags that cannot work; reads no file."""
    check_marks(config)
    check_planning(config.planning)
    if not 0 < config.gpu_memory <= 1:
        raise InputError(f"--gpu-memory: is {config.gpu_memory}, must be above 0 and at most 1")
    if config.base == config.ckpt and config.output_dir is None:
        raise InputError("--base: is --ckpt itself, with which it would share a folder; --output-dir keeps them apart")


def chosen_suite(config: EvalConfig, model: Path) -> Suite:
    """The suite that the flags ask for; by default what --ckpt, in the folder `model`, was trained for."""
    name = config.suite
    if name == "auto":
        run = training_config(model) or {}
        name = {"tiny": "arithmetic", "paper-format": "paper-format"}.get(run.get("preset"), "paper")
    return override(load_suite(name), config.runs, config.limit)


@dataclass(frozen=True)
class Job:
    """One model to evaluate, checked: its evaluation, the folder of its results, their protocol, the samples there."""

    model: Path
    evaluation: Evaluation
    folder: Path
    protocol: dict
    samples: Samples


def plan(config: EvalConfig, dtype: str) -> list[Job]:
    """Check and read everything that the evaluation of --ckpt, and of --base if given, needs. Raises InputError."""
    ckpts = [config.ckpt, config.base] if config.base else [config.ckpt]
    models = [model_folder(ckpt) for ckpt in ckpts]
    suite = chosen_suite(config, models[0])  # for both models: only answers to the same prompts compare
    folders = [config.output_dir, config.output_dir and config.output_dir / "base"]
    return [_job(config, *model, suite, dtype) for model in zip(ckpts, models, folders, strict=False)]


def _job(config: EvalConfig, ckpt: str, model: Path, folder: Path | None, suite: Suite, dtype: str) -> Job:
    tokenizer = load_tokenizer(model, suite.max_prompt_tokens + suite.max_answer_tokens)
    evaluation = Evaluation.prepare(suite, tokenizer, config.seed)
    protocol = evaluation.protocol(ckpt, model, model_hash(model), dtype, config.grader, config.limit)
    if folder is None:
        label = "-".join(part for part in Path(ckpt).parts if part not in ("/", "..", "."))
        identity = {key: value for key, value in protocol.items() if key != "run"}
        digest = hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()
        folder = ROOT / "evals" / "results" / f"{suite.name}-{label}-{digest[:8]}"
    protocol = claim_results_folder(folder, protocol)
    return Job(model, evaluation, folder, protocol, Samples(folder, evaluation.requests()))


def evaluate(job: Job, config: EvalConfig, gpus: list[str], replicas: int, grader: Grader) -> tuple[dict, Mapping]:
    """Sample what is not there yet, write results.json; returns the results and the records."""
    suite, samples = job.evaluation.suite, job.samples
    requests = job.evaluation.requests()
    missing = [request for request in requests if request not in samples.records]
    print(f"{job.folder}: {len(requests)} samples, {len(requests) - len(missing)} there already", flush=True)
    started = time.perf_counter()
    if missing:
        settings = SamplerSettings(
            max_tokens=suite.max_prompt_tokens + suite.max_answer_tokens,
            dtype=job.protocol["dtype"],
            gpu_memory=config.gpu_memory,
            sequences=math.ceil(len(missing) / replicas),
            enforce_eager=config.enforce_eager,
            tensor_parallel=config.tensor_parallel,
        )
        with fleet(job.model, gpus, replicas, settings) as sample:
            right = sum(record["correct"] for record in samples.records.values())
            records = sample_records(job.evaluation, missing, sample, grader)
            bar = tqdm(records, total=len(requests), initial=len(samples.records), unit="sample")
            for record in bar:
                samples.add(record)
                right += record["correct"]
                bar.set_postfix(correct=f"{right / len(samples.records):.3f}", refresh=False)
    samples.close()
    path = job.folder / "results.json"
    if not missing and path.exists():
        return json.loads(path.read_text(encoding="utf-8")), samples.records
    results = {"protocol": job.protocol, **scores(job.evaluation, samples.records)}
    results["time"] = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - started,
        "sampled": len(missing),
    }
    write_json(path, results)
    return results, samples.records
