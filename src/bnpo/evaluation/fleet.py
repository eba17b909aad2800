"""Samplers in processes of their own, one for each GPU or group of GPUs: data-parallel sampling for the evaluator."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.environment import setup_environment
from bnpo.policy.settings import SamplerSettings
from bnpo.processes import signal_at_program_end

if TYPE_CHECKING:  # vLLM is imported where it runs
    from bnpo.policy.sampler import Answer

Member = tuple[Connection, multiprocessing.Process]
Sample = Callable[..., Iterator[tuple[int, list["Answer"]]]]


@contextmanager
def fleet(model: Path, gpus: Sequence[str], replicas: int, settings: SamplerSettings) -> Iterator[Sample]:
    """Gives a function like `Sampler.sample`, without greedy answers, of `replicas` samplers of the model in folder
    `model`, each on GPUs of its own (or its share of the cores).

    A process of its own for each also gives all its memory back when it ends. Raises RuntimeError when a sampler dies;
    its own error is on the console.
    """
    size = settings.tensor_parallel
    with ExitStack() as running:
        members = []
        for i in range(replicas):
            if gpus:
                share = "CUDA_VISIBLE_DEVICES", ",".join(gpus[i * size : (i + 1) * size])
            else:
                cores = max(1, len(os.sched_getaffinity(0)) // replicas)
                share = "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", str(cores))
            members.append(running.enter_context(_member(*share, str(model), settings)))
        for member in members:
            _receive(*member)  # the model is loaded
        yield partial(_sample, members)


@contextmanager
def _member(variable: str, value: str, model: str, settings: SamplerSettings) -> Iterator[Member]:
    """A process that serves as long as the context lasts, with a variable of the environment of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, model, settings))
    # From its first instruction on: what a process imports may look for GPUs, or count cores.
    with _environment(variable, value):
        process.start()
    theirs.close()
    try:
        yield ours, process
    except BaseException:
        process.terminate()  # it may be in the middle of its work
        raise
    finally:
        ours.close()
        process.join()


def _sample(
    members: Sequence[Member], prompts: Sequence[list[int]], seeds: Sequence[int], **sampling
) -> Iterator[tuple[int, list["Answer"]]]:
    count = len(members)
    for i, (connection, _) in enumerate(members):
        connection.send((prompts[i::count], seeds[i::count], sampling))
    busy = {connection: (i, process) for i, (connection, process) in enumerate(members)}
    while busy:
        for connection in wait(list(busy)):
            i, process = busy[connection]
            message = _receive(connection, process)
            if message is None:
                del busy[connection]
            else:
                number, greedy, answers = message
                yield number * count + i, greedy, answers


def _receive(connection: Connection, process: multiprocessing.Process) -> object:
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join()
        raise RuntimeError(f"a sampler's process ended with status {process.exitcode}; its error is above") from None


@contextmanager
def _environment(variable: str, value: str) -> Iterator[None]:
    """This process's environment with another value of `variable`, for a process that is started meanwhile."""
    before = {variable: os.environ[variable]} if variable in os.environ else {}
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]
        os.environ |= before


def _serve(connection: Connection, model: str, settings: SamplerSettings) -> None:
    """A member's program: load the model, then sample what is asked until the connection closes."""
    signal_at_program_end(signal.SIGKILL)
    setup_environment()
    from bnpo.policy.folder import load_tokenizer

    tokenizer = load_tokenizer(Path(model), settings.max_tokens)
    from bnpo.policy.sampler import Sampler

    sampler = Sampler(model, tokenizer, settings)
    connection.send(None)
    try:
        while True:
            prompts, seeds, sampling = connection.recv()
            for message in sampler.sample(prompts, seeds, **sampling):
                connection.send(message)
            connection.send(None)
    except EOFError:
        sampler.close()
