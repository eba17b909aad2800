"""Whether the packages for GPUs can be imported as they are on one, without one: run it where they are installed.

vLLM's choice of a backend survives ImportError and OSError only: what else an import raises ends it, and so a pin that
breaks flashinfer keeps vLLM from starting. torch is made to describe an H100.
"""

from types import SimpleNamespace

from bnpo.environment import setup_environment

setup_environment()

import torch
import torchvision  # noqa: F401 - a build for another torch fails here, and with it transformers
from transformers import AutoModelForCausalLM  # noqa: F401

card = SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="NVIDIA H100", total_memory=80 << 30)
torch.cuda.get_device_properties = lambda *_, **__: card
torch.cuda.get_device_capability = lambda *_, **__: (card.major, card.minor)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0

from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # noqa: F401

print(f"torch {torch.__version__}, torchvision, transformers and flashinfer can be imported together")
