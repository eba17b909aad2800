"""Finding the processes that a test has started, however they were started."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """For a program of a test: it finds the modules next to this file, and `processes_of` finds
    what it started.
    """
    modules = f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}"
    environment = os.environ | {"PYTHONPATH": modules, "BNPO_TEST_RUN": uuid.uuid4().hex}
    yield environment
    for process in processes_of(environment):
        os.kill(process, signal.SIGKILL)


def processes_of(environment: dict[str, str]) -> dict[int, str]:
    """The living processes with this environment, and their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Empty for zombies
            if environment["BNPO_TEST_RUN"].encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found


def left_after(environment: dict[str, str], seconds: float) -> list[str]:
    """The processes that have not ended within `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(environment)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return list(left.values())
