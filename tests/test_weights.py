"""Folders of models whose weights are incomplete, damaged or under other names: each is refused in
one line that names the tensor or the file, or loaded exactly.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from bnpo.files import InputError, let_others_read
from bnpo.policy.folder import (
    INDEX,
    check_finite,
    check_one_model,
    check_tensors,
    model_folder,
    whole_model,
)
from conftest import refused
from families import ALSO_TRAINED, REFUSED_LATER, TRAINED, make_family

Tensors = dict[str, torch.Tensor]

# A head of its own, an untied one in several files, experts that are joined, a tied head, and names
# with the prefix "transformer."
FAMILIES = {"qwen2": {}, "llama": {}, "qwen3_moe": {}, "gemma3_text": {}, "gpt2": {}}
SHARDED = ("llama", "qwen3_moe")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folders = {}
    for family in FAMILIES:
        folders[family] = tmp_path_factory.mktemp("models") / family
        make_family(folders[family], family, **(TRAINED | ALSO_TRAINED)[family])
        if family in SHARDED:
            model = AutoModelForCausalLM.from_pretrained(folders[family])
            (folders[family] / "model.safetensors").unlink()
            model.save_pretrained(folders[family], max_shard_size="200KB")
            assert (folders[family] / INDEX).is_file()
    return folders


@pytest.fixture(scope="module")
def weights(folders) -> dict[str, Tensors]:
    """What transformers loads from the folders as they are."""
    return {family: loaded(folder) for family, folder in folders.items()}


def loaded(folder: Path) -> Tensors:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


def rewrite(file: Path, change: Callable[[Tensors], object]) -> None:
    """Change the tensors of a file in place, and the index with them."""
    tensors = load_file(file)
    before = set(tensors)
    change(tensors)
    save_file({name: x.clone() for name, x in tensors.items()}, file, metadata={"format": "pt"})
    index = file.parent / INDEX
    if index.is_file():
        content = json.loads(index.read_text())
        for name in before:
            del content["weight_map"][name]
        content["weight_map"] |= dict.fromkeys(tensors, file.name)
        index.write_text(json.dumps(content))


def rename_all(folder: Path, new_name: Callable[[str], str]) -> None:
    for file in folder.glob("*.safetensors"):

        def change(tensors: Tensors) -> None:
            for name in list(tensors):
                tensors[new_name(name)] = tensors.pop(name)

        rewrite(file, change)


FAULTS = (
    "removed",
    "renamed",
    "shape",
    "nan",
    "infinite",
    "cut",
    "prefix added",
    "prefix removed",
    "one prefix",
    "file missing",
    "index wrong",
    "index short",
    "another layer",
    "value head",
)
HARMLESS = {"prefix added", "prefix removed", "value head", "index wrong"}
"""Faults that transformers may resolve. The others must be refused."""


def damage(folder: Path, fault: str, draw: random.Random) -> str:
    """Put a fault into the folder, and return the tensor or file that the message must name."""
    file = draw.choice(sorted(folder.glob("*.safetensors")))
    name = draw.choice(sorted(load_file(file)))
    index = folder / INDEX
    if fault in ("file missing", "index wrong", "index short") and not index.is_file():
        fault = "removed"
    if fault == "removed":
        rewrite(file, lambda tensors: tensors.pop(name))
    elif fault == "renamed":
        rewrite(file, lambda tensors: tensors.update({f"{name}_": tensors.pop(name)}))
    elif fault == "one prefix":
        rewrite(file, lambda tensors: tensors.update({f"module.{name}": tensors.pop(name)}))
    elif fault == "shape":
        rewrite(file, lambda tensors: tensors.update({name: tensors[name][:-1]}))
    elif fault in ("nan", "infinite"):
        value = torch.nan if fault == "nan" else -torch.inf

        def change(tensors: Tensors) -> None:
            tensors[name].view(-1)[draw.randrange(tensors[name].numel())] = value

        rewrite(file, change)
    elif fault == "cut":
        content = file.read_bytes()
        file.write_bytes(content[: draw.randrange(len(content))])
        return file.name
    elif fault == "prefix added":
        prefix = draw.choice(["model.", "base_model.model.", "module.", "transformer."])
        rename_all(folder, lambda name: prefix + name)
        return "weight"
    elif fault == "prefix removed":
        rename_all(folder, lambda name: name.removeprefix("model.").removeprefix("transformer."))
        return "weight"
    elif fault == "file missing":
        file.unlink()
        return file.name
    elif fault.startswith("index"):
        content = json.loads(index.read_text())
        of_file = [name for name, where in content["weight_map"].items() if where == file.name]
        for name in of_file:
            if fault == "index short":
                del content["weight_map"][name]
            else:  # still one of the files
                content["weight_map"][name] = draw.choice(sorted(content["weight_map"].values()))
        index.write_text(json.dumps(content))
        return "weight"
    elif fault == "another layer":
        layer = {"gpt2": "h.1."}.get(folder.name, "layers.1.")
        for file in folder.glob("*.safetensors"):
            added = {
                name.replace(layer, layer.replace("1", "2")): x
                for name, x in load_file(file).items()
                if layer in name
            }
            rewrite(file, lambda tensors, added=added: tensors.update(added))
        return layer.replace("1", "2")
    elif fault == "value head":
        rewrite(file, lambda tensors: tensors.update({"v_head.summary.weight": torch.ones(1, 128)}))
    return name


def refusal(folder: Path) -> str:
    """Return the message with which the model is refused, or nothing."""
    try:
        check_finite(model_folder(str(folder)))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("fault", FAULTS)
def test_incomplete_weights_are_refused_by_name_or_loaded_exactly(
    fault, folders, weights, tmp_path
):
    outcomes = []
    for seed in range(15):  # 15 of each of 14 faults: 210 folders
        draw = random.Random(f"{fault} {seed}")
        family = draw.choice(sorted(SHARDED if "file" in fault or "index" in fault else FAMILIES))
        folder = tmp_path / str(seed) / family
        shutil.copytree(folders[family], folder)
        named = damage(folder, fault, draw)
        message = refusal(folder)
        if message:
            assert named in message, (seed, family)
            assert "\n" not in message
            assert str(folder) in message
            outcomes.append("refused")
            continue
        found, expected = loaded(folder), weights[family]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), (seed, family)
        outcomes.append("loaded")
    if fault not in HARMLESS:
        assert set(outcomes) == {"refused"}


@pytest.mark.parametrize("family", TRAINED | ALSO_TRAINED | REFUSED_LATER)
def test_whole_weights_of_every_family_pass(family, tmp_path):
    settings = TRAINED | ALSO_TRAINED | {name: why[0] for name, why in REFUSED_LATER.items()}
    make_family(tmp_path, family, **settings[family])
    check_tensors(tmp_path)
    check_finite(tmp_path)


def test_an_adapter_without_one_of_its_tensors_is_refused(folders, tmp_path):
    """peft only warns where a tensor of an adapter is missing."""
    base, adapter = folders["qwen2"], tmp_path / "adapter"
    model = AutoModelForCausalLM.from_pretrained(base)
    settings = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    get_peft_model(model, settings).save_pretrained(adapter)
    for file in [base / "config.json", *base.glob("tokenizer*"), *base.glob("chat_template*")]:
        shutil.copy(file, adapter)
    with whole_model(model_folder(str(adapter))) as merged:
        assert loaded(merged).keys() == loaded(base).keys()
    lost = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    rewrite(adapter / "adapter_model.safetensors", lambda tensors: tensors.pop(lost))
    with refused(f"adapter_model.safetensors lacks {lost}, "), whole_model(adapter):
        pass
    (base / "hidden").mkdir()
    (base / "model.safetensors").rename(base / "hidden" / "model.safetensors")
    with refused("the base model of this LoRA adapter was not found .*safetensors"):
        model_folder(str(adapter))
    (base / "hidden" / "model.safetensors").rename(base / "model.safetensors")


def test_a_fault_of_the_checks_is_not_blamed_on_the_weights(folders, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("transformers.Qwen2ForCausalLM.from_pretrained", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        check_tensors(folders["qwen2"])


def test_two_models_in_a_folder_are_not_evaluated(folders, tmp_path):
    """vLLM reads all files or, if there is one, those of the index. transformers reads
    model.safetensors.
    """
    folder = shutil.copytree(folders["qwen2"], tmp_path / "model")
    check_one_model(folder)
    check_one_model(folders["llama"])  # in several files
    stale = next(folders["llama"].glob("*.safetensors"))
    shutil.copy(stale, folder)
    with refused(f"holds two models, model.safetensors and {stale.name}; move one"):
        check_one_model(folder)
    (folder / INDEX).write_text('{"weight_map": {"x": "model.safetensors"}}')
    check_one_model(folder)
    (folder / INDEX).write_text(f'{{"weight_map": {{"x": "{stale.name}"}}}}')
    with refused(f"holds two models, model.safetensors and {stale.name}"):
        check_one_model(folder)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_weights_get_the_permissions_of_other_files(umask, tmp_path):
    before = os.umask(umask)
    try:
        (tmp_path / "merged").mkdir()
        for file in (tmp_path / "model.safetensors", tmp_path / "merged" / "model.safetensors"):
            save_file({"x": torch.ones(1)}, file)
        (tmp_path / "config.json").write_text("{}")
        let_others_read(tmp_path)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    modes = {file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.*")}
    assert modes == {0o666 & ~umask}
