"""The policy under DeepSpeed ZeRO-3, and one update of it on a batch of answers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils import set_z3_leaf_module
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig

from bnpo.algorithm.batching import MicroBatch, collate, plan_micro_batches, training_text
from bnpo.algorithm.loss import clipped_surrogate, importance_weights, token_weights
from bnpo.batch import Batch
from bnpo.config import TrainConfig
from bnpo.files import InputError, line_of
from bnpo.policy import patches
from bnpo.policy.folder import COPY_AGAIN, check_finite, refused_by
from bnpo.policy.lora import add_adapter
from bnpo.policy.model import ATTENTION, Policy, elements, layers
from bnpo.ranks import gather

SUMS = ("tokens", "loss", "clipped_low", "clipped_high", "gap", "outside")
TOKEN_STATISTICS = (*SUMS, "gap_max")
"""Of the trained tokens of a micro-batch: six sums and a maximum. A gap is |learner's - sampler's
log-probability|. Outside are those whose ratio of the two probabilities differs from 1 by more than
RATIO_BAND."""
RATIO_BAND = 0.1
REDUCE_BUCKET = 50_000_000
"""Elements of gradients that are reduced together, in fp32. DeepSpeed's default takes 2 GB."""


@dataclass(frozen=True)
class Update:
    """What `Learner.update` has done."""

    metrics: dict[str, float]  # equal on all ranks
    # By the index of each answer that this rank trained on: [tokens], before the first update
    old_logprobs: dict[int, np.ndarray]
    seconds: float


