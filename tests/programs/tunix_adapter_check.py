"""Make a step of tunix's GRPOLearner with examples/tunix_advantages.py, for tests/test_adapters.py.
Prints one JSON line. It runs in tunix's own environment, without bnpo.
"""

import json

import jax
import numpy as np
import optax
import tunix_advantages
from flax import nnx
from tunix.rl.function_registry import get_advantage_estimator
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.tests.test_common import MockVocab, ModelConfig, ToyTransformer

from bnpo_estimators import advantages

PROMPTS = np.array(["input string", "hello world", "My name", "hello there"])
ANSWERS = 4


def main() -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def reward(prompts, completions, **_) -> list[float]:
        return [float(len(completion) % 2) for completion in completions]

    def keep(rewards, advantages, **_) -> dict:
        seen.append((np.array(rewards), np.array(advantages)))
        return {}

    tokenizer = MockVocab()
    shape = ModelConfig(vocab_size=tokenizer.GetPieceSize())
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    cluster = RLCluster(
        actor=ToyTransformer(config=shape, rngs=nnx.Rngs(0)),
        tokenizer=tokenizer,
        cluster_config=ClusterConfig(
            role_to_mesh={role: mesh for role in (Role.ACTOR, Role.REFERENCE, Role.ROLLOUT)},
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=RLTrainingConfig(
                actor_optimizer=optax.sgd(0.1), eval_every_n_steps=9, max_steps=1
            ),
            rollout_config=RolloutConfig(
                max_prompt_length=32, max_tokens_to_generate=8, kv_cache_size=64
            ),
        ),
    )
    config = GRPOConfig(advantage_estimator="bnpo", num_generations=ANSWERS, beta=0.0)
    learner = GRPOLearner(cluster, config, reward, metric_fns=[keep])
    policy = cluster.actor_trainer.model
    before = jax.tree.map(np.array, nnx.state(policy, nnx.Param))
    learner.train([{"prompts": PROMPTS}])
    after = jax.tree.map(np.array, nnx.state(policy, nnx.Param))
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    [(rewards, values)] = seen  # all of a step at once
    expected = advantages("bnpo", rewards.reshape(-1, ANSWERS)).ravel()
    rng, largest = np.random.default_rng(0), 0.0
    for name, method in tunix_advantages.METHODS.items():
        drawn = rng.integers(0, 2, (8, ANSWERS)).astype(float)
        found = get_advantage_estimator(name)(rewards=drawn.ravel(), num_generations=ANSWERS)
        largest = max(largest, float(np.abs(found - advantages(method, drawn).ravel()).max()))
    report = {
        "answers": len(rewards),
        "signal": float(np.abs(values).max()),
        "step_difference": float(np.abs(values - expected).max()),
        "largest_difference": largest,
        "moved": max(float(np.abs(a - b).max()) for a, b in pairs),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
