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
from bnpo.policy.folder import INDEX, check_finite, check_one_model, model_folder, whole_model
from conftest import refused
from families import ALSO_TRAINED, TRAINED, make_family

Tensors = dict[str, torch.Tensor]

FAMILIES = ("qwen2", "llama", "qwen3_moe", "gpt2")
"""A tied head; an untied one in several files; experts that are joined; names with the prefix
"transformer."."""
SHARDED = ("llama", "qwen3_moe")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folders = {family: tmp_path_factory.mktemp("models") / family for family in FAMILIES}
    for family, folder in folders.items():
        make_family(folder, family, **(TRAINED | ALSO_TRAINED)[family])
        if family in SHARDED:
            model = AutoModelForCausalLM.from_pretrained(folder)
            (folder / "model.safetensors").unlink()
            model.save_pretrained(folder, max_shard_size="200KB")
            assert (folder / INDEX).is_file()
    return folders


@pytest.fixture(scope="module")
def weights(folders) -> dict[str, Tensors]:
    """What transformers loads from the folders as they are."""
    return {family: loaded(folder) for family, folder in folders.items()}


def loaded(folder: Path) -> Tensors:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


def rewrite(file: Path, change: Callable[[Tensors], object]) -> None:
    """Change the tensors of a file in place, and the index with them."""
    tensors, index = load_file(file), file.parent / INDEX
    before = set(tensors)
    change(tensors)
    save_file({name: x.clone() for name, x in tensors.items()}, file, metadata={"format": "pt"})
    if index.is_file():
        content = json.loads(index.read_text())
        kept = {name: at for name, at in content["weight_map"].items() if name not in before}
        content["weight_map"] = kept | dict.fromkeys(tensors, file.name)
        index.write_text(json.dumps(content))


def damage(folder: Path, fault: str, draw: random.Random) -> str:
    """Put a fault into the folder, and return the tensor or file that the message must name."""
    file = draw.choice(sorted(folder.glob("*.safetensors")))
    name, index = draw.choice(sorted(load_file(file))), folder / INDEX

    def set_one_value(tensors: Tensors) -> None:
        value = torch.nan if fault == "nan" else -torch.inf
        tensors[name].view(-1)[draw.randrange(tensors[name].numel())] = value

    changes: dict[str, Callable[[Tensors], object]] = {
        "removed": lambda tensors: tensors.pop(name),
        "renamed": lambda tensors: tensors.update({f"{name}_": tensors.pop(name)}),
        "one prefix": lambda tensors: tensors.update({f"module.{name}": tensors.pop(name)}),
        "shape": lambda tensors: tensors.update({name: tensors[name][:-1]}),
        "nan": set_one_value,
        "infinite": set_one_value,
        "value head": lambda x: x.update({"v_head.summary.weight": torch.ones(1, 128)}),
    }
    if fault in changes:
        rewrite(file, changes[fault])
        return name
    if fault == "cut":
        content = file.read_bytes()
        file.write_bytes(content[: draw.randrange(len(content))])
        return file.name
    if fault == "file missing":
        file.unlink()
        return file.name
    if fault == "index short":
        content = json.loads(index.read_text())
        kept = {name: at for name, at in content["weight_map"].items() if at != file.name}
        index.write_text(json.dumps(content | {"weight_map": kept}))
        return "weight"
    prefix = draw.choice(["model.", "base_model.model.", "module.", "transformer."])
    layer = {"gpt2": "h.1."}.get(folder.name, "layers.1.")

    def rename_all(tensors: Tensors) -> None:
        for old in list(tensors):
            if fault == "prefix added":
                tensors[prefix + old] = tensors.pop(old)
            elif layer in old:  # another layer
                tensors[old.replace(layer, layer.replace("1", "2"))] = tensors[old].clone()

    for file in folder.glob("*.safetensors"):
        rewrite(file, rename_all)
    return "weight" if fault == "prefix added" else layer.replace("1", "2")


FAULTS = "removed,renamed,shape,nan,infinite,cut,prefix added,one prefix,file missing,index short"
FAULTS += ",another layer,value head"
HARMLESS = {"prefix added", "value head"}
"""Faults that transformers may resolve. The others must be refused."""


@pytest.mark.parametrize("fault", FAULTS.split(","))
def test_incomplete_weights_are_refused_by_name_or_loaded_exactly(
    fault, folders, weights, tmp_path
):
    for seed in range(6):
        draw = random.Random(f"{fault} {seed}")
        family = draw.choice(SHARDED if "file" in fault or "index" in fault else FAMILIES)
        folder = shutil.copytree(folders[family], tmp_path / str(seed) / family)
        named = damage(folder, fault, draw)
        message = ""
        try:
            check_finite(model_folder(str(folder)))
        except InputError as error:
            message = str(error)
        if message or fault not in HARMLESS:
            assert named in message, (seed, family)
            assert str(folder) in message
            assert "\n" not in message
            continue
        found, expected = loaded(folder), weights[family]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), (seed, family)


def test_an_adapter_without_one_of_its_tensors_is_refused(folders, tmp_path):
    """peft only warns where a tensor of an adapter is missing."""
    base, adapter = shutil.copytree(folders["qwen2"], tmp_path / "base"), tmp_path / "adapter"
    settings = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, settings).save_pretrained(adapter)
    for file in [base / "config.json", *base.glob("tokenizer*"), *base.glob("chat_template*")]:
        shutil.copy(file, adapter)
    with whole_model(model_folder(str(adapter))) as merged:
        assert loaded(merged).keys() == loaded(base).keys()
    lost = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    rewrite(adapter / "adapter_model.safetensors", lambda tensors: tensors.pop(lost))
    with refused(f"adapter_model.safetensors lacks {lost}, "), whole_model(adapter):
        pass
    (base / "model.safetensors").unlink()
    with refused("the base model of this LoRA adapter was not found .*safetensors"):
        model_folder(str(adapter))
    assert model_folder(str(adapter), weights=False) == adapter  # for a dry run


def test_two_models_in_a_folder_are_not_evaluated(folders, tmp_path):
    """vLLM reads all files or, if there is one, those of the index. transformers reads
    model.safetensors.
    """
    folder = shutil.copytree(folders["qwen2"], tmp_path / "model")
    check_one_model(folder)
    check_one_model(folders["llama"])  # in several files
    stale = next(folders["llama"].glob("*.safetensors"))
    shutil.copy(stale, folder)
    message = f"holds two models, model.safetensors and {stale.name}"
    with refused(f"{message}; move one"):
        check_one_model(folder)
    (folder / INDEX).write_text('{"weight_map": {"x": "model.safetensors"}}')
    check_one_model(folder)
    (folder / INDEX).write_text(f'{{"weight_map": {{"x": "{stale.name}"}}}}')
    with refused(message):
        check_one_model(folder)


def test_weights_get_the_permissions_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text("{}")
        let_others_read(tmp_path)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o640}
