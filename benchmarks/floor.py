"""Measure the floor of a step: bare vLLM's `generate`, and forward pass, backward pass and AdamW
step in plain PyTorch.

benchmarks/step.py starts this program on one process, and on one process per rank, with equal
shares of the cores and of the questions. Its arguments are the measured steps, the warm-up steps,
and the flags of train.py. It prints one JSON line. Prompts are those of the first steps of
`deepspeed train.py` with these flags.

vLLM draws all answers from one random generator, which is faster on CPUs than a generator for each
answer, as in train.py. There are two floors of training. Both use the model of transformers in the
number format of the run, fp32 master weights, full logits, one all-reduce of the gradients, AdamW
in one fused call, the fastest of several micro-batches, and only sequences that have a gradient:

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

from bnpo.batch import questions_at
from bnpo.config import TrainConfig, parse_train_config
from bnpo.data import load_sources
from bnpo.grading.grader import Grader
from bnpo.policy.folder import model_folder
from bnpo.prompts import encode_problems, stop_token_ids
from bnpo.ranks import gather
from bnpo.runs.prepare import prepare_tokenizer
from bnpo_estimators import Method, compute_advantages

from vllm import LLM, SamplingParams  # isort: skip

MICRO_BATCHES = {"tiny": (16, 32, 64, 128), "smollm2": (16, 32)}
"""Answers per forward and backward pass, by preset. All whose logits fit into MOST_LOGITS are tried
in the warm-up, and the fastest is measured."""
MOST_LOGITS = 2**29
"""Of a pass: with their gradients and copies they take four times 4 bytes each."""
Row = tuple[list[int], list[int], float]
"""Prompt, answer and advantage."""


def share_out(sizes: list[int], ranks: int) -> list[list[int]]:
    """Return the indices of each rank's items: from the largest on, each goes to the rank with the
    lowest load.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        min(shares, key=lambda share: sum(sizes[i] for i in share)).append(index)
    return shares


def timed(work: Callable) -> tuple[float, object]:
    """Return the seconds until all processes have done `work`, and its result in this process."""
    dist.barrier()
    started = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - started, result


def whole(model, rows: list[Row], answers: int) -> torch.Tensor:
    """Return the share of `rows` in the loss of a batch with `answers` answers. Each row has its
    own prompt.
    """
    length = max(len(prompt) + len(answer) for prompt, answer, _ in rows)
    ids, weights = torch.zeros(len(rows), length, dtype=torch.int64), torch.zeros(len(rows), length)
    for i, (prompt, answer, advantage) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        weights[i, len(prompt) : len(prompt) + len(answer)] = advantage / answers
    return surrogate(
        model(input_ids=ids, use_cache=False).logits[:, :-1], ids[:, 1:], weights[:, 1:]
    )


def shared(model, rows: list[Row], answers: int) -> torch.Tensor:
    """Return the same loss for rows that are whole groups. Each prompt is computed once for its
    answers.
    """
    prompts = list(dict.fromkeys(tuple(prompt) for prompt, _, _ in rows))
    owners = torch.tensor([prompts.index(tuple(prompt)) for prompt, _, _ in rows])
    before, after = max(map(len, prompts)), max(len(answer) for _, answer, _ in rows)
    ids, mask = (torch.zeros(len(prompts), before, dtype=torch.int64) for _ in range(2))
    # Aligned on the right, so that all end at the same position
    for i, prompt in enumerate(prompts):
        ids[i, before - len(prompt) :], mask[i, before - len(prompt) :] = torch.tensor(prompt), 1
    targets, weights = (
        torch.zeros(len(rows), after, dtype=torch.int64),
        torch.zeros(len(rows), after),
    )
    for i, (_, answer, advantage) in enumerate(rows):
        targets[i, : len(answer)] = torch.tensor(answer)
        weights[i, : len(answer)] = advantage / answers
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    first = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
    )
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
    logits = logits.float()
    logprobs = logits.gather(2, targets[:, :, None]).squeeze(2) - logits.logsumexp(2)
    return (-(logprobs - logprobs.detach()).exp() * weights).sum()


