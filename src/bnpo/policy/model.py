"""The policy: a causal language model that gives log-probabilities in place of logits."""

import torch
import torch.nn.functional as F
from accelerate import init_empty_weights

from bnpo.algorithm.batching import MicroBatch
from bnpo.algorithm.loss import token_logprobs


class LogprobHead(torch.nn.Module):
    """The language model's head with the log-probabilities on top, as one module that owns the weight.

    Under ZeRO-3 every module call gathers the module's weights, which all ranks must do equally often. The number of
    chunks depends on a rank's answers, so the chunks may not be calls of a module: the weight is gathered once, here.
    """

    def __init__(self, weight: torch.nn.Parameter, vocab_size: int):
        super().__init__()
        self.weight = weight
        self.vocab_size = vocab_size

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, with_entropy: bool):
        return token_logprobs(hidden, self.weight, targets, self.vocab_size, temperature, with_entropy=with_entropy)


class Policy(torch.nn.Module):
    """A causal language model that maps answers to their log-probabilities, so that logits never leave it."""

    def __init__(self, model: torch.nn.Module, vocab_size: int, temperature: float):
        super().__init__()
        self.model = model
        self.head = LogprobHead(model.get_output_embeddings().weight, vocab_size)
        self.temperature = temperature

    def forward(self, batch: MicroBatch, temperature: float | None = None, with_entropy: bool = False):
        """Log-probabilities [answer tokens] of the answers in `batch`, and on demand the entropies there (or None)."""
        hidden = self.model.base_model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            use_cache=False,
            sequences=batch.sequences,
        ).last_hidden_state[0]
        return self.head(
            F.embedding(batch.predicting, hidden),
            batch.targets,
            self.temperature if temperature is None else temperature,
            with_entropy,
        )


def compute_buffers_again(model: torch.nn.Module) -> None:
    """Give `model` the computed buffers (rotary frequencies and their like) that its class makes by itself.

    While DeepSpeed partitions a bf16 model as it is loaded, every tensor that is made is rounded to bf16, the exact
    buffers of transformers' models too (DeepSpeed issue 4932): frequencies that are off by 0.4 % turn a head of size
    128 by a wrong radian at distance 1,000. Buffers that a checkpoint holds are left as they were loaded.
    """
    with init_empty_weights():  # parameters without memory, buffers with their values
        exact = type(model)(model.config)
    stored = set(exact.state_dict())
    for name, buffer in exact.named_buffers():
        if name not in stored:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, buffer.to(model.get_buffer(name).device))
