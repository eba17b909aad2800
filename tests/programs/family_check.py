"""Ranks train a model for two steps, save it after the first, and resume it.

Launched by tests/test_families.py with the folder of a model and a dtype; prints a JSON line from
rank 0.
"""

import hashlib
import json
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.batch import Answer, Batch
from bnpo.config import parse_train_config
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.start_check import check_start
from bnpo.policy.weight_sync import WeightSync
from bnpo.runs.checkpoint import Progress, save_checkpoint, whole_weights
from bnpo.runs.folder import checkpoint_folder

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(20, 110, 24).tolist() for _ in range(2)]
ANSWERS = [RNG.integers(20, 110, length).tolist() for length in (30, 12, 40, 25)]
SAMPLED = [Answer(answer, True, np.full(len(answer), -5.0)) for answer in ANSWERS]
BATCH, ADVANTAGES = Batch.of(PROMPTS, [SAMPLED[:2], SAMPLED[2:]]), np.array([[1, -1], [0.5, -2]])


def digest(learner: Learner) -> str:
    """Hash of the learner's weights."""
    total = hashlib.sha256()
    for name, tensor in whole_weights(learner.model):
        total.update(name.encode() + tensor.float().numpy().tobytes())
    return total.hexdigest()


def plain_scores(folder: Path, dtype: str) -> tuple[np.ndarray, list[str]]:
    """Log-probabilities of the first answer by plain transformers, and what it says of the names
    of the weights.
    """
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True
    )
    row = torch.tensor([PROMPTS[0] + ANSWERS[0]])
    with torch.no_grad():
        logits = model(row).logits[0, len(PROMPTS[0]) - 1 : -1, : len(TOKENIZER)].double()
    scores = torch.log_softmax(logits, -1).gather(1, row[0, len(PROMPTS[0]) :, None])[:, 0]
    return scores.numpy(), [*info["missing_keys"], *info["unexpected_keys"]]


def check(model: Path, dtype: str) -> dict:
    """Train the model in `model` for a step, save and resume it, and say what was seen."""
    flags = ["--preset", "tiny", "--model", str(model), "--dtype", dtype]
    config, _ = parse_train_config(flags, has_cuda=False)
    checkpoint = checkpoint_folder(model.with_name(f"{model.name}-{dtype}"), 1)
    learner = Learner(str(model), len(TOKENIZER), config)
    before = learner.score(PROMPTS[0], ANSWERS[0])
    learner.update(BATCH, ADVANTAGES, lr=1e-3)
    save_checkpoint(learner, TOKENIZER, checkpoint.parent.parent, Progress(step=1), card="", keep=0)
    saved = learner.score(PROMPTS[0], ANSWERS[0])
    learner.update(BATCH, ADVANTAGES, lr=1e-3)

    of_transformers, names = plain_scores(checkpoint, dtype)
    resumed = Learner(str(checkpoint), len(TOKENIZER), config)
    resumed.load(checkpoint / "trainer")
    sampler = Sampler(str(checkpoint), TOKENIZER, EngineSettings(max_tokens=192, dtype=dtype))
    sync = WeightSync(resumed, sampler, 192)
    check_start(resumed, sampler, sync, PROMPTS[0] + PROMPTS[1], config)
    of_vllm = sampler.score(PROMPTS[0], ANSWERS[0])
    with sync.sampler_asleep(2, BATCH):
        resumed.update(BATCH, ADVANTAGES, lr=1e-3)
    return {
        "sync": sync.difference,
        "moved": float(np.abs(saved - before).mean()),
        "resumed": digest(resumed) == digest(learner),
        "transformers": float(np.abs(of_transformers - saved).mean()),
        "vllm": float(np.abs(of_vllm - saved).mean()),
        "names": names,
    }


TOKENIZER = AutoTokenizer.from_pretrained("data/tiny-model")
if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    report = check(Path(sys.argv[1]), sys.argv[2])  # ends torch.distributed: the sampler is freed
    if rank == 0:
        print("REPORT " + json.dumps(report), flush=True)
