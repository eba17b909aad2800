"""What a training run imports, engines included: forked from a process that has it, a run starts sooner."""

import bnpo.loop  # noqa: F401 - bnpo before torch and vLLM

import deepspeed.module_inject  # noqa: F401 # isort: skip
import vllm.model_executor.models.qwen2  # isort: skip
import vllm.v1.worker.cpu_worker  # noqa: F401 # isort: skip
