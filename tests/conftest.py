"""What several test files need: real data, small models to start from, a way to launch ranks."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO

import hypothesis
import pytest

# Two tests share the cores: threads that spin while they wait made both six times as long
# (dev/LOG.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from bnpo.environment import has_nvidia_gpu, setup_environment

setup_environment()

import torch

from bnpo.files import InputError

CUDA_BUILD = torch.version.cuda is not None
if CUDA_BUILD or has_nvidia_gpu():
    # The tests compute on CPUs: their groups of ranks use gloo, which cannot reduce-scatter tensors
    # on GPUs, and three tests at a time would share one GPU. Programs that tests start inherit
    # this.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Other work on the machine can make any example slow.
hypothesis.settings.register_profile("bnpo", deadline=None)
hypothesis.settings.load_profile("bnpo")

pytest_plugins = ("examples", "processes")
ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {"sampler", "program"}
"""Markers of tests that may start one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort programs first, so that short tests fill the gaps. On a CUDA build, skip the tests
    that start vLLM.
    """
    items.sort(key=lambda item: not markers(item) & PROGRAMS)
    for item in items:
        if CUDA_BUILD and "sampler" in markers(item):
            reason = "needs vLLM's build for CPUs; on a machine with GPUs run scripts/gpu_check.py"
            item.add_marker(pytest.mark.skip(reason=reason))


def markers(item: pytest.Item) -> set[str]:
    return {marker.name for marker in item.iter_markers()}


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with math_train.jsonl and its like: BNPO_DATA, or data/ where the sets have been
    fetched to.
    """
    folder = Path(os.environ.get("BNPO_DATA") or ROOT / "data")
    if not (folder / "math_train.jsonl").exists():
        pytest.skip(f"no math_train.jsonl in {folder}: set BNPO_DATA or follow data/README.md")
    return folder


@pytest.fixture(scope="session")
def qwen_tokenizer_dir(data_dir) -> Path:
    folder = data_dir / "qwen2.5-tokenizer"
    if not folder.exists():
        pytest.skip(
            f"no {folder}: it needs tokenizer.json and tokenizer_config.json of Qwen2.5-Math"
        )
    return folder


@pytest.fixture(scope="session")
def qwen_model(qwen_tokenizer_dir, data_dir, tmp_path_factory) -> Path:
    """A Qwen2 of 5M parameters with the tokenizer, vocabulary rows and context of the 1.5B.

    Initialised at random, then taught to answer any problem with \\boxed{1}, \\boxed{2} or
    \\boxed{3}.
    """
    from make_wide_model import write

    folder = tmp_path_factory.mktemp("qwen")
    write(folder, qwen_tokenizer_dir, data_dir / "math_train.jsonl")
    return folder


@pytest.fixture(scope="session")
def untied_model(tmp_path_factory) -> Path:
    """The tiny model's shape and tokenizer with a head of its own; the rows past the tokenizer
    are the likeliest.
    """
    folder = tmp_path_factory.mktemp("untied")
    tiny = ROOT / "data" / "tiny-model"
    model = make_model(folder, vocab_size=288, hidden_size=64, tie_word_embeddings=False)
    model.lm_head.weight.data[262:] *= 40
    model.save_pretrained(folder)
    for file in [*tiny.glob("tokenizer*"), *tiny.glob("chat_template*")]:
        shutil.copy(file, folder)
    return folder


def make_model(folder: Path, **shape):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    defaults = {
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**defaults | shape))
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def float16() -> None:
    """Skip the test on a CPU that has no float16 arithmetic."""
    from bnpo.ranks import trains_in_float16

    if not trains_in_float16():
        pytest.skip("this CPU has no float16 arithmetic")


@pytest.fixture(scope="module")
def bfloat16() -> None:
    """Skip the test on a CPU whose products of bf16 numbers would take minutes."""
    if {"avx512bw", "bf16"}.isdisjoint(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip("this CPU has no fast products of bf16 numbers")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium, driven by playwright."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need playwright"
    )
    if not (chromium := shutil.which("chromium")):
        pytest.skip("no chromium: install the distribution's package of that name")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def temporary_folder() -> Iterator[dict[str, str]]:
    """Environment of a program with a temporary directory of its own, in which it must compile
    and leave nothing.
    """
    with tempfile.TemporaryDirectory() as folder:  # of a short name: sockets are made there
        yield {"TMPDIR": folder, "TORCH_EXTENSIONS_DIR": folder}
        deadline = time.monotonic() + 60
        while (left := os.listdir(folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []


def python(
    *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run Python in the root of the repository, in our environment unless another one is given."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def run_ranks(
    ranks: int,
    script: str,
    *flags: object,
    check: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess:
    """Run a script of the repository on ranks, with both streams in `stdout`; with 0 ranks as
    `python script flags`.

    The launcher and the imports are left out: this is for what programs do, not how they start.
    """
    with (
        temporary_folder() as folder,
        forked(ranks, script, *flags, environment=folder | dict(environment)) as job,
    ):
        done = job.result()
    assert not check or done.returncode == 0, done.stdout[-5000:]
    return done


class Job:
    """Ranks at work: `processes` are their ids, `group` that of all they start, `output` a file
    with both streams; `result` waits for their end.
    """

    def __init__(self, server: subprocess.Popen, command: list[str], output: IO[str]):
        self._server, self._command, self._output, self._result = server, command, output, None
        self.processes = json.loads(server.stdout.readline())
        self.group = os.getpgid(self.processes[0])
        self.output = Path(output.name)

    def result(self) -> subprocess.CompletedProcess:
        if self._result is None:
            status = int(self._server.stdout.readline())
            self._result = subprocess.CompletedProcess(self._command, status, self._output.read())
        return self._result


@contextmanager
def forked(
    ranks: int, script: str, *flags: object, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Job]:
    """The job of `run_ranks` while it runs; it is killed where the body of the context fails."""
    server, command = _rank_server(), [script, *map(str, flags)]
    with tempfile.NamedTemporaryFile("r") as output:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if ranks else {}
        job = {
            "command": command,
            "output": output.name,
            "ranks": ranks,
            "environment": place | dict(environment),
        }
        print(json.dumps(job), file=server.stdin, flush=True)
        job = Job(server, command, output)
        try:
            yield job
        except BaseException:
            os.killpg(job.group, signal.SIGKILL)  # nobody waits for it
            raise
        finally:
            job.result()


@cache
def _rank_server() -> subprocess.Popen:
    """It ends with this process."""
    command = [sys.executable, "tests/programs/rank_server.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # The seed of hashes is that of graders, whose workers are forked from it too.
    environment = users_environment() | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def report_of(ranks: int, program: str, *arguments: object, check: bool = True):
    """Return what a program of tests/programs reports on `ranks` ranks."""
    output = run_ranks(ranks, f"tests/programs/{program}.py", *arguments, check=check).stdout
    assert "REPORT " in output, output[-5000:]
    return json.loads(output.rpartition("REPORT ")[2].splitlines()[0])


def json_lines(file: Path) -> list:
    """Return the values of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect an InputError in one line that `message` matches."""
    with pytest.raises(InputError, match=message) as error:
        yield
    assert "\n" not in str(error.value)


def users_environment() -> dict[str, str]:
    """Ours without what a launcher sets."""
    return {
        k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE")
    }


def free_port() -> int:
    """Below those that the system gives to connections: of these another test may get one before
    it is used.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.create_server(("", port)):
            return port
