"""The learner at real sizes, on fake tensors: they have shapes and devices, but no memory.

What it takes beside its weights is compared with the plan. It also runs on a GPU that is not there.
"""

import subprocess
import weakref
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from bnpo.algorithm import loss
from bnpo.algorithm.batching import collate
from bnpo.config import TrainConfig, parse_train_config
from bnpo.files import ROOT
from bnpo.policy.learner import REDUCE_BUCKET
from bnpo.policy.lora import add_adapter
from bnpo.policy.memory import GIB, ModelShape
from bnpo.policy.model import ATTENTION, Policy, attention
from conftest import CUDA_BUILD, report_of
from planner.memory import learner_memory


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of the storages that are made in this context, while they are alive."""

    def __init__(self, known: Iterable[torch.Tensor]):
        super().__init__()
        # By address. Of the `known` first: a view of one of them has the same storage.
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.count, output)
        return output

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self.sizes:
            self.sizes[address] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, address)

    def forget(self, address: int) -> None:
        self.now -= self.sizes.pop(address)


class Reduction:
    """What ZeRO-3 does with the gradients of one rank: those that are larger than a bucket wait for
    the next one, and are then copied to fp32.
    """

    def __init__(self):
        self.waiting: torch.Tensor | None = None

    def __call__(self, parameter: torch.nn.Parameter) -> None:
        if self.waiting is not None:
            self.waiting.float()
        self.waiting = parameter.grad if parameter.numel() > REDUCE_BUCKET else None
        parameter.grad = None


def attention_of_gpus(_module, query, key, value, _mask, *, scaling, sequences, **_others):
    """What `attention` does on GPUs, for tensors on any device."""
    query = query[0].transpose(0, 1)  # [tokens, heads, head size], as the next two
    key, value = (
        F.embedding(sequences.keys, x[0].transpose(0, 1).flatten(1)).unflatten(1, (x.shape[1], -1))
        for x in (key, value)
    )
    bounds = sequences.starts, sequences.key_starts, sequences.longest, sequences.longest_keys
    settings = {"scale": scaling, "window_size": (-1, 0), "enable_gqa": True}
    return varlen_attn(query, key, value, *bounds, **settings)[None], None


def linear_of_gpus(x: torch.Tensor, weight: torch.Tensor, bias=None) -> torch.Tensor:
    output = x.new_empty(len(x), len(weight), dtype=torch.float32)
    return output if bias is None else output.add_(bias)


@pytest.fixture
def _as_on_gpus(monkeypatch):
    """Torch's builds for CPUs have no backward pass on fake GPUs. So the tensors are on a fake CPU,
    with attention, fp32 products and chunks as on GPUs.
    """
    monkeypatch.setitem(loss.LOGIT_CHUNK, "cpu", loss.LOGIT_CHUNK["cuda"])
    monkeypatch.setattr(loss, "linear", linear_of_gpus)
    AttentionInterface.register(ATTENTION, attention_of_gpus)
    yield
    AttentionInterface.register(ATTENTION, attention)


def fake(value: object) -> object:
    """Return a fake tensor like a real one, or a dataclass with fake tensors."""
    if is_dataclass(value):
        return replace(value, **{f.name: fake(getattr(value, f.name)) for f in fields(value)})
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value


def model_without_memory(config: TrainConfig) -> torch.nn.Module:
    """Return what the learner makes of the model of --model in bfloat16, on the device "meta"."""
    settings = {"dtype": torch.bfloat16, "attn_implementation": ATTENTION}
    model_config = AutoConfig.from_pretrained(config.data.model)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, **settings)
        if config.update.lora_rank:
            add_adapter(model, config.data.model, config)
    for parameter in model.parameters():  # peft leaves adapters of weights without memory in fp32
        parameter.data = parameter.data.to(torch.bfloat16)
    if config.hardware.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def taken_by_a_pass(config: TrainConfig) -> int:
    """Return the bytes that a forward and backward pass over a full micro-batch take at most."""
    count = config.hardware.micro_batch_tokens // 4096
    prompts, answers = [[1] * 96] * count, [[k] + [1] * 4071 for k in range(count)]
    model = model_without_memory(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu").tie_weights()
        reduction = Reduction()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(reduction)
        policy = Policy(model, model.config.vocab_size)
        batch = fake(collate(prompts, answers, np.arange(count), "cpu"))
        inputs = [batch.input_ids, batch.position_ids, batch.targets, batch.predicting]
        with LiveStorages([*policy.parameters(), *policy.buffers(), *inputs]) as live:
            logprobs = policy(batch, 1.0)
            ones = torch.ones_like(logprobs)
            objective, *_ = loss.clipped_surrogate(logprobs, ones, ones, ones, 0.2, 0.2)
            objective.backward()
    return live.peak


@pytest.mark.usefixtures("_as_on_gpus")
@pytest.mark.parametrize(
    ("model", "tokens", "flags"),
    [
        ("Qwen2.5-Math-1.5B", 16384, ""),
        ("Qwen2.5-Math-1.5B", 8192, "--no-gradient-checkpointing"),
        ("Qwen2.5-Math-1.5B", 8192, "--lora-rank 32 --no-gradient-checkpointing"),
        ("Qwen2.5-Math-7B", 8192, ""),
        ("Qwen2.5-Math-7B", 32768, ""),
        ("Qwen2.5-32B", 16384, "--lora-rank 32"),
    ],
)
def test_a_pass_takes_what_is_planned(model, tokens, flags):
    folder = ROOT / "data" / "models" / model
    flags = f"--preset paper-1.5b --micro-batch-tokens {tokens} {flags}".split()
    config, _ = parse_train_config([*flags, "--model", str(folder)], has_cuda=True)
    plan = learner_memory(ModelShape(folder), config, ranks=1)
    planned = plan.phases["update"]["activations"] / GIB
    assert taken_by_a_pass(config) / GIB == pytest.approx(planned, rel=0.05)


@pytest.mark.program
def test_a_pass_mixes_no_devices(tmp_path):
    if CUDA_BUILD:
        pytest.skip("a CUDA build knows GPUs itself; on them run scripts/gpu_check.py")
    library = tmp_path / "guard.so"
    torch_folder = Path(torch.__file__).parent
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{torch_folder}/include", f"-L{torch_folder}/lib"]
    source = ROOT / "tests" / "programs" / "device_guard.cpp"
    subprocess.run(["g++", *flags, source, "-o", library, "-lc10"], check=True)
    devices = dict.fromkeys(("beginnings shared", "nothing shared", "no answers"), "cuda:0")
    report = report_of(0, "devices_check", library)
    assert report == devices | {"a prompt on the CPU": "mixed"}
