"""Checks that need an NVIDIA GPU: the loop on the tiny model, then at the shape of Qwen2.5-Math-1.5B.

    python scripts/gpu_check.py --tokenizer-dir DIR --config DIR/config-1.5b.json

Both run `deepspeed train.py` for a few steps with sleep, wake, evaluations and the check of every weight sync, resume
it for a few more, print the last step's metrics, and evaluate the checkpoint with `eval.py`. The large model has random
weights, so nothing is downloaded; DIR needs the real tokenizer's files.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from transformers import AutoModelForCausalLM, Qwen2Config

from bnpo.config import ROOT


@dataclass
class Args:
    tokenizer_dir: Path
    """Folder with tokenizer.json and tokenizer_config.json of Qwen2.5-Math."""
    config: Path
    """config.json of the model whose shape is taken."""
    output_dir: Path = ROOT / "runs" / "gpu-check"
    """Folder for the random model and the runs; deleted first."""
    steps: int = 4
    """Training steps of each run before it is resumed, and after."""


def train(name: str, args: Args, *flags: str) -> None:
    run = args.output_dir / name
    launcher = Path(sys.executable).with_name("deepspeed")
    command = [str(launcher), "train.py", "--enforce-eager", "--resume", "--output-dir", str(run), *flags]
    for steps in (args.steps, 2 * args.steps):
        subprocess.run([*command, "--steps", str(steps)], cwd=ROOT, check=True)
    print(f"{name}: {(run / 'metrics.jsonl').read_text().splitlines()[-1]}", flush=True)
    # On all GPUs, in processes of its own.
    command = [sys.executable, "eval.py", "--ckpt", str(run), "--suite", "arithmetic-quick", "--enforce-eager"]
    subprocess.run([*command, "--output-dir", str(run / "eval")], cwd=ROOT, check=True)


def main(args: Args) -> None:
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device; this script checks what only a GPU can show")
    shutil.rmtree(args.output_dir, ignore_errors=True)
    train("tiny-fp32", args, "--preset", "tiny")
    train("tiny-bf16", args, "--preset", "tiny", "--dtype", "bfloat16", "--sync-tolerance", "0.05")
    model_dir = args.output_dir / "model"
    torch.manual_seed(0)
    config = Qwen2Config(**json.loads(args.config.read_text(encoding="utf-8")))
    with torch.device("cuda"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(model_dir)
    for file in args.tokenizer_dir.glob("tokenizer*"):
        shutil.copy(file, model_dir)
    flags = ("--model", str(model_dir), "--train-data", "arithmetic", "--max-answer-tokens", "512")
    flags += ("--eval-suite", "arithmetic-quick")
    train("large-bf16", args, "--preset", "paper-1.5b", *flags)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
