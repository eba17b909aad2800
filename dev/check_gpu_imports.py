"""Import the packages for GPUs as on a GPU, but without one. Run it in their environment.

vLLM survives only ImportError and OSError when it imports its backends. A pinned version that
breaks flashinfer in another way keeps vLLM from starting. torch is changed to describe an H100.
"""

from bnpo.environment import setup_environment

setup_environment()

import torch
import torchvision  # noqa: F401 - a build for another torch fails here, and with it transformers
from fake_card import CARDS, describe
from transformers import AutoModelForCausalLM  # noqa: F401

describe(CARDS["H100"], count=1)

import vllm.v1.attention.backends.flashinfer  # noqa: F401 - the sampler of vLLM's model runner V2 imports it
from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # noqa: F401

print(
    f"torch {torch.__version__}, torchvision, transformers, flashinfer and its vLLM backend import "
    "together"
)
