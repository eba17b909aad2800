"""Learners with LoRA: their gradients beside those of full training, updates, checkpoints, and what
is loaded again.

Launched by tests/test_lora.py with a folder for checkpoints and the folders of two models; prints
one JSON line from rank 0. With the word `universal` first, a learner reads the converted checkpoint
of the first setting instead.
"""

import json
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

COMMON = [
    "--preset",
    "tiny",
    "--micro-batch-tokens",
    "60",
    "--weight-decay",
    "0.01",
    "--samples-per-question",
    "3",
]
SETTINGS = {
    "small": ["--model", "SMALL", "--lora-rank", "4", "--lora-alpha", "12"],
    # Matrices A and B that are partitioned, too.
    "layers": [
        "--model",
        "LAYERS",
        "--lora-rank",
        "256",
        "--gradient-checkpointing",
        "--offload-optimizer",
    ],
    "bf16": ["--model", "LAYERS", "--lora-rank", "8", "--dtype", "bfloat16", "--lr", "1e-3"],
}
VOCABULARY = 262
SIZE = 64
"""Inputs and outputs of every linear layer of the small model."""


def flags_of(setting: str, models: list[str]) -> list[str]:
    names = dict(zip(("SMALL", "LAYERS"), models, strict=True))
    return [*COMMON, *(names.get(flag, flag) for flag in SETTINGS[setting])]


def gradients(model: str, *flags: str) -> dict:
    """The gradient of every trained matrix of a linear layer by the layer's name. Of LoRA: of B,
    where A is 1.
    """
    import deepspeed
    import numpy as np
    import torch
    import torch.distributed as dist
    from learner_check import fixed_experience

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner

    config, _ = parse_train_config([*COMMON, "--model", model, *flags], has_cuda=False)
    learner = Learner(model, VOCABULARY, config)
    for name, parameter in learner.model.named_parameters():
        if "lora_A" in name:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if dist.get_rank() == 0:
                    parameter.data.copy_(torch.eye(SIZE))
    learner._accumulate_gradient(fixed_experience("one update"), np.arange(12), {}, torch.zeros(6))
    found = {}
    for name, parameter in learner.model.named_parameters():
        layer = name.removesuffix(".weight").removesuffix(".lora_B.default")
        if parameter.requires_grad and layer.endswith("_proj"):
            found[layer] = deepspeed.utils.safe_get_full_grad(parameter)
    return found


def main() -> None:
    import torch.distributed as dist
    from learner_check import fixed_experience, scores
    from transformers import AutoTokenizer

    from bnpo.config import TINY_MODEL, parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.runs.checkpoint import Progress, save_checkpoint
    from bnpo.runs.folder import checkpoint_folder

    dist.init_process_group("gloo")
    run, models = Path(sys.argv[-3]), sys.argv[-2:]
    experience, report = fixed_experience("one update"), {}
    if sys.argv[1] == "universal":
        config, _ = parse_train_config(flags_of("small", models), has_cuda=False)
        learner = Learner(config.data.model, VOCABULARY, config, universal=True)
        learner.load(checkpoint_folder(run / "small", 2) / "trainer")
        learner.update(experience, lr=1e-3)
        print("REPORT " + json.dumps(scores(learner, experience)), flush=True)
        return
    full = gradients(models[0])
    adapter = gradients(models[0], "--lora-rank", str(SIZE), "--lora-alpha", str(SIZE))
    report["gradients"] = {
        layer: [(full[layer] - adapter[layer]).abs().max().item(), full[layer].abs().max().item()]
        for layer in full
    }
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    for setting in SETTINGS:
        config, _ = parse_train_config(flags_of(setting, models), has_cuda=False)
        learner, case = Learner(config.data.model, VOCABULARY, config), {}
        save_checkpoint(learner, tokenizer, run / setting, Progress(0), keep=0, card="")
        case["before"] = scores(learner, experience)
        metrics = [learner.update(experience, lr=1e-3)[0] for _ in range(2)]
        case["norms"] = [step["grad_norm"] for step in metrics]
        case["after"] = scores(learner, experience)
        save_checkpoint(
            learner, tokenizer, run / setting, Progress(2, best_step=2), keep=0, card=""
        )
        learner.update(experience, lr=1e-3)
        case["third"] = scores(learner, experience)
        resumed = Learner(config.data.model, VOCABULARY, config)
        resumed.load(checkpoint_folder(run / setting, 2) / "trainer")
        case["resumed"] = scores(resumed, experience)
        resumed.update(experience, lr=1e-3)
        case["resumed third"] = scores(resumed, experience)
        report[setting] = case
    report["changed settings"] = changed_settings(run / "changed", models, tokenizer)
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report), flush=True)
    dist.destroy_process_group()


def changed_settings(run: Path, models: list[str], tokenizer) -> list:
    """Loss scale, weight decay and betas of a learner, in fp16 if possible, that loads a
    checkpoint with others.
    """
    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Learner
    from bnpo.ranks import trains_in_float16
    from bnpo.runs.checkpoint import Progress, save_checkpoint
    from bnpo.runs.folder import checkpoint_folder

    flags = [*flags_of("small", models), "--dtype", "float16" if trains_in_float16() else "float32"]
    config, _ = parse_train_config(flags, has_cuda=False)
    save_checkpoint(
        Learner(config.data.model, VOCABULARY, config), tokenizer, run, Progress(1), keep=0, card=""
    )
    flags += ["--loss-scale", "64", "--weight-decay", "0.1", "--betas", "0.8", "0.95"]
    config, _ = parse_train_config(flags, has_cuda=False)
    learner = Learner(config.data.model, VOCABULARY, config)
    learner.load(checkpoint_folder(run, 1) / "trainer")
    optimizer = learner._engine.optimizer
    [group] = optimizer.param_groups
    return [optimizer.loss_scale, group["weight_decay"], *group["betas"]]


if __name__ == "__main__":
    main()
