"""What a grader must survive: any text that a model can write."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import CANARIES

from mathequal import final_answer
from processes import left_after

TIME_LIMIT = 1.0


def is_empty(answer: str | None) -> bool:
    return re.sub(r"\\text|\\q?quad|\\[,;:!> ]|[\s{}$~]", "", answer or "") == ""


@pytest.mark.program
@pytest.mark.deadline
def test_ten_thousand_hostile_texts_are_graded_in_time_and_without_a_trace(tmp_path, environment):
    working_directory = tmp_path / "here"
    working_directory.mkdir()
    canaries = [working_directory / canary for canary in CANARIES]
    assert not any(canary.exists() for canary in canaries)
    program = Path(__file__).with_name("grade_hostile.py")
    done = subprocess.run(
        [sys.executable, str(program), "0", "10000", "0.5"],
        cwd=working_directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["graded"] == 10_000
    assert report["late"] == []
    assert report["in_rank"] < 0.05
    assert set(report["values"]) <= {0.0, 1.0}
    assert [pair for pair in report["right"] if not pair[0] or is_empty(final_answer(pair[1], tags=True))] == []
    assert report["failures"]["timeout"] >= 20, report["failures"]  # or nothing hostile is left among the texts
    assert list(working_directory.iterdir()) == []
    assert [canary for canary in canaries if canary.exists()] == []
    assert left_after(environment, 5) == []


RECORD_WHAT_VERDICTS_DO = """
import sys

from hostile import MARKER, code_answers

from mathequal import equal

events = []

def record(event, arguments):
    if event in ("compile", "exec"):
        code = arguments[0]
        names = (code.co_names, code.co_consts, code.co_filename) if hasattr(code, "co_names") else code
        if MARKER in repr(names) or MARKER in repr(arguments[1:]):
            events.append((event, repr(names)))
    elif event == "open":
        path, mode, flags = arguments
        if MARKER in repr(path) or flags & 3 or set(mode or "") & set("wax+"):
            events.append((event, repr(arguments)))
    elif event.split(".")[0] in ("subprocess", "socket", "shutil", "ftplib", "urllib", "pty") or event.startswith(
        ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rename", "os.mkdir")
    ):
        events.append((event, repr(arguments)))

sys.addaudithook(record)
verdicts = []
for text in code_answers(0, 300):
    for reference in ("5", "x+1"):
        try:
            verdicts.append(equal(reference, text))
        except Exception:  # counted as a failure where it is run
            verdicts.append(None)
assert len(verdicts) == 600 and True not in verdicts, verdicts
assert events == [], events
compile(f"{MARKER} = 1", "", "exec")
assert len(events) == 1, events  # the hook does see what it should
"""


@pytest.mark.program
def test_no_answer_is_compiled_run_or_opened(tmp_path, environment):
    command = [sys.executable, "-c", RECORD_WHAT_VERDICTS_DO]
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == []
