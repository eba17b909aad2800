"""The two unavoidable parts of a step, bare: vLLM's `generate`, and a plain PyTorch forward, backward and AdamW step.

Launched by benchmarks/step.py on one or two processes, each with its share of the cores and of the questions; prints
one JSON line. Prompts, seeds and trained sequences are those of the first steps of `deepspeed train.py --preset tiny`.
Plain PyTorch means: transformers' model, rows sorted by length and padded, full logits, gradients averaged in one
all-reduce; the best micro-batch of several sizes. Exactly the sequences with a gradient are trained on.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

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


def timed(work: Callable) -> tuple[float, object]:
    """Seconds until all processes have done `work`, and its result here."""
    dist.barrier()
    started = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - started, result


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

    def update(rows: list[tuple[list[int], list[int], float]], size: int, answers: int) -> None:
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            length = max(len(prompt) + len(answer) for prompt, answer, _ in part)
            ids, weights = torch.zeros(len(part), length, dtype=torch.int64), torch.zeros(len(part), length)
            for i, (prompt, answer, advantage) in enumerate(part):
                ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
                weights[i, len(prompt) : len(prompt) + len(answer)] = advantage / answers
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            logprobs = logits.gather(2, ids[:, 1:, None]).squeeze(2) - logits.logsumexp(2)
            (-(logprobs - logprobs.detach()).exp() * weights[:, 1:]).sum().backward()
        flat = torch.cat([p.grad.ravel() for p in model.parameters()])
        dist.all_reduce(flat)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    generate, train = [], {size: [] for size in MICRO_BATCHES}
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
        share = share_out(np.array([len(p) + len(a) for p, a, _ in rows]), world)[rank]  # longest first
        for size in MICRO_BATCHES:
            train[size].append(timed(partial(update, [rows[i] for i in share], size, total))[0])
    best = min(MICRO_BATCHES, key=lambda size: statistics.median(train[size][warm_up:]))
    if rank == 0:
        result = {"generate": generate[warm_up:], "train": train[best][warm_up:], "micro_batch": best}
        print("FLOOR " + json.dumps(result), flush=True)
    grader.close()
    sys.stdout.flush()
    os._exit(0)  # vLLM and torch.distributed take seconds to part


if __name__ == "__main__":
    main()
