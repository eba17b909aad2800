"""The policy under DeepSpeed ZeRO-3, and one update of it on a batch of answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils import set_z3_leaf_modules
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig

from bnpo.algorithm.aggregation import token_weights
from bnpo.algorithm.batching import Lengths, MicroBatch, collate, plan_micro_batches
from bnpo.algorithm.loss import Surrogate, clipped_surrogate, importance_weights
from bnpo.config import TrainConfig
from bnpo.policy.attention import ATTENTION
from bnpo.policy.model import Policy, compute_buffers_again
from bnpo.speed import update_operations


@dataclass(frozen=True)
class Experience:
    """The answers of one step from all ranks, in the order question by question; N = questions x answers.

    prompts, answers: N lists of token ids; sampler_logprobs: N arrays [tokens]; advantages [N].
    """

    prompts: list[list[int]]
    answers: list[list[int]]
    sampler_logprobs: list[np.ndarray]
    advantages: np.ndarray


class Learner:
    """Owns the weights and the optimizer. Every method but `model` is a collective: call it on all ranks.

    `model_folder` is a Hugging Face folder; ids from `vocab_size` on are never predicted. `universal` is for `load`.
    """

    def __init__(self, model_folder: str, vocab_size: int, config: TrainConfig, *, universal: bool = False):
        self.config = config
        # Nothing to compile: DeepSpeed would build a collective for inference on CPUs in a folder that all programs
        # share, behind a lock file. One that is killed leaves it there, and every later one waits for ever.
        deepspeed.ops.__compatible_ops__ = {}
        settings = deepspeed_settings(config) | {"checkpoint": {"load_universal": universal}}
        # While this object lives, from_pretrained partitions each layer as it is made: no rank holds the whole model.
        self._zero3_loading = HfDeepSpeedConfig(settings)
        model = AutoModelForCausalLM.from_pretrained(
            model_folder, dtype=getattr(torch, config.hardware.dtype), attn_implementation=ATTENTION
        )
        compute_buffers_again(model)
        settings["zero_optimization"]["stage3_prefetch_bucket_size"] = prefetch_bucket(largest_layer(model))
        # A layer's parameters are gathered at once: a hook for each of its ten modules costs more than it saves.
        set_z3_leaf_modules(model, model._no_split_modules)
        if config.hardware.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        policy = Policy(model, vocab_size, config.sampling.temperature)
        self._engine, *_ = deepspeed.initialize(model=policy, model_parameters=policy.parameters(), config=settings)
        self._engine.train()
        self.old_logprobs: dict[int, np.ndarray] = {}
        """Log-probabilities [tokens], before the last update, of the answers that this rank passed in it, by their
        places in the experience."""

    @property
    def model(self) -> torch.nn.Module:
        """The Hugging Face model, its parameters partitioned over the ranks."""
        return self._engine.module.model

    def save(self, folder: Path) -> None:
        """Write optimizer, fp32 weights and random state to <folder>/zero, every rank its own part."""
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state()
        self._engine.save_checkpoint(str(folder), "zero", client_state={"random_states": states}, save_latest=False)

    def load(self, folder: Path) -> None:
        """Take up what as many ranks have written with `save`; if this object is `universal`, what DeepSpeed has
        converted from it to <folder>/universal, whatever the number of ranks."""
        universal = self._engine.load_universal_checkpoint()
        _, client_state = self._engine.load_checkpoint(str(folder), "universal" if universal else "zero")
        if universal:
            # DeepSpeed gives all parts of the optimizer (of 10^9 parameters each) one counter, and AdamW would add to
            # it once for every part.
            for state in self._engine.optimizer.optimizer.state.values():
                state["step"] = torch.as_tensor(state["step"]).clone()
        states = client_state["random_states"]
        torch.set_rng_state(states["cpu"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])

    def score(self, prompt: list[int], answer: list[int]) -> np.ndarray:
        """Log-probabilities [tokens] of the given answer at temperature 1; every rank may score its own."""
        batch = collate([prompt], [answer], np.array([0]), self._engine.device)
        # Without a backward pass DeepSpeed could leave weights half fetched for the next one, and they could not be
        # gathered. It fetches none ahead as long as max_live_parameters, which whole layers and head fill, is at most
        # max_reuse_distance.
        with torch.no_grad():
            return self._engine(batch, temperature=1.0)[0].double().cpu().numpy()

    def update(self, experience: Experience, lr: float) -> dict[str, float]:
        """`ppo_iterations` passes over the answers in `mini_batches` updates each; returns metrics of all ranks.

        Answers whose advantage is exactly 0 add nothing to the gradient and are left out of the passes; they still
        count in the means of the loss. An update whose loss or gradient norm is not finite is skipped, on all ranks,
        and counted in `updates/skipped`; `grad_norm` is the mean of the others (nan: there are none).
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        mini_batches = np.split(np.arange(len(experience.answers)), self.config.batch.mini_batches)
        totals = Totals(self._engine.device)
        # The first update's pass sees the policy that sampled, so its own log-probabilities are the old ones. It moves
        # the policy before the other mini-batches are first seen: these need a pass beforehand.
        self.old_logprobs = old = {}
        for mini_batch in mini_batches[1:]:
            for micro in self._micro_batches(experience, mini_batch):
                with torch.no_grad():
                    self._remember(old, micro, self._engine(micro)[0])
        norms: list[float] = []
        for _ in range(self.config.batch.ppo_iterations):
            for mini_batch in mini_batches:
                self._accumulate(experience, mini_batch, old, totals)
                # Where the gradient norm is not finite, DeepSpeed leaves weights and optimizer as they are.
                self._engine.step()
                if self._engine.was_step_applied():
                    norms.append(float(self._engine.get_global_grad_norm()))
        updates = self.config.batch.ppo_iterations * self.config.batch.mini_batches
        metrics = {
            "grad_norm": float(np.mean(norms)) if norms else np.nan,
            "lr": lr,
            "updates/skipped": updates - len(norms),
            "update/tflop": self._flops(experience) / 1e12,
        }
        return totals.metrics(updates, self.config.logging.exact_entropy) | metrics

    def _flops(self, experience: Experience) -> float:
        """Operations of the forward and backward passes of an update: 6 for every parameter and token, and causal
        attention (Chowdhery et al. 2022, appendix B). What is computed twice to save memory, or because a group is cut,
        does not count: every prompt passes once."""
        trained = experience.advantages.nonzero()[0]
        prompts, answers = ([part[i] for i in trained] for part in (experience.prompts, experience.answers))
        lengths = Lengths.of(prompts, answers)
        first = np.unique(lengths.groups, return_index=True)[1]
        tokens = float(lengths.prompts[first].sum() + lengths.answers.sum())
        after_prompts = (lengths.answers * (lengths.answers + 2 * lengths.prompts)).sum()
        pairs = float((lengths.prompts[first] ** 2).sum() + after_prompts)
        model = self.model
        parameters = sum(parameter.ds_numel for parameter in model.parameters())
        if not model.config.tie_word_embeddings:  # then the embedding is a table that is only looked up
            parameters -= model.get_input_embeddings().weight.ds_numel
        layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
        return self.config.batch.ppo_iterations * update_operations(parameters, layers, hidden, tokens, pairs)

    def _micro_batches(self, experience: Experience, mini_batch: np.ndarray) -> Iterator[MicroBatch]:
        """This rank's micro-batches of the answers in `mini_batch` that have a gradient."""
        trained = mini_batch[experience.advantages[mini_batch] != 0]
        prompts, answers = ([part[i] for i in trained] for part in (experience.prompts, experience.answers))
        lengths = Lengths.of(prompts, answers)
        parts = plan_micro_batches(lengths, dist.get_world_size(), self.config.hardware.micro_batch_tokens)
        for part in parts[dist.get_rank()]:
            yield collate(experience.prompts, experience.answers, trained[part], self._engine.device)

    def _accumulate(
        self, experience: Experience, mini_batch: np.ndarray, old: dict[int, np.ndarray], totals: "Totals"
    ) -> None:
        """Add up the gradient of the loss over `mini_batch`, micro-batch by micro-batch. Answers without old
        log-probabilities take those of this pass."""
        lengths = np.array([len(experience.answers[i]) for i in mini_batch])
        weights = np.zeros(len(experience.answers))
        weights[mini_batch] = token_weights(
            lengths, self.config.update.aggregation, self.config.sampling.max_answer_tokens
        )
        micro_batches = list(self._micro_batches(experience, mini_batch))
        for number, micro in enumerate(micro_batches, 1):
            self._engine.set_gradient_accumulation_boundary(number == len(micro_batches))
            logprobs, entropy = self._engine(micro, with_entropy=self.config.logging.exact_entropy)
            if len(micro.indices) and micro.indices[0] not in old:
                self._remember(old, micro, logprobs.detach())
            old_logprobs = micro.flat(old)
            sampler_logprobs = micro.flat(experience.sampler_logprobs)
            token_weight = micro.flat(weights)
            if self.config.update.importance_cap is not None:
                token_weight *= importance_weights(old_logprobs, sampler_logprobs, self.config.update.importance_cap)
            surrogate = clipped_surrogate(
                logprobs,
                old_logprobs,
                micro.flat(experience.advantages),
                token_weight,
                self.config.update.clip_low,
                self.config.update.clip_high,
            )
            # 1, or nan where the loss is not finite: its gradient might be, and the update must be skipped.
            finite = 1 + 0 * surrogate.loss.detach()
            # DeepSpeed averages gradients over ranks; the loss is a sum over them.
            self._engine.backward(surrogate.loss * finite * dist.get_world_size())
            if len(micro.indices):
                totals.add(surrogate, entropy, old_logprobs, sampler_logprobs)

    @staticmethod
    def _remember(old: dict[int, np.ndarray], micro: MicroBatch, logprobs: torch.Tensor) -> None:
        for index, part in zip(
            micro.indices, np.split(logprobs.cpu().numpy(), micro.lengths.cumsum()[:-1]), strict=False
        ):
            old[int(index)] = part


