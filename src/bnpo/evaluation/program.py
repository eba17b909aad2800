"""`python eval.py`: check everything, sample what is missing, write and show the results."""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bnpo.answers.rewards import Grader
from bnpo.config import EvalConfig
from bnpo.evaluation.fleet import Fleet
from bnpo.evaluation.protocol import (
    Evaluation,
    Samples,
    claim_results_folder,
    compare,
    package_versions,
    sample_records,
    scores,
)
from bnpo.evaluation.suites import load_suite, override
from bnpo.files import ROOT, InputError, write_json
from bnpo.policy.folder import load_tokenizer, model_folder, model_hash, training_config


def run(config: EvalConfig) -> None:
    """Evaluate --ckpt, and --base if given; raises InputError before a model is loaded."""
    if config.seed < 0 or not 0 < config.gpu_memory <= 1:
        raise InputError("--seed must not be below 0, --gpu-memory above 0 and at most 1")
    if config.tensor_parallel < 1 or (config.data_parallel is not None and config.data_parallel < 1):
        raise InputError("--data-parallel and --tensor-parallel must be at least 1")
    if config.base == config.ckpt and config.output_dir is None:
        raise InputError("--base: is --ckpt itself, with which it would share a folder; --output-dir keeps them apart")
    from bnpo.devices import visible_gpus  # imports torch: seconds that no refusal above waits for

    gpus = visible_gpus()
    replicas = config.data_parallel or max(1, len(gpus) // config.tensor_parallel)
    if gpus and replicas * config.tensor_parallel > len(gpus):
        raise InputError(
            f"--data-parallel {replicas} times --tensor-parallel {config.tensor_parallel}: {len(gpus)} GPUs are visible"
        )
    dtype = config.dtype if config.dtype != "auto" else "bfloat16" if gpus else "float32"
    job = plan(config, config.ckpt, config.output_dir, dtype)
    base_dir = config.output_dir / "base" if config.output_dir else None
    base = plan(config, config.base, base_dir, dtype) if config.base else None

    grader = Grader(grader=config.grader)
    results, records = evaluate(job, config, gpus, replicas, grader)
    if base:
        base_results, base_records = evaluate(base, config, gpus, replicas, grader)
        comparison = compare(base_records, records, config.seed)
        write_json(job.folder / "comparison.json", {"base": base.protocol, "ckpt": job.protocol, "paired": comparison})
        show(config.base, base_results)
    show(config.ckpt, results)
    if base:
        show_comparison(f"{config.ckpt} minus {config.base}", comparison)
    print(f"results and samples: {job.folder}")
    grader.close()


@dataclass(frozen=True)
class Job:
    """One model to evaluate, checked: its evaluation, the folder of its results, their protocol, the samples there."""

    model: Path
    evaluation: Evaluation
    folder: Path
    protocol: dict
    samples: Samples


def plan(config: EvalConfig, ckpt: str, output_dir: Path | None, dtype: str) -> Job:
    """Check and read everything that one model's evaluation needs. Raises InputError."""
    model = model_folder(ckpt)
    run = training_config(model)
    name = config.suite
    if name == "auto":
        name = {"tiny": "arithmetic", "paper-format": "paper-format"}.get((run or {}).get("preset"), "paper")
    suite = override(load_suite(name), config.runs, config.limit)
    tokenizer = load_tokenizer(model, suite.max_prompt_tokens + suite.max_answer_tokens)
    evaluation = Evaluation.prepare(suite, tokenizer, config.seed)
    protocol = {
        "ckpt": ckpt,
        "checkpoint_sha256": model_hash(model),
        "run": run,
        **evaluation.protocol(),
        "limit": config.limit,
        "dtype": dtype,
        "grader": config.grader,
        "versions": package_versions(),
    }
    label = "-".join(part for part in Path(ckpt).parts if part not in ("/", "..", "."))
    digest = hashlib.sha256(json.dumps(protocol, default=str).encode()).hexdigest()
    folder = output_dir or ROOT / "evals" / "results" / f"{suite.name}-{label}-{digest[:8]}"
    claim_results_folder(folder, protocol)
    return Job(model, evaluation, folder, protocol, Samples(folder, evaluation))


def evaluate(job: Job, config: EvalConfig, gpus: list[str], replicas: int, grader: Grader) -> tuple[dict, Mapping]:
    """Sample what is not there yet, write results.json; returns the results and the records."""
    suite, samples = job.evaluation.suite, job.samples
    requests = job.evaluation.requests()
    missing = [request for request in requests if request.key not in samples.records]
    print(f"{job.folder}: {len(requests)} samples, {len(requests) - len(missing)} there already", flush=True)
    started = time.perf_counter()
    if missing:
        settings = {
            "max_tokens": suite.max_prompt_tokens + suite.max_answer_tokens,
            "dtype": job.protocol["dtype"],
            "gpu_memory": config.gpu_memory,
            "sequences": math.ceil(len(missing) / replicas),
            "enforce_eager": config.enforce_eager,
        }
        with Fleet(job.model, gpus, replicas, config.tensor_parallel, settings) as fleet:
            right = sum(record["correct"] for record in samples.records.values())
            with tqdm(total=len(requests), initial=len(samples.records), unit="sample") as bar:
                for record in sample_records(job.evaluation, missing, fleet.sample, grader):
                    samples.add(record)
                    right += record["correct"]
                    bar.set_postfix(correct=f"{right / len(samples.records):.3f}", refresh=False)
                    bar.update()
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


def show(title: str, results: dict) -> None:
    """Print the scores of one model as a table."""
    rows = []
    for name, r in results["results"].items():
        best_k = max(r["pass_at_k"], key=int)
        rows.append(
            (
                name,
                f"{r['problems']} x {r['runs']}",
                f"{100 * r['pass1']:.1f} ± {100 * r['se']:.1f}",
                f"{100 * r['pass_at_k'][best_k]:.1f} k={best_k}",
                f"{100 * r['majority']:.1f}",
                f"{r['mean_tokens']:.0f}",
                f"{100 * r['truncated']:.1f}",
                f"{100 * r['no_box']:.1f}",
            )
        )
    if len(results["results"]) > 1:
        average = results["average"]
        rows.append(("average", "", f"{100 * average['pass1']:.1f} ± {100 * average['se']:.1f}"))
    columns = ("data set", "problems", "pass@1", "pass@k", "majority", "tokens", "cut off", "no box")
    print_table(f"{title}: scores in %, with standard errors over problems", columns, rows)
    if results["grading_failures"]:
        print(f"answers that could not be graded, scored wrong: {results['grading_failures']}")


def show_comparison(title: str, comparison: dict) -> None:
    """Print the paired bootstrap as a table."""
    rows = []
    for name, r in comparison.items():
        interval = f"{100 * r['low']:+.1f} to {100 * r['high']:+.1f}"
        rows.append((name, f"{100 * r['difference']:+.1f}", interval, f"{r['p_value']:.4f}"))
    print_table(f"{title}: paired by problem, in %", ("data set", "difference", "95 % interval", "p-value"), rows)


def print_table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table of texts; the first column names, the others hold numbers."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    print(title)  # not as the table's title, which would be broken to the table's width
    Console().print(table)
