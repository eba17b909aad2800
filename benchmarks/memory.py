"""Measure the memory of the log-probabilities of 4,096 answer tokens with Qwen2.5's vocabulary, chunked and naive.

    python benchmarks/memory.py

Each way runs forward and backward in a separate process. Its memory is the peak minus the memory of the inputs. Rows:

- naive_logits_bytes, chunked_logits_bytes: this memory
- logits_memory_ratio, logits_seconds_ratio: chunked over naive
- logits_gradient_error: the larger relative difference, by norm, of the two gradients
"""

import multiprocessing
import resource
import time

from common import row

from bnpo.environment import setup_environment

setup_environment()

import torch

from bnpo.algorithm.loss import token_logprobs

VOCABULARY, TOKENS, HIDDEN = 151936, 4096, 256


def measure(chunked: bool, results: multiprocessing.Queue) -> None:
    """Put bytes, seconds and the gradients of the hidden states and of the head into `results`."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weight = (torch.randn(VOCABULARY, HIDDEN) / HIDDEN**0.5).requires_grad_()
    targets, upstream = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    if chunked:
        logprobs, _ = token_logprobs(hidden, weight, targets, VOCABULARY, 1.0)
    else:
        logprobs = torch.log_softmax(hidden @ weight.t(), -1).gather(1, targets[:, None]).squeeze(1)
    (logprobs * upstream).sum().backward()
    seconds = time.perf_counter() - started
    extra = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    results.put((extra, seconds, hidden.grad.numpy(), weight.grad.numpy()))


def main() -> None:
    context = multiprocessing.get_context("spawn")
    results, found = context.Queue(), []
    for chunked in (False, True):
        process = context.Process(target=measure, args=(chunked, results))
        process.start()
        found.append(results.get())
        process.join()
    (naive, naive_seconds, *theirs), (ours, our_seconds, *gradients) = found
    row("naive_logits_bytes", naive)
    row("chunked_logits_bytes", ours)
    row("logits_memory_ratio", ours / naive)
    errors = [
        torch.dist(torch.from_numpy(a), torch.from_numpy(b)) / torch.from_numpy(b).norm()
        for a, b in zip(gradients, theirs, strict=True)
    ]
    row("logits_gradient_error", max(errors))
    row("logits_seconds_ratio", our_seconds / naive_seconds)


if __name__ == "__main__":
    main()