class Totals:
    """Sums over the tokens of an update, kept on the device until the end: one transfer, one collective."""

    def __init__(self, device: torch.device):
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)

    def add(
        self,
        surrogate: Surrogate,
        entropy: torch.Tensor | None,
        old_logprobs: torch.Tensor,
        sampler_logprobs: torch.Tensor,
    ) -> None:
        gap = (old_logprobs - sampler_logprobs).abs()
        self._sums += torch.stack(
            [
                torch.tensor(float(len(gap)), device=gap.device, dtype=torch.float64),
                surrogate.loss.detach().double(),
                surrogate.clipped_low.double(),
                surrogate.clipped_high.double(),
                gap.double().sum(),
                gap.new_zeros((), dtype=torch.float64) if entropy is None else entropy.double().sum(),
            ]
        )
        self._largest = torch.maximum(self._largest, gap.max().double())

    def metrics(self, updates: int, with_entropy: bool) -> dict[str, float]:
        """The mean loss of the updates, and means over the tokens of all ranks, where any was trained on."""
        dist.all_reduce(self._sums)
        dist.all_reduce(self._largest, op=dist.ReduceOp.MAX)
        tokens, loss, low, high, gap, entropy = self._sums.tolist()
        metrics = {"loss": loss / updates, "tokens/trained": tokens}
        if tokens:
            metrics |= {
                "clipped_low": low / tokens,
                "clipped_high": high / tokens,
                "sampler_learner_gap_mean": gap / tokens,
                "sampler_learner_gap_max": float(self._largest),
            }
            if with_entropy:
                metrics["entropy_trained"] = entropy / tokens
        return metrics


