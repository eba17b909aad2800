"""Starts programs on ranks by forking: torch, DeepSpeed and vLLM are imported here, once, and not by every rank.

Started by `run_ranks` of tests/conftest.py, with LOCAL_SIZE, on which the threads of a rank depend, in the environment.
Reads a job a line (the arguments of `run`) from standard input and answers with its exit status.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from importlib import import_module

import bnpo  # noqa: F401 - before torch and vLLM

TIME_LIMIT = 600
"""Seconds after which a job and its ranks are killed."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed while importing is no answer
    import_module("bnpo.loop")  # what train.py imports
    import_module("vllm.v1.worker.cpu_worker")  # what an engine imports when it starts

    gc.freeze()  # modules stay: a collection in a rank need not read them, and so copy them
    for line in sys.stdin:
        if (job := os.fork()) == 0:
            os._exit(run(**json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]), file=answers, flush=True)


def run(command: list[str], output: str, ranks: int, environment: dict[str, str]) -> int:
    """The exit status of `command`, a script and its flags, on `ranks` ranks with both streams in the file `output`: as
    under the launcher it is that of the first rank that fails, and the others are ended."""
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(TIME_LIMIT)
    with open(output, "wb") as file, open(os.devnull) as nothing:
        for stream, target in enumerate((nothing, file, file)):
            os.dup2(target.fileno(), stream)
    children, status = set(), 0
    for rank in range(ranks):
        if (child := os.fork()) == 0:
            os._exit(run_rank(command, environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
        children.add(child)
    while children:
        child, ended = os.wait()
        children.remove(child)
        if ended and not status:
            status = os.waitstatus_to_exitcode(ended)
            for other in children:
                os.kill(other, signal.SIGTERM)
    return status


def run_rank(command: list[str], environment: dict[str, str]) -> int:
    """The exit status of one rank, which is this process."""
    os.environ.update(environment)
    tempfile.tempdir = None  # the environment names another
    sys.argv = command
    sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
    status = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    main()
