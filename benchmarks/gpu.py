"""Measure learner, sampler and weight sync on one NVIDIA GPU, with the shapes of Qwen2.5-Math-1.5B and 7B.

    python benchmarks/gpu.py --tokenizer-dir DIR [--shapes 1.5b 7b 7b-half] [--enforce-eager]
    python benchmarks/gpu.py --list

DIR has the files of the real tokenizer. Weights are random, and nothing is downloaded. --list explains the rows, and
needs no GPU. One GPU cannot hold the optimizer of the 7B, at 18 bytes per parameter. So sampler and weight sync are
measured with 7b and no optimizer, and its update with half of the layers, 7b-half. A shape that does not fit into the
GPU is skipped. After a failure the next shape is measured, and the exit status is 1.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro
from common import ROOT, row

from bnpo.environment import setup_environment
from bnpo.launcher import launcher_flags

COMMON = {"vocab_size": 151936, "num_hidden_layers": 28, "max_position_embeddings": 4096, "rope_theta": 10000.0}
SHAPES = {
    "1.5b": COMMON
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"tie_word_embeddings": True},
    "7b": COMMON
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"tie_word_embeddings": False, "vocab_size": 152064},
}
SHAPES["7b-half"] = SHAPES["7b"] | {"num_hidden_layers": 14}
ROWS = {
    "vllm_ratio": "seconds of vLLM's own `generate`, without seeds, over those of our sampler for the same prompts",
    "sync_seconds": "seconds to wake the sampler and copy the weights",
}
UPDATE_ROWS = {
    "mfu": "operations per second of an update on packed sequences of 4,096 tokens, over the peak of the GPU if it is "
    "known. What gradient checkpointing computes twice does not count",
    "peak_memory_gb": "GPU memory of the update with the weights",
}
NO_UPDATE = {"7b"}
"""Shapes whose update is not measured."""
GPU_MEMORY = 0.3
"""The sampler's share of the GPU memory."""
ROUNDS = 5
"""Measurements of each kind, after one that warms up. Rows are their medians."""


@dataclass
class Args:
    list: bool = False
    """Print the rows and their meaning, and exit."""
    tokenizer_dir: Path | None = None
    """Folder with tokenizer.json and tokenizer_config.json of Qwen2.5-Math. Needed, except with --list."""
    shapes: tuple[str, ...] = tuple(SHAPES)
    """Shapes to measure: 1.5b, 7b, 7b-half."""
    enforce_eager: bool = False
    """Run the sampler without CUDA graphs."""


def rows_of(shape: str) -> dict[str, str]:
    """Return the rows that are measured with `shape`, and their meaning."""
    return ROWS if shape in NO_UPDATE else ROWS | UPDATE_ROWS


def main(args: Args) -> None:
    if args.list:
        for shape in args.shapes:
            for name, meaning in rows_of(shape).items():
                print(f"{shape}_{name}: {meaning}")
        return
    setup_environment()
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device; this benchmark needs a GPU. --list explains the rows")
    if args.tokenizer_dir is None:
        sys.exit("error: --tokenizer-dir is missing: give the folder with the files of the real tokenizer")
    total = torch.cuda.get_device_properties(0).total_memory
    complete = [measure_shape(shape, args, total) for shape in args.shapes]
    sys.exit(0 if all(complete) else 1)


