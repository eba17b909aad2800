"""Rows side by side: how many GPUs each row gets, and programs that run at the same time."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from bnpo.files import ROOT, InputError
from paper.rows import Row

Sizes = dict[str, int]
"""How many GPUs, or cores of a machine without GPUs, a row gets, by model."""


@dataclass(frozen=True)
class Devices:
    """The GPUs, as CUDA_VISIBLE_DEVICES names them, or else the cores of this machine."""

    names: tuple[str, ...]
    are_gpus: bool

    def environment(self, names: Sequence[str]) -> dict[str, str]:
        """Return the environment of a program that uses the devices `names` only."""
        return os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(names)} if self.are_gpus else {})

    def use(self, names: Sequence[str]) -> None:
        """Let this process use the cores `names` only. GPUs are chosen by the environment."""
        if not self.are_gpus:
            os.sched_setaffinity(0, map(int, names))


def equal_sizes(rows: Sequence[Row], rows_at_once: int, devices: int) -> Sizes:
    """Return the same share of the devices for every row. Raises InputError if there are too few
    devices.
    """
    if rows_at_once > devices:
        raise InputError(
            f"--rows-at-once {rows_at_once}: this machine has {devices} GPUs or cores; use "
            f"{devices} or less"
        )
    return {row.model: devices // rows_at_once for row in rows}


def fastest_sizes(
    rows: Sequence[Row], hours: Callable[[Row, int], float | None], gpus: int
) -> Sizes | None:
    """Return the number of GPUs for each model's rows with which all rows are done first.

    `hours(row, size)` is what a row takes on `size` GPUs, None if it does not fit. Returns None if
    some model does not fit at all.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    divisors = [size for size in range(1, gpus + 1) if gpus % size == 0]
    candidates = []
    for chosen in itertools.product(divisors, repeat=len(models)):
        sizes = dict(zip(models, chosen, strict=True))
        needed = wall_hours(rows, hours, sizes, gpus)
        if needed is not None:
            candidates.append((needed, sum(chosen), sizes))
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def wall_hours(
    rows: Sequence[Row], hours: Callable[[Row, int], float | None], sizes: Sizes, gpus: int
) -> float | None:
    """Return the hours until all rows are done, in the order in which `run_rows` starts them. None
    if a row does not fit.
    """
    waiting, running = list(rows), []  # running: (time of the end, GPUs)
    now, free = 0.0, gpus
    while waiting or running:
        for row in next_rows(waiting, sizes, free):
            needed = hours(row, sizes[row.model])
            if needed is None:
                return None
            running.append((now + needed, sizes[row.model]))
            waiting.remove(row)
            free -= sizes[row.model]
        running.sort()
        now, released = running.pop(0)
        free += released
    return now


def next_rows(waiting: Sequence[Row], sizes: Sizes, free: int) -> list[Row]:
    """Return the rows that can start now on `free` devices, in their order."""
    chosen = []
    for row in waiting:
        if sizes[row.model] <= free:
            free -= sizes[row.model]
            chosen.append(row)
    return chosen


@dataclass
class Programs:
    """The programs that run now. `stop` passes a signal on to all of them."""

    devices: Devices
    prefixed: bool
    """Whether each line of output begins with the row's name, since several rows print."""
    stopped: bool = False
    _running: set[subprocess.Popen] = field(default_factory=set)

    def start(self, command: Sequence[str], row: Row, names: Sequence[str]) -> int:
        """Run a command of `row` on the devices `names`, and return its exit status."""
        program = subprocess.Popen(
            [sys.executable, *command[1:]],
            cwd=ROOT,
            # In its own session, so that Ctrl-C reaches only this process, which passes it on once.
            start_new_session=True,
            env=self.devices.environment(names),
            preexec_fn=lambda: self.devices.use(names),
            stdout=subprocess.PIPE if self.prefixed else None,
            stderr=subprocess.STDOUT if self.prefixed else None,
            text=True,
            errors="replace",
        )
        self._running.add(program)
        for line in program.stdout or ():
            print(f"{row.name}: {line}", end="", flush=True)
        status = program.wait()
        self._running.discard(program)
        return status

    def stop(self, signal_number: int, _frame: object) -> None:
        """Handle a signal of this process."""
        self.stopped = True
        for program in list(self._running):
            program.send_signal(signal_number)


def run_rows(
    rows: Sequence[Row],
    sizes: Sizes,
    devices: Devices,
    run: Callable[[Row, Sequence[str]], None],
    stopped: Callable[[], bool],
) -> list[str]:
    """Call `run(row, its devices)` for all rows, as many at once as there are devices for.

    A row that raises InputError does not keep the others from running. Returns these errors. No row
    starts once `stopped()` is true.
    """
    waiting, free, errors = list(rows), list(devices.names), []
    running: dict[Future, list[str]] = {}
    with ThreadPoolExecutor(len(devices.names)) as pool:
        while True:
            for row in [] if stopped() else next_rows(waiting, sizes, len(free)):
                own = [free.pop(0) for _ in range(sizes[row.model])]
                running[pool.submit(run, row, own)] = own
                waiting.remove(row)
            if not running:
                return errors
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                free += running.pop(future)
                try:
                    future.result()
                except InputError as error:
                    errors.append(str(error))
