"""What shows a run while it is running: a line per step, and Weights & Biases."""

import json
import re
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bnpo.config import parse_train_config
from bnpo.files import InputError
from bnpo.runs import tracking
from bnpo.runs.tracking import Tracker, WandbLog, wandb_mode

METRICS = {
    "reward/mean": 0.25,
    "grad_norm": 3.14159,
    "answers/mean_tokens": 28.4,
    "seconds/total": 5.0,
}


def test_a_line_per_step(tmp_path, capsys):
    run = tmp_path / "run"
    config, _ = parse_train_config(["--preset", "tiny", "--output-dir", str(run)], has_cuda=False)
    run.mkdir()
    tracker = Tracker(config, 2, 0)
    for step in (1, 2):
        tracker.log(step, METRICS)
    tracker.close()
    line = "step {}/2: reward 0.250, gradient norm 3.1, 28 tokens per answer, 5.0 s, 0:00:00 left\n"
    assert capsys.readouterr() == (line.format(1) + line.format(2), "")


@pytest.mark.parametrize(
    ("flag", "variable", "mode"),
    [
        ("disabled", "online", "disabled"),
        ("offline", "online", "offline"),
        ("online", "offline", "offline"),
        ("online", "disabled", "disabled"),
        ("online", "", "online"),
        ("online", "shared", "online"),
    ],
)
def test_of_flag_and_variable_the_one_that_sends_less_holds(flag, variable, mode):
    assert wandb_mode(flag, variable) == mode


def test_a_line_says_that_the_variable_forbids_what_the_flag_asks_for(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    flags = ["--preset", "tiny", "--wandb", "online", "--output-dir", str(tmp_path)]
    Tracker(parse_train_config(flags, has_cuda=False)[0], 1, 0).close()
    assert capsys.readouterr().out == (
        "W&B: disabled, since --wandb is online and WANDB_MODE is disabled\n"
    )
    assert not (tmp_path / "wandb").exists()


def records(folder) -> list:
    """Return what W&B has written of a run: protocol buffers in the format of LevelDB's log, in
    blocks of 32 KiB.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("*.wandb")
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


class WandbServer(ThreadingHTTPServer):
    """As much of a W&B server as a new run needs; it answers nothing while `dead`, and keeps the
    uploaded metrics.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), WandbAnswers)
        self.dead, self.history = threading.Event(), []


class WandbAnswers(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.dead.is_set():
            time.sleep(60)
            return
        # The same to all queries; each takes from it what it has asked for.
        project = {"id": "p", "name": "bnpo", "entity": {"id": "e", "name": "me"}}
        bucket = dict.fromkeys(("id", "name", "displayName"), "x") | {"project": project}
        bucket |= {"config": "{}", "historyLineCount": 0}
        data = {
            "model": {"bucket": None},  # no run to resume
            "upsertBucket": {"bucket": bucket, "inserted": True},
            "createRunFiles": {"runID": "x", "uploadHeaders": [], "files": []},
        }
        answer = json.dumps({"data": data}).encode()
        lines = request.get("files", {}).get("wandb-history.jsonl", {"content": []})
        self.server.history += [json.loads(line) for line in lines["content"]]
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.mark.extra
@pytest.mark.program
@pytest.mark.parametrize("dies", ["never", "after the start", "before the start"])
def test_wandb_gets_all_metrics_and_a_server_that_dies_costs_seconds_and_no_data(
    dies, tmp_path, monkeypatch, capsys
):
    import wandb

    monkeypatch.setattr(tracking, "FINISH_SECONDS", 30.0 if dies == "never" else 2.0)
    server, run = WandbServer(), tmp_path / "run"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    (run / "wandb").mkdir(parents=True)
    (run / "wandb" / "id").write_text("x")  # as an earlier start does, and as the server answers
    config, _ = parse_train_config(
        ["--preset", "tiny", "--wandb", "online", "--output-dir", str(run)], has_cuda=False
    )
    began = time.monotonic()
    if dies == "before the start":
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
        server.dead.set()
        with pytest.raises(
            InputError,
            match=r"^--wandb: W&B cannot start \(.*\); record it offline with WANDB_MODE=",
        ):
            WandbLog(config, "online")
        wandb.teardown()
        server.shutdown()
        return
    log = WandbLog(config, "online")
    if dies == "after the start":
        server.dead.set()
    for step in range(1, 6):
        log.log(step, {"reward/mean": step / 8})
    log.close()
    printed = capsys.readouterr().out
    assert time.monotonic() - began < 40
    wandb.teardown()
    server.shutdown()
    [folder] = (run / "wandb").glob("run-*")
    assert len([record for record in records(folder) if record.HasField("history")]) == 5
    if dies == "never":
        assert [row["reward/mean"] for row in server.history] == [step / 8 for step in range(1, 6)]
    lost = f"W&B did not get everything. To upload the run: wandb sync {folder}\n"
    assert printed.endswith("" if dies == "never" else lost)


@pytest.mark.program
@pytest.mark.parametrize(
    "variables",
    [
        {"WANDB_MODE": "online"},  # the flag forbids it
        {"WANDB_PROJECT": "mine", "WANDB_NAME": "me", "WANDB_RUN_ID": "abc"},
    ],
)
def test_steps_that_go_back_are_kept_and_wandbs_own_variables_hold(
    variables, tmp_path, monkeypatch, capsys
):
    """The home cannot be written, and an error of W&B is one line."""
    import wandb

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/proc/no")
    run = tmp_path / "run"
    run.mkdir()
    config, _ = parse_train_config(
        ["--preset", "tiny", "--wandb", "offline", "--output-dir", str(run)], has_cuda=False
    )
    log = WandbLog(config, "offline")
    for step in (1, 2, 3, 2, 3):  # as a run that is resumed after step 1
        log.log(step, {"reward/mean": step / 8})
    log.close()
    wandb.teardown()  # until all is written
    assert capsys.readouterr().out == ""
    for step in (4, 5):
        log.log(step, {"reward/mean": 0.5})
    assert re.fullmatch(
        r"W&B lacks data of this run \(.*\)\. The run continues\n", capsys.readouterr().out
    )
    [folder] = (run / "wandb").glob("offline-run-*")
    found = records(folder)
    rows = [
        {"/".join(item.nested_key): item.value_json for item in r.history.item}
        for r in found
        if r.history.item
    ]
    assert [row["step"] for row in rows if "reward/mean" in row] == list("12323")
    info = next(r.run for r in found if r.HasField("run"))
    named = {"WANDB_PROJECT": info.project, "WANDB_NAME": info.display_name}
    expected = {"WANDB_PROJECT": "bnpo", "WANDB_NAME": "run"}
    expected |= {"WANDB_RUN_ID": (run / "wandb" / "id").read_text()}
    assert named | {"WANDB_RUN_ID": info.run_id} == {
        name: variables.get(name, value) for name, value in expected.items()
    }
