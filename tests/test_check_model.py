"""scripts/check_model.py: whether a model trains, from its weights or from its shape alone."""

import json
import re
import shutil

import pytest
from transformers import AutoTokenizer

import export
from bnpo.config import TINY_MODEL
from bnpo.files import InputError
from check_model import two_layers
from conftest import run_ranks
from families import family_config

DIFFERENCES = r"mean difference of .* code: (\S+) in the learner, (\S+) in the sampler\n"


@pytest.fixture
def shape(tmp_path):
    """A folder with a tokenizer and the config.json of a model of 48 layers, 1,000 GB in fp32."""
    config = family_config("gemma3_text", num_hidden_layers=48, head_dim=32, vocab_size=2 * 10**9)
    config.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    return tmp_path


@pytest.mark.sampler
def test_a_model_whose_weights_are_not_there(shape):
    printed = run_ranks(0, "scripts/check_model.py", shape).stdout
    assert f"{shape}: trains\n" in printed
    assert "compared with random weights, 2 layers of the model's shape, a vocabulary of 4096, in fp32" in printed
    assert max(map(float, re.search(DIFFERENCES, printed).groups())) < 1e-5
    assert "its tokenizer has no chat template: train it with --template FILE" in printed


@pytest.mark.sampler
def test_a_model_whose_weights_fit(tmp_path):
    printed = run_ranks(0, "scripts/check_model.py", TINY_MODEL).stdout
    assert f"{TINY_MODEL}: trains\ncompared with the model's own weights, in fp32\n" in printed
    assert 0 < max(map(float, re.search(DIFFERENCES, printed).groups())) < 1e-4


def test_two_layers_are_of_different_kinds():
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    short = two_layers(family_config("gemma3_text", num_hidden_layers=6, layer_types=kinds, sliding_window=512))
    assert (short.num_hidden_layers, short.layer_types) == (2, ["sliding_attention", "full_attention"])
    assert short.sliding_window == 16


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
