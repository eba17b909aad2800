"""What shows a run while it is running: a line per step, and Weights & Biases."""

import re
import struct

import pytest

from bnpo.config import parse_train_config
from bnpo.runs.tracking import WandbLog, wandb_mode


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


@pytest.mark.program
def test_steps_that_go_back_are_kept_and_wandbs_own_variables_hold(tmp_path, monkeypatch, capsys):
    """The home cannot be written, and an error of W&B is one line."""
    import wandb

    monkeypatch.setenv("WANDB_PROJECT", "mine")
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
    named = (info.project, info.display_name, info.run_id)
    assert named == ("mine", "run", (run / "wandb" / "id").read_text())
