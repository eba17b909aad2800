"""scripts/export.py: a checkpoint becomes a model folder, without the optimizer's files."""

import json
import shutil

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
    export.main(export.Args(str(run / place), target))
    assert capsys.readouterr().out == f"{target}\n"
    assert {path.name for path in target.iterdir()} == MODEL_FILES | {"README.md"}
    assert (target / "model.safetensors").read_bytes() == (TINY_MODEL / "model.safetensors").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    with pytest.raises(InputError, match="exists already; name another folder, or delete it"):
        export.main(export.Args(str(run), target))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("Qwen/Qwen3-0.6B", "model", "Qwen/Qwen3-0.6B: no such folder; name a run, one of its checkpoints"),
        ("empty", "model", "holds no config.json (config.json); it is not a Hugging Face model folder"),
        ("run", "/proc/model", "/proc/model: cannot be written ("),
    ],
)
def test_what_cannot_be_exported_is_one_line(run, tmp_path, source, target, message):
    (tmp_path / "empty").mkdir()
    source = str(tmp_path / source) if source in ("run", "empty") else source
    with pytest.raises(InputError) as error:
        export.main(export.Args(source, tmp_path / target))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
