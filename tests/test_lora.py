"""LoRA under ZeRO-3 on two ranks, against plain PyTorch and peft; what adapters' folders hold
and who can load them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_check import fixed_batch
from lora_check import SETTINGS, VOCABULARY, lora_config
from peft import PeftModel
from safetensors.torch import load_file, save_file
from shared import pairs
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
    json_lines,
    make_model,
    refused,
    report_of,
    run_ranks,
    temporary_folder,
    users_environment,
)
from test_learner import logprobs_of


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[str]:
    folder, others = tmp_path_factory.mktemp("models"), ("config.json", "*.safetensors")
    for name, size in (("small", 64), ("layers", 512)):
        shutil.copytree(TINY_MODEL, folder / name, ignore=shutil.ignore_patterns(*others))
        shape = {"vocab_size": VOCABULARY, "hidden_size": size, "intermediate_size": size}
        make_model(folder / name, **shape)
        # Greedy by default, with a temperature for those who sample: transformers reads this and
        # refuses to write it.
        settings = {"do_sample": False, "temperature": 0.7, "eos_token_id": [0, 7]}
        write_json(folder / name / "generation_config.json", settings)
    return [str(folder / "small"), str(folder / "layers")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def report(models, run) -> dict:
    return report_of(2, "lora_check", run, *models)


def checkpoint(run: Path, setting: str, step: int = 2) -> Path:
    return run / setting / "checkpoints" / f"step-{step:06}"


def adapter_of(run: Path, setting: str, folder: Path) -> Path:
    """A copy of a checkpoint that has the adapter only."""
    others = shutil.ignore_patterns("merged", "trainer")
    return shutil.copytree(checkpoint(run, setting), folder / "adapter", ignore=others)


def scores_of(model) -> np.ndarray:
    """Log-probabilities of all answers' tokens."""
    with torch.no_grad():
        scores = [
            logprobs_of(model, prompt, answer.token_ids, 1.0, VOCABULARY)
            for prompt, answer in pairs(fixed_batch()[0])
        ]
    return torch.cat(scores).numpy()


def plain_updates(start: Path, config) -> tuple[list[float], np.ndarray]:
    """Two updates of an adapter that peft loads, one answer at a time: norms of the gradient,
    and scores.
    """
    base = AutoModelForCausalLM.from_pretrained(config.data.model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, start, is_trainable=True)
    parameters = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=config.update.betas, weight_decay=0.01)
    (batch, advantages), norms = fixed_batch(), []
    for _ in range(2):
        optimizer.zero_grad()
        for (prompt, answer), advantage in zip(pairs(batch), advantages.flat, strict=True):
            logprobs = logprobs_of(adapted, prompt, answer.token_ids, 1.0, VOCABULARY)
            # The gradient of the ratio at 1 is that of the log-probability.
            (-(advantage * logprobs).sum() / advantages.size).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, config.update.max_grad_norm).item())
        optimizer.step()
    return norms, scores_of(adapted)


@pytest.mark.program
@pytest.mark.parametrize("setting", ["small", "layers"])
def test_updates_are_those_of_peft_in_plain_pytorch(report, models, run, setting):
    config, case = lora_config(setting, *models), report[setting]
    norms, scores = plain_updates(checkpoint(run, setting, 0), config)
    np.testing.assert_allclose(case["norms"], norms, rtol=1e-3)
    before, after = np.concatenate(case["before"]), np.concatenate(case["after"])
    # A new adapter changes nothing.
    untrained = AutoModelForCausalLM.from_pretrained(config.data.model)
    np.testing.assert_allclose(before, scores_of(untrained), atol=1e-5)
    assert np.abs(after - scores).max() < 0.01 * np.abs(after - before).max()


