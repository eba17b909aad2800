"""Every patch of a library and every use of its private names in the policy: what, why, and when it can go."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from bnpo.algorithm.loss import products_in_bf16

if TYPE_CHECKING:  # take seconds
    import deepspeed
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

# DeepSpeed 0.19


def compile_no_ops() -> None:
    """Keep DeepSpeed from compiling an op that only inference needs.

    On CPUs it does so in a folder that all programs share. A program that is killed meanwhile leaves a lock file there,
    and all later programs wait for it. Remove it when `import deepspeed` compiles nothing.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}


def create_moments(zero: "DeepSpeedZeroOptimizer_Stage3") -> None:
    """Create the state of AdamW as its first update would, so that the memory left for the sampler can be measured.

    Remove it when DeepSpeed creates it at its start.
    """
    adamw = zero.optimizer
    for weights in zero.fp32_partitioned_groups_flat:
        adamw.state[weights] = {
            "step": torch.tensor(0.0, device=weights.device),  # where a fused AdamW counts
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }


def separate_step_counters(adamw: torch.optim.Optimizer) -> None:
    """Give each group of weights its own step counter after a "universal" load.

    DeepSpeed divides a rank's optimizer into groups of at most 10^9 parameters, and that load lets them share a
    counter, which AdamW would increment once per group. Remove it when the load copies the counter.
    """
    for weights, state in adamw.state.items():
        state["step"] = torch.tensor(float(state["step"]), device=weights.device)


def compute_buffers_again(model: torch.nn.Module) -> None:
    """Replace computed buffers of `model`, such as rotary frequencies, by those that its class computes by itself.

    While DeepSpeed partitions a bf16 model as it is loaded, it rounds every new tensor to bf16, also the buffers that
    transformers computes in fp32 (DeepSpeed issue 4932). Frequencies that are off by 0.4 % turn a head of size 128 by a
    wrong radian at distance 1,000. Buffers that a checkpoint holds stay as they were loaded. Remove it when that issue
    is closed.
    """
    from accelerate import init_empty_weights

    with init_empty_weights():  # parameters without memory, buffers with their values
        exact = type(model)(model.config)
    stored = set(exact.state_dict())
    for name, buffer in exact.named_buffers():
        if name not in stored:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, buffer.to(model.get_buffer(name).device))


def gathered(parameters: Iterable[torch.nn.Parameter]) -> "deepspeed.zero.GatheredParameters":
    """Return a context in which partitioned `parameters` are whole. A collective.

    Parameters that are so small that DeepSpeed keeps them whole stay so. Its context alone would free them at its end,
    and the next forward pass would have to gather them again. Remove it when that context leaves them.
    """
    import deepspeed
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    available = ZeroParamStatus.AVAILABLE
    partitioned = [p for p in parameters if not (p.ds_persist and p.ds_status is available)]
    return deepspeed.zero.GatheredParameters(partitioned)


# transformers 5


def keep_uncompiled(model: torch.nn.Module) -> None:
    """Keep vLLM from compiling the learner's model.

    Where vLLM has no implementation of its own, it takes that of transformers, and makes all models of the class
    compile themselves that lack this attribute. Remove it when vLLM changes only its own model.
    """
    model.base_model.do_not_compile = True


def layer_classes(model: torch.nn.Module) -> list[str]:
    """Return the names of the classes of a Hugging Face model's layers, its largest repeated blocks."""
    names = {type(module).__name__ for module in model.modules()} & set(model._no_split_modules or ())
    if not names:  # some old models do not say it
        for module in model.modules():
            if isinstance(module, torch.nn.ModuleList) and len(module) == model.config.num_hidden_layers:
                names |= {type(layer).__name__ for layer in module}
    return sorted(names)


# vLLM 0.32, on CPUs and under a launcher


def exchange_without_files() -> None:
    """Keep vLLM from making files through which the ranks of an engine would exchange data.

    Under a launcher the names of those in /dev/shm, for CPUs, are the same for all programs: two runs would share them,
    and a run that is killed would keep all later ones from starting. gloo takes their place. Those in the temporary
    directory belong to a queue that only other launchers use, and would never be deleted.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
    MessageQueue.create_from_process_group = lambda *_: None


def set_up_experts_again(model: torch.nn.Module) -> None:
    """Make the next weights of experts be packed like the first. On CPUs vLLM 0.32 would copy them as they come."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def hold_wide_head(model: torch.nn.Module) -> None:
    """Let vLLM's `model` keep the weight of its head in fp32 from one token to the next, on CPUs.

    vLLM 0.32 computes logits in fp32 (`head_dtype`), and on CPUs it converts the weight for every token: a third of the
    time of sampling with SmolLM2-135M. `model.forget_wide_head()` must follow every change of weights.
    Remove it when torch has products of bf16 matrices with fp32 results on CPUs, or vLLM keeps the weight.
    """
    processor, held = model.logits_processor, {}
    own = processor._apply_head

    def apply_head(head: torch.nn.Module, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if hidden.dtype != torch.bfloat16 or bias is not None or hidden.is_cuda:
            return own(head, hidden, bias)
        if not held:
            held["weight"] = head.weight.float()
        with products_in_bf16():
            return F.linear(hidden.float(), held["weight"])  # [tokens, head rows], exact products, summed up in fp32

    processor._apply_head = apply_head
    model.forget_wide_head = held.clear


def leave_out_ranks(worker) -> None:
    """Let vLLM's sampler in `worker` return log-probabilities of drawn tokens without their ranks, on CPUs.

    vLLM 0.32 compares every logit with that of the drawn token: 6 % of sampling with SmolLM2-135M. Nothing here reads
    the ranks. Remove it when vLLM can be told so.
    """
    from vllm.v1.outputs import LogprobsTensors

    sampler = worker.model_runner.sampler
    own = sampler.gather_logprobs

    def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> LogprobsTensors:
        if num_logprobs:
            return own(logprobs, num_logprobs, token_ids)
        token_ids = token_ids[:, None]  # [answers, 1]
        ranks = torch.zeros(len(token_ids), dtype=torch.int64)
        return LogprobsTensors(token_ids.to(torch.int32), logprobs.gather(1, token_ids), ranks)

    sampler.gather_logprobs = gather_logprobs
