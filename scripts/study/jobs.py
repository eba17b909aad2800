"""The study's runs side by side: one rank and one core each, forked from a process that has imported everything.

A run that is in the file of rows is done, whatever came of it; one that was interrupted starts again.
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
from bnpo.processes import signal_at_program_end
from study.design import StudyRun
from study.rows import Rows, row_of


def run_side_by_side(runs: Sequence[StudyRun], rows: Rows, folder: Path, jobs: int, made_by: str) -> None:
    """Train `runs`, `jobs` at a time, in folders under `folder`; each becomes a row of commit `made_by` when it has
    ended, and its folder is deleted unless it failed. Raises InputError as `row_of` does."""
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
            shutil.rmtree(folder / run.name, ignore_errors=True)  # what an interrupted run left is no row
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
    """What `deepspeed --num_gpus 1 train.py <command>` does, in this process; what it prints goes to <folder>.log."""
    signal_at_program_end(signal.SIGKILL)  # of the study: nobody would make a row of it
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
        os._exit(1)  # multiprocessing would wait for the grader's workers, which ignore the signal that it sends them
    sys.stdout.flush()
