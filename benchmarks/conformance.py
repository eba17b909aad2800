"""Feed the same rewards to the advantage functions of TRL and verl and to ours, and print what is
equal.

    make conformance     # four minutes, with released.py

Prints the rows of docs/conformance.md; `trl` or `verl` behind it prints those of one package.
Batches go from the smallest (all rewards of 0 and 1 for up to four answers) to random ones with
fractions and several rewards. Edges are among them: equal rewards, one question, one answer,
answers of different lengths. TRL has no functions for advantages and losses,
so its trainers run: they sample from the tiny model, and a reward function returns the rewards of
the batch.
"""

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn

from bnpo.algorithm.loss import token_weights
from bnpo.config import TINY_MODEL, Aggregation
from bnpo.prompts import stop_token_ids
from bnpo_estimators import Method, compute_advantages

MAX_TOKENS = 4
CLOSE = 1e-3
"""Largest relative difference that counts as close: small constants in divisors cause smaller
ones."""
SMALL = 0.01
"""Advantages up to this size are compared in absolute terms, since those of TRL and verl are in
fp32."""


@dataclass(frozen=True)
class Batch:
    """Rewards [n, m, K], lengths [n, m] of the answers, and rewards [n] of greedy answers."""

    rewards: np.ndarray
    lengths: np.ndarray
    greedy: np.ndarray

    def __str__(self) -> str:
        rewards = self.rewards[:, :, 0] if self.rewards.shape[2] == 1 else self.rewards
        lengths = f", lengths {shown(self.lengths)}" if np.unique(self.lengths).size > 1 else ""
        return f"rewards {shown(rewards)}{lengths}"


def shown(values: np.ndarray) -> str:
    """Return an array as nested lists with three digits."""
    if np.ndim(values) == 0:
        return f"{float(values):.3g}" if abs(values) > 1e-9 else "0"
    return "[" + ", ".join(map(shown, values)) + "]"


def batches(least_answers: int, with_lengths: bool) -> list[Batch]:
    """Return batches, the smallest first, of questions with at least `least_answers` answers."""
    rng = np.random.default_rng(0)
    found = []
    for n, m in ((1, 1), (1, 2), (2, 1), (1, 3), (2, 2)):
        for bits in itertools.product((0.0, 1.0), repeat=n * m):
            for lengths in (np.ones(n * m, int), np.arange(1, n * m + 1))[: 1 + with_lengths]:
                found.append(Batch(np.reshape(bits, (n, m, 1)), lengths.reshape(n, m), np.ones(n)))
    for value, m in ((0.1, 3), (0.7, 7)):
        found.append(Batch(np.full((1, m, 1), value), np.ones((1, m), int), np.zeros(1)))
    for n, m, k in ((2, 3, 1), (4, 4, 1), (2, 2, 2), (4, 4, 2), (8, 16, 3)):
        lengths, greedy = (
            rng.integers(1, MAX_TOKENS + 1, (n, m)),
            rng.integers(0, 2, n).astype(float),
        )
        found.append(Batch(rng.integers(0, 2, (n, m, k)).astype(float), lengths, greedy))
        found.append(Batch(rng.random((n, m, k)).round(2), lengths, greedy))
    return [batch for batch in found if batch.rewards.shape[1] >= least_answers]


def ours(method: Method, batch: Batch) -> np.ndarray:
    """Return our advantages [n, m]."""
    greedy = (
        np.repeat(batch.greedy[:, None], batch.rewards.shape[2], axis=1) / batch.rewards.shape[2]
    )
    return compute_advantages(
        method, batch.rewards, lengths=batch.lengths, greedy_rewards=greedy
    ).values


def verl(name: str, batch: Batch, **settings) -> np.ndarray:
    """Return the advantages [n, m] of verl's estimator `name`. The sum of the rewards stands at
    the last token.
    """
    n, m, k = batch.rewards.shape
    lengths = torch.from_numpy(batch.lengths.ravel())
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()  # [answers, tokens]
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(n * m), lengths - 1] = torch.from_numpy(
        batch.rewards.sum(axis=2).ravel()
    ).float()
    arguments = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "config": AlgoConfig(),
    } | settings
    arguments |= {"index": np.repeat(np.arange(n), m).astype(object)}
    if name == "remax":
        arguments["reward_baselines"] = torch.from_numpy(np.repeat(batch.greedy, m)).float()
    if name == "gdpo":
        keys = [f"reward_{i}" for i in range(k)]
        arguments["config"] = AlgoConfig(gdpo_reward_keys=keys)
        arguments["non_tensor_batch"] = {
            key: batch.rewards[:, :, i].ravel() for i, key in enumerate(keys)
        }
        arguments["batch"] = {
            "prompts": torch.zeros(n * m, 1),
            "attention_mask": torch.cat([mask[:, :1], mask], dim=1),
        }
    advantages, _ = get_adv_estimator_fn(name)(**arguments)
    return advantages[:, 0].double().numpy().reshape(n, m)


