"""What vLLM's build for GPUs makes of the sampler's arguments, on GPUs that dev/fake_card.py
describes.

Run by `make check-gpu-environment`; skipped with the packages for CPUs. Arguments that vLLM renamed
or refuses, and another choice of kernels, are found here. No kernel runs.
"""

import json
import shutil
import subprocess

import pytest

from conftest import CUDA_BUILD, ROOT, python, users_environment

pytestmark = [
    pytest.mark.program,
    pytest.mark.skipif(not CUDA_BUILD, reason="needs the packages for GPUs"),
]
SAME = {
    "autotune": False,
    "chunked prefill": False,
    "graphs": "FULL_AND_PIECEWISE",
    "head": "torch.float32",
    "log-probabilities": "processed_logprobs",
    "sequences": 512,
    "sleeps": True,
    "worker": "vllm.v1.worker.gpu_worker.Worker",
}
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
RANK |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> dict[str, str]:
    """An environment with a stub of the driver and without nvcc."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-DCUDA_VERSION=13000", "-o", folder / "libcuda.so.1"]
    subprocess.run([*command, ROOT / "tests" / "stub_driver.c"], check=True)
    return users_environment() | {"LD_LIBRARY_PATH": str(folder), "CUDA_HOME": str(folder)}


def configurations(environment: dict[str, str], *arguments: str) -> list[dict]:
    """Return what dev/fake_card.py prints: a configuration for each number format."""
    printed = python("dev/fake_card.py", *arguments, environment=environment)
    assert printed.returncode == 0, printed.stderr
    return [json.loads(line) for line in printed.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("card", "attention", "largest_graph"),
    [
        ("T4", {"float16": "TRITON_ATTN", "float32": "TRITON_ATTN"}, 512),
        ("A10", {"bfloat16": "FLASH_ATTN"}, 512),
        ("RTX-4090", {"bfloat16": "FLASH_ATTN"}, 512),
        ("H100", {"bfloat16": "FLASH_ATTN", "float32": "TRITON_ATTN"}, 512),
        ("B200", {"bfloat16": "FLASH_ATTN", "float32": "TRITON_ATTN"}, 1024),
        ("RTX-5090", {"bfloat16": "FLASH_ATTN"}, 512),
    ],
)
def test_each_gpu_has_kernels_for_its_number_formats(card, attention, largest_graph, machine):
    found = configurations(machine, card, *attention)
    for (dtype, backend), configuration in zip(attention.items(), found, strict=True):
        assert configuration == SAME | {
            "attention": backend,
            "dtype": f"torch.{dtype}",
            "executor": "uni",
            "largest graph": largest_graph,
        }


@pytest.mark.parametrize(
    ("variables", "flags", "executor"),
    [(RANK, (), "external_launcher"), ({}, ("--tensor-parallel", "2"), "mp")],
)
def test_an_engine_is_a_rank_of_the_launcher_or_starts_its_own(variables, flags, executor, machine):
    [configuration] = configurations(machine | variables, "A10", "bfloat16", *flags)
    assert configuration["executor"] == executor
    assert configuration["attention"] == "FLASH_ATTN"