class Learner:
    """Owns the weights and the optimizer. Every public method is a collective: all ranks must call
    it together.

    `model_folder` is a Hugging Face folder. Token ids >= `vocab_size` are padding of the embedding
    and are never predicted. If `universal` is true, `load` reads DeepSpeed's conversion for any
    number of ranks. With `trains=False` it can only score, and needs a fraction of the memory.
    """

    def __init__(
        self,
        model_folder: str,
        vocab_size: int,
        config: TrainConfig,
        *,
        universal=False,
        trains=True,
    ):
        self._config = config
        self.trains_adapter = config.update.lora_rank is not None  # else all weights
        patches.skip_op_compilation()
        settings = deepspeed_settings(config) | {"checkpoint": {"load_universal": universal}}
        if not trains:
            del settings["optimizer"]
        # While this object lives, from_pretrained partitions each layer as it is made. Left alive,
        # it would partition all later models of this process, also vLLM's.
        zero3_loading = HfDeepSpeedConfig(settings)
        dtype = getattr(torch, config.hardware.dtype)
        with refused_by("transformers", model_folder):
            model, report = AutoModelForCausalLM.from_pretrained(
                model_folder, dtype=dtype, attn_implementation=ATTENTION, output_loading_info=True
            )
        del zero3_loading
        _check_loaded(model, Path(model_folder), report["missing_keys"])
        patches.compute_buffers_again(model)  # rotary frequencies, which loading rounds to bf16
        patches.keep_uncompiled(model)
        if config.update.lora_rank:
            add_adapter(model, model_folder, config)
        patches.switch_off_dropout(model)
        zero = settings["zero_optimization"]
        # Let ZeRO-3 gather and prefetch each layer as a whole, not one small module after the other
        least = DeepSpeedZeroConfig(stage=3).prefetch_bucket_size
        zero["stage3_prefetch_bucket_size"] = max(least, *map(elements, layers(model)))
        for layer in layers(model):
            set_z3_leaf_module(layer, True)
        if config.hardware.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        policy = Policy(model, vocab_size)
        trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        if config.update.lora_rank:  # DeepSpeed allocates a whole bucket
            adapter = sum(parameter.numel() for parameter in trainable)
            zero["reduce_bucket_size"] = min(REDUCE_BUCKET, adapter)
        self._engine, *_ = deepspeed.initialize(
            model=policy, model_parameters=trainable, config=settings
        )
        self._engine.train()
        self.device = self._engine.device
        self.policy: Policy = self._engine.module  # partitioned over the ranks
        self.model = self.policy.model  # the Hugging Face model in it
        if trains:
            patches.create_moments(self._engine.optimizer)

    def save(self, folder: Path) -> None:
        """Write optimizer and fp32 weights to <folder>/zero, every rank its own part."""
        # Without the parameters that LoRA freezes: they are the base model's.
        self._engine.save_checkpoint(
            str(folder), "zero", save_latest=False, exclude_frozen_parameters=True
        )

    def load(self, folder: Path) -> None:
        """Read what `save` has written or, if `universal`, <folder>/universal. Raises InputError
        for damage.
        """
        # Otherwise memory would hold two sets of moments during loading
        self._engine.optimizer.optimizer.state.clear()
        universal = self._engine.load_universal_checkpoint()
        tag = "universal" if universal else "zero"
        whole = not self._config.update.lora_rank
        cure = f"Delete {folder.parent}; --resume then continues from the checkpoint before it"
        try:
            loaded, _ = self._engine.load_checkpoint(str(folder), tag, load_module_strict=whole)
        except (EOFError, OSError, RuntimeError, UnpicklingError) as error:
            raise InputError(f"{folder / tag}: is damaged ({line_of(error)}). {cure}") from error
        if loaded is None:  # DeepSpeed only warns
            raise InputError(f"{folder / tag}: is no trainer state of this run. {cure}")
        if universal:
            patches.separate_step_counters(self._engine.optimizer.optimizer)
        # DeepSpeed has loaded the checkpoint's settings. Those of this start may differ
        # (--allow-changes).
        update = self._config.update
        for group in self._engine.optimizer.param_groups:
            group |= {"weight_decay": update.weight_decay, "betas": tuple(update.betas)}
        if self._config.hardware.dtype == "float16":
            self._engine.optimizer.loss_scaler.cur_scale = self._config.hardware.loss_scale

    @contextmanager
    def forward_only(self) -> Iterator[None]:
        """Make the passes in this context without gradients, and partition all weights after them.

        ZeRO-3 gathers weights ahead, in the order of an earlier training pass. In a pass that has
        no backward part, it therefore gathers layers for that part, and keeps others for it. They
        would stay gathered or, worse, in flight: a sync or a checkpoint that follows would fail.
        """
        with torch.no_grad():
            yield
        self._engine.optimizer.empty_partition_cache()

    def score(self, prompt: list[int], *answers: list[int]) -> np.ndarray:
        """Return log-probabilities [tokens of the answers] of this rank's `answers` after
        `prompt` at temperature 1.
        """
        indices = np.arange(len(answers))
        batch = collate([prompt] * len(answers), answers, indices, self.device)
        with self.forward_only():
            logprobs = self._engine(batch, temperature=1.0)  # [tokens of the answers]
        return logprobs.double().cpu().numpy()

    def _logprobs(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Return the log-probabilities [answer tokens] under the distribution that the sampler
        drew from.
        """
        sampling = self._config.sampling
        return self._engine(micro_batch, sampling.temperature, sampling.top_k)

    def update(self, batch: Batch, advantages: np.ndarray, lr: float) -> Update:
        """Pass over the N = n m answers of the trained groups `ppo_iterations` times, each pass in
        `mini_batches` optimizer updates. `advantages` [q, m] are of all groups.

        Answers whose advantage is exactly 0, failed ones included, have no gradient and are not
        passed through the model. They count in the loss's mean, so that the size of an update does
        not depend on their number. An update with a loss or norm that is not finite is skipped on
        all ranks.
        """
        started = time.perf_counter()
        settings = self._config.batch
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        mini_batches = self._mini_batches(batch, advantages)
        # The old log-probabilities are from before any update. Those of the first mini-batch come
        # from its training pass.
        with self.forward_only():
            for micro_batch in chain(*mini_batches[1:]):
                micro_batch.old_logprobs = self._logprobs(micro_batch)
        statistics: list[torch.Tensor] = []  # see `_accumulate_gradient`
        norms: list[float] = []
        for _ in range(settings.ppo_iterations):
            for micro_batches in mini_batches:
                statistics += self._accumulate_gradient(micro_batches)
                # Where the gradient norm is not finite, DeepSpeed leaves weights and optimizer as
                # they are.
                self._engine.step()
                if self._engine.was_step_applied():
                    norms.append(float(self._engine.get_global_grad_norm()))
        updates = settings.ppo_iterations * settings.mini_batches
        # The statistics are copied from the device only here
        metrics = token_metrics(torch.stack(statistics).tolist() if statistics else [])
        metrics["loss"] /= updates
        metrics["grad_norm"] = float(np.mean(norms)) if norms else np.nan  # before clipping
        metrics["lr"] = lr
        metrics["updates/skipped"] = updates - len(norms)
        old_logprobs: dict[int, np.ndarray] = {}
        for micro_batch in chain(*mini_batches):
            ends = micro_batch.lengths.cumsum()
            by_answer = np.split(micro_batch.old_logprobs.cpu().numpy(), ends[:-1])
            # A filler has one answer, but no index
            old_logprobs |= zip(micro_batch.indices.tolist(), by_answer, strict=False)
        return Update(metrics, old_logprobs, time.perf_counter() - started)

    def _mini_batches(self, batch: Batch, advantages: np.ndarray) -> list[list[MicroBatch]]:
        """Return this rank's micro-batches of each mini-batch, equally many on every rank: all
        answers that have a gradient, with the values that the loss needs.
        """
        config = self._config
        trained = batch.trained_answers  # [N], like all that follows
        prompts = [prompt for prompt, _ in trained]
        answers = [answer.token_ids for _, answer in trained]
        sampler_logprobs = [answer.logprobs for _, answer in trained]
        lengths = batch.lengths[batch.trained_groups].ravel()
        answer_advantages = advantages[batch.trained_groups].ravel()
        mini_batches = []
        for indices in np.split(np.arange(len(answers)), config.batch.mini_batches):
            weights = np.zeros(len(answers))  # in the loss, equal for all tokens of an answer
            weights[indices] = token_weights(
                lengths[indices],
                config.update.aggregation,
                config.sampling.max_answer_tokens,
            )
            with_gradient = indices[answer_advantages[indices] != 0]
            texts = [training_text(prompts[i], answers[i]) for i in with_gradient]
            plan = plan_micro_batches(
                texts, dist.get_world_size(), config.hardware.micro_batch_tokens
            )
            micro_batches = [
                collate(prompts, answers, with_gradient[part], self.device)
                for part in plan[dist.get_rank()]
            ]
            for micro_batch in micro_batches:
                micro_batch.advantages = micro_batch.per_token(answer_advantages)
                micro_batch.weights = micro_batch.per_token(weights)
                micro_batch.sampler_logprobs = micro_batch.per_token(sampler_logprobs)
            mini_batches.append(micro_batches)
        return mini_batches

    def _accumulate_gradient(self, micro_batches: list[MicroBatch]) -> list[torch.Tensor]:
        """Accumulate the gradient of the loss over a mini-batch. Return the TOKEN_STATISTICS of
        each micro-batch, [7] in float64 on the device, and keep its first log-probabilities.
        """
        update = self._config.update
        statistics = []
        for i, micro_batch in enumerate(micro_batches):
            self._engine.set_gradient_accumulation_boundary(i == len(micro_batches) - 1)
            # All arrays from here on are [tokens of the micro-batch's answers].
            logprobs = self._logprobs(micro_batch)
            if micro_batch.old_logprobs is None:  # before any update
                micro_batch.old_logprobs = logprobs.detach()
            old, sampler_logprobs = micro_batch.old_logprobs, micro_batch.sampler_logprobs
            weights = micro_batch.weights
            if update.importance_cap is not None:
                weights = weights * importance_weights(old, sampler_logprobs, update.importance_cap)
            loss, clipped_low, clipped_high = clipped_surrogate(
                logprobs, old, micro_batch.advantages, weights, update.clip_low, update.clip_high
            )
            # A loss that is not finite can have a finite gradient. `finite` is then nan (0 * inf),
            # not 1, so the gradient is nan, too, and DeepSpeed skips the update.
            finite = 1 + 0 * loss.detach()
            # DeepSpeed averages gradients over ranks, but the loss is a sum over them: hence the
            # number of ranks.
            self._engine.backward(loss * finite * dist.get_world_size())
            if len(micro_batch.indices):  # no filler
                gap = (old - sampler_logprobs).abs().double()
                outside = ((old - sampler_logprobs).exp() - 1).abs() > RATIO_BAND
                values = {
                    "tokens": gap.new_tensor(len(gap)),
                    "loss": loss.detach(),
                    "clipped_low": clipped_low,
                    "clipped_high": clipped_high,
                    "gap": gap.sum(),
                    "outside": outside.sum(),
                    "gap_max": gap.max(),
                }
                statistics.append(torch.stack([values[name].double() for name in TOKEN_STATISTICS]))
        return statistics


def token_metrics(statistics: list[list[float]]) -> dict[str, float]:
    """Return loss, number of trained tokens, and means over these tokens, from the TOKEN_STATISTICS
    of all micro-batches [micro-batches, 7] of every rank. A collective.
    """
    rows = [dict(zip(TOKEN_STATISTICS, row, strict=True)) for row in statistics]
    own = {name: sum(row[name] for row in rows) for name in SUMS}
    # Unlike max, np.max is nan if one of them is
    own["gap_max"] = float(np.max([row["gap_max"] for row in rows], initial=0.0))
    ranks = gather(own)
    total = {name: float(sum(rank[name] for rank in ranks)) for name in SUMS}
    tokens = total["tokens"]
    metrics = {"loss": total["loss"], "tokens/trained": tokens}
    if tokens:
        metrics["clipped_low"] = total["clipped_low"] / tokens  # share with the gradient cut off
        metrics["clipped_high"] = total["clipped_high"] / tokens
        metrics["sampler_learner_gap_mean"] = total["gap"] / tokens
        metrics["sampler_learner_ratio_outside"] = total["outside"] / tokens
        metrics["sampler_learner_gap_max"] = float(np.max([rank["gap_max"] for rank in ranks]))
    return metrics


def _check_loaded(model: torch.nn.Module, folder: Path, missing: set[str]) -> None:
    """Raise InputError on all ranks if a weight that was loaded from `folder` is `missing`, so that
    transformers has made it up, or is not finite. A collective.
    """
    if missing:
        raise InputError(
            f"{folder}: its weights lack {', '.join(sorted(missing)[:3])}; {COPY_AGAIN}, or use "
            "another model"
        )
    not_finite = []
    for name, weight in model.state_dict(keep_vars=True).items():
        own_part = weight
        if hasattr(weight, "ds_tensor"):  # this rank's part, of which the last one is padded
            part = weight.ds_tensor.flatten()
            own_part = part[: max(0, weight.ds_numel - dist.get_rank() * len(part))]
        if not torch.isfinite(own_part).all():
            not_finite.append(name)
    if names := sorted(set(chain.from_iterable(gather(not_finite)))):
        check_finite(folder)  # names the file, if it is in the files already
        raise InputError(
            f"{folder}: {names[0]} has numbers that {model.dtype} cannot hold; use --dtype "
            "bfloat16 or float32"
        )


def deepspeed_settings(config: TrainConfig) -> dict:
    """Return DeepSpeed's configuration of ZeRO-3 with AdamW."""
    zero: dict[str, object] = {"stage": 3, "reduce_bucket_size": REDUCE_BUCKET}
    # One rank has nothing to scatter, and would copy all gradients
    zero["reduce_scatter"] = dist.get_world_size() > 1
    if config.hardware.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.hardware.offload_weights:
        # Weights are copied in every pass, which is faster from pinned memory
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    fp16 = (
        {"enabled": True, "loss_scale": config.hardware.loss_scale}
        if config.hardware.dtype == "float16"
        else {}
    )
    return {
        # The learner itself says which micro-batch is the last of an update
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        # torch's AdamW also where the optimizer is offloaded, so that results are the same
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": config.hardware.dtype == "bfloat16"},
        "fp16": fp16,
        # In bf16, sums of gradients would lose small contributions
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
                "fused": True,  # one pass over the memory instead of ten
            },
        },
        "steps_per_print": 10**9,
    }
