"""Every patch of a library and every use of its private names in the policy: what, why, and when it
can go.

First DeepSpeed 0.19, then transformers 5, then vLLM 0.32 on CPUs and under a launcher.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F

from bnpo.algorithm.loss import linear


def skip_op_compilation() -> None:
    """Keep DeepSpeed from compiling an op for CPUs that only inference needs, in a folder that all
    programs share.

    A killed program leaves a lock file there, for which later ones wait. Remove it when DeepSpeed
    compiles nothing.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}


@contextmanager
def gloo_with_one_thread() -> Iterator[None]:
    """Let torch use one thread while a learner is made on CPUs, so that gloo's threads get no
    OpenMP threads.

    With more threads than cores OpenMP lets them sleep between operations, and one rank on two
    cores takes a sixth longer. Remove it when gloo's threads copy by themselves.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads if torch.cuda.is_available() else 1)
    yield
    torch.set_num_threads(threads)


def create_moments(zero) -> None:
    """Create the state of AdamW in a DeepSpeedZeroOptimizer_Stage3 as its first update would.

    Then the memory that is left for the sampler can be measured. Remove it when DeepSpeed creates
    it at its start.
    """
    adamw = zero.optimizer
    for weights in zero.fp32_partitioned_groups_flat:
        adamw.state[weights] = {
            "step": torch.tensor(0.0, device=weights.device),  # where a fused AdamW counts
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }


def separate_step_counters(adamw: torch.optim.Optimizer) -> None:
    """Give each group of at most 10^9 weights its own step counter after a "universal" load, which
    lets them share one.

    AdamW would increment it once per group. Remove it when the load copies the counter.
    """
    for weights, state in adamw.state.items():
        state["step"] = torch.tensor(float(state["step"]), device=weights.device)


def compute_buffers_again(model: torch.nn.Module) -> None:
    """Replace computed buffers of `model`, such as rotary frequencies, by those that its class
    computes by itself.

    While DeepSpeed partitions a bf16 model as it is loaded, it rounds every new tensor to bf16,
    also the buffers that transformers computes in fp32. Remove it when DeepSpeed issue 4932 is
    closed.
    """
    from accelerate import init_empty_weights

    with init_empty_weights():  # parameters without memory, buffers with their values
        exact = type(model)(model.config)
    for module, exact_module in zip(model.modules(), exact.modules(), strict=True):
        for name in exact_module._non_persistent_buffers_set:
            setattr(module, name, getattr(exact_module, name).to(getattr(module, name).device))


def keep_uncompiled(model: torch.nn.Module) -> None:
    """Keep vLLM from compiling the learner's model.

    Where it takes a model's code from transformers, it makes all models of the class compile
    themselves, and asks them for this attribute. Remove it when vLLM changes only its own model.
    """
    model.base_model.do_not_compile = True


def switch_off_dropout(model: torch.nn.Module) -> None:
    """Set every probability of dropout, and noise of experts' routers, to 0, as in the sampler.

    Remove it when one setting of transformers does it for all models.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if ("drop" in name or "jitter" in name) and isinstance(value, float):
                setattr(module, name, 0.0)


def exchange_without_files() -> None:
    """Keep vLLM from making files through which the ranks of an engine would exchange data.

    Those in /dev/shm, for CPUs, have the same names in all programs: two runs would share them, and
    one that is killed would keep all later ones from starting. gloo takes their place. The queue's
    files in the temporary directory, which only other launchers use, would never be deleted. Remove
    it when vLLM names and deletes them by program.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
    MessageQueue.create_from_process_group = lambda *_: None


def rank_no_tokens() -> None:
    """Keep vLLM from counting on CPUs, for every drawn token, how many others are more likely.

    Nobody reads these ranks, 5 to 7 % of sampling with SmolLM2-135M. Remove it when vLLM ranks only
    on request.
    """
    from vllm.v1.sample import sampler

    sampler.batched_count_greater_than = lambda logprobs, _: torch.zeros(
        len(logprobs), dtype=torch.int64
    )


def draw_with_one_number() -> None:
    """Let vLLM draw each token on CPUs with one random number of its request, instead of a Gumbel
    number for every entry of the vocabulary.

    Samples are others, of the same distribution. This saves 2 % of sampling with SmolLM2-135M in
    fp32 with AVX2, and more with faster products. Remove it when vLLM draws so.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    def forward(_module, logits, generators, k, p):
        logits = topk_topp_sampler.apply_top_k_top_p(logits, k, p)  # [tokens, vocabulary]
        logprobs = logits.log_softmax(dim=1, dtype=torch.float32)
        numbers = torch.rand(len(logits), 1, dtype=torch.float64)
        for row, generator in generators.items():
            numbers[row] = torch.rand(1, dtype=torch.float64, generator=generator)
        return invert_distribution(logprobs, 1 - numbers), logprobs

    topk_topp_sampler.TopKTopPSampler.forward_cpu = forward


def invert_distribution(logprobs: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the first token [rows] of each row of `logprobs` [rows, vocabulary] in fp32 up to
    which the probabilities sum up to its share of their sum. `shares` [rows, 1] lie in (0, 1].

    First comes its block of 256 tokens, then the token in it: sums over the whole vocabulary would
    be slow in fp64, and not exact in fp32.
    """
    padding = -logprobs.shape[1] % 256
    probabilities = F.pad(logprobs, (0, padding), value=-torch.inf).exp_()
    blocks = probabilities.unflatten(1, (-1, 256))  # [rows, blocks, 256]
    sums = blocks.sum(dim=2).double().cumsum(dim=1)  # [rows, blocks]
    wanted = shares * sums[:, -1:]
    # Sums that are no numbers are found nowhere; some token is drawn then, and the sync check fails
    block = torch.searchsorted(sums, wanted).clamp_(max=blocks.shape[1] - 1)  # [rows, 1]
    before = F.pad(sums, (1, 0)).gather(1, block)
    share = (wanted - before) / (sums.gather(1, block) - before)  # of the block's sum
    sums = blocks[torch.arange(len(blocks)), block[:, 0]].double().cumsum(dim=1)  # [rows, 256]
    tokens = 256 * block + torch.searchsorted(sums, share * sums[:, -1:])
    return tokens.squeeze(1).clamp_(max=logprobs.shape[1] - 1)


def prepare_reloads(model: torch.nn.Module) -> list[Callable[[], object]]:
    """Return what must be called before vLLM's `model` on CPUs gets other weights: a reload would
    not pack those of experts.

    Remove it when a reload packs them.
    """
    methods = [getattr(module, "quant_method", None) for module in model.modules()]
    return [
        partial(setattr, method, "moe_kernel", None)
        for method in methods
        if hasattr(method, "moe_kernel")
    ]


def hold_wide_head(model: torch.nn.Module) -> Callable[[], object]:
    """Let vLLM's `model` keep the weight of its head in fp32 on CPUs, where vLLM converts it for
    every token. Return what must be called before every change of weights.

    The conversion is a third of the time of sampling with SmolLM2-135M. Remove it when vLLM keeps
    the weight, or torch has such products of bf16 matrices with fp32 results.
    """
    processor, held = model.logits_processor, {}
    own = processor._apply_head

    def apply_head(
        head: torch.nn.Module, hidden: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if hidden.dtype != torch.bfloat16 or bias is not None or hidden.is_cuda:
            return own(head, hidden, bias)
        if not held:
            held["weight"] = head.weight.float()
        return linear(hidden, held["weight"])  # [tokens, head rows]

    processor._apply_head = apply_head
    return held.clear
