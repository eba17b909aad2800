"""scripts/export.py: a checkpoint becomes a model folder or a model of the hub, without the
optimizer's files.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import export
from bnpo.config import TINY_MODEL
from bnpo.files import ROOT
from conftest import refused

MODEL_FILES = {path.name for path in TINY_MODEL.iterdir()}


@pytest.fixture
def run(tmp_path):
    """A run with one checkpoint, whose model card was edited by hand."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    shutil.copytree(TINY_MODEL, checkpoint)
    (checkpoint / "README.md").write_text("mine")
    (checkpoint / "trainer" / "zero").mkdir(parents=True)
    (checkpoint / "trainer" / "zero" / "optimizer.pt").write_bytes(b"large")
    (checkpoint / ".README.md.unfinished").touch()
    (tmp_path / "run" / "last").symlink_to("checkpoints/step-000002")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"preset": "tiny"}))
    return tmp_path / "run"


@pytest.mark.parametrize("place", ["", "last", "checkpoints/step-000002"])
def test_a_folder_gets_the_model_and_nothing_of_the_trainer(run, tmp_path, place, capsys):
    target = tmp_path / "new" / "model"
    export.main(export.Args(str(run / place), target))
    assert capsys.readouterr().out == f"{target}\n"
    assert {path.name for path in target.iterdir()} == MODEL_FILES | {"README.md"}
    assert (target / "model.safetensors").read_bytes() == (
        TINY_MODEL / "model.safetensors"
    ).read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    with refused("exists already; name another folder, or delete it"):
        export.main(export.Args(str(run), target))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("Qwen/Qwen3-0.6B", "model", "Qwen/Qwen3-0.6B: no such folder; name a run, one of its"),
        ("run", None, "give a folder to write, or --hub-repo OWNER/NAME"),
        ("empty", "model", "holds no config.json; write it with save_pretrained"),
        ("run", "/proc/model", "/proc/model: cannot be written ("),
    ],
)
def test_what_cannot_be_exported_is_one_line(run, tmp_path, source, target, message):
    (tmp_path / "empty").mkdir()
    source = str(tmp_path / source) if source in ("run", "empty") else source
    with refused(re.escape(message)):
        export.main(export.Args(source, target and tmp_path / target))


URL = "https://huggingface.co/me/mine"


def export_to_hub(run, address):
    hub = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "scripts/export.py", str(run), "--hub-repo", "me/mine"]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | hub, capture_output=True, text=True, check=False
    )


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload needs. Keeps what it is asked to create, and the files of
    the commit.
    """

    created, committed = [], {}

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"url": URL, "commitUrl": f"{URL}/commit/1", "commitOid": "1"}
        if self.path.endswith("/create"):
            self.created.append(json.loads(asked))
        elif "/preupload/" in self.path:
            files = json.loads(asked)["files"]
            answer["files"] = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
        elif "/commit/" in self.path:
            for line in map(json.loads, asked.splitlines()):
                if line["key"] == "file":
                    self.committed[line["value"]["path"]] = base64.b64decode(
                        line["value"]["content"]
                    )
        self.respond(answer)

    def do_GET(self):
        self.respond({"id": "me/mine", "sha": "0", "siblings": []})

    def respond(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.extra
@pytest.mark.program
def test_one_command_uploads_to_the_hub(run):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = export_to_hub(run, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    assert done.returncode == 0, done.stderr
    failed = export_to_hub(run, "http://127.0.0.1:9")
    assert failed.stderr.startswith("error: --hub-repo me/mine: the upload failed (ConnectError: ")
    assert done.stdout == f"{URL}/commit/1\n"
    [created] = Hub.created
    assert (
        created.items() >= {"name": "mine", "organization": "me", "visibility": "private"}.items()
    )
    assert Hub.committed.keys() == MODEL_FILES | {"README.md"}
    assert Hub.committed["model.safetensors"] == (TINY_MODEL / "model.safetensors").read_bytes()
