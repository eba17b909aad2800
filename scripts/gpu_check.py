"""Check on NVIDIA GPUs what CPUs cannot show: single parts, and whole runs of train.py and eval.py.

    python scripts/gpu_check.py --list                  # list the checks; needs no GPU
    python scripts/gpu_check.py                         # all checks for the GPUs of this machine
    python scripts/gpu_check.py --only attention first-step

Nothing is downloaded. Verdicts and measurements are in --output, which is rewritten after each
check, so an interrupted run keeps what it has. The output of the programs is in
<output_dir>/<check>.log. The exit status is 1 if a check fails.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.managers import SyncManager
from pathlib import Path

import psutil

from bnpo.environment import run_program
from bnpo.files import InputError, RunError, delete, write_json, writing
from gpu_check_parts import CheckError, Rows, attention, sampler_ranks, tensor_parallel, train
from gpu_check_step import first_step

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Args:
    list: bool = False
    """List the checks and exit."""
    only: tuple[str, ...] = ()
    """Names of the checks to run. The default is all."""
    output_dir: Path = ROOT / "runs" / "gpu-check"
    """Folder for logs and runs, new or of earlier checks. A check replaces what it wrote before."""
    output: Path = ROOT / "runs" / "gpu-check.json"
    """JSON file for verdicts and measurements."""
    steps: int = 4
    """Training steps of each run before it is resumed, and again after it."""


@dataclass(frozen=True)
class Check:
    """One check. `run` takes the arguments, the number of GPUs and a dict for its measurements."""

    name: str
    verifies: str
    seconds: int
    """Estimate for H200s. A check that takes three times as long and a minute more is ended."""
    run: Callable[[Args, int, Rows], None]
    all_gpus: bool = False
    """Uses all GPUs, at least two, instead of one."""


def training(
    name: str,
    dtype: str,
    seconds: int,
    *,
    eager: bool = False,
    all_gpus: bool = False,
    short: bool = False,
) -> Check:
    """Return the check that calls `train`."""
    graphs = "without" if eager else "with"
    does = (
        "trains, syncs and evaluates"
        if short
        else "trains, syncs, evaluates, resumes; eval.py scores it alike"
    )
    run = partial(train, name=name, dtype=dtype, eager=eager, short=short)
    return Check(
        name, f"the tiny model in {dtype} {graphs} CUDA graphs {does}", seconds, run, all_gpus
    )


# First what no reading of source code can tell. Programs start slowly, so on one GPU only one run
# is resumed.
CHECKS = (
    Check(
        "first-step",
        "a step of a 1.5B model takes at most the memory that the plan counts, and sampler and "
        "learner agree",
        125,
        first_step,
    ),
    training("bf16-graphs", "bfloat16", 140),
    training("fp32-graphs", "float32", 50, short=True),
    training("fp32-eager", "float32", 35, eager=True, short=True),
    training("bf16-eager", "bfloat16", 35, eager=True, short=True),
    Check(
        "attention",
        "packed attention in bfloat16 and its gradients equal those of plain attention",
        15,
        attention,
    ),
    training("fp32-eager-all", "float32", 130, eager=True, all_gpus=True),
    training("fp32-graphs-all", "float32", 170, all_gpus=True),
    training("bf16-eager-all", "bfloat16", 130, eager=True, all_gpus=True),
    training("bf16-graphs-all", "bfloat16", 170, all_gpus=True),
    Check(
        "tensor-parallel",
        "eval.py with the model on two GPUs scores as on one",
        90,
        tensor_parallel,
        all_gpus=True,
    ),
    Check(
        "sampler-ranks",
        "as bf16-graphs, by two ranks that share a sampler",
        170,
        sampler_ranks,
        all_gpus=True,
    ),
)


def list_checks() -> None:
    """Print the checks with their estimated seconds, and the sum for one GPU."""
    for check in CHECKS:
        gpus = "all GPUs" if check.all_gpus else "one GPU"
        print(f"{check.name}: {check.verifies} ({gpus}, about {check.seconds} s)")
    on_one_gpu = [check.seconds for check in CHECKS if not check.all_gpus]
    print(f"Estimated for one H200: {sum(on_one_gpu)} s for {len(on_one_gpu)} checks")


def run_check(check: Check, args: Args, gpus: int, manager: SyncManager) -> dict:
    """Run `check` in its own process, print the result, and return it as the JSON file has it.

    The process of `manager` holds the measurements, so those of a check that crashes are kept.
    """
    rows, outcome, started = manager.dict(), manager.dict(), time.monotonic()
    arguments = (check, args, gpus if check.all_gpus else 1, rows, outcome)
    process = get_context("spawn").Process(target=run_in_process, args=arguments)
    process.start()
    limit = 3 * check.seconds + 60
    process.join(limit)
    if process.is_alive():
        outcome["fault"] = f"not finished after {limit} s"
        end_with_children(process.pid)
        process.join()
    fault = outcome.get("fault", f"its process crashed with exit code {process.exitcode}")
    verdict = "FAILED" if fault else "PASSED"
    message = fault or ", ".join(f"{name} {value:.3g}" for name, value in rows.items())
    seconds = time.monotonic() - started
    print(f"{verdict} {check.name} ({seconds:.0f} s): {message}", flush=True)
    return entry(check, verdict, message, round(seconds, 1), dict(rows))


def run_in_process(check: Check, args: Args, gpus: int, rows: Rows, outcome: dict) -> None:
    """Run `check` and put its fault into `outcome`, empty if there is none."""
    try:
        check.run(args, gpus, rows)
        fault = ""
    except CheckError as error:
        fault = str(error)
    except BaseException as error:  # of any kind: the other checks still run
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"
    outcome["fault"] = fault
    os._exit(0)  # the GPU memory is free at once, whatever the libraries would do at the end


def end_with_children(pid: int) -> None:
    """Kill a process and all that it has started."""
    process = psutil.Process(pid)
    # The process first: it could take the end of what it waits for as its own success.
    for started in [process, *process.children(recursive=True)]:
        started.kill()


def entry(
    check: Check, verdict: str, message: str, seconds: float = 0.0, rows: dict | None = None
) -> dict:
    """Return what the JSON file says of a check."""
    return {
        "name": check.name,
        "verdict": verdict,
        "message": message,
        "seconds": seconds,
        "rows": rows or {},
    }


def run_checks(checks: list[Check], args: Args, gpus: int, facts: dict) -> list[dict]:
    """Run `checks` one after another and return their results. --output always has those that
    are known.
    """
    results: list[dict] = []
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Manager() as manager:
        for check in checks:
            if check.all_gpus and gpus < 2:
                print(f"NOT RUN {check.name}: needs two GPUs", flush=True)
                results.append(entry(check, "NOT RUN", "needs two GPUs"))
                continue
            unfinished = entry(check, "UNFINISHED", "the script was ended during this check")
            write_json(args.output, facts | {"checks": [*results, unfinished]})
            results.append(run_check(check, args, gpus, manager))
    write_json(args.output, facts | {"checks": results})
    return results


def describe_machine() -> dict:
    """Return date, GPUs and versions, as the JSON file begins."""
    import torch

    packages = (
        "torch",
        "triton",
        "vllm",
        "deepspeed",
        "transformers",
        "flashinfer-python",
        "numpy",
    )
    installed = {package.name: package.version for package in metadata.distributions()}
    versions = {package: installed.get(package, "not installed") for package in packages}
    gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": now, "gpus": gpus, "cuda": torch.version.cuda, "versions": versions}


def files_of(check: Check) -> tuple[str, ...]:
    """Return the names of all that `check` may write into --output-dir."""
    return check.name, f"{check.name}.log", f"{check.name}-1", f"{check.name}-2"


def clear(folder: Path, output: Path, checks: Sequence[Check]) -> None:
    """Create `folder`, and delete what earlier runs of `checks` wrote into it. Raises InputError if
    it has files of no check (the JSON file `output` may be in it), or cannot be written.
    """
    known = {folder / name for check in CHECKS for name in files_of(check)} | {output}
    with writing(folder, "choose another --output-dir"):
        folder.mkdir(parents=True, exist_ok=True)
        if others := sorted(set(folder.iterdir()) - known):
            raise InputError(f"{others[0]}: is of no check; choose another --output-dir")
        for check in checks:
            for name in files_of(check):
                delete(folder / name)


def main(args: Args) -> None:
    if args.list:
        list_checks()
        return
    names = [check.name for check in CHECKS]
    if unknown := sorted(set(args.only) - set(names)):
        raise InputError(f"--only: unknown check {', '.join(unknown)}; known: {', '.join(names)}")
    import torch

    from bnpo.ranks import check_cuda

    if not check_cuda():
        raise RunError("no CUDA device; these checks need an NVIDIA GPU (--list lists them)")
    args.output_dir = args.output_dir.resolve()  # the programs run in the repository's folder
    checks = [check for check in CHECKS if not args.only or check.name in args.only]
    clear(args.output_dir, args.output.resolve(), checks)
    results = run_checks(checks, args, torch.cuda.device_count(), describe_machine())
    verdicts = [result["verdict"] for result in results]
    passed, failed = verdicts.count("PASSED"), verdicts.count("FAILED")
    print(f"{passed} passed, {failed} failed, {verdicts.count('NOT RUN')} not run: {args.output}")
    sys.exit(0 if passed and not failed else 1)


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
