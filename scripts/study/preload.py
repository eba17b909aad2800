"""Import what a training run imports, with the engines. A run that is forked from here starts faster."""

from bnpo.environment import setup_environment

setup_environment()

import bnpo.loop  # noqa: F401

import deepspeed.module_inject  # noqa: F401 # isort: skip
import vllm.model_executor.models.qwen2  # isort: skip
import vllm.v1.worker.cpu_worker  # noqa: F401 # isort: skip
