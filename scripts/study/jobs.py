"""Run the study's runs at the same time, one rank and one core each.

They are forked from a server process that has imported everything. A run that has a row is finished, even if it failed.
An interrupted run starts again.
"""

import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection, get_context
from pathlib import Path

from tqdm import tqdm

from bnpo.environment import setup_environment
from bnpo.grading.workers import signal_at_program_end
from study.design import StudyRun
from study.rows import Rows, row_of


def run_side_by_side(runs: Sequence[StudyRun], rows: Rows, folder: Path, jobs: int, made_by: str) -> None:
    """Train `runs`, `jobs` at a time, in folders under `folder`.

    Each run becomes a row of commit `made_by` when it ends, and its folder is deleted unless it failed. Raises
    InputError if a run has no result (`row_of`).
    """
    os.environ |= {"LOCAL_SIZE": str(jobs), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # The fork server ignores modules that it cannot find, and does not get our sys.path.
    scripts = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [scripts, os.environ.get("PYTHONPATH")]))
    context = get_context("forkserver")
    context.set_forkserver_preload(["study.preload"])
    waiting, progress = list(runs), tqdm(total=len(runs), desc="runs", smoothing=0)
    active: dict[int, tuple] = {}
    while waiting or active:
        while waiting and len(active) < jobs:
            run = waiting.pop(0)
            shutil.rmtree(folder / run.name, ignore_errors=True)  # files of an interrupted run
            process = context.Process(target=train_run, args=(run.command(), folder / run.name))
            process.start()
            active[process.sentinel] = (run, process, time.perf_counter())
        for sentinel in connection.wait(list(active)):
            run, process, started = active.pop(sentinel)
            process.join()
            row = row_of(run, folder / run.name, process.exitcode, made_by)
            rows.add(row | {"seconds_in_all": round(time.perf_counter() - started, 1)})
            if row["ended"] == "done":
                shutil.rmtree(folder / run.name)
            progress.update()
    progress.close()


def train_run(command: Sequence[str], folder: Path) -> None:
    """Do what `deepspeed --num_gpus 1 train.py <command>` does, in this process. The output goes to <folder>.log."""
    signal_at_program_end(signal.SIGKILL)  # when the study is killed, nothing would turn this run into a row
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    setup_environment()
    from bnpo.config import parse_train_config
    from bnpo.loop import train

    config, _ = parse_train_config([*command, "--output-dir", str(folder)], has_cuda=False)
    try:
        train(config)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # multiprocessing would wait forever for the grader's workers, which ignore its signal
    sys.stdout.flush()
