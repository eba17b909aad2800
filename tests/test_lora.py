"""LoRA under ZeRO-3 on two ranks, against plain PyTorch and peft; what adapters' folders hold
and who can load them.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import families
from bnpo.config import TINY_MODEL, parse_train_config
from bnpo.files import InputError, read_json, write_json
from bnpo.policy.folder import model_folder, whole_model
from bnpo.policy.lora import add_adapter
from bnpo.ranks import trains_in_float16
from bnpo.runs.prepare import prepare_run
from conftest import (
    ROOT,
    make_model,
    refused,
    report_of,
    run_ranks,
    temporary_folder,
    users_environment,
)
from programs.learner_check import fixed_experience
from programs.lora_check import SETTINGS, SIZE, VOCABULARY, flags_of
from test_learner import logprobs_of


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("small", "layers"):
        shutil.copytree(
            TINY_MODEL, folder / name, ignore=shutil.ignore_patterns("config.json", "*.safetensors")
        )
    make_model(folder / "small", vocab_size=VOCABULARY, hidden_size=SIZE, intermediate_size=SIZE)
    make_model(folder / "layers", vocab_size=VOCABULARY, hidden_size=512, intermediate_size=512)
    return [str(folder / "small"), str(folder / "layers")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def report(models, run) -> dict:
    return report_of(2, "lora_check", run, *models)


def checkpoint(run: Path, setting: str, step: int) -> Path:
    return run / setting / "checkpoints" / f"step-{step:06}"


def scores_of(model) -> np.ndarray:
    """Log-probabilities of all answers' tokens."""
    experience = fixed_experience("one update")
    with torch.no_grad():
        pairs = zip(experience.prompts, experience.answers, strict=True)
        return np.concatenate(
            [logprobs_of(model, *pair, 1.0, VOCABULARY).numpy() for pair in pairs]
        )


def plain_updates(start: Path, model: str, config) -> tuple[list[float], np.ndarray]:
    """Two updates of an adapter that peft loads, one answer at a time: norms of the gradient,
    and scores.
    """
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, start, is_trainable=True)
    parameters = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=config.update.betas, weight_decay=0.01)
    experience, norms = fixed_experience("one update"), []
    for _ in range(2):
        optimizer.zero_grad()
        for prompt, answer, advantage in zip(
            experience.prompts, experience.answers, experience.advantages, strict=True
        ):
            logprobs = logprobs_of(adapted, prompt, answer, 1.0, VOCABULARY)
            # The gradient of the ratio at 1 is that of the log-probability.
            (-(advantage * logprobs).sum() / len(experience.answers)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, config.update.max_grad_norm).item())
        optimizer.step()
    return norms, scores_of(adapted)


@pytest.mark.program
def test_full_rank_with_a_fixed_identity_has_the_gradients_of_full_training(report):
    assert len(report["gradients"]) == 14  # 7 linear layers in each of 2 layers
    for layer, (difference, largest) in report["gradients"].items():
        assert largest > 1e-3, layer
        assert difference < 1e-5 * largest, layer


@pytest.mark.program
@pytest.mark.parametrize("setting", ["small", "layers"])
def test_updates_are_those_of_peft_in_plain_pytorch(report, models, run, setting):
    flags, case = flags_of(setting, models), report[setting]
    config, _ = parse_train_config(flags, has_cuda=False)
    norms, scores = plain_updates(checkpoint(run, setting, 0), config.data.model, config)
    np.testing.assert_allclose(case["norms"], norms, rtol=1e-3)
    before, after = np.concatenate(case["before"]), np.concatenate(case["after"])
    # A new adapter changes nothing.
    np.testing.assert_allclose(
        before, scores_of(AutoModelForCausalLM.from_pretrained(config.data.model)), atol=1e-5
    )
    assert np.abs(after - scores).max() < 0.01 * np.abs(after - before).max()


@pytest.mark.program
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_merged_checkpoint_gives_the_learners_logprobs_in_plain_transformers(
    report, run, setting
):
    case = report[setting]
    dtype = torch.bfloat16 if setting == "bf16" else torch.float32
    merged = AutoModelForCausalLM.from_pretrained(
        checkpoint(run, setting, 2) / "merged", dtype=dtype
    )
    difference = np.abs(scores_of(merged.float()) - np.concatenate(case["after"]))
    moved = np.abs(np.concatenate(case["after"]) - np.concatenate(case["before"]))
    assert difference.mean() < (0.1 if setting == "bf16" else 1e-5) * moved.mean()