class Floor:
    """The sampler and the model of one process, which measure their time."""

    def __init__(self, config: TrainConfig):
        self.config, self.rank, self.world = config, dist.get_rank(), dist.get_world_size()
        folder, dtype = model_folder(config.data.model), config.hardware.dtype
        longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
        self.tokenizer = prepare_tokenizer(config, folder, longest)
        problems, _ = load_sources(config.data.train_data, config.columns)
        longest_prompt = config.sampling.max_prompt_tokens
        self.problems, self.prompts = encode_problems(problems, self.tokenizer, longest_prompt)
        self.llm = LLM(
            str(folder),
            dtype=dtype,
            max_model_len=longest,
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=32,
            distributed_executor_backend="external_launcher",
            use_tqdm_on_load=False,
        )
        self.grader = Grader(config.data.rewards, grader=config.data.grader)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        logits = longest * self.model.config.vocab_size  # of an answer, at most
        sizes = MICRO_BATCHES[config.preset]
        self.sizes = [size for size in sizes if size * logits <= MOST_LOGITS] or sizes[:1]
        self.masters = [parameter.detach().float() for parameter in self.model.parameters()]
        # With lr 0 a step takes its usual time and changes nothing, so both losses see the same
        # weights.
        self.optimizer = torch.optim.AdamW(self.masters, lr=0.0, weight_decay=0.0, fused=True)
        self.difference = 0.0
        """Relative difference of the gradient norms with and without shared prompts."""

    def generate(self, step: int) -> tuple[float, list[Row], int]:
        """Sample the answers of `step`. Return seconds, all processes' answers with a gradient,
        the number of all.
        """
        sampling, batch = self.config.sampling, self.config.batch
        n, m = batch.questions_per_step, batch.samples_per_question
        questions, _ = questions_at(len(self.problems), n, step * n, sampling.seed)
        mine = np.split(questions, self.world)[self.rank]
        requests = [{"prompt_token_ids": self.prompts[q]} for q in mine]
        params = SamplingParams(
            n=m,
            temperature=sampling.temperature,
            max_tokens=sampling.max_answer_tokens,
            stop_token_ids=stop_token_ids(self.tokenizer),
            detokenize=False,
        )
        self.llm.reset_prefix_cache()
        seconds, outputs = timed(partial(self.llm.generate, requests, params, use_tqdm=False))
        answers = [[list(answer.token_ids) for answer in output.outputs] for output in outputs]
        texts = self.tokenizer.batch_decode(
            [ids for group in answers for ids in group], skip_special_tokens=True
        )
        references = [self.problems[q].answer for q in mine for _ in range(m)]
        rewards = self.grader(texts, references).rewards.reshape(len(mine), m, -1)
        parts = gather(([self.prompts[q] for q in mine], answers, rewards))
        advantages = compute_advantages(
            Method("bnpo"), np.concatenate([part[2] for part in parts])
        ).values
        groups = [
            group for prompts, answers, _ in parts for group in zip(prompts, answers, strict=True)
        ]
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
        lengths = [len(prompt) + len(answer) for prompt, answer, _ in rows]
        self.padded = [rows[i] for i in share_out(lengths, self.world)[self.rank]]
        work = {whole: self.padded}
        groups = [list(group) for _, group in groupby(rows, key=lambda row: row[0])]
        lengths = [
            len(group[0][0]) + sum(len(answer) for _, answer, _ in group) for group in groups
        ]
        work[shared] = [row for i in share_out(lengths, self.world)[self.rank] for row in groups[i]]
        seconds, norms = {}, {}
        for loss, of_loss in sizes.items():
            for size in of_loss:
                update = partial(self._update, loss, work[loss], size, answers)
                seconds[loss, size], norms[loss] = timed(update)
        self.difference = abs(norms[shared] - norms[whole]) / max(norms[whole], 1e-12)
        return seconds

    def _update(self, loss: Callable, rows: list[Row], size: int, answers: int) -> float:
        """Do one update, and return its gradient norm."""
        for begin in range(0, len(rows), size):
            loss(self.model, rows[begin : begin + size], answers).backward()
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()
        ]
        flat = torch.cat([gradient.float().ravel() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([master.numel() for master in self.masters])
        for parameter, master, part in zip(
            self.model.parameters(), self.masters, parts, strict=True
        ):
            parameter.grad, master.grad = None, part.view_as(master)
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.config.update.max_grad_norm)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
                parameter.copy_(master)
        return float(norm)

    def gflops(self, size: int, seconds: float) -> float:
        """Return 10^9 operations per second of all processes in the last update on padded rows.

        Padding counts, since it is computed.
        """
        lengths = [len(prompt) + len(answer) for prompt, answer, _ in self.padded]
        parts = [lengths[begin : begin + size] for begin in range(0, len(lengths), size)]
        tokens = sum(gather(sum(len(part) * max(part) for part in parts)))
        pairs = sum(gather(sum(len(part) * max(part) ** 2 for part in parts)))
        shape = self.model.config
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        if not shape.tie_word_embeddings:  # the embedding is then only a look-up table
            parameters -= self.model.get_input_embeddings().weight.numel()
        operations = 6 * (parameters * tokens + shape.num_hidden_layers * shape.hidden_size * pairs)
        return operations / seconds / 1e9


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")]
    steps, warm_up = map(int, arguments[:2])
    config, _ = parse_train_config(arguments[2:], has_cuda=False)
    dist.init_process_group("gloo")
    floor, generate, trials, train, gflops = Floor(config), [], [], [], []

    def fastest_size(loss: Callable) -> int:
        """Return the fastest micro-batch size by the trials after the first one, the same for
        all processes.
        """
        medians = {
            size: statistics.median(trial[loss, size] for trial in trials[1:] or trials)
            for size in floor.sizes
        }
        return gather(min(medians, key=medians.get))[0]

    for step in range(warm_up + steps):
        seconds, rows, answers = floor.generate(step)
        if step < warm_up:
            trials.append(floor.train(rows, answers, dict.fromkeys((whole, shared), floor.sizes)))
            fastest = {loss: fastest_size(loss) for loss in (whole, shared)}
        else:
            generate.append(seconds)
            train.append(
                floor.train(rows, answers, {loss: [size] for loss, size in fastest.items()})
            )
            gflops.append(floor.gflops(fastest[whole], train[-1][whole, fastest[whole]]))
    if floor.rank == 0:
        result = {"gradient_difference": floor.difference, "gflops": gflops, "generate": generate}
        for loss, name in ((whole, "train"), (shared, "train_shared")):
            result[f"{name}_answers"] = fastest[loss]
            result[name] = [seconds[loss, fastest[loss]] for seconds in train]
        print("FLOOR " + json.dumps(result), flush=True)
    floor.grader.close()
    sys.stdout.flush()
    os._exit(0)  # saves the seconds that vLLM and torch.distributed need to end


if __name__ == "__main__":
    main()
