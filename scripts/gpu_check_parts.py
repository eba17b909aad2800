"""The checks of gpu_check.py that test a single part, one function each.

gpu_check.py runs every check in its own process. A check takes the script's arguments and the number of GPUs, returns
its measurements as a short text, and raises CheckError if it fails.
"""

import os
import tempfile
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()


class CheckError(Exception):
    """Why a check failed, in one line."""


def require(condition: bool, fault: str) -> None:
    """Raise CheckError if `condition` does not hold."""
    if not condition:
        raise CheckError(fault)


def attention(_args, _gpus: int, device: str = "cuda") -> str:
    """Compare the learner's packed attention in bf16, and its gradients, with attention over one sequence at a time.

    The reference is the latter in fp32. The learner's error may be twice that of one sequence at a time in bf16.
    """
    import numpy as np
    import torch
    import torch.nn.functional as F

    from bnpo.algorithm.batching import collate
    from bnpo.policy.attention import attention as packed

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
    measurements = []
    for index, name in enumerate(("output", "dq", "dk", "dv")):
        error = (learner[index] - exact[index]).norm() / exact[index].norm()
        plain_error = (plain[index] - exact[index]).norm() / exact[index].norm()
        require(bool(error <= 2 * plain_error), f"{name}: error {error:.2g}, of plain attention {plain_error:.2g}")
        measurements.append(f"{name} {error:.2g} ({plain_error:.2g})")
    return "relative errors, of plain attention in brackets: " + ", ".join(measurements)


def sleep(_args, _gpus: int) -> str:
    """Check that a sleeping sampler frees the memory of its weights and cache.

    With its weights loaded again it must give the same greedy answers, with the CUDA graphs captured before.
    """
    import torch
    from safetensors.torch import load_file
    from vllm.device_allocator.cumem import CuMemAllocator

    from bnpo.arithmetic import arithmetic_problems
    from bnpo.config import TINY_MODEL
    from bnpo.policy.engine_settings import EngineSettings
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.sampler import Sampler
    from bnpo.problems import encode_prompt

    tokenizer = load_tokenizer(TINY_MODEL, 192)
    sampler = Sampler(str(TINY_MODEL), tokenizer, EngineSettings(max_tokens=192, dtype="float32"))
    problems = arithmetic_problems("test", 64)
    prompts = [encode_prompt(tokenizer, problem.problem, "chat") for problem in problems]

    def greedy() -> dict[int, list[int]]:
        groups = sampler.sample(prompts, range(64), max_tokens=128, temperature=0.0)
        return {prompt: answer.token_ids for prompt, _, [answer] in groups}

    before = greedy()
    held = CuMemAllocator.get_instance().get_current_usage()
    free = torch.cuda.mem_get_info()[0]
    sampler.sleep()
    freed = torch.cuda.mem_get_info()[0] - free
    require(freed > 0.9 * held > 0, f"{freed / 2**30:.2f} GiB were freed of {held / 2**30:.2f} that can sleep")
    weights = load_file(TINY_MODEL / "model.safetensors")
    sampler.wake("weights")
    sampler.load_weights([*weights.items(), ("lm_head.weight", weights["model.embed_tokens.weight"])])
    sampler.wake("kv_cache")
    after = greedy()
    sampler.close()
    changed = sum(before[prompt] != after[prompt] for prompt in before)
    require(changed == 0, f"{changed} of 64 greedy answers changed after sleep, wake and the same weights")
    return f"{freed / 2**30:.1f} GiB freed, 64 answers the same"


def long_answer(_args, _gpus: int) -> str:
    """Compare the learner's log-probabilities of 3,000 tokens in bf16 with those of transformers, heads of size 128.

    They must be as close at the end as at the start. With rotary frequencies rounded to bf16 they would drift apart.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=256, num_hidden_layers=2, tie_word_embeddings=True, **shape))
    for layer in model.model.layers:  # sharp attention, which depends on positions
        layer.self_attn.q_proj.weight.data *= 10
        layer.self_attn.k_proj.weight.data *= 10
    answer = torch.randint(0, 256, (3000,))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        # Loaded before the learner: afterwards transformers would partition it too.
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda()
        learner, _ = open_learner(folder, "--preset", "tiny", "--dtype", "bfloat16")
        scores = torch.from_numpy(learner.score([1], answer.tolist()))
    with torch.no_grad():
        tokens = torch.tensor([[1, *answer.tolist()]], device="cuda")
        hidden = plain.base_model(tokens).last_hidden_state[0, :-1].double()
    logits = hidden @ plain.lm_head.weight.detach().double().T
    gaps = (scores - logits.log_softmax(-1).cpu().gather(1, answer[:, None])[:, 0]).abs()
    start, end = gaps[:500].mean().item(), gaps[-500:].mean().item()
    measurement = f"mean difference {start:.2g} over the first 500 tokens, {end:.2g} over the last 500"
    require(end <= 1.5 * start + 1e-6, measurement)
    return measurement


def memory(_args, _gpus: int) -> str:
    """Check that an update with the paper's settings allocates at most what planning/memory.py counts.

    Runs that do not fit are refused by these counts. The model has 0.3B parameters and the vocabulary of the 1.5B.
    """
    import numpy as np
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from bnpo.planning.memory import CONTEXTS, rank_memory, read_shape
    from bnpo.policy.update import Experience

    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=151936, num_hidden_layers=8, tie_word_embeddings=True, **shape)
    rng = np.random.default_rng(0)
    answers = [rng.integers(0, 150_000, 4000).tolist() for _ in range(8)]
    logprobs = [np.full(4000, -11.9) for _ in answers]
    experience = Experience([[1] * 96] * 8, answers, logprobs, rng.choice([-1.0, 1.0], 8))
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(config).save_pretrained(folder)
        learner, settings = open_learner(folder, "--preset", "paper-1.5b")
        counted = rank_memory(read_shape(Path(folder)), settings, ranks=1)
    largest = max(counted.total(phase) for phase in counted.phases if phase.startswith("update"))
    expected = largest - CONTEXTS  # which torch does not allocate
    learner.update(experience, lr=1e-6)  # the first update creates the optimizer's state
    torch.cuda.reset_peak_memory_stats()
    learner.update(experience, lr=1e-6)
    taken = torch.cuda.max_memory_allocated()
    measurement = f"{taken / 2**30:.2f} GiB allocated, {expected / 2**30:.2f} GiB counted"
    require(taken <= expected, measurement)
    return measurement


def open_learner(folder: str, *flags: str):
    """Return a learner of the model in `folder` as the only rank, and its config."""
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.planning.memory import read_shape
    from bnpo.policy.learner import Learner

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("cpu:gloo,cuda:nccl")
    config, _ = parse_train_config([*flags, "--model", folder], has_cuda=True)
    return Learner(folder, read_shape(Path(folder)).vocabulary, config), config


def even_length(text: str, _reference: str) -> float:
    """Return a reward for the large model, which solves nothing. Half of its answers get it, so there is a gradient."""
    return float(len(text) % 2 == 0)
