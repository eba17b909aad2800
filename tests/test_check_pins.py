"""Wheels that install the same file, with small wheels made here."""

import subprocess
import sys
import zipfile

import pytest

from bnpo.files import ROOT

pytestmark = pytest.mark.program


def make_wheel(folder, name, files):
    """A wheel of files {path in the archive: content}, with the metadata that every wheel has."""
    metadata = {f"{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n"}
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
    assert (done.returncode, done.stdout) == (0, "2 wheels, no two of them install the same file\n")


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


def test_a_command_in_two_wheels_is_a_file_too(tmp_path):
    make_wheel(tmp_path, "script", {"script-1.0.data/scripts/proton": "#!python"})
    make_wheel(tmp_path, "entry", {"entry-1.0.dist-info/entry_points.txt": "[console_scripts]\nproton = entry:main\n"})
    done = check(tmp_path)
    assert done.returncode == 1
    assert "\n  bin/proton\n" in done.stdout


def test_a_folder_without_wheels_is_refused(tmp_path):
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"error: --wheels {tmp_path}: no wheels there\n"
