"""What a grader must survive: any text that a model can write."""

import os
import subprocess
import sys
import time
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
from hostile import PAIRS, huge_pairs, repeated_tokens

from bnpo.grading.grader import Grader
from bnpo.grading.rewards import REWARDS
from mathequal import final_answer, instant_verdict
from mathequal.workers import Failure, Workers


@pytest.mark.extra
def test_hostile_texts_are_graded():
    pairs = [*PAIRS, *huge_pairs()]
    references, texts = zip(*pairs, strict=True)
    with closing(Grader(workers=2, time_limit=0.5)) as grader:
        grades = grader(texts, references, tags=True)
    verdicts = grades.rewards[:, 0].tolist()
    assert set(verdicts) <= {0, 1}
    assert [
        pair for pair, right in zip(pairs, verdicts, strict=True) if right and not pair[0]
    ] == []
    # Or nothing hostile is left among the texts
    assert grades.failures["timeout"] >= 10, grades.failures


RECORD_WHAT_VERDICTS_DO = """
import sys

from hostile import CODE, MARKER

from mathequal import equal

events = []
MODULES = ("subprocess", "socket", "shutil", "ftplib", "urllib", "pty")
CALLS = ("system", "exec", "fork", "posix_spawn", "spawn", "remove", "rename", "mkdir")
CALLS = tuple(f"os.{call}" for call in CALLS)

def record(event, arguments):
    if event in ("compile", "exec"):
        code = arguments[0]
        names = code
        if hasattr(code, "co_names"):
            names = (code.co_names, code.co_consts, code.co_filename)
        if MARKER in repr(names) or MARKER in repr(arguments[1:]):
            events.append((event, repr(names)))
    elif event == "open":
        path, mode, flags = arguments
        if MARKER in repr(path) or flags & 3 or set(mode or "") & set("wax+"):
            events.append((event, repr(arguments)))
    elif event.split(".")[0] in MODULES or event.startswith(CALLS):
        events.append((event, repr(arguments)))

sys.addaudithook(record)
verdicts = []
for text in CODE:
    for reference in ("5", "x+1"):
        try:
            verdicts.append(equal(reference, text))
        except Exception:  # counted as a failure where it is run
            verdicts.append(None)
assert len(verdicts) > 100 and True not in verdicts, verdicts
assert events == [], events
compile(f"{MARKER} = 1", "", "exec")
assert len(events) == 1, events  # the hook does see what it should
"""


@pytest.mark.program
def test_no_answer_is_compiled_run_or_opened(tmp_path, environment):
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    command, streams = [sys.executable, "-c", RECORD_WHAT_VERDICTS_DO], {"capture_output": True}
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, **streams)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == []


def is_slow(text: str, reference: str) -> bool:
    """Whether what a grader computes of a text in the training process takes more than 0.05 s of
    processor time, three times. Once may be a collection of garbage.
    """
    for _ in range(3):
        started = time.thread_time()
        instant_verdict(reference, final_answer(text, tags=True) or "")
        for reward in REWARDS.values():
            reward(text, reference)
        if time.thread_time() - started <= 0.05:
            return False
    return True


def test_no_text_takes_long_in_a_rank():
    repeated = ((text, "x=5") for text in repeated_tokens(0, 10_000))
    boxed = ((r"\boxed{" + text, "5") for text in repeated_tokens(1, 3_000, longest=100_000))
    hostile = ((text, reference) for reference, text in [*PAIRS, *huge_pairs()])
    texts = chain(repeated, boxed, hostile)
    assert [(text[:60], len(text)) for text, reference in texts if is_slow(text, reference)] == []


def test_no_pattern_takes_exponential_time():
    """A second of processor time suffices a hundred times over for texts of any form, so that a
    limit of 5 seconds is never decisive.
    """
    workers = Workers(2, time_limit=1.0)
    texts = [*repeated_tokens(2, 4_000), *("m " * n + "x=5" for n in range(20, 60))]
    calls = [workers.submit("mathequal.read:read", text) for text in texts]
    outcomes = zip(texts, calls, strict=True)
    assert [text for text, call in outcomes if isinstance(call.result(), Failure)] == []
    workers.close()