@pytest.mark.program
def test_a_merged_checkpoint_gives_the_learners_logprobs_in_plain_transformers(report, run):
    for setting in SETTINGS:
        rounded, folder = setting == "bf16", checkpoint(run, setting) / "merged"
        dtype = torch.bfloat16 if rounded else torch.float32
        merged = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).float()
        before, after = (np.concatenate(report[setting][when]) for when in ("before", "after"))
        largest = (0.1 if rounded else 1e-5) * np.abs(after - before).mean()
        assert np.abs(scores_of(merged) - after).mean() < largest


@pytest.mark.program
def test_weights_are_merged_in_fp32_and_rounded_once(report, models, run):
    folder = checkpoint(run, "bf16")
    merged = load_file(folder / "merged" / "model.safetensors")
    adapter = load_file(folder / "adapter_model.safetensors")
    base = load_file(Path(models[1]) / "model.safetensors")
    layers = {name.split(".lora_")[0].removeprefix("base_model.model.") for name in adapter}
    assert len(layers) == 14
    once, twice = 0.0, 0.0
    for layer in layers:
        a, b = (adapter[f"base_model.model.{layer}.lora_{part}.weight"].double() for part in "AB")
        weight = base[f"{layer}.weight"].bfloat16()
        exact = (weight.double() + 2 * b @ a).bfloat16()
        once += (merged[f"{layer}.weight"] != exact).float().mean() / 14
        twice += (weight + (2 * b @ a).bfloat16() != exact).float().mean() / 14
    assert once < 1e-4 < 1e-2 < twice
    for name in set(base) - {f"{layer}.weight" for layer in layers}:
        assert torch.equal(base[name].bfloat16(), merged[name])


@pytest.mark.program
@pytest.mark.parametrize("setting", ["small", "bf16"])
def test_an_adapters_folder_is_merged_for_the_sampler_and_removed(report, run, setting, tmp_path):
    kept = load_file(checkpoint(run, setting) / "merged" / "model.safetensors")
    adapter = adapter_of(run, setting, tmp_path)
    assert model_folder(str(adapter)) == adapter
    with whole_model(adapter) as folder:
        merged = load_file(folder / "model.safetensors")
        assert (folder / "tokenizer.json").exists()
        assert read_json(folder / "generation_config.json", "")["eos_token_id"] == [0, 7]
    assert not folder.exists()
    assert kept.keys() == merged.keys()
    assert all(torch.equal(kept[name], merged[name]) for name in kept)
    with whole_model(checkpoint(run, setting)) as folder:
        assert folder == checkpoint(run, setting) / "merged"


@pytest.mark.program
def test_resuming_is_exact_and_stores_no_frozen_weights(report, run):
    for setting in SETTINGS:
        case, folder = report[setting], checkpoint(run, setting)
        assert case["resumed"] == case["after"]
        assert case["resumed third"] == case["third"] != case["after"]
        adapter = load_file(folder / "adapter_model.safetensors")
        trained = sum(tensor.numel() for tensor in adapter.values())
        stored = sum(file.stat().st_size for file in folder.glob("trainer/zero/*.pt"))
        assert 12 * trained < stored < 13 * trained + 2**18  # master weights and two moments
    # A resumed learner takes the settings of its own start
    scale = 64 if trains_in_float16() else 1
    assert report["changed settings"] == [scale, 0.1]


@pytest.mark.program
@pytest.mark.extra
def test_another_number_of_ranks_resumes_from_the_converted_checkpoint(report, models, run):
    trainer = checkpoint(run, "small") / "trainer"
    convert = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    convert += ["--input_folder", trainer / "zero", "--output_folder", trainer / "universal"]
    subprocess.run(convert, check=True, capture_output=True)
    found = np.concatenate(report_of(1, "lora_check", run, *models, "universal"))
    np.testing.assert_allclose(found, np.concatenate(report["small"]["third"]), atol=1e-4)


