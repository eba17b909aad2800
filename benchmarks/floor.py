"""The two unavoidable parts of a step, bare: vLLM's `generate`, and a plain PyTorch forward, backward and AdamW step.

Launched by benchmarks/step.py on one or two processes, each with its share of the cores and of the questions; prints
one JSON line. Prompts, seeds and trained sequences are those of the first steps of `deepspeed train.py --preset tiny`.
Plain PyTorch means: transformers' model, rows sorted by length and padded, full logits, gradients averaged in one
all-reduce; the best micro-batch of several sizes. Exactly the sequences with a gradient are trained on. The second
floor of training shares prompts: they pass first, and the answers attend to their cache, repeated for each.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import groupby

import bnpo  # noqa: F401 - before torch and vLLM

import numpy as np  # isort: skip
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.batching import share_out
from bnpo.answers.rewards import Grader
from bnpo.arithmetic import open_problems
from bnpo.config import parse_train_config
from bnpo.policy.folder import load_tokenizer, model_folder
from bnpo.policy.sampler import Sampler
from bnpo.policy.settings import SamplerSettings
from bnpo.problems import encode_prompt, questions_of_step, sampling_seeds, stop_token_ids
from bnpo.ranks import gather

from vllm import SamplingParams  # isort: skip

MICRO_BATCHES = (16, 32, 64, 128)
"""Answers in a forward and backward pass; each size is tried, the best counts."""
Row = tuple[list[int], list[int], float]
"""Prompt, answer and advantage."""


def timed(work: Callable) -> tuple[float, object]:
    """Seconds until all processes have done `work`, and its result here."""
    dist.barrier()
    started = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - started, result


def whole(model, rows: list[Row], answers: int) -> torch.Tensor:
    """The loss of `rows`, as a part of that of a batch of `answers`."""
    length = max(len(prompt) + len(answer) for prompt, answer, _ in rows)
    ids, weights = torch.zeros(len(rows), length, dtype=torch.int64), torch.zeros(len(rows), length)
    for i, (prompt, answer, advantage) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        weights[i, len(prompt) : len(prompt) + len(answer)] = advantage / answers
    return surrogate(model(input_ids=ids, use_cache=False).logits[:, :-1], ids[:, 1:], weights[:, 1:])


def shared(model, rows: list[Row], answers: int) -> torch.Tensor:
    """The same, for whole groups one after the other."""
    prompts = list(dict.fromkeys(tuple(prompt) for prompt, _, _ in rows))
    owners = torch.tensor([prompts.index(tuple(prompt)) for prompt, _, _ in rows])
    before, after = max(map(len, prompts)), max(len(answer) for _, answer, _ in rows)
    ids, mask = (torch.zeros(len(prompts), before, dtype=torch.int64) for _ in range(2))
    for i, prompt in enumerate(prompts):  # on the right, so that all predict at the same place
        ids[i, before - len(prompt) :], mask[i, before - len(prompt) :] = torch.tensor(prompt), 1
    targets, weights = torch.zeros(len(rows), after, dtype=torch.int64), torch.zeros(len(rows), after)
    for i, (_, answer, advantage) in enumerate(rows):
        targets[i, : len(answer)] = torch.tensor(answer)
        weights[i, : len(answer)] = advantage / answers
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    first = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    first.past_key_values.batch_select_indices(owners)
    positions = mask.sum(1)[owners, None] + torch.arange(after - 1)
    mask = torch.cat([mask[owners], torch.ones(len(rows), after - 1, dtype=torch.int64)], 1)
    rest = model(
        input_ids=targets[:, :-1],
        attention_mask=mask,
        position_ids=positions,
        past_key_values=first.past_key_values,
    )
    return surrogate(torch.cat([first.logits[owners], rest.logits], 1), targets, weights)


def surrogate(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    logprobs = logits.gather(2, targets[:, :, None]).squeeze(2) - logits.logsumexp(2)
    return (-(logprobs - logprobs.detach()).exp() * weights).sum()


def main() -> None:
    steps, warm_up = int(sys.argv[-2]), int(sys.argv[-1])
    config, _ = parse_train_config(["--preset", "tiny", "--lr", "1e-6"], has_cuda=False)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = model_folder(config.model)
    longest = config.max_prompt_tokens + config.max_answer_tokens
    tokenizer = load_tokenizer(folder, longest)
    problems = open_problems(config.train_data, "train")
    sampler = Sampler(str(folder), tokenizer, SamplerSettings(max_tokens=longest, dtype="float32"))
    grader = Grader()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    common = {"n": config.samples_per_question, "max_tokens": config.max_answer_tokens, "detokenize": False}
    common |= {"stop_token_ids": stop_token_ids(tokenizer), "temperature": config.temperature}

    def update(loss: Callable, rows: list[Row], size: int, answers: int) -> float:
        """The gradient norm of an update."""
        for begin in range(0, len(rows), size):
            loss(model, rows[begin : begin + size], answers).backward()
        flat = torch.cat([p.grad.ravel() for p in model.parameters()])
        dist.all_reduce(flat)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return float(flat.norm())

    generate: list[float] = []
    train = {(loss, size): [] for loss in (whole, shared) for size in MICRO_BATCHES}
    for step in range(warm_up + steps):
        questions = questions_of_step(len(problems), config.questions_per_step, step, config.seed)
        mine = np.split(questions, world)[rank]
        prompts = [encode_prompt(tokenizer, problems[q].problem, config.template) for q in mine]
        seeds = sampling_seeds(config.seed, step, mine)
        params = [SamplingParams(seed=seed, **common) for seed in seeds]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        seconds, outputs = timed(partial(sampler._llm.generate, requests, params, use_tqdm=False))
        generate.append(seconds)
        answers = [[list(answer.token_ids) for answer in output.outputs] for output in outputs]
        texts = tokenizer.batch_decode([ids for group in answers for ids in group], skip_special_tokens=True)
        rewards = grader(texts, [problems[q].answer for q in mine for _ in range(config.samples_per_question)])
        parts = gather((prompts, answers, rewards.reshape(len(mine), config.samples_per_question, 1)))
        advantages, _ = compute_advantages("bnpo", np.concatenate([part[2] for part in parts]))
        rows = [
            (prompt, answer)
            for prompts, answers, _ in parts
            for prompt, group in zip(prompts, answers, strict=True)
            for answer in group
        ]
        total = len(rows)
        rows = [(*row, a) for row, a in zip(rows, advantages.ravel(), strict=True) if a != 0]
        # Longest first: rows, and for shared prompts whole groups.
        work = {whole: [rows[i] for i in share_out(np.array([len(p) + len(a) for p, a, _ in rows]), world)[rank]]}
        groups = [list(group) for _, group in groupby(rows, key=lambda row: row[0])]
        sizes = np.array([len(group[0][0]) + sum(len(answer) for _, answer, _ in group) for group in groups])
        work[shared] = [row for i in share_out(sizes, world)[rank] for row in groups[i]]
        norms = {}
        for loss, size in train:
            seconds, norms[loss] = timed(partial(update, loss, work[loss], size, total))
            train[loss, size].append(seconds)
        difference = abs(norms[shared] / norms[whole] - 1)
    medians = {kind: statistics.median(seconds[warm_up:]) for kind, seconds in train.items()}
    if rank == 0:
        result = {"generate": generate[warm_up:], "gradient_difference": difference}
        for loss, name in ((whole, "train"), (shared, "train_shared")):
            best = min(MICRO_BATCHES, key=lambda size: medians[loss, size])
            result |= {name: train[loss, best][warm_up:], f"{name}_answers": best}
        print("FLOOR " + json.dumps(result), flush=True)
    grader.close()
    sys.stdout.flush()
    os._exit(0)  # vLLM and torch.distributed take seconds to part


if __name__ == "__main__":
    main()
