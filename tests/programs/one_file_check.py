"""One batch that examples/bnpo_in_150_lines.py samples with the tiny model: its advantages, loss
and gradient beside those of the learner.

Launched by tests/test_one_file.py.
"""

import random
import sys

from shared import config_of, report  # isort: skip
import numpy as np
import torch
from deepspeed.utils import safe_get_full_grad
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.batch import Answer, Batch
from bnpo.config import TINY_MODEL
from bnpo.policy.learner import Learner
from bnpo_estimators import Method, compute_advantages

sys.path.append("examples")
import bnpo_in_150_lines as one_file

QUESTIONS = 6


def norm_of(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())


def check() -> dict:
    random.seed(0)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    drawn = [one_file.draw_question() for _ in range(QUESTIONS)]
    prompts = [
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question, _ in drawn
    ]
    ids, start, mask = one_file.sample(model, tokenizer, prompts)
    answers = [row[start:][kept[start:] == 1].tolist() for row, kept in zip(ids, mask, strict=True)]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    m = one_file.ANSWERS
    rewards = torch.tensor(
        [one_file.reward(text, drawn[i // m][1]) for i, text in enumerate(texts)],
        dtype=torch.float64,
    ).view(QUESTIONS, m)
    advantages = one_file.bnpo_advantages(rewards)  # [n, m]
    loss = one_file.backward(model, len(tokenizer), ids, start, mask, advantages.flatten().float())

    # The same batch as loop.py passes it on
    values = compute_advantages(Method("bnpo"), rewards[:, :, None].numpy()).values
    samples = [Answer(tokens, True, np.zeros(len(tokens))) for tokens in answers]
    batch = Batch.of(
        [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts],
        [samples[i * m : (i + 1) * m] for i in range(QUESTIONS)],
    )
    config = config_of("--samples-per-question", m, "--micro-batch-tokens 150")
    learner = Learner(str(TINY_MODEL), len(tokenizer), config)
    [micro_batches] = learner._mini_batches(batch, values)
    statistics = torch.stack(learner._accumulate_gradient(micro_batches))
    gradients = dict(model.named_parameters())
    weights = dict(learner.model.named_parameters())
    differences = [safe_get_full_grad(weights[name]) - gradients[name].grad for name in weights]
    return {
        "accuracies": rewards.mean(dim=1).tolist(),
        "lengths": mask[:, start:].sum(dim=1).tolist(),
        "micro-batches": len(micro_batches),
        "advantages": [advantages.tolist(), values.tolist()],
        "loss": [loss, float(statistics[:, 1].sum())],
        "gradient norm": norm_of([weight.grad for weight in model.parameters()]),
        "gradient difference": norm_of(differences),
        "compared": sum(difference.numel() for difference in differences),
        "weights": model.num_parameters(),
    }


if __name__ == "__main__":
    report(check)