REFUSED_SETTINGS = (
    ({"base_model_name_or_path": "/nowhere"}, "the base model of this LoRA adapter was not found"),
    ({"base_model_name_or_path": None}, "was not found"),
    ({"peft_type": "IA3"}, "is no plain LoRA adapter"),
    ({"target_parameters": ["mlp.experts.down_proj"]}, r"no plain LoRA adapter \[.target_par"),
)
PREFIX = "base_model.model.model"
REFUSED_TENSORS = (
    "base_model.model.lm_head.lora_A.weight",
    f"{PREFIX}.embed_tokens.lora_embedding_A",
    f"{PREFIX}.layers.0.mlp.up_proj.lora_magnitude_vector",  # of DoRA
    f"{PREFIX}.layers.0.mlp.up_proj.lora_B.bias",
    f"{PREFIX}.layers.0.mlp.up_proj.bias",
    f"{PREFIX}.layers.0.mlp.up_proj.ia3_l",
)


@pytest.mark.program
def test_what_is_no_adapter_of_a_model_here_is_refused(report, run, tmp_path):
    adapter = adapter_of(run, "small", tmp_path)
    settings = read_json(adapter / "adapter_config.json", "")
    for changes, message in REFUSED_SETTINGS:
        write_json(adapter / "adapter_config.json", settings | changes)
        with pytest.raises(InputError, match=message), whole_model(model_folder(str(adapter))):
            pass
    write_json(adapter / "adapter_config.json", settings)
    for name in REFUSED_TENSORS:
        names = f"{PREFIX}.layers.0.mlp.up_proj.lora_A.weight", name
        file = adapter / "adapter_model.safetensors"
        save_file({each: torch.zeros(1) for each in names}, file)
        with pytest.raises(InputError, match=f"is no plain LoRA adapter .*{name}"):
            model_folder(str(adapter))
    file.unlink()
    with pytest.raises(InputError, match=r"holds no \*\.safetensors; write it"):
        model_folder(str(adapter))


@pytest.mark.sampler
@pytest.mark.extra
def test_an_adapter_is_evaluated_like_its_merged_model(report, run, tmp_path, monkeypatch):
    adapter, merged = adapter_of(run, "small", tmp_path), checkpoint(run, "small") / "merged"
    flags = ["--suite", "arithmetic", "--limit", "8", "--repetitions", "1", "--output-dir"]
    run_ranks(0, "eval.py", "--ckpt", merged, *flags, tmp_path / "results of merged")
    # As users start it: merging uses threads, after which processes must not be forked. Nothing
    # may be left in the temporary directory, which `temporary_folder` checks.
    command = [sys.executable, "eval.py", "--ckpt", adapter, *flags, tmp_path / "results"]
    with temporary_folder() as folder:
        environment = users_environment() | folder
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    folders = [tmp_path / name for name in ("results", "results of merged")]
    rows = [json_lines(folder / "samples.jsonl") for folder in folders]
    samples = [sorted((row["index"], row["answer"]) for row in of_run) for of_run in rows]
    assert samples[0] == samples[1] != []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    flags = ["--preset", "tiny", "--model", str(adapter), "--output-dir", str(tmp_path / "run")]
    with refused("is a LoRA adapter; name its subfolder merged/, or merge it first"):
        prepare_run(parse_train_config(flags, has_cuda=False)[0])


@pytest.mark.usefixtures("float16")
@pytest.mark.sampler
@pytest.mark.extra
@pytest.mark.parametrize("scale", [1e7, 1e5])  # the weights overflow, or only the activations
def test_what_overflows_in_fp16_is_refused(tmp_path, scale):
    folder = shutil.copytree(TINY_MODEL, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    weight = model.get_parameter("model.layers.1.mlp.down_proj.weight")
    weight.data *= scale
    assert (weight.abs().max() > 65504) == (scale == 1e7)
    model.save_pretrained(folder)
    flags = ["--preset", "tiny", "--dtype", "float16", "--eval-every", 0]
    flags += ["--model", folder, "--output-dir", tmp_path / "run"]
    done = run_ranks(1, "train.py", *flags, check=False)
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
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in trained}
    assert layers == set(adapted.split())
    assert not any("expert" in name for name in trained)