def largest_layer(model: torch.nn.Module) -> int:
    """Elements of the largest of the repeated blocks of a Hugging Face model, partitioned or whole."""
    layers = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    return max(sum(getattr(p, "ds_numel", p.numel()) for p in layer.parameters()) for layer in layers)


def prefetch_bucket(layer: int) -> int:
    """Elements gathered ahead of their use: a whole layer of `layer` elements, DeepSpeed's default at least."""
    return max(layer, DeepSpeedZeroConfig(stage=3).prefetch_bucket_size)


def deepspeed_settings(config: TrainConfig) -> dict:
    """DeepSpeed's configuration of ZeRO-3 with AdamW."""
    return {
        # Micro-batches differ in size and number: the learner says itself which one is the last of an update.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 3}
        | ({"offload_optimizer": {"device": "cpu"}} if config.hardware.offload_optimizer else {}),
        # With offloading too: one AdamW, torch's.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.hardware.dtype == "bfloat16"},
        # In fp32 from one micro-batch to the next and from rank to rank: bf16 would round every partial sum.
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "gradient_clipping": config.update.max_grad_norm,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.update.lr,
                "betas": list(config.update.betas),
                "weight_decay": config.update.weight_decay,
                "torch_adam": True,
            },
        },
        "steps_per_print": 10**9,
    }
