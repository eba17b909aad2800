"""What a grader must survive: any reward that a user can write, and kills."""

import multiprocessing
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from bnpo.grading.grader import Grader
from processes import left_after, processes_of

TIME_LIMIT = 1.0


USER_REWARDS = """
import ctypes
import os
import signal
import sys
import time


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Unpicklable(Exception):
    def __init__(self):
        self.cannot = lambda: None


def bad(text: str, reference: str) -> float:
    if text.startswith("hang"):
        open(f"{__file__} {text}", "w").close()
    if text == "hang":
        time.sleep(10_000)
    if text == "hang on":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
    if text == "allocate":
        return float(len(bytearray(8 << 30)))
    if text == "end":
        os._exit(3)
    if text == "exit":
        sys.exit(3)
    if text == "interrupt":
        raise KeyboardInterrupt
    if text == "crash":
        ctypes.string_at(0)
    if text == "raise":
        raise LookupError("no such text")
    if text == "unprintable":
        raise Unprintable
    if text == "unpicklable":
        raise Unpicklable
    return {"seven": 7, "nan": float("nan"), "minus": -0.5, "none": None}.get(text, 1.0)
"""


def user_grader(folder: Path) -> Grader:
    file = folder / "user_rewards.py"
    file.write_text(USER_REWARDS)
    return Grader((f"{file}:bad",), workers=2, time_limit=TIME_LIMIT)


def started_after(others: list) -> list[psutil.Process]:
    """Return the workers of graders that were started after `others` were the children of this
    process.
    """
    keepers = [child for child in multiprocessing.active_children() if child not in others]
    return [worker for keeper in keepers for worker in psutil.Process(keeper.pid).children()]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hang", "timeout"),
        ("hang on", "timeout"),
        ("allocate", "MemoryError"),
        ("end", "death"),
        ("crash", "death"),
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("raise", "LookupError"),
        ("unprintable", "Unprintable"),
        ("unpicklable", "Unpicklable"),
        ("seven", "OutOfRange"),
        ("minus", "OutOfRange"),
        ("nan", "OutOfRange"),
        ("none", "TypeError"),
    ],
)
def test_a_bad_call_of_a_users_reward_scores_lowest_and_spoils_no_other(tmp_path, text, kind):
    with closing(user_grader(tmp_path)) as grader:
        texts = [f"good {i}" for i in range(20)] + [text] + [f"good {i}" for i in range(20, 40)]
        grades = grader(texts, ["5"] * 41)
        assert grades.rewards[:, 0].tolist() == [1.0] * 20 + [0.0] + [1.0] * 20
        assert grades.failed.tolist() == [False] * 20 + [True] + [False] * 20
        assert grades.failures == {kind: 1}
        grades = grader(["good"], ["5"])
        assert (grades.rewards.tolist(), grades.failures) == ([[1.0]], {})


@pytest.mark.parametrize("pause", [0.0, 1.0])
# A batch that fits into a pipe to the workers, one that does not
@pytest.mark.parametrize("characters", [10, 20_000])
def test_killed_idle_workers_are_replaced(tmp_path, pause, characters):
    others = multiprocessing.active_children()
    with closing(user_grader(tmp_path)) as grader:
        texts = [f"good {i:0{characters}}" for i in range(20)] + ["seven"]
        expected = [1.0] * 20 + [0.0]
        assert grader(texts, ["5"] * 21).rewards[:, 0].tolist() == expected
        workers = started_after(others)
        assert len(workers) == 2
        for worker in workers:
            worker.kill()
        time.sleep(pause)
        grades = grader(texts, ["5"] * 21)
        assert grades.rewards[:, 0].tolist() == expected
        assert grades.failures == {"OutOfRange": 1}


def test_a_reward_whose_file_changes_stays_what_it_was(tmp_path):
    """Also in a worker that replaces one that was killed."""
    others = multiprocessing.active_children()
    file = tmp_path / "mine.py"
    file.write_text("def mine(text, reference):\n    return 1.0\n")
    with closing(Grader([f"{file}:mine"], workers=1)) as grader:
        file.write_text("def mine(text, reference):\n    return 0.0\n")
        started_after(others)[0].kill()
        assert grader(["good"], ["5"]).rewards.tolist() == [[1.0]]


PRINTS = """
import sys

from bnpo.environment import setup_environment

setup_environment()
from bnpo.grading.grader import Grader

grader = Grader((f"{sys.argv[1]}:prints",), workers=1)
grades = grader(["good"], ["5"])
grader.close()
sys.exit(int(10 * grades.rewards[0, 0]))
"""


@pytest.mark.program
def test_a_reward_may_print_where_nothing_can_be_written(tmp_path, environment):
    file = tmp_path / "mine.py"
    file.write_text(
        "def prints(text, reference):\n    print('\\u00b1' * 9999, flush=True)\n    return 0.7\n"
    )
    with open("/dev/full", "w") as full:
        program = subprocess.run(
            [sys.executable, "-c", PRINTS, str(file)],
            **{
                "env": environment | {"PYTHONIOENCODING": "ascii"},
                "stdout": full,
                "stderr": full,
                "check": False,
            },
        )
    assert program.returncode == 7


