"""Data-parallel sampling for eval.py: samplers in their own processes, one per GPU or group of GPUs."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from bnpo.environment import setup_environment
from bnpo.files import RunError
from bnpo.policy.engine_settings import EngineSettings
from bnpo.policy.sampled import SampledGroup
from bnpo.processes import signal_at_program_end


class Member(NamedTuple):
    """One sampler: the pipe to its process, and the process."""

    connection: Connection
    process: multiprocessing.Process

    def receive(self) -> object:
        """Return the next message. Raises RuntimeError if the process has died, RunError if it says so."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            raise RuntimeError(f"a sampler's process ended with status {status}; its error is above") from None
        if isinstance(message, RunError):
            raise message
        return message


@contextmanager
def fleet(model: Path, gpus: Sequence[str], replicas: int, settings: EngineSettings) -> Iterator[Callable]:
    """Start `replicas` samplers of the model in a folder. Each has its own GPUs, or its share of the cores.

    Yields a function like `Sampler.sample` (without `greedy_too`) that shares the prompts among them. The samplers end
    with the context. Raises RuntimeError when one of them dies.
    """
    size = settings.tensor_parallel
    with ExitStack() as running:
        members = []
        for i in range(replicas):
            if gpus:
                variable, value = "CUDA_VISIBLE_DEVICES", ",".join(gpus[i * size : (i + 1) * size])
            else:
                cores = max(1, len(os.sched_getaffinity(0)) // replicas)
                variable, value = "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", str(cores))
            members.append(running.enter_context(_start_member(variable, value, str(model), settings)))
        # All models load at the same time: wait only after every process has been started.
        for member in members:
            member.receive()
        yield partial(_sample, members)


@contextmanager
def _start_member(variable: str, value: str, model: str, settings: EngineSettings) -> Iterator[Member]:
    """Run a sampler's process while the context lasts. `variable` is set to `value` in its environment alone."""
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    connection, far_end = context.Pipe()
    process = context.Process(target=_serve, args=(far_end, model, settings))
    before = os.environ.get(variable)
    # Set before the process starts: what it imports may look for GPUs, or count cores.
    os.environ[variable] = value
    process.start()
    del os.environ[variable]
    if before is not None:
        os.environ[variable] = before
    far_end.close()  # otherwise a dead member's pipe would stay open, and `receive` would wait for ever
    try:
        yield Member(connection, process)
    except BaseException:
        process.terminate()  # it may be sampling, and would not notice the closed pipe for minutes
        raise
    finally:
        connection.close()
        process.join()


def _sample(
    members: Sequence[Member], prompts: Sequence[list[int]], seeds: Sequence[int], **sampling
) -> Iterator[SampledGroup]:
    # Member i of M gets the prompts i, i + M, i + 2 M, ...: neighbours are often equally long, so shares are even.
    count = len(members)
    for i, member in enumerate(members):
        member.connection.send((prompts[i::count], seeds[i::count], sampling))
    busy = {member.connection: i for i, member in enumerate(members)}
    while busy:
        for connection in wait(list(busy)):
            i = busy[connection]
            message = members[i].receive()
            if message is None:  # this member has answered all its prompts
                del busy[connection]
            else:
                own_position, greedy, answers = message
                yield SampledGroup(own_position * count + i, greedy, answers)


def _serve(connection: Connection, model: str, settings: EngineSettings) -> None:
    """Run a member's process: load the model, then answer requests until the connection closes."""
    signal_at_program_end(signal.SIGKILL)  # a member must not outlive an evaluator that was killed
    setup_environment()
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.sampler import Sampler

    try:
        sampler = Sampler(model, load_tokenizer(Path(model), settings.max_tokens), settings)
    except RunError as error:
        return connection.send(error)
    connection.send(None)  # loaded
    try:
        while True:
            prompts, seeds, sampling = connection.recv()
            for message in sampler.sample(prompts, seeds, **sampling):
                connection.send(message)
            connection.send(None)  # all prompts of this request are answered
    except EOFError:
        sampler.close()
