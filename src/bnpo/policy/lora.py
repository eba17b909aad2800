"""LoRA by the peft library: low-rank additions to frozen linear layers, their files, and the
merged weights.
"""

from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.pytorch_utils import Conv1D

from bnpo.config import TrainConfig
from bnpo.files import InputError, let_others_read, split_revision

BASE = ".base_layer"  # what peft adds to the name of a frozen weight
ADAPTER = "default"  # peft's name of the only adapter


def without_adapter(
    model: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]
) -> dict[str, torch.Tensor]:
    """Return some `parameters` of an adapted model under the names that they have without the
    adapter, which is merged into them. ZeRO-3 must have gathered them.
    """
    tensors = {}
    for name, parameter in parameters.items():
        owner, _, kind = name.partition(BASE)
        if kind == ".weight":
            tensors[owner + kind] = merged(model.get_submodule(owner))
        elif f".{ADAPTER}." not in name:  # not A or B
            tensors[owner + kind] = parameter.detach()
    return tensors


@torch.no_grad()
def merged(layer: torch.nn.Module) -> torch.Tensor:
    """Return W + scaling * B A of a peft layer."""
    whole = layer.base_layer.weight
    parts = whole, layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    weight, a, b = (part.float() for part in parts)  # [out, in], [rank, in], [out, rank]
    if layer.fan_in_fan_out:  # GPT-2 stores [in, out]
        a, b = b.t(), a.t()
    # In fp32, rounded once: B A is often smaller than the rounding of a bf16 weight, and would be
    # rounded twice.
    return torch.addmm(weight, b, a, alpha=layer.scaling[ADAPTER]).to(whole.dtype)


def adapted_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the linear layers but the head. Of a model with experts, return those of the
    attention.
    """
    head = model.get_output_embeddings()
    # A tensor of all experts is no layer. peft adapts it if a layer's name is that of an expert's,
    # such as gate_proj.
    has_experts = any(
        len(getattr(parameter, "ds_shape", parameter.shape)) == 3
        for parameter in model.parameters()
    )
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, (torch.nn.Linear, Conv1D))
        and layer is not head
        and ("attn" in name or not has_experts)
    }


def add_adapter(model: torch.nn.Module, folder: str, config: TrainConfig) -> None:
    """Freeze a Hugging Face model from `folder`, and add trainable matrices A and B to
    `adapted_layers`.

    B is 0, so that the model computes what it did. A is drawn from --seed, equally on all ranks.
    """
    from peft import LoraConfig, inject_adapter_in_model  # only runs with LoRA wait for this import

    path, update = Path(folder), config.update
    in_hub_cache = path.parent.name == "snapshots"
    # A hub name with its commit, so that others find the model. Folders with their full path.
    base = split_revision(config.data.model)[0] if in_hub_cache else str(path.resolve())
    adapter = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        revision=path.name if in_hub_cache else None,
        target_modules=sorted({name.rpartition(".")[2] for name in adapted_layers(model)}),
        r=update.lora_rank,
        lora_alpha=update.lora_alpha or 2 * update.lora_rank,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.sampling.seed)
        inject_adapter_in_model(adapter, model, ADAPTER)
    # The layers' input must require a gradient. Otherwise DeepSpeed takes the first layer's
    # backward pass for finished before it has begun, and frees its weights.
    model.enable_input_require_grads()


def save_adapter(model: torch.nn.Module, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, which peft can load. A
    collective; rank 0 writes.
    """
    adapter = {
        name: parameter for name, parameter in model.named_parameters() if f".{ADAPTER}." in name
    }
    with deepspeed.zero.GatheredParameters(list(adapter.values())):
        if dist.get_rank() == 0:
            tensors = {}
            for name, whole in adapter.items():
                name = f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"
                tensors[name] = whole.detach().cpu().clone()
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            model.peft_config[ADAPTER].save_pretrained(folder)


def write_merged(adapter: Path, base: Path, target: Path) -> None:
    """Write the model in folder `base` with the LoRA of folder `adapter` in its weights, as the
    weight sync merges.
    """
    from peft import PeftModel

    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as file:
        stored = set(file.keys())
        dtype = file.get_tensor(min(stored)).dtype  # that of the training
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    adapted = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    # peft only warns, and a missing B leaves its layer as it was
    names = [name for name in adapted.state_dict() if f".{ADAPTER}." in name]  # of A and B
    if missing := sorted({name.replace(f".{ADAPTER}.", ".") for name in names} - stored):
        raise InputError(
            f"{adapter}: adapter_model.safetensors lacks {missing[0]}, which adapter_config.json "
            "asks for; copy the adapter again"
        )
    for layer in model.modules():
        if hasattr(layer, "base_layer"):
            layer.base_layer.weight.data = merged(layer)
    # Without the sampling settings of the base model, some of which transformers refuses to write.
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    adapted.unload().save_pretrained(target)
    let_others_read(target)