@pytest.mark.program
def test_weights_are_merged_in_fp32_and_rounded_once(report, models, run):
    folder = checkpoint(run, "bf16", 2)
    merged, adapter = (
        load_file(folder / "merged" / "model.safetensors"),
        load_file(folder / "adapter_model.safetensors"),
    )
    base = load_file(Path(models[1]) / "model.safetensors")
    adapted = {
        name.removesuffix(".lora_A.weight").removeprefix("base_model.model.")
        for name in adapter
        if "_A" in name
    }
    assert len(adapted) == 14
    once, twice = 0.0, 0.0
    for layer in adapted:
        a, b = (adapter[f"base_model.model.{layer}.lora_{part}.weight"].double() for part in "AB")
        weight = base[f"{layer}.weight"].bfloat16()
        exact = (weight.double() + 2 * b @ a).bfloat16()
        once += (merged[f"{layer}.weight"] != exact).float().mean() / len(adapted)
        twice += (weight + (2 * b @ a).bfloat16() != exact).float().mean() / len(adapted)
    assert once < 1e-4 < 1e-2 < twice
    for name in set(base) - {f"{layer}.weight" for layer in adapted}:
        assert torch.equal(base[name].bfloat16(), merged[name])


@pytest.mark.program
@pytest.mark.parametrize("setting", SETTINGS)
def test_an_adapters_folder_is_merged_for_the_sampler_and_removed(report, run, setting, tmp_path):
    kept = load_file(checkpoint(run, setting, 2) / "merged" / "model.safetensors")
    adapter = tmp_path / "adapter"
    shutil.copytree(
        checkpoint(run, setting, 2), adapter, ignore=shutil.ignore_patterns("merged", "trainer")
    )
    assert model_folder(str(adapter)) == adapter
    with whole_model(adapter) as folder:
        merged = load_file(folder / "model.safetensors")
        assert (folder / "tokenizer.json").exists()
    assert not folder.exists()
    assert kept.keys() == merged.keys()
    assert all(torch.equal(kept[name], merged[name]) for name in kept)
    with whole_model(checkpoint(run, setting, 2)) as folder:
        assert folder == checkpoint(run, setting, 2) / "merged"


@pytest.mark.program
@pytest.mark.parametrize("setting", SETTINGS)
def test_resuming_is_exact_and_stores_no_frozen_weights(report, run, setting):
    case = report[setting]
    assert case["resumed"] == case["after"]
    assert case["resumed third"] == case["third"] != case["after"]
    adapter = load_file(checkpoint(run, setting, 2) / "adapter_model.safetensors")
    trained = sum(tensor.numel() for tensor in adapter.values())
    stored = sum(
        file.stat().st_size for file in checkpoint(run, setting, 2).glob("trainer/zero/*.pt")
    )
    assert 12 * trained < stored < 13 * trained + 2**18  # master weights and two moments


@pytest.mark.program
def test_another_number_of_ranks_resumes_from_the_converted_checkpoint(report, models, run):
    trainer = checkpoint(run, "small", 2) / "trainer"
    convert = [
        sys.executable,
        "-m",
        "deepspeed.checkpoint.ds_to_universal",
        "--input_folder",
        str(trainer / "zero"),
    ]
    subprocess.run(
        [*convert, "--output_folder", str(trainer / "universal")], check=True, capture_output=True
    )
    found = report_of(1, "lora_check", "universal", run, *models)
    np.testing.assert_allclose(
        np.concatenate(found), np.concatenate(report["small"]["third"]), atol=1e-4
    )


@pytest.mark.program
def test_a_resumed_learner_takes_the_settings_of_this_start(report):
    assert report["changed settings"] == [64 if trains_in_float16() else 1, 0.1, 0.8, 0.95]


@pytest.mark.program
def test_what_is_no_adapter_of_a_model_here_is_refused(report, run, tmp_path):
    adapter = tmp_path / "adapter"
    shutil.copytree(
        checkpoint(run, "small", 2), adapter, ignore=shutil.ignore_patterns("merged", "trainer")
    )
    settings = read_json(adapter / "adapter_config.json", "")
    for changes, message in (
        (
            {"base_model_name_or_path": "/nowhere/model"},
            "the base model of this LoRA adapter was not found",
        ),
        ({"base_model_name_or_path": None}, "was not found"),
        ({"peft_type": "IA3"}, "is no plain LoRA adapter"),
        (
            {"target_parameters": ["mlp.experts.down_proj"]},
            r"is no plain LoRA adapter \[.target_parameters.\]",
        ),
    ):
        write_json(adapter / "adapter_config.json", settings | changes)
        with pytest.raises(InputError, match=message), whole_model(model_folder(str(adapter))):
            pass
    write_json(adapter / "adapter_config.json", settings)
    layer = "base_model.model.model.layers.0.mlp.up_proj"
    for name in (
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        f"{layer}.lora_magnitude_vector",  # of DoRA
        f"{layer}.lora_B.bias",
        f"{layer}.bias",
        f"{layer}.ia3_l",
    ):
        save_file(
            {f"{layer}.lora_A.weight": torch.zeros(1), name: torch.zeros(1)},
            adapter / "adapter_model.safetensors",
        )
        with pytest.raises(InputError, match=f"is no plain LoRA adapter .*{name}"):
            model_folder(str(adapter))
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds no \*\.safetensors; write it"):
        model_folder(str(adapter))


