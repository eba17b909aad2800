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

IN_A_POOL = """
import multiprocessing
import mathequal

def verdict(answer):
    return mathequal.verify("x+1", answer)

first = [verdict("1+x")]
with multiprocessing.Pool(2) as pool:
    print(first + pool.map(verdict, ["1+x", "x+2", "x+1+0", "2+x"]))
print([verdict("x+1+0")])
"""

IN_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import mathequal

with ThreadPoolExecutor(8) as threads:
    print(list(threads.map(lambda k: mathequal.verify("x+2", f"x+{k}-0"), range(5))))
"""

AFTER_A_FORK = """
import os
import mathequal

def verdicts():
    return [mathequal.verify("x+1", answer) for answer in ("1+x", "x+2")]

print(verdicts(), flush=True)
if (child := os.fork()) == 0:
    print(verdicts(), flush=True)
    raise SystemExit(0)  # with all functions of atexit
assert os.waitpid(child, 0)[1] == 0
print(verdicts())
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
    done = subprocess.run(
        [sys.executable, *command],
        input=text,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert left_after(environment, 5) == []
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", ["script", "-c", "-", "isolated"])
def test_verdicts_of_a_program_without_a_main_guard_are_right(tmp_path, environment, how):
    """And the program runs once, however it is started."""
    file = tmp_path / "main.py"
    file.write_text(VERDICTS)
    if how == "script":
        assert output(environment, tmp_path, str(file)) == RIGHT
    elif how == "-c":
        assert output(environment, tmp_path, "-c", VERDICTS) == RIGHT
    elif how == "-":
        assert output(environment, tmp_path, "-", text=VERDICTS) == RIGHT
    else:  # no variable of the environment says where packages are, only the program does
        place = f"import sys; sys.path.insert(0, {environment['PYTHONPATH'].split(':')[1]!r})"
        file.write_text(place + VERDICTS)
        assert output(environment, tmp_path, "-I", str(file)) == RIGHT


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (IN_A_POOL, ["[True, True, False, True, False]", "[True]"]),
        (IN_THREADS, ["[False, False, True, False, False]"]),
        (AFTER_A_FORK, ["[True, False]"] * 3),
        (AFTER_THE_SERVER_WAS_KILLED, ["True"] * 2),
    ],
    ids=["pool", "threads", "fork", "killed"],
)
def test_any_process_and_thread_gets_right_verdicts(tmp_path, environment, program, lines):
    file = tmp_path / "main.py"
    file.write_text(program)
    assert output(environment, tmp_path, str(file)) == lines


def test_a_temporary_folder_too_long_for_sockets_makes_no_difference(tmp_path, environment):
    folder = Path(f"{tmp_path}/{'t' * (112 - len(str(tmp_path)))}")
    assert len(str(folder)) == 113
    folder.mkdir()
    environment["TMPDIR"] = str(folder)
    assert output(environment, tmp_path, "-c", VERDICTS) == RIGHT
    assert list(folder.iterdir()) == []


def test_files_of_the_working_directory_stand_in_for_no_module(tmp_path, environment):
    """For none that a program elsewhere would not find, either."""
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    file = tmp_path / "programs" / "main.py"
    file.parent.mkdir()
    file.write_text(VERDICTS)
    assert output(environment, tmp_path, str(file)) == RIGHT


WITHOUT_WORKERS = """
import sys
import mathequal

sys.executable = sys.argv[1]
for ask in (
    lambda: mathequal.verify("x+1", "1+x"),
    lambda: mathequal.compute_score("", r"\\boxed{1+x}", "x+1"),
    lambda: mathequal.explain("x+1", "1+x"),
):
    try:
        print("verdict", ask())
    except (RuntimeError, OSError) as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("interpreter", "error"), [("/bin/false", "RuntimeError"), ("/none", "FileNotFoundError")]
)
def test_without_workers_there_is_an_error_and_no_verdict(
    tmp_path, environment, interpreter, error
):
    lines = output(environment, tmp_path, "-c", WITHOUT_WORKERS, interpreter)
    assert lines == [error] * 3
