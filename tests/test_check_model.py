"""scripts/check_model.py: whether a model trains, from its weights or from its shape alone."""

import re

import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
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
