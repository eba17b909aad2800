"""The first check of gpu_check.py: the sizes and seconds of one training step, which only a GPU
can tell.
"""

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from math import log
from pathlib import Path
from unittest.mock import patch

from gpu_check_parts import TOLERANCE, Rows, require_within

GIB = 2**30
# Of cuBLAS, which torch allocates once per thread and stream. Activations are planned exactly, so
# these do not fit in between. Assumed: no GPU has shown them yet.
WORKSPACES_GIB = 0.2
MODEL = (
    Path(__file__).resolve().parents[1] / "data" / "models" / "Qwen2.5-Math-1.5B" / "config.json"
)
"""Shape of the model of `first_step`."""


def first_step(_args, _gpus: int, rows: Rows) -> None:
    """Measure one training step of a model with random weights and the shape of Qwen2.5-Math-1.5B.

    The sizes may be at most those that src/planner counts; an update may also take
    WORKSPACES_GIB. The second sample is drawn with CUDA graphs that slept, captured while torch's
    memory segments may grow.
    """
    import torch
    import torch.distributed as dist

    from bnpo.policy.memory import ASLEEP, GRAPHS, ModelShape
    from planner.memory import CONTEXTS

    torch.cuda.set_device(0)
    torch.ones(1, device="cuda")
    rows["context_gib"] = used_gib()
    open_ranks()
    dist.all_reduce(torch.ones(1, device="cuda"))
    rows["nccl_gib"] = used_gib() - rows["context_gib"]
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(folder)
        # Cannot be read when there is a learner, as transformers then partitions
        shape = ModelShape(Path(folder))
        learner, config = measured(open_learner, "learner", rows)(folder, "--preset", "paper-1.5b")
        counted = measure_update(learner, shape, config, rows)
        without_sampler = used_gib()
        sampler = start_sampler(folder, learner.model.config.vocab_size, rows)
    measured(gc.collect, "collect", rows)()
    temperature = config.sampling.temperature
    measure_gap(learner, sampler, temperature, "fresh", rows)  # ends asleep
    rows["asleep_gib"] = used_gib() - without_sampler
    measure_sync_speed(learner, sampler, "first_sync", rows)
    measure_sampling(sampler, learner.model.config.vocab_size, rows)
    measure_gap(learner, sampler, temperature, "awake", rows)
    measure_sync_speed(learner, sampler, "sync", rows)
    sampler.close()
    counted |= {
        "outside_torch_gib": CONTEXTS / GIB,
        "capture_gib": GRAPHS / GIB,
        "asleep_gib": ASLEEP / GIB,
    }
    gap = TOLERANCE["bfloat16"]
    require_within(
        rows, counted | {"fresh_gap_mean": gap, "awake_gap_mean": gap, "collect_seconds": 0.05}
    )


def open_ranks() -> None:
    """Make this process the only rank, if it is none yet."""
    import torch.distributed as dist

    if not dist.is_initialized():
        os.environ |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
        }
        os.environ["MASTER_PORT"] = "0"  # any free port
        dist.init_process_group("cpu:gloo,cuda:nccl")


def open_learner(folder: str, *flags: str):
    """Return a learner of the model in `folder` as the only rank, and its config."""
    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.policy.memory import ModelShape

    open_ranks()
    config, _ = parse_train_config([*flags, "--model", folder], has_cuda=True)
    return Learner(folder, ModelShape(Path(folder)).vocabulary, config), config


def measure_update(learner, shape, config, rows: Rows) -> dict[str, float]:
    """Measure an update with the paper's settings before a sampler exists. Return the limit of
    its memory.
    """
    import numpy as np
    import torch

    from bnpo.batch import Answer, Batch
    from bnpo.policy.speed import gpu_name, peak_tflops, training_operations
    from planner.memory import CONTEXTS, learner_memory

    rng = np.random.default_rng(0)
    answers = [rng.integers(0, learner.model.config.vocab_size, 4000).tolist() for _ in range(8)]
    advantages = rng.choice([-1.0, 1.0], (1, 8))
    group = [Answer(token_ids, True, np.full(4000, -11.9)) for token_ids in answers]
    batch = Batch.of([[1] * 96], [group])
    # A learning rate of 0 keeps the weights equal to those that the sampler loads.
    # In the first one, DeepSpeed learns in which order it needs the weights
    learner.update(batch, advantages, lr=0.0)
    torch.cuda.reset_peak_memory_stats()
    measured(learner.update, "update", rows)(batch, advantages, lr=0.0)
    if peak := peak_tflops(gpu_name()):  # what gradient checkpointing computes twice does not count
        tflop = training_operations(learner.model, batch, advantages) / 1e12
        rows["mfu"] = tflop / rows["update_seconds"] / peak
    rows["update_allocated_gib"] = torch.cuda.max_memory_allocated() / GIB
    rows["outside_torch_gib"] = used_gib() - torch.cuda.memory_reserved() / GIB
    plan = learner_memory(shape, config, ranks=1)
    counted = plan.phases["update"].total() - CONTEXTS  # torch does not allocate the contexts
    rows["update_counted_gib"] = counted / GIB
    return {"update_allocated_gib": rows["update_counted_gib"] + WORKSPACES_GIB}


