"""Starts programs on ranks by forking: torch, DeepSpeed and vLLM are imported here, once.

Without it every rank and every engine would import them again, which takes most of the time of a
short program: the tests of `make test` would take twice as long. So these programs do not start as
a user's do. Tests that use the launcher or `subprocess` start them as users do.

Started by tests/conftest.py, with one thread, since there is no forking a process whose torch has
several. Reads a job a line (the arguments of `run`) from standard input and answers with the ids of
its processes, a line, and when it has ended its exit status.
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
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import util
from types import ModuleType
from typing import TextIO

from bnpo.environment import setup_environment

setup_environment()

import torch

spawn_interpreter = util.spawnv_passfds
STARTED_WITH = (
    "compressed_tensors",
    "deepspeed.module_inject",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.worker.cpu_worker",
)
"""What engines import when they start."""
TIME_LIMIT = 600
"""Seconds after which a job and its ranks are killed."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed while importing is no answer
    import_module("bnpo.loop")  # what train.py imports
    import_module("bnpo.evaluation.program")  # what eval.py imports
    # vLLM's worker for CPUs replaces torch.cuda.Stream and the like by placeholders, on which
    # nothing for GPUs can run. On a CUDA build no test starts an engine.
    if torch.version.cuda is None:
        for name in STARTED_WITH:
            import_module(name)
        register_overrides_once()
    util.spawnv_passfds = fork_spawned

    gc.freeze()  # modules stay: a collection in a rank need not read them, and so copy them
    gc.unfreeze = lambda: None  # after an engine's start, which freezes for itself
    for line in sys.stdin:
        if (job := os.fork()) == 0:
            os._exit(run(**json.loads(line), answers=answers))
        print(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]), file=answers, flush=True)


def register_overrides_once() -> None:
    """On CPUs every engine looks through all modules for kernels of Triton to replace: a second
    of its start.
    """
    from vllm.platforms import current_platform

    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda _: None)


def run(
    command: list[str], output: str, ranks: int, environment: dict[str, str], answers: TextIO
) -> int:
    """The exit status of `command`, a script and its flags, on `ranks` ranks (0: not under a
    launcher) with both streams in the file `output`: as under the launcher it is that of the first
    rank that fails, and the others are ended. This process, its ranks and theirs are a group.
    """
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(TIME_LIMIT)
    with open(output, "wb") as file, open(os.devnull) as nothing:
        for stream, target in enumerate((nothing, file, file)):
            os.dup2(target.fileno(), stream)
    children, status = [], 0
    for rank in range(max(1, ranks)):
        if (child := os.fork()) == 0:
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_SIZE": str(ranks),
                "WORLD_SIZE": str(ranks),
            }
            os._exit(run_process(command, environment | (place if ranks else {})))
        children.append(child)
    print(json.dumps(children), file=answers, flush=True)
    while children:
        child, ended = os.wait()
        children.remove(child)
        if ended and not status:
            status = os.waitstatus_to_exitcode(ended)
            for other in children:
                os.kill(other, signal.SIGTERM)
    return status if status >= 0 else 128 - status  # as a shell tells of a signal


def fork_spawned(path: bytes, arguments: list[bytes | str], passed: tuple[int, ...]) -> int:
    """As multiprocessing starts an interpreter, which here inherits the imports if it is for a
    spawned process. Of the open files only those that are passed.
    """
    spawned = os.fsdecode(arguments[-2])
    if "spawn_main" not in spawned:
        return spawn_interpreter(path, arguments, passed)
    if child := os.fork():
        return child
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, *passed):
            with suppress(OSError):  # the one that lists them
                os.close(int(name))
    torch.set_num_threads(_threads())
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-c", "--multiprocessing-fork"]
    os._exit(status_of(lambda: exec(spawned, {})))


def run_process(command: list[str], environment: dict[str, str]) -> int:
    """The exit status of a rank, or the program, which is this process."""
    del os.environ["OMP_NUM_THREADS"]
    os.environ.update(environment)
    setup_environment()
    # The members of an evaluation are forked from it, which threads of torch would not survive.
    forks = os.path.basename(command[0]) == "eval.py"
    torch.set_num_threads(1 if forks else _threads())
    tempfile.tempdir = None  # the environment names another
    sys.argv = command
    sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
    status = status_of(lambda: runpy.run_path(command[0], run_name="__main__"))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))


def status_of(program: Callable[[], object]) -> int:
    """The exit status of an interpreter that runs it."""
    try:
        program()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
