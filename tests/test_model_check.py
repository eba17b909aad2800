"""Models are trained or refused in one line, from config.json alone."""

import json

import pytest

from bnpo.config import TINY_MODEL
from bnpo.files import InputError
from bnpo.policy.model_check import check_model
from families import ALSO_TRAINED, NOT_TRAINED, TRAINED, family_config


@pytest.mark.parametrize("family", TRAINED | ALSO_TRAINED)
def test_families_that_train_pass(family, tmp_path):
    family_config(family, **(TRAINED | ALSO_TRAINED)[family]).save_pretrained(tmp_path)
    check_model(tmp_path, 192)


@pytest.mark.parametrize("family", NOT_TRAINED)
def test_other_families_are_refused_with_the_reason(family, tmp_path):
    settings, reason = NOT_TRAINED[family]
    family_config(family, **settings).save_pretrained(tmp_path)
    with pytest.raises(InputError) as refusal:
        check_model(tmp_path, 192)
    assert str(refusal.value).startswith(f"{tmp_path}: cannot be trained: {reason}")
    assert "\n" not in str(refusal.value)


def test_settings_of_a_family_decide_too(tmp_path):
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    family_config("phi3", rope_parameters=rope, original_max_position_embeddings=128).save_pretrained(tmp_path)
    check_model(tmp_path, 128)
    with pytest.raises(InputError, match="its longrope has other frequencies for texts over 128 tokens"):
        check_model(tmp_path, 129)
    family_config("qwen2", quantization_config={"quant_method": "fp8"}).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="its weights are quantised"):
        check_model(tmp_path, 128)
    family_config("gemma2", head_dim=32, attn_logit_softcapping=None).save_pretrained(tmp_path)
    check_model(tmp_path, 128)  # its cap on the logits of tokens is no obstacle


def test_code_from_the_hub_and_broken_settings_are_refused(tmp_path):
    settings = json.loads((TINY_MODEL / "config.json").read_text())
    for changes in ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}, {"hidden_size": "wide"}):
        (tmp_path / "config.json").write_text(json.dumps(settings | changes))
        with pytest.raises(InputError, match=r"not the config\.json of a known language model \("):
            check_model(tmp_path, 192)
