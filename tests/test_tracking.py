"""What tells of a run while it goes on: on a terminal, elsewhere, and on Weights & Biases."""

import json
import os
import socket
import struct
import termios
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from bnpo.config import parse_train_config
from bnpo.runs.tracking import Tracker
from conftest import run_ranks

METRICS = {"reward/mean": 0.25, "grad_norm": 3.14159, "answers/mean_tokens": 28.4, "seconds/total": 5.0}


def track(run, steps: int) -> None:
    config, _ = parse_train_config(["--preset", "tiny", "--output-dir", str(run)], has_cuda=False)
    run.mkdir()
    tracker = Tracker(config, steps, 0)
    for step in range(1, steps + 1):
        tracker.log(step, METRICS, np.array([0.25]))
        time.sleep(0.15)
    tracker.close()


def read_until_closed(terminal: int) -> bytes:
    """All that was written to the other end, which is closed: one read gives only what has come through so far."""
    shown = b""
    with suppress(OSError):  # EIO: its end
        while part := os.read(terminal, 10_000):
            shown += part
    os.close(terminal)
    return shown


@pytest.mark.parametrize("size", [(24, 140), (0, 0)], ids=["known size", "unknown size"])
def test_on_a_terminal_a_bar_tells_how_far_it_is(tmp_path, monkeypatch, capsys, size):
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, size)
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        track(tmp_path / "run", 3)
    shown = read_until_closed(ours).decode()
    assert "step 3/3 |" in shown
    assert "00:00 left, reward 0.250, gradient norm 3.1, 28 tokens" in shown
    assert capsys.readouterr().out == ""


def test_elsewhere_a_line_a_step(tmp_path, capsys):
    track(tmp_path / "run", 2)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"step {step}/2: reward 0.250, gradient norm 3.1, 28 tokens per answer, 5.0 s, 00:00 left" for step in (1, 2)
    ]
    assert err == ""


def records(folder) -> list:
    """What W&B has written of a run: protocol buffers in the format of LevelDB's log, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("offline-run-*/*.wandb")
    data, place, found, whole = file.read_bytes(), 7, [], b""  # after W&B's own header
    while place < len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)  # after the checksum
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(whole))
            whole = b""
    return found


@pytest.mark.sampler
def test_wandb_that_never_answers_neither_stops_nor_slows_a_run_and_all_is_kept(tmp_path):
    run, held = tmp_path / "run", []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            try:
                while True:
                    held.append(server.accept()[0])
            except OSError:  # closed
                return

        threading.Thread(target=accept, daemon=True).start()
        flags = ("--preset", "tiny", "--questions-per-step", 4, "--samples-per-question", 4, "--max-answer-tokens", 32)
        flags += ("--steps", 3, "--rollouts-every", 2, "--watch-questions", 0, "--eval-every", 0, "--wandb", "online")
        address = {"WANDB_BASE_URL": f"http://127.0.0.1:{server.getsockname()[1]}", "WANDB_API_KEY": 40 * "a"}
        console = run_ranks(1, "train.py", *flags, "--output-dir", run, environment=address).stdout
        server.shutdown(socket.SHUT_RDWR)
    assert held, "nobody tried to upload"
    assert "\ndone: 3 steps" in console
    assert "W&B did not get everything" in console
    assert "wandb: " not in console
    found = records(run / "wandb")
    steps = [record.history.item for record in found if record.HasField("history")]
    history = [{"/".join(item.nested_key): json.loads(item.value_json) for item in items} for items in steps]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward/mean"] for row in history] == [line["reward/mean"] for line in lines]
    assert [sum(row["groups/accuracy/values"]) for row in history] == [4, 4, 4]  # questions
    assert ["rollouts/_type" in row for row in history] == [True, False, True]
    config = next(r.run for r in found if r.HasField("run")).config
    assert {item.key: item.value_json for item in config.update}["samples_per_question"] == "4"
