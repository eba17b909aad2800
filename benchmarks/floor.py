"""Measure the floor of a step: vLLM's `generate`, and forward pass, backward pass and AdamW step in plain PyTorch.

benchmarks/step.py starts this program on one process, and on one process per core, with equal shares of the cores and
of the questions. It prints one JSON line. Prompts, seeds and trained sequences are those of the first steps of
`deepspeed train.py --preset tiny`.

There are two floors of training. Both use the model of transformers, full logits, one all-reduce of the gradients, the
fastest of several micro-batches, and only sequences that have a gradient:

- train: sequences are sorted by length and padded, and each has its own copy of the prompt
- train_shared: prompts are computed once, and their answers attend to the cached prompt
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.batching import share_out
from bnpo.algorithm.estimators import Method
from bnpo.config import TrainConfig, parse_train_config
from bnpo.data import encode_prompt, load_problems, questions_at, sampling_seeds, stop_token_ids
from bnpo.grading.grader import Grader
from bnpo.policy.engine_settings import EngineSettings
from bnpo.policy.folder import load_tokenizer, model_folder
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather

from vllm import SamplingParams  # isort: skip

MICRO_BATCHES = (16, 32, 64, 128)
"""Answers per forward and backward pass. All sizes are tried during the warm-up, and the fastest is measured."""
Row = tuple[list[int], list[int], float]
"""Prompt, answer and advantage."""


def timed(work: Callable) -> tuple[float, object]:
    """Return the seconds until all processes have done `work`, and its result in this process."""
    dist.barrier()
    started = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - started, result


def whole(model, rows: list[Row], answers: int) -> torch.Tensor:
    """Return the share of `rows` in the loss of a batch with `answers` answers. Each row has its own prompt."""
    length = max(len(prompt) + len(answer) for prompt, answer, _ in rows)
    ids, weights = torch.zeros(len(rows), length, dtype=torch.int64), torch.zeros(len(rows), length)
    for i, (prompt, answer, advantage) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        weights[i, len(prompt) : len(prompt) + len(answer)] = advantage / answers
    return surrogate(model(input_ids=ids, use_cache=False).logits[:, :-1], ids[:, 1:], weights[:, 1:])


def shared(model, rows: list[Row], answers: int) -> torch.Tensor:
    """Return the same loss for rows that are whole groups. Each prompt is computed once for its answers."""
    prompts = list(dict.fromkeys(tuple(prompt) for prompt, _, _ in rows))
    owners = torch.tensor([prompts.index(tuple(prompt)) for prompt, _, _ in rows])
    before, after = max(map(len, prompts)), max(len(answer) for _, answer, _ in rows)
    ids, mask = (torch.zeros(len(prompts), before, dtype=torch.int64) for _ in range(2))
    for i, prompt in enumerate(prompts):  # aligned on the right, so that all end at the same position
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
    """Return the loss for logits [rows, tokens, vocabulary], targets and weights [rows, tokens]."""
    logprobs = logits.gather(2, targets[:, :, None]).squeeze(2) - logits.logsumexp(2)
    return (-(logprobs - logprobs.detach()).exp() * weights).sum()


class Floor:
    """The sampler and the model of one process, which measure their time."""

    def __init__(self, config: TrainConfig):
        self.config, self.rank, self.world = config, dist.get_rank(), dist.get_world_size()
        folder = model_folder(config.data.model)
        longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
        self.tokenizer = load_tokenizer(folder, longest)
        self.problems = load_problems(config.data.train_data[0])
        self.sampler = Sampler(str(folder), self.tokenizer, EngineSettings(max_tokens=longest, dtype="float32"))
        self.grader = Grader()
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        # With lr 0 a step takes its usual time and changes nothing, so both losses see the same weights.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, weight_decay=0.0)
        self.difference = 0.0
        """Relative difference of the gradient norms with and without shared prompts."""

    def generate(self, step: int) -> tuple[float, list[Row], int]:
        """Seconds of sampling the answers of `step`, those of all processes that have a gradient, and the number of
        all."""
        config = self.config
        questions = questions_at(
            len(self.problems),
            config.batch.questions_per_step,
            step * config.batch.questions_per_step,
            config.sampling.seed,
        )
        mine = np.split(questions, self.world)[self.rank]
        prompts = [encode_prompt(self.tokenizer, self.problems[q].problem) for q in mine]
        common = {
            "n": config.batch.samples_per_question,
            "max_tokens": config.sampling.max_answer_tokens,
            "detokenize": False,
        }
        common |= {"stop_token_ids": stop_token_ids(self.tokenizer), "temperature": config.sampling.temperature}
        params = [SamplingParams(seed=seed, **common) for seed in sampling_seeds(config.sampling.seed, step, mine)]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        seconds, outputs = timed(partial(self.sampler._llm.generate, requests, params, use_tqdm=False))
        answers = [[list(answer.token_ids) for answer in output.outputs] for output in outputs]
        texts = self.tokenizer.batch_decode([ids for group in answers for ids in group], skip_special_tokens=True)
        references = [self.problems[q].answer for q in mine for _ in range(config.batch.samples_per_question)]
        rewards = self.grader(texts, references).rewards.reshape(len(mine), config.batch.samples_per_question, 1)
        parts = gather((prompts, answers, rewards))
        advantages = compute_advantages(Method("bnpo"), np.concatenate([part[2] for part in parts])).values
        groups = [group for prompts, answers, _ in parts for group in zip(prompts, answers, strict=True)]
        rows = [
            (prompt, answer, advantage)
            for (prompt, answers), group in zip(groups, advantages, strict=True)
            for answer, advantage in zip(answers, group, strict=True)
            if advantage != 0
        ]
        return seconds, rows, advantages.size

    def train(self, rows: list[Row], answers: int, sizes: dict[Callable, Sequence[int]]) -> dict:
        """Return the seconds of an update on `rows`, by loss and micro-batch size."""
        # Each process takes whole rows or, with shared prompts, whole groups.
        lengths = np.array([len(prompt) + len(answer) for prompt, answer, _ in rows])
        work = {whole: [rows[i] for i in share_out(lengths, self.world)[self.rank]]}
        groups = [list(group) for _, group in groupby(rows, key=lambda row: row[0])]
        lengths = np.array([len(group[0][0]) + sum(len(answer) for _, answer, _ in group) for group in groups])
        work[shared] = [row for i in share_out(lengths, self.world)[self.rank] for row in groups[i]]
        seconds, norms = {}, {}
        for loss, of_loss in sizes.items():
            for size in of_loss:
                update = partial(self._update, loss, work[loss], size, answers)
                seconds[loss, size], norms[loss] = timed(update)
        self.difference = abs(norms[shared] / norms[whole] - 1)
        return seconds

    def _update(self, loss: Callable, rows: list[Row], size: int, answers: int) -> float:
        """Do one update, and return its gradient norm."""
        for begin in range(0, len(rows), size):
            loss(self.model, rows[begin : begin + size], answers).backward()
        flat = torch.cat([p.grad.ravel() for p in self.model.parameters()])
        dist.all_reduce(flat)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.update.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(flat.norm())


def fastest_size(trials: list[dict], loss: Callable) -> int:
    """Return the fastest micro-batch size of `loss` by the trials after the first one, for all processes."""
    medians = {size: statistics.median(trial[loss, size] for trial in trials[1:] or trials) for size in MICRO_BATCHES}
    return gather(min(medians, key=medians.get))[0]


def main() -> None:
    steps, warm_up = int(sys.argv[-2]), int(sys.argv[-1])
    config, _ = parse_train_config(["--preset", "tiny"], has_cuda=False)
    dist.init_process_group("gloo")
    floor, generate, trials, train = Floor(config), [], [], []
    for step in range(warm_up + steps):
        seconds, rows, answers = floor.generate(step)
        if step < warm_up:
            trials.append(floor.train(rows, answers, dict.fromkeys((whole, shared), MICRO_BATCHES)))
            fastest = {loss: fastest_size(trials, loss) for loss in (whole, shared)}
        else:
            generate.append(seconds)
            train.append(floor.train(rows, answers, {loss: [size] for loss, size in fastest.items()}))
    if floor.rank == 0:
        result = {"generate": generate, "gradient_difference": floor.difference}
        for loss, name in ((whole, "train"), (shared, "train_shared")):
            result[f"{name}_answers"] = fastest[loss]
            result[name] = [seconds[loss, fastest[loss]] for seconds in train]
        print("FLOOR " + json.dumps(result), flush=True)
    floor.grader.close()
    sys.stdout.flush()
    os._exit(0)  # saves the seconds that vLLM and torch.distributed need to end


if __name__ == "__main__":
    main()
