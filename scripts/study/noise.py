"""How noisy each estimator's gradient is: signal and noise of all of them from the same sampled answers.

With binary rewards every estimator here is, question by question, a weighting of the same two vectors: S+ and S-, the
sums of the score functions (gradients of the log-probability) of its right and of its wrong answers. They are kept
once, in a count sketch, which keeps inner products without bias; the gradient of any batch by any estimator is a sum of
them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

BATCH = 32
"""Questions of a batch, as in the paper."""
PARTITIONS = 8
"""Ways in which the questions of a block are cut into batches."""
BLOCKS = 17
"""Parts of the questions, of which the jackknife leaves one out at a time."""


class Sketch:
    """A count sketch (Charikar et al. 2002) of vectors of `size` numbers: each goes to a bucket at random, with a
    random sign. <sketch(x), sketch(y)> has mean <x, y> and variance at most 2 |x|^2 |y|^2 / `buckets`."""

    def __init__(self, size: int, buckets: int = 4096, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self._bucket = torch.randint(buckets, (size,), generator=generator)
        self._sign = torch.randint(2, (size,), generator=generator) * 2.0 - 1
        self._buckets = buckets

    def __call__(self, vector: torch.Tensor) -> np.ndarray:
        return torch.zeros(self._buckets).index_add_(0, self._bucket, vector * self._sign).numpy()


def score_sums(
    model: torch.nn.Module, sketch: Sketch, prompt: Sequence[int], answers: Sequence[Sequence[int]], right: np.ndarray
) -> np.ndarray:
    """Sketches [2, buckets] of S+ and S-: gradients of the summed log-probabilities of the answers where `right` [m] is
    1, and of the others."""
    longest = max(map(len, answers))
    ids = torch.tensor([[*prompt, *answer, *[0] * (longest - len(answer))] for answer in answers])
    logprobs = model(input_ids=ids).logits[:, len(prompt) - 1 : -1].log_softmax(-1)
    taken = logprobs.gather(2, ids[:, len(prompt) :, None])[:, :, 0]
    lengths = torch.tensor([len(answer) for answer in answers])
    sums = (taken * (torch.arange(longest) < lengths[:, None])).sum(1)  # [m]
    parameters = list(model.parameters())
    sketches = np.zeros((2, sketch(torch.zeros(sum(p.numel() for p in parameters))).size))
    for place, chosen in enumerate((right == 1, right == 0)):
        if chosen.any():
            gradients = torch.autograd.grad(sums[torch.tensor(chosen)].sum(), parameters, retain_graph=True)
            sketches[place] = sketch(torch.cat([gradient.flatten() for gradient in gradients]))
    return sketches


def batch_gradients(
    advantages: Callable[[np.ndarray], np.ndarray], rewards: np.ndarray, sums: np.ndarray, batches: np.ndarray
) -> np.ndarray:
    """Sketched gradients [batches, buckets] by one estimator, mean over the answers of a batch.

    `advantages(questions)` [BATCH, m] is the estimator on the questions of one batch; rewards [N, m]; sums
    [N, 2, buckets]; batches [batches, BATCH] are indices of questions. An estimator gives all right answers of a
    question the same advantage, and all wrong ones: that of their first stands for all.
    """
    gradients = np.empty((len(batches), sums.shape[2]))
    for row, questions in enumerate(batches):
        values, right = advantages(questions), rewards[questions] == 1
        of_right = np.where(right.any(1), values[np.arange(len(values)), right.argmax(1)], 0)
        of_wrong = np.where(right.all(1), 0, values[np.arange(len(values)), right.argmin(1)])
        weights = np.stack([of_right, of_wrong], axis=1) / values.size
        gradients[row] = np.einsum("qs,qsb->b", weights, sums[questions])
    return gradients


def signal_and_noise(gradients: np.ndarray) -> tuple[float, float]:
    """|E g|^2 and tr Cov(g), unbiased, from independent g [batches, buckets]: products of different ones have the mean
    |E g|^2, squares |E g|^2 + tr Cov(g)."""
    number = len(gradients)
    squares = (gradients**2).sum(1).sum()
    signal = ((gradients.sum(0) ** 2).sum() - squares) / (number * (number - 1))
    return float(signal), float(squares / number - signal)


def sample_gradients(
    advantages: Callable[[np.ndarray], np.ndarray], rewards: np.ndarray, sums: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Sketched gradients [PARTITIONS, BLOCKS, batches, buckets] of batches of BATCH of the N questions of rewards
    [N, m]. Methods measured with one seed share their batches.

    The batches of a partition have no question in common: as the questions are draws from their distribution, they are
    independent.
    """
    rng = np.random.default_rng(seed)
    size = len(rewards) // BLOCKS // BATCH * BATCH
    blocks = rng.permutation(len(rewards))[: BLOCKS * size].reshape(BLOCKS, size)
    batches = np.stack([rng.permuted(blocks, axis=1) for _ in range(PARTITIONS)])
    gradients = batch_gradients(advantages, rewards, sums, batches.reshape(-1, BATCH))
    return gradients.reshape(PARTITIONS, BLOCKS, -1, sums.shape[2])


def measure(gradients: np.ndarray) -> np.ndarray:
    """Signal |E g|^2, noise tr Cov(g) and their ratio [1 + BLOCKS, 3] from what `sample_gradients` gives: from all
    blocks, then without each of them."""
    estimates = []
    for left_out in (None, *range(BLOCKS)):
        kept = [block for block in range(BLOCKS) if block != left_out]
        parts = [signal_and_noise(partition[kept].reshape(-1, gradients.shape[3])) for partition in gradients]
        signal, noise = np.mean(parts, axis=0)
        estimates.append((signal, noise, signal / noise))
    return np.array(estimates)


def likeness(first: np.ndarray, second: np.ndarray) -> float:
    """The mean cosine between two estimators' gradients of the same batches [..., buckets]."""
    products = (first * second).sum(-1)
    return float((products / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)).mean())


def standard_error(without: np.ndarray) -> np.ndarray:
    """The jackknife's standard error over questions, from estimates without each block [BLOCKS, ...]. The error of the
    sketch, which all methods share, is not in it."""
    return np.sqrt((len(without) - 1) * without.var(axis=0))
