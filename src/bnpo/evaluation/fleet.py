"""Several samplers of one model side by side, each in a process of its own. They share the prompts."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Process
from multiprocessing.connection import Connection, wait
from pathlib import Path

from bnpo.environment import setup_environment
from bnpo.files import RunError
from bnpo.grading.workers import signal_at_program_end
from bnpo.policy.sampling import EngineSettings, SampledGroup


@contextmanager
def fleet(
    model: Path, gpus: Sequence[str], replicas: int, settings: EngineSettings, sampling: dict
) -> Iterator[Iterator[SampledGroup]]:
    """Start `replicas` samplers of the model in a folder. Each has its own GPUs, or its share of the cores.

    Yields the groups that one sampler would return from `Sampler.sample(**sampling)`, in the order of their ends. The
    samplers end with the context. Raises RuntimeError when one of them dies, and so does the iterator.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    members: dict[Connection, Process] = {}
    try:
        for i in range(replicas):
            pipe, far_end = context.Pipe(duplex=False)
            # Member i gets the prompts i, i + replicas, ...: neighbours are often equally long, so shares are even.
            share = range(i, len(sampling["prompts"]), replicas)
            variables = member_environment(i, gpus, replicas, settings.tensor_parallel)
            process = context.Process(target=_serve, args=(far_end, variables, model, settings, sampling, share))
            process.start()
            far_end.close()  # otherwise a dead member's pipe would stay open, and `recv` would wait for ever
            members[pipe] = process
        # All models load at the same time: wait only after every process has been started.
        for pipe, process in members.items():
            _receive(pipe, process)
        yield _groups(members)
    except BaseException:
        for process in members.values():
            process.terminate()  # it may be sampling, and would not notice the closed pipe for minutes
        raise
    finally:
        for pipe, process in members.items():
            pipe.close()
            process.join()


def member_environment(member: int, gpus: Sequence[str], replicas: int, size: int) -> dict[str, str]:
    """Return the variables of a sampler: which of `gpus` are its own, or how many threads it has.

    >>> member_environment(1, ["4", "5", "6", "7"], replicas=2, size=2)
    {'CUDA_VISIBLE_DEVICES': '6,7'}
    """
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[member * size : (member + 1) * size])}
    cores = max(1, len(os.sched_getaffinity(0)) // replicas)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores))}


def _receive(pipe: Connection, process: Process) -> SampledGroup | None:
    """Return the next message of a member. Raises RuntimeError if it has died, RunError if it says so."""
    try:
        message = pipe.recv()
    except (EOFError, OSError):
        process.join()
        status = process.exitcode
        raise RuntimeError(f"a sampler's process ended with status {status}; its error is above") from None
    if isinstance(message, RunError):
        raise message
    return message


def _groups(members: dict[Connection, Process]) -> Iterator[SampledGroup]:
    """Yield the groups that the members send, until all have sent None."""
    busy = set(members)
    while busy:
        for pipe in wait(list(busy)):
            group = _receive(pipe, members[pipe])
            if group is None:
                busy.remove(pipe)
            else:
                yield group


def _serve(
    pipe: Connection, variables: dict[str, str], model: Path, settings: EngineSettings, sampling: dict, share: range
) -> None:
    """Run a member's process: load the model, send None, the groups of a share of the prompts, and None again."""
    signal_at_program_end(signal.SIGKILL)  # a member must not outlive an evaluator that was killed
    os.environ.update(variables)  # before torch is imported, which looks for GPUs and counts cores
    setup_environment()
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.sampler import Sampler

    own = {name: [sampling[name][i] for i in share] for name in ("prompts", "seeds")}
    try:
        sampler = Sampler(str(model), load_tokenizer(model, settings.max_tokens), settings)
        pipe.send(None)
        for position, greedy, answers in sampler.sample(**sampling | own):
            pipe.send(SampledGroup(share[position], greedy, answers))
    except RunError as error:
        return pipe.send(error)
    pipe.send(None)
    sampler.close()