def start_sampler(folder: str, vocabulary: int, rows: Rows):
    """Return a new sampler of a model with `vocabulary` tokens.

    Measure its start, and within it the methods of vLLM's worker that take most.
    """
    from vllm.v1.worker.gpu_worker import Worker

    from bnpo.policy.sampler import Sampler
    from bnpo.policy.sampling import EngineSettings

    methods = {"load": "load_model", "capture": "compile_or_warm_up_model"}
    methods["profile"] = "determine_available_memory"  # also compiles
    settings = EngineSettings(max_tokens=4096, dtype="bfloat16", gpu_memory=0.3, sequences=128)
    with ExitStack() as patches:
        for name, method in methods.items():
            patches.enter_context(
                patch.object(Worker, method, measured(getattr(Worker, method), name, rows))
            )
        return measured(Sampler, "start", rows)(folder, whole_vocabulary(vocabulary), settings)


def whole_vocabulary(tokens: int):
    """Return a tokenizer for a model without one: all rows are tokens, and none ends an answer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({str(token): token for token in range(tokens)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words)


def measure_sampling(sampler, vocabulary: int, rows: Rows) -> None:
    """Measure the seconds of vLLM's own `generate`, without seeds and log-probabilities, over
    those of our sampler.
    """
    import numpy as np
    from vllm import SamplingParams

    prompts = np.random.default_rng(2).integers(0, vocabulary, (16, 96)).tolist()
    common = {"n": 8, "temperature": 1.0, "max_tokens": 256}
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    bare = partial(
        sampler._llm.generate, requests, SamplingParams(detokenize=False, **common), use_tqdm=False
    )
    measured(bare, "bare_vllm", rows)()
    measured(
        lambda: list(sampler.sample(prompts, range(16), logprobs=True, **common)),
        "our_sampler",
        rows,
    )()
    rows["vllm_ratio"] = rows["bare_vllm_seconds"] / rows["our_sampler_seconds"]


def measure_gap(learner, sampler, temperature: float, name: str, rows: Rows) -> None:
    """Measure the difference between the log-probabilities of sampler and learner. The sampler
    is asleep afterwards.
    """
    import numpy as np

    from bnpo.batch import Batch

    prompts = (
        np.random.default_rng(1).integers(0, learner.model.config.vocab_size, (16, 96)).tolist()
    )
    settings = {"n": 8, "max_tokens": 512, "temperature": temperature, "logprobs": True}
    groups = measured(
        lambda: list(sampler.sample(prompts, range(16), **settings)), f"{name}_sample", rows
    )()
    measured(sampler.sleep, f"{name}_sleep", rows)()
    batch = Batch.of(
        [prompts[group.prompt_index] for group in groups], [group.answers for group in groups]
    )
    # Changes no weights
    update = measured(learner.update, f"{name}_update", rows)(batch, np.ones((16, 8)), lr=0.0)
    # Estimated from the drawn tokens
    logprobs = [answer.logprobs for group in groups for answer in group.answers]
    rows[f"{name}_entropy"] = -np.concatenate(logprobs).mean()
    for kind in ("mean", "max"):
        rows[f"{name}_gap_{kind}"] = update.metrics[f"sampler_learner_gap_{kind}"]


def measure_sync_speed(learner, sampler, name: str, rows: Rows) -> None:
    """Wake the sampler with the learner's weights. Measure the seconds, and 10^9 bytes per
    second of the weights.
    """
    from bnpo.policy.weight_sync import WeightSync

    sync = WeightSync(learner, sampler, longest=4096)
    measured(sync.refresh, name, rows)(1)  # maps its memory again, too
    size = sum(
        parameter.ds_numel * parameter.element_size() for parameter in learner.model.parameters()
    )
    rows[f"{name}_gb_per_second"] = size / 1e9 / rows[f"{name}_seconds"]


def measured(work: Callable, name: str, rows: Rows) -> Callable:
    """Return `work` with three rows: its seconds, and the GiB of GPU memory that it has taken
    and left when it ends.
    """
    import torch

    @wraps(work)
    def measured_work(*args, **kwargs):
        used = used_gib()
        started = time.perf_counter()
        result = work(*args, **kwargs)
        torch.cuda.synchronize()
        rows[f"{name}_seconds"] = time.perf_counter() - started
        rows[f"{name}_gib"] = used_gib() - used
        rows[f"{name}_free_gib"] = torch.cuda.mem_get_info()[0] / GIB
        return result

    return measured_work


def used_gib() -> float:
    """Return the GiB of GPU memory in use by all programs, without what torch only holds for
    later.
    """
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def save_random_model(folder: str) -> None:
    """Save a model with the shape of MODEL and random weights in bfloat16, whose answers have an
    entropy of about 2.

    With smaller logits all tokens are almost equally likely, and rounding shows in no
    log-probability.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(**json.loads(MODEL.read_text(encoding="utf-8")))
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # Normal logits of standard deviation s have an entropy of ln(tokens) - s^2 / 2.
    deviation = (2 * (log(config.vocab_size) - 2)) ** 0.5
    model.lm_head.weight.data *= deviation / (config.initializer_range * config.hidden_size**0.5)
    model.save_pretrained(folder)
