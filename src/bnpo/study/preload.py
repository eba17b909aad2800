"""What a training run imports, its engines included: a process that has it already starts a run in a third of the time."""

import bnpo.loop  # noqa: F401 - bnpo before torch and vLLM

import deepspeed.module_inject  # noqa: F401 # isort: skip
import vllm.model_executor.models.qwen2  # noqa: F401 # isort: skip
import vllm.v1.worker.cpu_worker  # noqa: F401 # isort: skip
