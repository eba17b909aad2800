"""What is refused in a model's folder, and what is not."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.files import InputError
from bnpo.policy import folder
from bnpo.policy.folder import load_tokenizer, model_folder


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(TINY_MODEL, tmp_path / "model")


def test_a_folder_without_one_of_its_shards(model):
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002-of-2.safetensors"}}')
    with pytest.raises(
        InputError, match=r"model: lacks model-00002-of-2\.safetensors, which model\.safetensors\.index"
    ):
        model_folder(str(model))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "model.safetensors: is damaged, perhaps cut off"),
        (lambda whole: whole[:5], "model.safetensors: is damaged, perhaps cut off"),
        (lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "is a git-lfs pointer"),
        (lambda whole: b"<html>not found</html>", "model.safetensors: is damaged"),
    ],
)
def test_weights_that_are_cut_off_or_no_weights(model, content, message):
    file = model / "model.safetensors"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(InputError, match=message):
        model_folder(str(model))


def test_the_model_of_a_preset_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(folder, "SMOLLM2", tmp_path / "none")
    with pytest.raises(InputError, match=r"`python scripts/get_model\.py smollm2` gets it"):
        model_folder(str(tmp_path / "none"))


def test_a_tokenizer_that_cannot_be_loaded(model):
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="model: its tokenizer cannot be loaded"):
        load_tokenizer(model, 10)


def test_special_tokens_beyond_the_embedding_are_allowed(model):
    """Gemma 3's text models have 262,144 rows and one more token, for images."""
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"vocab_size": 262}))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(model)
    assert len(load_tokenizer(model, 10)) == 263
    tokenizer.add_tokens(["word"])
    tokenizer.save_pretrained(model)
    with pytest.raises(InputError, match="its tokenizer has 264 tokens, its model 262"):
        load_tokenizer(model, 10)
