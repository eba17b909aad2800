"""Compare LoRA with full training on the tiny preset: time of an update, memory of optimizer and gradients.

    python benchmarks/lora.py [--rank 8] [--rounds 3]
    python benchmarks/lora.py --hidden 768      # a random model of this width in place of the tiny model's 128

Both train in turns, with a learning rate so small that they sample nearly the same answers. The answers of a random
model, 32 random tokens each, are right or wrong by chance. Rows:

- full_update_seconds, lora_update_seconds, lora_update_ratio: medians over all measured steps, and their ratio
- full_optimizer_bytes, lora_optimizer_bytes: master weights and AdamW's moments after an update, on one rank
- full_gradient_bytes, lora_gradient_bytes: gradients that are kept during an update, on one rank
"""

import argparse
import json
import tempfile
from pathlib import Path

from common import launch, median, row, training_steps

from bnpo.environment import setup_environment

setup_environment()

STEPS = 10
"""Measured steps per run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--hidden", type=int, help="width of a random model")
    parser.add_argument("--bytes", type=int, metavar="RANK", help="only measure the memory of this process; 0: full")
    arguments, _ = parser.parse_known_args()  # the launcher adds --local_rank
    if arguments.bytes is not None:
        print("BYTES " + json.dumps(measure_bytes(arguments.bytes)), flush=True)
        return
    kinds = {"full": (), "lora": ("--lora-rank", str(arguments.rank))}
    steps: dict[str, list[dict]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(Path(folder), arguments.hidden) if arguments.hidden else ()
        for _ in range(arguments.rounds):
            for kind, flags in kinds.items():
                steps[kind] += training_steps(2, STEPS, "--lr", "1e-6", *flags, *model)
    for kind in kinds:
        row(f"{kind}_update_seconds", median(steps[kind], "seconds/update"))
    row("lora_update_ratio", median(steps["lora"], "seconds/update") / median(steps["full"], "seconds/update"))
    if arguments.hidden:
        return
    for kind, flags in kinds.items():
        output = launch(1, "benchmarks/lora.py", "--bytes", *(flags[1:] or ("0",)))
        [line] = [line for line in output.splitlines() if line.startswith("BYTES ")]
        for part, size in json.loads(line.removeprefix("BYTES ")).items():
            row(f"{kind}_{part}_bytes", size)


def random_model(folder: Path, hidden: int) -> tuple[str, ...]:
    """Write a random model of width `hidden` to `folder`. Return the flags of a run that trains it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from bnpo.config import TINY_MODEL

    config = AutoConfig.from_pretrained(TINY_MODEL)
    config.hidden_size, config.intermediate_size = hidden, 3 * hidden
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(folder)
    reward = folder / "coin.py"
    reward.write_text("def coin(text, reference):\n    return float(len(text) % 2)\n")
    return ("--model", str(folder), "--rewards", f"{reward}:coin", "--max-answer-tokens", "32")


def measure_bytes(lora_rank: int) -> dict[str, int]:
    """Return the bytes of the optimizer and of the gradients on this rank, the only one, after one update."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from bnpo.config import TINY_MODEL, parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.policy.update import Experience

    dist.init_process_group("gloo")
    flags = ["--lora-rank", str(lora_rank)] if lora_rank else []
    config, _ = parse_train_config(["--preset", "tiny", *flags], has_cuda=False)
    learner = Learner(str(TINY_MODEL), 262, config)
    answers = [[20, 21, 22], [23, 24, 25]]
    learner.update(Experience([[1]] * 2, answers, [np.zeros(3)] * 2, np.array([1.0, -1.0])), lr=1e-6)
    optimizer = learner._engine.optimizer  # DeepSpeed's, around torch's AdamW
    kept = list(optimizer.fp32_partitioned_groups_flat)  # master weights
    for state in optimizer.optimizer.state.values():
        kept += [value for value in state.values() if torch.is_tensor(value)]
    return {
        "optimizer": sum(tensor.nbytes for tensor in kept),
        "gradient": optimizer.grad_partitions_flat_buffer.nbytes,
    }


if __name__ == "__main__":
    main()
