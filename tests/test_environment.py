"""The environment of programs and ranks: defaults of libraries, launchers, folders and output."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from importlib import metadata

import pytest

import bnpo.environment as environment
from bnpo.environment import (
    DEFAULTS,
    LAUNCHER,
    RANKS_HERE,
    become_only_rank,
    check_process,
    is_rank,
    ranks_here,
    setup_environment,
)
from bnpo.ranks import _launchers
from conftest import ROOT, python, refused, users_environment

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.fixture(autouse=True)
def restored():
    """Each test starts without the variables, and leaves this process as it was."""
    before = dict(os.environ)
    for name in (*DEFAULTS, *LAUNCHER, *RANKS_HERE, "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    with warnings.catch_warnings():
        yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.program
def test_importing_bnpo_sets_what_libraries_read_and_imports_nothing_heavy():
    modules = "train, eval, bnpo.config, bnpo.data, bnpo.grading.rewards, bnpo.evaluation.program"
    code = f"import json, os, sys, {modules}; print(json.dumps([dict(os.environ), *sys.modules]))"
    given = {name: value for name, value in users_environment().items() if name not in DEFAULTS}
    done = python("-c", code, environment=given | {"VLLM_LOGGING_LEVEL": "INFO"})
    variables, *imported = json.loads(done.stdout)
    expected = DEFAULTS | {"VLLM_LOGGING_LEVEL": "INFO"}  # what the user has set stays
    assert {name: variables[name] for name in DEFAULTS} == expected
    heavy = {"torch", "transformers", "deepspeed", "vllm", "wandb", "sympy", "scipy.special"}
    assert heavy & set(imported) == set()


RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_PORT": "29500"}
RANK |= {"MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "x"},
        {"LOCAL_RANK": "-1"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1"},  # of which RANK 1 is none
        {"WORLD_SIZE": "0", "RANK": "0", "LOCAL_RANK": "0"},
        {"MASTER_PORT": "tcp"},
        {"MASTER_ADDR": ""},
        {"LOCAL_SIZE": "4(x2)"},
        {"LOCAL_WORLD_SIZE": "0"},
    ],
)
def test_variables_that_no_launcher_sets_make_no_rank(changes):
    os.environ.update(RANK | TORCHRUN | changes)
    setup_environment()
    assert (RANK | TORCHRUN).keys().isdisjoint(os.environ)
    become_only_rank()
    assert is_rank()
    assert (ranks_here(), _launchers()) == (1, [])


@pytest.mark.parametrize(
    ("given", "here", "threads"),
    [
        ({}, 1, None),  # a program that starts a launcher must not pass its own share on
        ({"LOCAL_SIZE": "4"}, 1, None),
        (RANK, 4, "1"),
        (RANK | {"LOCAL_SIZE": "2"}, 2, "3"),
        (RANK | {"LOCAL_WORLD_SIZE": "2"}, 2, "3"),
        (RANK | {"LOCAL_SIZE": "2", "OMP_NUM_THREADS": "5"}, 2, "5"),
        (RANK | TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}, 2, "3"),
    ],
)
def test_ranks_share_the_cores_of_a_machine(given, here, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    os.environ.update(given)
    setup_environment()
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert ranks_here() == here


@pytest.mark.parametrize(("given", "watched"), [({}, 0), (TORCHRUN, 1), ({"LOCAL_SIZE": "4"}, 2)])
def test_a_rank_watches_the_processes_of_its_launcher_only(given, watched):
    os.environ.update(RANK | given)
    assert len(_launchers()) == watched


def test_programs_beside_the_interpreter_come_first_once():
    for _ in range(2):
        setup_environment()
    folders = os.environ["PATH"].split(os.pathsep)
    assert folders[0] == os.path.dirname(sys.executable)
    assert folders[1] != folders[0]


def test_a_build_for_gpus_is_hidden_beside_a_torch_for_cpus(monkeypatch):
    builds = {"torch": "1+cpu", "torchvision": "0.28.0", "torchaudio": "2+cpu"}

    def version(package: str) -> str:
        if package not in builds:
            raise metadata.PackageNotFoundError(package)
        return builds[package]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(environment.sys, "modules", {})
    setup_environment()
    assert environment.sys.modules == {"torchvision": None}


LEFT_OVER = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
MPI = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PMI_RANK"), "3")
MPI |= dict.fromkeys(("PMIX_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID", "PMI_SIZE"), "4")
SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS": "4"}
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.program
@pytest.mark.parametrize(
    ("given", "expected", "line"),
    [
        (LEFT_OVER, dict.fromkeys(LEFT_OVER), ""),  # of another program: this one has no launcher
        (LEFT_OVER | ADDRESS, LEFT_OVER | ADDRESS, ""),  # of a launcher
        (MPI | SLURM, dict.fromkeys(MPI) | SLURM, ""),  # of which srun needs its own
        ({"HOME": "/proc/no"}, {}, "error: HOME: /proc/no: libraries cannot write their caches"),
        ({"HOME": "~"}, {}, "error: HOME: ~: libraries cannot write their caches"),
        ({"TMPDIR": "{long}"}, {}, "error: TMPDIR: {long} is too long for the paths of sockets"),
        ({"TMPDIR": "{short}"}, {"TMPDIR": "{short}"}, ""),
    ],
)
def test_the_environment_of_others_is_not_taken_for_ours(given, expected, line):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        long = os.path.join(short, 80 * "x")
        os.mkdir(long)

        def fill(variables: dict) -> dict:
            filled = {"short": short, "long": long}
            return {name: value and value.format(**filled) for name, value in variables.items()}

        variables = users_environment() | {"TMPDIR": "/tmp"} | fill(given)
        variables = {name: value for name, value in variables.items() if value is not None}
        code = "import json, os; from bnpo.environment import *; setup_environment()\n"
        command = [sys.executable, "-c", f"{code}print(json.dumps(dict(os.environ)))"]
        done = subprocess.run(command, cwd=short, env=variables, capture_output=True, text=True)
        assert done.stderr.startswith(line.format(long=long))
        assert bool(done.stderr) == bool(line)
        assert done.returncode == 2 * bool(line)
        after = {} if line else json.loads(done.stdout)
        assert {name: after.get(name) for name in expected} == fill(expected)
        assert os.listdir(short) == [80 * "x"]  # no folder named ~


def test_without_a_temporary_folder_the_line_names_the_variable(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc"])
    with refused("TMPDIR: .*No usable temporary directory.*; set TMPDIR to a folder of yours"):
        check_process()


DRY_RUN = ("train.py", "--preset", "tiny", "--eval-every", "0", "--dry-run")


@pytest.mark.program
@pytest.mark.parametrize("stdout", ["full disk", "closed pipe", "closed", "ascii"])
def test_what_cannot_be_printed_ends_no_program(stdout):
    code = "from bnpo.environment import setup_environment; setup_environment()\n"
    code += "for _ in range(9999): print('\\u00b1 \\udcff')\nprint('end', flush=True)"
    encoding = "ascii" if stdout == "ascii" else "utf-8"
    variables = users_environment() | {"PYTHONIOENCODING": encoding}
    reader, writer = os.pipe()
    os.close(reader)
    full_disk = open("/dev/full", "w")  # noqa: SIM115
    file = {"full disk": full_disk, "closed pipe": writer}.get(stdout, subprocess.PIPE)
    options = {"stdout": file, "stderr": subprocess.PIPE, "cwd": ROOT, "env": variables}
    options["preexec_fn"] = (lambda: os.close(1)) if stdout == "closed" else None
    commands = (["-c", code], DRY_RUN) if stdout == "full disk" else (["-c", code],)
    for command in commands:
        done = subprocess.run([sys.executable, *command], **options, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        if stdout == "ascii":
            assert done.stdout.isascii()
            assert done.stdout
    os.close(writer)


@pytest.mark.program
def test_python_without_docstrings_is_the_cause_that_is_named():
    failed = python(*DRY_RUN, environment=users_environment() | {"PYTHONOPTIMIZE": "2"})
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: PYTHONOPTIMIZE=2 or python -OO: removes docstrings")
    assert failed.stderr.count("\n") == 1
