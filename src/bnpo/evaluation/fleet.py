"""Several samplers of one model side by side, each in a process of its own. They share the prompts."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing import Process
from multiprocessing.connection import Connection, wait
from pathlib import Path

from bnpo.environment import setup_environment
from bnpo.files import RunError
from bnpo.grading.workers import signal_at_program_end
from bnpo.policy.sampling import EngineSettings, SampledGroup


def fleet(
    model: Path, gpus: Sequence[str], replicas: int, settings: EngineSettings, sampling: dict
) -> Iterator[SampledGroup]:
    """Yield the groups that one sampler of the model in a folder would return from `Sampler.sample(**sampling)`.

    They come from `replicas` samplers, in the order of their ends. Each sampler has its own GPUs, or its share of the
    cores, and ends with the iterator. Raises RuntimeError if one of them dies, and what RunError one raises.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    size, cores = settings.tensor_parallel, max(1, len(os.sched_getaffinity(0)) // replicas)
    members: dict[Connection, Process] = {}
    try:
        for i in range(replicas):
            pipe, far_end = context.Pipe(duplex=False)
            # Member i gets the prompts i, i + replicas, ...: neighbours are often equally long, so shares are even.
            share = range(i, len(sampling["prompts"]), replicas)
            variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores))}
            if gpus:
                variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * size : (i + 1) * size])}
            process = context.Process(target=_serve, args=(far_end, variables, model, settings, sampling, share))
            process.start()
            far_end.close()  # otherwise a dead member's pipe would stay open, and `recv` would wait for ever
            members[pipe] = process
        busy = list(members)
        while busy:
            for pipe in wait(busy):
                try:
                    group = pipe.recv()
                except (EOFError, OSError):
                    members[pipe].join()
                    status = members[pipe].exitcode
                    raise RuntimeError(f"a sampler's process ended with status {status}; its error is above") from None
                if isinstance(group, RunError):
                    raise group
                if group is None:
                    busy.remove(pipe)
                else:
                    yield group
    except BaseException:
        for process in members.values():
            process.terminate()  # it may be sampling for minutes
        raise
    finally:
        for process in members.values():
            process.join()


def _serve(
    pipe: Connection, variables: dict[str, str], model: Path, settings: EngineSettings, sampling: dict, share: range
) -> None:
    """Run a member's process: load the model, and send the groups of its share of the prompts, or a RunError."""
    signal_at_program_end(signal.SIGKILL)  # a member must not outlive an evaluator that was killed
    os.environ.update(variables)  # before torch is imported, which looks for GPUs and counts cores
    setup_environment()
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.sampler import Sampler

    own = {name: [sampling[name][i] for i in share] for name in ("prompts", "seeds")}
    try:
        sampler = Sampler(str(model), load_tokenizer(model, settings.max_tokens), settings)
        for position, greedy, answers in sampler.sample(**sampling | own):
            pipe.send(SampledGroup(share[position], greedy, answers))
    except RunError as error:
        return pipe.send(error)
    pipe.send(None)
    sampler.close()
