"""mathequal in place of another grader: in programs that know nothing of its worker processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from processes import left_after

pytestmark = pytest.mark.program

VERDICTS = """
import mathequal
print("started", flush=True)
print([
    mathequal.verify("x+1", "1+x"),
    mathequal.verify("x+1", "x+2"),
    mathequal.compute_score("", r"so \\boxed{1+x}", "x+1"),
    mathequal.accuracy_reward([r"\\boxed{1+x}", r"\\boxed{x}"], ["x+1", "x+1"]),
    mathequal.explain("x+1", "1+x"),
])
"""
RIGHT = ["started", "[True, False, 1.0, [1.0, 0.0], 'equal']"]

IN_PROCESSES = """
import multiprocessing
import os
import mathequal

def verdict(answer):
    return mathequal.verify("x+1", answer)

first = [verdict("1+x")]
with multiprocessing.Pool(2) as pool:
    print(first + pool.map(verdict, ["1+x", "x+2", "x+1+0", "2+x"]), flush=True)
if (child := os.fork()) == 0:
    print([verdict("1+x"), verdict("x+2")], flush=True)
    raise SystemExit(0)  # with all functions of atexit
assert os.waitpid(child, 0)[1] == 0
print([verdict("x+1+0")])
"""

AFTER_THE_SERVER_WAS_KILLED = """
import psutil
import mathequal

print(mathequal.verify("x+1", "1+x"))
for process in psutil.Process().children(recursive=True):
    process.kill()
print(mathequal.verify("x+1", "1+x"))
"""


def output(environment: dict, folder: Path, *command: str, text: str = "") -> list[str]:
    streams = {"input": text, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, **streams)
    assert (done.returncode, done.stderr) == (0, "")
    assert left_after(environment, 60) == []
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (IN_PROCESSES, ["[True, True, False, True, False]", "[True, False]", "[True]"]),
        pytest.param(AFTER_THE_SERVER_WAS_KILLED, ["True"] * 2, marks=pytest.mark.extra),
    ],
    ids=["processes", "killed"],
)
def test_programs_without_a_main_guard_get_right_verdicts(tmp_path, environment, program, lines):
    file = tmp_path / "main.py"
    file.write_text(program)
    assert output(environment, tmp_path, str(file)) == lines


@pytest.mark.extra
def test_it_does_not_matter_how_and_where_a_program_is_started(tmp_path, environment):
    """From standard input, isolated, beside files with names of modules, and with a temporary
    folder whose path is too long for sockets.
    """
    assert output(environment, tmp_path, "-", text=VERDICTS) == RIGHT
    file, folder = tmp_path / "main.py", Path(f"{tmp_path}/{'t' * (112 - len(str(tmp_path)))}")
    folder.mkdir()
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    # No variable of the environment says where packages are, only the program does
    place = f"import sys; sys.path.insert(0, {environment['PYTHONPATH'].split(':')[1]!r})"
    file.write_text(place + VERDICTS)
    environment["TMPDIR"] = str(folder)
    assert output(environment, tmp_path, "-I", str(file)) == RIGHT
    assert list(folder.iterdir()) == []
