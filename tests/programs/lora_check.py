"""Learners with LoRA: their updates, their checkpoints, and what is loaded again.

Launched by tests/test_lora.py with a folder for checkpoints and the folders of two models. With the
word `universal` last, a learner reads the converted checkpoint of the first setting instead.
"""

from pathlib import Path

from shared import config_of, report, scores  # isort: skip
from learner_check import fixed_batch
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.policy.learner import Learner
from bnpo.ranks import trains_in_float16
from bnpo.runs.checkpoint import Progress, save_checkpoint
from bnpo.runs.folder import checkpoint_folder

SETTINGS = {
    "small": "--model SMALL --lora-rank 4 --lora-alpha 12",
    # Matrices A and B that are partitioned, too.
    "layers": "--model LAYERS --lora-rank 256 --gradient-checkpointing --offload-optimizer",
    "bf16": "--model LAYERS --lora-rank 8 --dtype bfloat16 --lr 1e-3",
}
VOCABULARY = 262
BATCH, ADVANTAGES = fixed_batch()


def lora_config(setting: str, small: str, layers: str, *flags: str):
    own = SETTINGS[setting].replace("SMALL", small).replace("LAYERS", layers)
    common = "--micro-batch-tokens 60 --weight-decay 0.01 --samples-per-question 3"
    return config_of(common, own, *flags)


def make_learner(config, **settings) -> Learner:
    return Learner(config.data.model, VOCABULARY, config, **settings)


def save(learner: Learner, run: Path, step: int) -> None:
    tokenizer, progress = AutoTokenizer.from_pretrained(TINY_MODEL), Progress(step, best_step=step)
    save_checkpoint(learner, tokenizer, run, progress, keep=0, card="")


def train(config, run: Path) -> dict:
    """Return the scores of a learner before its updates, after two, and after a third; and of one
    that continues from the checkpoint of step 2.
    """
    learner = make_learner(config)
    save(learner, run, 0)
    case = {"before": scores(learner, BATCH)}
    updates = [learner.update(BATCH, ADVANTAGES, lr=1e-3) for _ in range(2)]
    case["norms"] = [update.metrics["grad_norm"] for update in updates]
    case["after"] = scores(learner, BATCH)
    save(learner, run, 2)
    resumed = make_learner(config)
    resumed.load(checkpoint_folder(run, 2) / "trainer")
    case["resumed"] = scores(resumed, BATCH)
    for name, each in (("third", learner), ("resumed third", resumed)):
        each.update(BATCH, ADVANTAGES, lr=1e-3)
        case[name] = scores(each, BATCH)
    return case


def changed_settings(run: Path, *models: str) -> list:
    """Return loss scale and weight decay of a learner, in fp16 if possible, that loads a
    checkpoint with others.
    """
    dtype = "--dtype float16" if trains_in_float16() else "--dtype float32"
    save(make_learner(lora_config("small", *models, dtype)), run, 1)
    changes = "--loss-scale 64 --weight-decay 0.1"
    learner = make_learner(lora_config("small", *models, dtype, changes))
    learner.load(checkpoint_folder(run, 1) / "trainer")
    optimizer = learner._engine.optimizer
    [group] = optimizer.param_groups
    return [optimizer.loss_scale, group["weight_decay"]]


def check(folder: str, small: str, layers: str, universal: str = "") -> object:
    run = Path(folder)
    if universal:
        learner = make_learner(lora_config("small", small, layers), universal=True)
        learner.load(checkpoint_folder(run / "small", 2) / "trainer")
        learner.update(BATCH, ADVANTAGES, lr=1e-3)
        return scores(learner, BATCH)
    cases = {name: train(lora_config(name, small, layers), run / name) for name in SETTINGS}
    return cases | {"changed settings": changed_settings(run / "changed", small, layers)}


if __name__ == "__main__":
    report(check)
