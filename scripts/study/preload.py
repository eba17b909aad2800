"""What a training run imports, engines included: forked from a process that has it, a run starts sooner."""

from bnpo.environment import setup_environment

setup_environment()

import bnpo.loop  # noqa: F401

import deepspeed.module_inject  # noqa: F401 # isort: skip
import vllm.model_executor.models.qwen2  # isort: skip
import vllm.v1.worker.cpu_worker  # noqa: F401 # isort: skip