@pytest.mark.sampler
def test_an_adapter_is_evaluated_like_its_merged_model(tmp_path, monkeypatch):
    folders = {
        name: tmp_path / name for name in ("adapter", "merged", "results", "results of merged")
    }
    base = shutil.copytree(TINY_MODEL, tmp_path / "base")
    # Greedy by default, with a temperature for those who sample: transformers reads this and
    # refuses to write it.
    (base / "generation_config.json").write_text(
        '{"do_sample": false, "temperature": 0.7, "eos_token_id": [0, 7]}'
    )
    shutil.copytree(base, folders["adapter"], ignore=shutil.ignore_patterns("*.safetensors"))
    layers = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )
    torch.manual_seed(0)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), layers).save_pretrained(
        folders["adapter"]
    )
    with whole_model(folders["adapter"]) as merged:
        shutil.copytree(merged, folders["merged"])
    assert json.loads((folders["merged"] / "generation_config.json").read_text())[
        "eos_token_id"
    ] == [0, 7]
    samples = []
    for model, results in (("adapter", "results"), ("merged", "results of merged")):
        flags = (
            "--suite",
            "arithmetic",
            "--limit",
            "8",
            "--repetitions",
            "1",
            "--output-dir",
            folders[results],
        )
        if model == "merged":
            run_ranks(0, "eval.py", "--ckpt", folders[model], *flags)
        else:
            # As users start it: merging uses threads, after which processes must not be forked.
            # Nothing may be left in the temporary directory, which `temporary_folder` checks.
            command = [sys.executable, "eval.py", "--ckpt", str(folders[model]), *map(str, flags)]
            with temporary_folder() as folder:
                subprocess.run(
                    command,
                    cwd=ROOT,
                    env=users_environment() | folder,
                    check=True,
                    capture_output=True,
                )
        lines = (folders[results] / "samples.jsonl").read_text().splitlines()
        samples.append(sorted((line["index"], line["answer"]) for line in map(json.loads, lines)))
    assert samples[0] == samples[1] != []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    flags = [
        "--preset",
        "tiny",
        "--model",
        str(folders["adapter"]),
        "--output-dir",
        str(tmp_path / "run"),
    ]
    with refused("is a LoRA adapter; name its subfolder merged/, or merge it first"):
        prepare_run(parse_train_config(flags, has_cuda=False)[0])


@pytest.mark.usefixtures("float16")
@pytest.mark.sampler
@pytest.mark.parametrize(
    "scale",
    [1e7, 1e5],  # the weights overflow, or only the activations
)
def test_what_overflows_in_fp16_is_refused(tmp_path, scale):
    shutil.copytree(TINY_MODEL, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    weight = model.get_parameter("model.layers.1.mlp.down_proj.weight")
    weight.data *= scale
    assert (weight.abs().max() > 65504) == (scale == 1e7)
    model.save_pretrained(tmp_path / "model")
    flags = (
        "--preset",
        "tiny",
        "--dtype",
        "float16",
        "--model",
        tmp_path / "model",
        "--output-dir",
        tmp_path / "run",
    )
    done = run_ranks(1, "train.py", *flags, "--eval-every", "0", check=False)
    assert done.returncode == 2
    assert "its activations overflow in float16" in done.stdout


@pytest.mark.parametrize(
    ("family", "adapted"),
    [
        ("gpt2", "c_attn c_proj c_fc"),
        ("qwen3_moe", "q_proj k_proj v_proj o_proj"),
        # Its shared expert has layers that are called as the experts'
        ("qwen2_moe", "q_proj k_proj v_proj o_proj"),
    ],
)
def test_of_a_mixture_of_experts_only_the_attention_is_adapted(family, adapted):
    config, _ = parse_train_config(["--preset", "tiny", "--lora-rank", "4"], has_cuda=False)
    shape = (families.TRAINED | families.ALSO_TRAINED)[family]
    model = AutoModelForCausalLM.from_config(families.family_config(family, **shape))
    add_adapter(model, str(TINY_MODEL), config)
    trained = {
        name.split(".lora_")[0] for name, weight in model.named_parameters() if weight.requires_grad
    }
    assert {name.rpartition(".")[2] for name in trained} == set(adapted.split())
    assert not any("expert" in name for name in trained)


@pytest.mark.parametrize(
    "flags", [["--lora-rank", "8", "--lr", "1e-4"], ["--lora-rank", "8", "--lr=1e-4"], []]
)
def test_the_learning_rate_of_lora_is_larger_unless_it_is_given(flags):
    for given, lr in ((flags, 1e-4), (["--lora-rank", "8"], 1e-3)):
        config, _ = parse_train_config(["--preset", "tiny", *given], has_cuda=False)
        assert config.update.lr == pytest.approx(lr)