class Prescribed:
    """TRL's trainer of a class, whose rewards are set before each call."""

    def __init__(self, trainer_class: type, config_class: type, rewards: int, **settings):
        tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        model.generation_config.eos_token_id = stop_token_ids(tokenizer)
        self.rewards = np.zeros((1, 1, rewards))
        quiet = {
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        quiet |= {"gradient_checkpointing": False, "beta": 0.0, "output_dir": tempfile.mkdtemp()}
        self.trainer = trainer_class(
            model=model,
            reward_funcs=[self.reward(k) for k in range(rewards)],
            args=config_class(**quiet, max_completion_length=MAX_TOKENS, **settings),
            train_dataset=Dataset.from_dict({"prompt": ["1+1=?"] * 8}),
            processing_class=tokenizer,
        )
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1

    def reward(self, k: int) -> Callable:
        """Return a reward function that returns reward k of the batch."""

        def prescribed(completions, **_) -> list[float]:
            return self.rewards[:, :, k].ravel().tolist()

        prescribed.__name__ = f"reward_{k}"
        return prescribed

    def advantages(self, batch: Batch) -> np.ndarray:
        """Return the advantages [n, m] that the trainer computes."""
        self.rewards = batch.rewards
        n, m, _ = batch.rewards.shape
        self.trainer.num_generations = m
        output = self.trainer._generate_and_score_completions(
            [{"prompt": f"{i}+1=?"} for i in range(n) for _ in range(m)]
        )
        return output["advantages"].double().numpy().reshape(n, m)

    def loss_weights(self, lengths: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
        """Return the weights [answers] of tokens in the loss, if the answers `parts` are
        micro-batches.
        """
        trainer, weights = self.trainer, []
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = len(parts)
        for part in parts:
            mask = (torch.arange(MAX_TOKENS) < torch.from_numpy(lengths[part])[:, None]).long()
            ids = torch.full(mask.shape, 5)
            inputs = {"prompt_ids": ids[:, :1], "prompt_mask": mask[:, :1], "completion_ids": ids}
            inputs |= {
                "completion_mask": mask,
                "num_items_in_batch": torch.tensor(float(lengths.sum())),
            }
            # The loss of an advantage of -1 for one answer is the sum of its weights
            for answer in range(len(part)):
                one = torch.zeros(len(part)).index_fill(0, torch.tensor([answer]), -1.0)
                loss = trainer._compute_loss(trainer.model, inputs | {"advantages": one})
                weights.append(loss.item() / lengths[part][answer])
        return np.array(weights)


def trl(trainer_class: type, config_class: type, **settings) -> Callable[[Batch], np.ndarray]:
    """Return a function from batches to TRL's advantages."""
    trainers: dict[int, Prescribed] = {}  # by the number of rewards

    def advantages(batch: Batch) -> np.ndarray:
        k = batch.rewards.shape[2]
        if k not in trainers:
            trainers[k] = Prescribed(trainer_class, config_class, k, **settings)
        return trainers[k].advantages(batch)

    return advantages


@dataclass
class Comparison:
    """How two results agree over many batches."""

    equal: int = 0
    relative: float = 0.0  # the largest relative difference of those that are equal
    factors: tuple[float, ...] = ()
    different: int = 0
    refused: int = 0
    example: str = ""  # the smallest batch that differs

    def add(self, name: object, theirs: np.ndarray, own: np.ndarray) -> None:
        """Compare one batch, called `name`."""
        relative = np.abs(theirs - own).max() / max(np.abs(own).max(), SMALL)
        factor = (theirs * own).sum() / max((own * own).sum(), SMALL**2)
        if relative < CLOSE:
            self.equal += 1
            self.relative = max(self.relative, relative)
        elif factor and np.abs(theirs - factor * own).max() < CLOSE * np.abs(theirs).max():
            self.factors += (factor,)
        else:
            self.different += 1
            self.example = self.example or f"{name}: {shown(theirs)}, here {shown(own)}"

    def verdict(self) -> str:
        """Return the outcome in words."""
        low, high = min(self.factors, default=0), max(self.factors, default=0)
        factor = f"{low:.3g}" if high - low < CLOSE else f"{low:.3g} to {high:.3g}"
        counts = {
            "equal" if self.relative < 1e-5 else f"equal (to {self.relative:.0e})": self.equal
        }
        counts |= {f"equal up to a factor of {factor}": len(self.factors)}
        counts |= {"different": self.different, "refused": self.refused}
        outcomes = {name: count for name, count in counts.items() if count}
        if len(outcomes) == 1:
            return next(iter(outcomes))
        return (
            ", ".join(f"{name} in {count}" for name, count in outcomes.items())
            + f" of {sum(counts.values())}"
        )


Row = tuple[str, str, Comparison]
"""What is compared, our flags, and the outcome."""


def trl_advantage_rows() -> Iterable[Row]:
    """Yield rows of TRL's advantages."""
    several = {"multi_objective_aggregation": "normalize_then_sum"}
    for label, theirs, algo in (
        ("TRL `GRPOTrainer`", trl(GRPOTrainer, GRPOConfig), "grpo"),
        (
            'TRL `scale_rewards="none"`',
            trl(GRPOTrainer, GRPOConfig, scale_rewards="none"),
            "reinforce",
        ),
        (
            'TRL `scale_rewards="batch"`',
            trl(GRPOTrainer, GRPOConfig, scale_rewards="batch"),
            "reinforce",
        ),
        (
            'TRL `multi_objective_aggregation="normalize_then_sum"`',
            trl(GRPOTrainer, GRPOConfig, **several),
            "gdpo",
        ),
        ("TRL `RLOOTrainer`", trl(RLOOTrainer, RLOOConfig), "rloo"),
    ):
        comparison = Comparison()
        # TRL refuses one answer per question, and uses no lengths here
        for batch in batches(2, with_lengths=False):
            comparison.add(batch, theirs(batch), ours(Method(algo), batch))
        yield label, f"`--algo {algo}`", comparison


def verl_advantage_rows() -> Iterable[Row]:
    """Yield rows of verl's advantages."""
    for name, algo, settings in (
        ("grpo", "grpo", {}),
        ("grpo", "reinforce", {"norm_adv_by_std_in_grpo": False}),
        ("grpo_vectorized", "grpo", {}),
        ("rloo", "rloo", {}),
        ("rloo_vectorized", "rloo", {}),
        ("remax", "remax", {}),
        ("opo", "opo", {}),
        ("gpg", "reinforce", {}),
        ("gdpo", "gdpo", {}),
        ("reinforce_plus_plus", "reinforce_pp", {}),
        ("reinforce_plus_plus_baseline", "reinforce_pp_baseline", {}),
    ):
        comparison = Comparison()
        for batch in batches(1, with_lengths=True):
            try:
                theirs = verl(name, batch, **settings)
            except ValueError:
                comparison.refused += 1
            else:
                comparison.add(batch, theirs, ours(Method(algo), batch))
        label = f"verl `{name}`" + "".join(
            f", `{setting}={value}`" for setting, value in settings.items()
        )
        yield label, f"`--algo {algo}`", comparison


LENGTHS = np.array([1, 3, 4, 2])
"""Tokens of the answers whose weights in the loss are compared."""


def trl_loss_rows() -> Iterable[Row]:
    """Yield rows of the weights of tokens in TRL's losses, for three divisions into
    micro-batches.
    """
    divisions = [np.arange(4)], [np.arange(2), np.arange(2, 4)], [np.array([i]) for i in range(4)]
    names = {
        "grpo": "seq-mean-token-mean",
        "bnpo": "token-mean",
        "dr_grpo": "seq-mean-token-sum-norm",
    }
    names |= {"dapo": "token-mean", "luspo": "seq-mean-token-sum"}
    for name, aggregation in names.items():
        level = {"importance_sampling_level": "sequence"} if name == "luspo" else {}
        trainer = Prescribed(GRPOTrainer, GRPOConfig, 1, loss_type=name, **level)
        comparison = Comparison()
        own = token_weights(LENGTHS, aggregation, MAX_TOKENS)
        for parts in divisions:
            label = f"lengths {shown(LENGTHS)} in {len(parts)} micro-batches"
            comparison.add(label, trainer.loss_weights(LENGTHS, parts), own)
        yield f'TRL `loss_type="{name}"`', f"`--aggregation {aggregation}`", comparison


def verl_loss_rows() -> Iterable[Row]:
    """Yield rows of the weights of tokens in verl's losses."""
    mask = (torch.arange(MAX_TOKENS) < torch.from_numpy(LENGTHS)[:, None]).long()
    for aggregation in get_args(Aggregation):
        comparison, weights = Comparison(), []
        for answer, length in enumerate(LENGTHS):
            one = torch.zeros(mask.shape, dtype=torch.float64).index_fill(
                0, torch.tensor([answer]), 1.0
            )
            weights.append(agg_loss(one, mask, aggregation).item() / length)
        own = token_weights(LENGTHS, aggregation, MAX_TOKENS)
        comparison.add(f"lengths {shown(LENGTHS)}", np.array(weights), own)
        yield f"verl `loss_agg_mode={aggregation}`", f"`--aggregation {aggregation}`", comparison


ROWS = {"trl": (trl_advantage_rows, trl_loss_rows), "verl": (verl_advantage_rows, verl_loss_rows)}


def main() -> None:
    for package in sys.argv[1:] or ROWS:
        for label, flags, comparison in itertools.chain.from_iterable(
            rows() for rows in ROWS[package]
        ):
            print(
                f"| {label} | {flags} | {comparison.verdict()} | {comparison.example} |", flush=True
            )


if __name__ == "__main__":
    main()
