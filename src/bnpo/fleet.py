"""Samplers in processes of their own, one for each GPU or group of GPUs: data-parallel sampling for the evaluator."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.guarded import die_with_program

if TYPE_CHECKING:  # vLLM is imported where it runs
    from bnpo.sampler import Answer


class Fleet:
    """`replicas` samplers of the model in folder `model`, each on `tensor_parallel` GPUs (or its share of the cores).

    A process of its own for each also gives all its memory back when it ends. `settings` are the Sampler's other
    arguments. Raises RuntimeError when a sampler dies; its own error is on the console.
    """

    def __init__(self, model: Path, gpus: Sequence[str], replicas: int, tensor_parallel: int, settings: dict):
        context = multiprocessing.get_context("spawn")
        if not gpus and replicas > 1:  # the processes share the cores; libraries read this when they are imported
            os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // replicas))
        self._members: list[tuple[Connection, multiprocessing.Process]] = []
        for i in range(replicas):
            visible = ",".join(gpus[i * tensor_parallel : (i + 1) * tensor_parallel])
            ours, theirs = context.Pipe()
            arguments = (theirs, visible, str(model), settings | {"tensor_parallel": tensor_parallel})
            process = context.Process(target=_serve, args=arguments)
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


def _serve(connection: Connection, gpus: str, model: str, settings: dict) -> None:
    """A member's program: load the model, then sample what is asked until the connection closes."""
    die_with_program()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    from bnpo import runtime  # noqa: F401 - before torch and vLLM
    from bnpo.models import load_tokenizer
    from bnpo.sampler import Sampler

    tokenizer = load_tokenizer(Path(model), settings["max_tokens"])
    sampler = Sampler(model, tokenizer, **settings)
    connection.send(None)
    try:
        while True:
            prompts, seeds, sampling = connection.recv()
            for message in sampler.sample(prompts, seeds, **sampling):
                connection.send(message)
            connection.send(None)
    except EOFError:
        sampler.close()
