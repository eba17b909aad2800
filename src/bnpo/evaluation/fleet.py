"""Samplers in processes of their own, one for each GPU or group of GPUs: data-parallel sampling for the evaluator."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.answers.workers import signal_at_program_end

if TYPE_CHECKING:  # vLLM is imported where it runs
    from bnpo.policy.sampler import Answer


class Fleet:
    """`replicas` samplers of the model in folder `model`, each on `tensor_parallel` GPUs (or its share of the cores).

    A process of its own for each also gives all its memory back when it ends. `settings` are the Sampler's other
    arguments. Raises RuntimeError when a sampler dies; its own error is on the console.
    """

    def __init__(self, model: Path, gpus: Sequence[str], replicas: int, tensor_parallel: int, settings: dict):
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Connection, multiprocessing.Process]] = []
        for i in range(replicas):
            visible = ",".join(gpus[i * tensor_parallel : (i + 1) * tensor_parallel])
            share = os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // replicas)))
            ours, theirs = context.Pipe()
            arguments = (theirs, str(model), settings | {"tensor_parallel": tensor_parallel})
            process = context.Process(target=_serve, args=arguments)
            # From its first instruction on: what a process imports may look for GPUs, or count cores.
            with _environment({"CUDA_VISIBLE_DEVICES": visible} if gpus else {"OMP_NUM_THREADS": share}):
                process.start()
            theirs.close()
            self._members.append((ours, process))
        try:
            for connection, process in self._members:
                _receive(connection, process)  # the model is loaded
        except BaseException as error:  # the others would wait for ever, and with them this program's end
            self.__exit__(type(error))
            raise

    def sample(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], **sampling
    ) -> Iterator[tuple[int, list["Answer"]]]:
        """As `Sampler.sample`, which says what it yields; without greedy answers."""
        count = len(self._members)
        for i, (connection, _) in enumerate(self._members):
            connection.send((prompts[i::count], seeds[i::count], sampling))
        busy = {connection: (i, process) for i, (connection, process) in enumerate(self._members)}
        while busy:
            for connection in wait(list(busy)):
                i, process = busy[connection]
                message = _receive(connection, process)
                if message is None:
                    del busy[connection]
                else:
                    number, answers = message
                    yield number * count + i, answers

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for connection, process in self._members:
            connection.close()
            if error is not None:
                process.terminate()
            process.join()


def _receive(connection: Connection, process: multiprocessing.Process) -> object:
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join()
        raise RuntimeError(f"a sampler's process ended with status {process.exitcode}; its error is above") from None


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """This process's environment with `variables`, for a process that is started meanwhile."""
    before = dict(os.environ)
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ |= before


def _serve(connection: Connection, model: str, settings: dict) -> None:
    """A member's program: load the model, then sample what is asked until the connection closes."""
    signal_at_program_end(signal.SIGKILL)
    from bnpo.policy.folder import load_tokenizer

    tokenizer = load_tokenizer(Path(model), settings["max_tokens"])
    from bnpo.policy.sampler import Sampler
    from bnpo.policy.settings import SamplerSettings

    sampler = Sampler(model, tokenizer, SamplerSettings(**settings))
    connection.send(None)
    try:
        while True:
            prompts, seeds, sampling = connection.recv()
            for message in sampler.sample(prompts, seeds, **sampling):
                connection.send(message)
            connection.send(None)
    except EOFError:
        sampler.close()
