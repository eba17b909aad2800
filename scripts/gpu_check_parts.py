"""The checks of gpu_check.py that test a single part, one function each.

gpu_check.py runs every check in its own process. A check takes the script's arguments, the number of GPUs and a dict,
puts its measurements into the dict as soon as it has them, and raises CheckError if it fails.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

GIB = 2**30
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.25}
"""Largest mean difference of log-probabilities between sampler and learner, after a weight sync and per step. bfloat16
rounds, more so for larger models, and wrong weights give more than 1."""
Rows = MutableMapping[str, float]


class CheckError(Exception):
    """Why a check failed, in one line."""


def require(condition: bool, fault: str) -> None:
    """Raise CheckError if `condition` does not hold."""
    if not condition:
        raise CheckError(fault)


def require_within(rows: Rows, limits: dict[str, float]) -> None:
    """Raise CheckError with every row that is above its limit or not a number."""
    faults = [
        f"{name} {rows[name]:.3g} is more than {limit:.3g}" for name, limit in limits.items() if not rows[name] <= limit
    ]
    require(not faults, ", ".join(faults))


def attention(_args, _gpus: int, rows: Rows, device: str = "cuda") -> None:
    """Compare the learner's packed attention in bf16, and its gradients, with attention over one sequence at a time.

    The reference is the latter in fp32. The learner's error may be twice that of one sequence at a time in bf16.
    """
    import numpy as np
    import torch
    import torch.nn.functional as F

    from bnpo.algorithm.batching import collate
    from bnpo.policy.model import attention as packed

    # Five prompts with three answers each, of one token to 3,000.
    prompts = [[token] * length for token, length in enumerate((1, 64, 300, 7, 64)) for _ in range(3)]
    answers = [[0] * length for length in (1, 2, 3000, 1, 64, 65, 300, 301, 2, 8, 7, 700, 64, 1, 1)]
    micro = collate(prompts, answers, np.arange(len(answers)), device)
    heads, kv_heads, size = 12, 2, 128  # Qwen2.5-Math-1.5B's
    torch.manual_seed(0)
    tokens = len(micro.input_ids)
    shapes = [(1, count, tokens, size) for count in (heads, kv_heads, kv_heads)]
    inputs = [torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    upstream = torch.randn(1, tokens, heads, size, device=device)

    def learner_attention(query, key, value):
        return packed(None, query, key, value, None, scaling=size**-0.5, sequences=micro.sequences)[0]

    def plain_attention(query, key, value):
        outs, layout = [], micro.sequences
        rows_per_sequence = layout.keys.split(layout.key_starts.diff().tolist())
        for length, rows in zip(layout.starts.diff().tolist(), rows_per_sequence, strict=True):
            q, k, v = query[:, :, rows], key[:, :, rows], value[:, :, rows]  # [1, heads, sequence, head size]
            outs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[:, :, -length:])
        return torch.cat(outs, dim=2).transpose(1, 2)  # [1, tokens, heads, head size]

    def results(compute, dtype):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        out = compute(*leaves)
        (out.float() * upstream).sum().backward()
        return [x.detach().float() for x in (out, *(leaf.grad for leaf in leaves))]

    exact, plain = results(plain_attention, torch.float32), results(plain_attention, torch.bfloat16)
    learner = results(learner_attention, torch.bfloat16)
    limits = {}
    for index, name in enumerate(("output", "dq", "dk", "dv")):
        rows[f"{name}_error"] = ((learner[index] - exact[index]).norm() / exact[index].norm()).item()
        rows[f"{name}_error_plain"] = ((plain[index] - exact[index]).norm() / exact[index].norm()).item()
        limits[f"{name}_error"] = 2 * rows[f"{name}_error_plain"]
    require_within(rows, limits)


def sleep(_args, _gpus: int, rows: Rows) -> None:
    """Check that a sleeping sampler frees the memory of its weights and cache.

    With its weights loaded again it must give the same greedy answers, with the CUDA graphs captured before.
    """
    import torch
    from safetensors.torch import load_file
    from vllm.device_allocator.cumem import CuMemAllocator

    from bnpo.config import TINY_MODEL
    from bnpo.data import arithmetic_problems, encode_prompt
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.sampler import Sampler
    from bnpo.policy.sampling import EngineSettings

    tokenizer = load_tokenizer(TINY_MODEL, 192)
    sampler = Sampler(str(TINY_MODEL), tokenizer, EngineSettings(max_tokens=192, dtype="float32"))
    problems = arithmetic_problems("test", 64)
    prompts = [encode_prompt(tokenizer, problem.problem) for problem in problems]

    def greedy() -> dict[int, list[int]]:
        groups = sampler.sample(prompts, range(64), max_tokens=128, temperature=0.0)
        return {prompt: answer.token_ids for prompt, _, [answer] in groups}

    before = greedy()
    held = CuMemAllocator.get_instance().get_current_usage()
    free = torch.cuda.mem_get_info()[0]
    sampler.sleep()
    freed = torch.cuda.mem_get_info()[0] - free
    rows["held_gib"], rows["freed_gib"] = held / GIB, freed / GIB
    require(freed > 0.9 * held > 0, f"{freed / GIB:.2f} GiB were freed of {held / GIB:.2f} that can sleep")
    weights = load_file(TINY_MODEL / "model.safetensors")
    sampler.wake("weights")
    sampler.load_weights([*weights.items(), ("lm_head.weight", weights["model.embed_tokens.weight"])])
    sampler.wake("kv_cache")
    after = greedy()
    sampler.close()
    changed = sum(before[prompt] != after[prompt] for prompt in before)
    rows["answers_changed"] = changed
    require(changed == 0, f"{changed} of 64 greedy answers changed after sleep, wake and the same weights")


def open_ranks() -> None:
    """Make this process the only rank, if it is none yet."""
    import torch.distributed as dist

    if not dist.is_initialized():
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = "0"  # any free port
        dist.init_process_group("cpu:gloo,cuda:nccl")


def open_learner(folder: str, *flags: str):
    """Return a learner of the model in `folder` as the only rank, and its config."""
    from bnpo.config import parse_train_config
    from bnpo.planning.memory import read_shape
    from bnpo.policy.learner import Learner

    open_ranks()
    config, _ = parse_train_config([*flags, "--model", folder], has_cuda=True)
    return Learner(folder, read_shape(Path(folder)).vocabulary, config), config