def measure_shape(shape: str, args: Args, total: int) -> bool:
    """Print the rows of one shape on a GPU of `total` bytes. Return whether nothing failed."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    with tempfile.TemporaryDirectory() as folder:
        Qwen2Config(**SHAPES[shape]).save_pretrained(folder)
        problem = memory_problem(shape, Path(folder), total)
        if problem:
            print(f"{shape}: skipped, {problem}", flush=True)
            return True
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPES[shape]), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        del model
        torch.cuda.empty_cache()
        for file in args.tokenizer_dir.glob("tokenizer*"):
            shutil.copy(file, folder)
        launcher = (str(Path(sys.executable).with_name("deepspeed")), *launcher_flags(1))
        return print_rows(shape, *launcher, __file__, folder, shape, str(int(args.enforce_eager)))


def memory_problem(shape: str, folder: Path, total: int) -> str:
    """Return why the model with the config.json in `folder` does not fit into `total` bytes, or an empty string."""
    from bnpo.config import parse_train_config
    from bnpo.planning import GIB, USABLE, rank_memory, read_shape

    config, _ = parse_train_config(["--preset", "paper-1.5b"], has_cuda=True)
    model = read_shape(folder)
    memory = rank_memory(model, config, ranks=1, sampler=int(GPU_MEMORY * total))
    phases = ("sync", "sampling") if shape in NO_UPDATE else memory.phases
    needed = max(memory.total(phase) for phase in phases)
    if shape in NO_UPDATE:  # its learner has no optimizer
        needed -= 16 * model.parameters
    if needed <= USABLE * total:
        return ""
    return f"it needs {needed / GIB:.1f} GiB of GPU memory, and {USABLE:.0%} of {total / GIB:.1f} GiB can be used"


def print_rows(shape: str, *command: str) -> bool:
    """Run the program that measures `shape` and print each row as soon as it is measured.

    Returns False if the program fails, after printing the end of its output.
    """
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as program:
            for line in program.stdout:
                if line.startswith("ROW "):
                    _, name, value = line.split()
                    row(f"{shape}_{name}", float(value))
        if program.returncode == 0:
            return True
        errors.seek(0)
        print(f"{shape}: failed with exit status {program.returncode}:\n{errors.read()[-4000:]}", file=sys.stderr)
        return False


def measure(folder: str, shape: str, enforce_eager: bool) -> None:
    """Print all rows of one shape for `print_rows`. Runs in a process that the DeepSpeed launcher has started."""
    setup_environment()
    import numpy as np
    import torch
    import torch.distributed as dist
    from vllm import SamplingParams

    from bnpo.config import parse_train_config
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.learner import Learner
    from bnpo.policy.sampler import EngineSettings, Sampler
    from bnpo.policy.weight_sync import sync_weights

    config, _ = parse_train_config(["--preset", "paper-1.5b"], has_cuda=True)
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    tokenizer = load_tokenizer(Path(folder), 4096)
    learner = Learner(folder, len(tokenizer), config, with_optimizer=shape not in NO_UPDATE)
    settings = {"max_tokens": 4096, "dtype": "bfloat16", "gpu_memory": GPU_MEMORY, "sequences": 32 * 16}
    sampler = Sampler(folder, tokenizer, EngineSettings(**settings, enforce_eager=enforce_eager))
    rng = np.random.default_rng(0)

    prompts = [rng.integers(0, 150_000, 96).tolist() for _ in range(32)]
    common = {"n": 16, "temperature": 1.0, "max_tokens": 512, "detokenize": False}
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = SamplingParams(stop_token_ids=sampler._stop_token_ids, **common)
    bare = median_seconds(partial(sampler._llm.generate, requests, params, use_tqdm=False))
    sampling = {"n": 16, "temperature": 1.0, "max_tokens": 512, "logprobs": True}
    ours = median_seconds(lambda: list(sampler.sample(prompts, range(32), **sampling)))
    hand_over("vllm_ratio", bare / ours)
    sampler.sleep()
    if shape not in NO_UPDATE:
        measure_update(learner, prompts)

    def sync() -> None:
        sampler.wake("weights")
        sync_weights(learner, sampler, 1)
        sampler.wake("kv_cache")
        sampler.sleep()

    hand_over("sync_seconds", median_seconds(sync))


def hand_over(name: str, value: float) -> None:
    """Print a row for `print_rows`."""
    print(f"ROW {name} {value!r}", flush=True)


def measure_update(learner, prompts: list[list[int]]) -> None:
    """Print UPDATE_ROWS, measured while the sampler sleeps. `mfu` is missing if the GPU's peak is unknown."""
    import numpy as np
    import torch
    from vllm.device_allocator.cumem import CuMemAllocator

    from bnpo.policy.learner import Experience
    from bnpo.speed import gpu_name, peak_tflops

    rng = np.random.default_rng(1)
    answers = [rng.integers(0, 150_000, 4000).tolist() for _ in prompts]
    logprobs = [np.full(4000, -11.9) for _ in prompts]
    experience = Experience(prompts, answers, logprobs, rng.choice([-1.0, 1.0], len(prompts)))
    metrics = {}
    torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(lambda: metrics.update(learner.update(experience, lr=1e-6).metrics()))
    # torch still counts the memory that the sleeping sampler has released.
    asleep = CuMemAllocator.get_instance().get_current_usage()
    hand_over("peak_memory_gb", (torch.cuda.max_memory_allocated() - asleep) / 1e9)
    peak = peak_tflops(gpu_name())
    if peak is not None:
        hand_over("mfu", metrics["update/tflop"] / seconds / peak)


def median_seconds(work) -> float:
    """Return the median seconds of ROUNDS calls of `work`, after one that warms up."""
    import torch

    seconds = []
    for _ in range(1 + ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    if "RANK" in os.environ:
        folder, shape, eager = (argument for argument in sys.argv[1:] if not argument.startswith("--local_rank"))
        measure(folder, shape, eager == "1")
        os._exit(0)
    main(tyro.cli(Args, description=__doc__))
