"""What a grader must survive: any reward that a user can write, and kills."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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


class Unpicklable(Exception):
    def __init__(self):
        self.cannot = lambda: None


ERRORS = {"exit": SystemExit, "unpicklable": Unpicklable}


def bad(text: str, reference: str) -> float:
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
    if text == "crash":
        ctypes.string_at(0)
    if text in ERRORS:
        raise ERRORS[text]
    return {"seven": 7, "nan": float("nan")}.get(text, 1.0)
"""


def user_grader(folder: Path) -> Grader:
    file = folder / "user_rewards.py"
    file.write_text(USER_REWARDS)
    return Grader((f"{file}:bad",), workers=2, time_limit=TIME_LIMIT)


def keepers() -> list[psutil.Process]:
    """Return the keepers of all workers that graders of this process have."""
    children = psutil.Process().children()
    servers = [child for child in children if "mathequal.workers" in " ".join(child.cmdline())]
    return [keeper for server in servers for keeper in server.children()]


def started_after(others: list[psutil.Process], count: int) -> list[psutil.Process]:
    """Return the `count` workers that were started after `others` were all keepers, in their
    order: first those of built-in rewards.
    """
    deadline = time.monotonic() + 30
    workers: list[psutil.Process] = []
    while len(workers) < count and time.monotonic() < deadline:
        time.sleep(0.05)  # they are started in the background
        added = sorted(set(keepers()) - set(others), key=lambda keeper: keeper.pid)
        workers = [worker for keeper in added for worker in keeper.children()]
    assert len(workers) == count
    return workers


KINDS = {"hang": "timeout", "hang on": "timeout", "allocate": "MemoryError", "end": "death"}
KINDS |= {"crash": "death", "exit": "SystemExit", "unpicklable": "Unpicklable"}
KINDS |= {"nan": "OutOfRange"}


@pytest.mark.parametrize(("text", "kind"), KINDS.items())
def test_a_bad_call_of_a_users_reward_scores_lowest_and_spoils_no_other(tmp_path, text, kind):
    with closing(user_grader(tmp_path)) as grader:
        texts = [f"good {i}" for i in range(20)] + [text] + [f"good {i}" for i in range(20, 40)]
        grades = grader(texts, ["5"] * 41)
        assert grades.rewards[:, 0].tolist() == [1.0] * 20 + [0.0] + [1.0] * 20
        assert grades.failed.tolist() == [False] * 20 + [True] + [False] * 20
        assert grades.failures == {kind: 1}
        grades = grader(["good"], ["5"])
        assert (grades.rewards.tolist(), grades.failures) == ([[1.0]], {})


# A batch that fits into a pipe to the workers, one that does not
@pytest.mark.parametrize("characters", [10, 20_000])
def test_killed_idle_workers_are_replaced(tmp_path, characters):
    others = keepers()
    with closing(user_grader(tmp_path)) as grader:
        texts = [f"good {i:0{characters}}" for i in range(20)] + ["seven"]
        expected = [1.0] * 20 + [0.0]
        assert grader(texts, ["5"] * 21).rewards[:, 0].tolist() == expected
        for worker in started_after(others, 4):
            worker.kill()
        grades = grader(texts, ["5"] * 21)
        assert grades.rewards[:, 0].tolist() == expected
        assert grades.failures == {"OutOfRange": 1}


def test_a_reward_whose_file_changes_stays_what_it_was(tmp_path):
    """Also in a worker that replaces one that was killed."""
    others = keepers()
    file = tmp_path / "mine.py"
    file.write_text("def mine(text, reference):\n    return 1.0\n")
    with closing(Grader([f"{file}:mine"], workers=1)) as grader:
        file.write_text("def mine(text, reference):\n    return 0.0\n")
        for worker in started_after(others, 2):
            worker.kill()
        assert grader(["good"], ["5"]).rewards.tolist() == [[1.0]]


LIKE_A_SCRIPT = """
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import {helper}

TABLE = Path(__file__).with_name("table.txt").read_text()


@dataclass
class Point:
    x: float


def own(point):
    return point.x + {helper}.VALUE


def plain(text, reference):
    assert pickle.loads(pickle.dumps(Point(1.0))) == Point(1.0)
    assert pickle.loads(pickle.dumps(own)) is own
    assert float(TABLE) == {helper}.VALUE
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(own, Point(0.0)).result()


if __name__ == "__main__":
    sys.exit("no reward file is run as the main program")
"""


# A module of the standard library that every worker has imported; no name that can be imported
@pytest.mark.parametrize(("stem", "helper"), [("json", "utils"), ("my-reward.v2", "helpers")])
def test_reward_files_may_do_what_scripts_do_and_share_nothing(tmp_path, stem, helper):
    """Two of one name in different folders, each with a module and a data file beside it."""
    rewards = []
    for folder, value in ((tmp_path / "a", 0.25), (tmp_path / "b", 0.5)):
        folder.mkdir()
        (folder / f"{stem}.py").write_text(LIKE_A_SCRIPT.replace("{helper}", helper))
        (folder / f"{helper}.py").write_text(f"VALUE = {value}\n")
        (folder / "table.txt").write_text(str(value))
        rewards.append(f"{folder}/{stem}.py:plain")
    with closing(Grader(rewards, workers=1)) as grader:
        grades = grader(["x", "y"], ["5", "6"])
    assert (grades.rewards.tolist(), grades.failures) == ([[0.25, 0.5]] * 2, {})


def test_a_stopped_worker_loses_no_verdict(tmp_path):
    """The limit is one of processor time, so that no verdict depends on what else the machine
    does.
    """
    others = keepers()
    with closing(user_grader(tmp_path)) as grader:
        workers = started_after(others, 4)
        for worker in workers:
            worker.suspend()
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(grader, ["good"], ["5"])
            time.sleep(3 * TIME_LIMIT)
            for worker in workers:
                worker.resume()
        grades = call.result()
        assert (grades.rewards.tolist(), grades.failures) == ([[1.0]], {})


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
import threading
import time

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
else:  # in a call
    threading.Thread(target=grader, args=(["hang"], ["5"]), daemon=True).start()
    time.sleep(0.3)
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
        env=environment | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
        bufsize=1,
    )
    all_three = ["sleep 1001 ", "sleep 1002 ", "sleep 1003 "]

    def sleeping() -> list[str]:
        commands = processes_of(environment).values()
        return sorted({line for line in commands if line.startswith("sleep")})

    def all_sleep() -> bool:
        deadline = time.monotonic() + 60
        while sleeping() != all_three and time.monotonic() < deadline:
            time.sleep(0.05)
        return sleeping() == all_three

    assert "leave called on trial with" in program.stdout.readline()
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
    assert program.wait(timeout=60) == -signal.SIGKILL
    assert left_after(environment, 60) == []
    # With no worker left, nobody outlives a killed program who could clean up after it
    if end == "kill":
        assert list(temporary.iterdir()) == []
    shutil.rmtree(temporary)


@pytest.mark.extra
def test_no_folder_stays_behind_when_a_program_ends_while_its_workers_start(tmp_path):
    """With each delay, other workers are just being forked as the program ends."""
    program = (
        "import sys, time\nfrom mathequal.workers import Workers\n"
        "Workers(16, 5.0)\ntime.sleep(float(sys.argv[1]))"
    )
    for delay in range(24):
        command = [sys.executable, "-c", program, str(0.6 + 0.05 * delay)]
        subprocess.run(command, env=os.environ | {"TMPDIR": str(tmp_path)}, check=True)
    deadline = time.monotonic() + 30
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
