"""The policy's model: a causal language model that returns log-probabilities in place of logits."""

import torch
import torch.nn.functional as F
from accelerate import init_empty_weights

from bnpo.algorithm.batching import MicroBatch
from bnpo.algorithm.loss import token_logprobs


class LogprobHead(torch.nn.Module):
    """The language model's head and the log-probabilities, as one module that owns the weight.

    Under ZeRO-3 every call of a module gathers its weights, so all ranks must make equally many calls. The number of
    chunks of logits depends on a rank's answers. So chunks are no module calls: the weight is gathered once, here.
    """

    def __init__(self, weight: torch.nn.Parameter, vocab_size: int):
        super().__init__()
        self.weight = weight
        self.vocab_size = vocab_size

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, with_entropy: bool):
        return token_logprobs(hidden, self.weight, targets, self.vocab_size, temperature, with_entropy=with_entropy)


class Policy(torch.nn.Module):
    """A causal language model that maps answers to their log-probabilities. Logits never leave it."""

    def __init__(self, model: torch.nn.Module, vocab_size: int, temperature: float):
        super().__init__()
        self.model = model
        self.head = LogprobHead(model.get_output_embeddings().weight, vocab_size)
        self.temperature = temperature

    def forward(self, batch: MicroBatch, temperature: float | None = None, with_entropy: bool = False):
        """Return log-probabilities [answer tokens] of the answers in `batch`, and the entropies there or None."""
        hidden = self.model.base_model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            use_cache=False,
            sequences=batch.sequences,
        ).last_hidden_state[0]  # [tokens, hidden size]
        hidden_before_targets = F.embedding(batch.predicting, hidden)  # [answer tokens, hidden size]
        if temperature is None:
            temperature = self.temperature
        return self.head(hidden_before_targets, batch.targets, temperature, with_entropy)


def compute_buffers_again(model: torch.nn.Module) -> None:
    """Replace computed buffers of `model`, such as rotary frequencies, by those that its class computes by itself.

    While DeepSpeed partitions a bf16 model as it is loaded, it rounds every new tensor to bf16, also the buffers that
    transformers computes in fp32 (DeepSpeed issue 4932). Frequencies that are off by 0.4 % turn a head of size 128 by a
    wrong radian at distance 1,000. Buffers that a checkpoint holds stay as they were loaded.
    """
    with init_empty_weights():  # parameters without memory, buffers with their values
        exact = type(model)(model.config)
    stored = set(exact.state_dict())
    for name, buffer in exact.named_buffers():
        if name not in stored:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, buffer.to(model.get_buffer(name).device))
