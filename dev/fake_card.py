"""Print how vLLM's build for GPUs would run the sampler on a GPU that this machine need not have.

    python dev/fake_card.py T4 float16 float32    # one line of JSON per number format
    python dev/fake_card.py A10 bfloat16 --tensor-parallel 2

Needs the packages for GPUs, and a libcuda.so.1 that can be loaded: without a driver,
tests/stub_driver.c is one. The sampler makes its vLLM engine with the same arguments as in a run,
and vLLM checks them and chooses its kernels. The program ends where vLLM would load the model.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from bnpo.environment import setup_environment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True)
class Card:
    """What libraries ask of a GPU."""

    name: str
    major: int  # compute capability
    minor: int
    total_memory: int  # bytes
    multi_processor_count: int
    shared_memory_per_block_optin: int  # bytes


CARDS = {
    "A10": Card("NVIDIA A10", 8, 6, 22 << 30, 72, 101376),
    "B200": Card("NVIDIA B200", 10, 0, 178 << 30, 148, 232448),
    "H100": Card("NVIDIA H100 80GB HBM3", 9, 0, 79 << 30, 132, 232448),
    "RTX-4090": Card("NVIDIA GeForce RTX 4090", 8, 9, 23 << 30, 128, 101376),
    "RTX-5090": Card("NVIDIA GeForce RTX 5090", 12, 0, 31 << 30, 170, 101376),
    "T4": Card("Tesla T4", 7, 5, 14 << 30, 40, 65536),
}


class Configured(BaseException):
    """The engine's configuration is made. No Exception: the sampler would report one."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("card", choices=CARDS)
    parser.add_argument("dtypes", nargs="+")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    args = parser.parse_args()
    setup_environment()
    describe(CARDS[args.card], args.tensor_parallel)
    describe_to_nvml(CARDS[args.card], args.tensor_parallel)
    for dtype in args.dtypes:
        print(json.dumps(configuration(dtype, args.tensor_parallel)), flush=True)


def describe(card: Card, count: int) -> None:
    """Let torch find `count` GPUs of this kind."""
    import torch

    properties = SimpleNamespace(
        **asdict(card),
        is_integrated=False,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        gcnArchName="",
        uuid="GPU-0",
    )
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.get_device_capability = lambda *_, **__: (card.major, card.minor)
    torch.cuda.get_device_name = lambda *_, **__: card.name
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = torch.cuda._device_count_nvml = lambda: count
    torch.cuda.current_device = lambda: 0
    torch.cuda.mem_get_info = lambda *_: (card.total_memory, card.total_memory)


def describe_to_nvml(card: Card, count: int) -> None:
    """Let vLLM find the same GPUs by NVML, the driver's library for management."""
    import vllm.third_party.pynvml as nvml

    memory = SimpleNamespace(total=card.total_memory, free=card.total_memory, used=0)
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: count
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetCudaComputeCapability = lambda handle: (card.major, card.minor)
    nvml.nvmlDeviceGetName = lambda handle: card.name
    nvml.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: memory
    nvml.nvmlSystemGetDriverVersion = lambda: "580.1"


def configuration(dtype: str, tensor_parallel: int) -> dict[str, Any]:
    """Return what vLLM makes of the sampler's arguments for a model of 1.5B parameters, or its
    `error`.
    """
    from transformers import AutoTokenizer
    from vllm.v1.engine.llm_engine import LLMEngine

    from bnpo.files import InputError
    from bnpo.policy.sampler import Sampler
    from bnpo.policy.sampling import EngineSettings

    def stop(engine_args, **_) -> None:
        raise Configured(summary(engine_args.create_engine_config()))

    LLMEngine.from_engine_args = stop
    model = os.path.join(ROOT, "data", "models", "Qwen2.5-Math-1.5B")
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(ROOT, "data", "tiny-model"))
    settings = EngineSettings(
        max_tokens=4096,
        dtype=dtype,
        gpu_memory=0.5,
        sequences=512,
        tensor_parallel=tensor_parallel,
    )
    try:
        Sampler(model, tokenizer, settings)
    except Configured as configured:
        return configured.args[0]
    except InputError as error:
        return {"error": str(error)}
    raise RuntimeError("vLLM's engine was made in another way")


def summary(config) -> dict[str, Any]:
    """Return the parts of a VllmConfig that decide how the sampler computes."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    model, compilation = config.model_config, config.compilation_config
    with set_current_vllm_config(config):
        backend = get_attn_backend(
            model.get_head_size(), model.dtype, config.cache_config.cache_dtype
        )
    return {
        "attention": backend.get_name(),
        "autotune": config.kernel_config.enable_flashinfer_autotune,
        "chunked prefill": config.scheduler_config.enable_chunked_prefill,
        "dtype": str(model.dtype),
        "executor": config.parallel_config.distributed_executor_backend,
        "graphs": compilation.cudagraph_mode.name,
        "head": str(model.head_dtype),
        "largest graph": max(compilation.cudagraph_capture_sizes),
        "log-probabilities": model.logprobs_mode,
        "sequences": config.scheduler_config.max_num_seqs,
        "sleeps": model.enable_sleep_mode,
        "worker": config.parallel_config.worker_cls,
    }


if __name__ == "__main__":
    main()
