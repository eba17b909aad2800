"""scripts/export.py: a checkpoint becomes a model folder or an upload, without the optimizer's files."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import export
from bnpo.config import TINY_MODEL
from bnpo.files import InputError

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
    export.main(export.Args(str(run / place), str(target)))
    assert capsys.readouterr().out == f"{target}\n"
    assert {path.name for path in target.iterdir()} == MODEL_FILES | {"README.md"}
    assert (target / "model.safetensors").read_bytes() == (TINY_MODEL / "model.safetensors").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    with pytest.raises(InputError, match="exists already; name another folder, or delete it"):
        export.main(export.Args(str(run), str(target)))


@pytest.fixture
def hub(monkeypatch):
    """The requests of a client to a hub that creates a repository, and refuses to take its files."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, content))
            answers = {"create": {"url": f"{address}/me/mine"}, "validate-yaml": {"errors": [], "warnings": []}}
            answer = answers.get(self.path.rpartition("/")[2])
            self.send_response(200 if answer else 403)
            answer = json.dumps(answer or {"error": "it is full"}).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        yield requests
        server.shutdown()


def test_the_hub_is_offered_the_same_files(run, hub):
    """Up to the upload, with the real client."""
    with pytest.raises(InputError, match=r"^hub:me/mine: the upload failed \(.*; check the network, your login"):
        export.main(export.Args(str(run), "hub:me/mine", private=True))
    (created, settings), *_, (offered, files) = hub
    assert created == "/api/repos/create"
    assert (settings["organization"], settings["name"], settings["visibility"]) == ("me", "mine", "private")
    assert offered == "/api/models/me/mine/preupload/main"
    assert {file["path"] for file in files["files"]} == MODEL_FILES | {"README.md"}


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("run", "hub:mine", "hub:mine: is no name on the hub (the owner is missing); write hub:OWNER/NAME"),
        ("run", "hub:me/my model", "is no name on the hub (Repo id must "),
        ("run", "hub:me/mine", "hub:me/mine: the upload failed ("),
        ("Qwen/Qwen3-0.6B", "model", "Qwen/Qwen3-0.6B: no such folder; name a run, one of its checkpoints"),
        ("empty", "model", "holds no config.json (config.json); it is not a Hugging Face model folder"),
        ("run", "/proc/model", "/proc/model: cannot be written ("),
    ],
)
def test_what_cannot_be_exported_is_one_line(run, tmp_path, monkeypatch, source, target, message):
    """The upload fails without a network: the hub's address is a closed port of this machine."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "empty").mkdir()
    source = str(tmp_path / source) if source in ("run", "empty") else source
    with pytest.raises(InputError) as error:
        export.main(export.Args(source, target if ":" in target or "/" in target else str(tmp_path / target)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