STARTS_POOLS = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from beside import points


def pool(text: str, reference: str) -> float:
    with multiprocessing.Pool(1) as pool:
        return pool.map(points, [text])[0]


def executor(text: str, reference: str) -> float:
    with ProcessPoolExecutor(1) as executor:
        return executor.submit(points, text).result()
"""


def test_a_users_reward_may_start_pools_and_import_a_file_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text(STARTS_POOLS)
    (tmp_path / "beside.py").write_text("def points(text):\n    return float(text == 'good')\n")
    with closing(
        Grader([f"{tmp_path}/mine.py:{name}" for name in ("pool", "executor")], workers=1)
    ) as grader:
        grades = grader(["good", "bad", "good"], ["5", "5", "6"])
        assert (grades.rewards.tolist(), grades.failures) == (
            [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]],
            {},
        )


def test_a_stopped_worker_loses_no_verdict(tmp_path):
    """The limit is one of processor time, so that no verdict depends on what else the machine
    does.
    """
    others = multiprocessing.active_children()
    with closing(user_grader(tmp_path)) as grader:
        workers = started_after(others)
        for worker in workers:
            worker.suspend()
        outcomes = grader.start(["good"], ["5"])
        time.sleep(3 * TIME_LIMIT)
        for worker in workers:
            worker.resume()
        grades = grader.grades(outcomes)
        assert (grades.rewards.tolist(), grades.failures) == ([[1.0]], {})


HANG = """
import sys

from bnpo.grading.grader import Grader

grader = Grader((f"{sys.argv[1]}:bad",), workers=2, time_limit=1000)
grader(["good"], ["5"])
print("started", flush=True)
grader(["hang", "hang on"], ["5"] * 2)
"""


@pytest.mark.program
def test_a_killed_program_leaves_no_process(tmp_path, environment):
    file = tmp_path / "user_rewards.py"
    file.write_text(USER_REWARDS)
    program = subprocess.Popen(
        [sys.executable, "-c", HANG, str(file)],
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert program.stdout.readline() == b"started\n"
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("user_rewards.py hang*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_of(environment)) >= 4  # the program, the fork server, two workers
    program.kill()
    program.communicate()
    assert left_after(environment, 5) == []


STARTS_PROCESSES = """
import subprocess
import time


def leave(text: str, reference: str) -> float:
    subprocess.Popen(["sleep", "1001"])
    subprocess.Popen(["sleep", "1002"], start_new_session=True)
    # A daemon: its parent has ended.
    subprocess.run(["sh", "-c", "setsid sh -c 'sleep 1003; true' & exit"])
    if text == "hang":
        time.sleep(1000)
    return 1.0
"""

GRADE_AND_END = """
import os
import signal
import sys

from bnpo.grading.grader import Grader

grader = Grader((f"{sys.argv[1]}:leave",), workers=1, time_limit=0.5)
for text in ("good", "hang"):
    print(grader([text], ["5"]).rewards[0, 0], flush=True)
    sys.stdin.readline()
grader(["good"], ["5"])
print("again", flush=True)
if sys.stdin.readline() == "close\\n":
    grader.close()
    print("closed", flush=True)
    sys.stdin.readline()
os.killpg(0, signal.SIGKILL)
"""


@pytest.mark.program
@pytest.mark.parametrize("end", ["close", "kill"])
def test_what_a_reward_starts_ends_with_its_worker(tmp_path, environment, end):
    """After a call that is too late, when the grader is closed, and when the program's whole
    group is killed.
    """
    file = tmp_path / "mine.py"
    file.write_text(STARTS_PROCESSES)
    temporary = Path(tempfile.mkdtemp())  # short, since it holds a socket's address
    program = subprocess.Popen(
        [sys.executable, "-c", GRADE_AND_END, str(file)],
        **{
            "env": environment | {"TMPDIR": str(temporary)},
            "start_new_session": True,
            "text": True,
        },
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1},
    )

    def sleeping() -> list[str]:
        return sorted(
            line for line in processes_of(environment).values() if line.startswith("sleep")
        )

    def all_sleep() -> bool:
        deadline = time.monotonic() + 10
        # Those of the trial call when the grader starts, too.
        while (
            set(sleeping()) != {"sleep 1001 ", "sleep 1002 ", "sleep 1003 "}
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        return len(set(sleeping())) == 3

    assert program.stdout.readline() == "1.0\n"
    assert all_sleep()
    program.stdin.write("\n")
    assert program.stdout.readline() == "0.0\n"  # too late: the worker was replaced
    assert sleeping() == []
    program.stdin.write("\n")
    assert program.stdout.readline() == "again\n"
    assert all_sleep()
    program.stdin.write(f"{end}\n")
    if end == "close":
        assert program.stdout.readline() == "closed\n"
        assert sleeping() == []
        program.stdin.write("\n")
    assert program.wait(timeout=10) == -signal.SIGKILL
    assert left_after(environment, 5) == []
    # With no worker left, nobody outlives a killed program who could clean up after it
    if end == "kill":
        assert list(temporary.iterdir()) == []
    shutil.rmtree(temporary)
