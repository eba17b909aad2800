"""Call examples/verl_advantages.py and mathequal as verl does, for tests/test_adapters.py.
Prints one JSON line.
"""

import json

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl_advantages import METHODS, estimator

from bnpo_estimators import Method, compute_advantages


def main() -> None:
    largest, rng = 0.0, np.random.default_rng(0)
    methods = {name: get_adv_estimator_fn(name) for name in METHODS}  # as registered
    more = {algo: Method(algo) for algo in ("grpo", "opo", "reinforce_pp")}
    methods |= {name: estimator(method) for name, method in more.items()}
    for i in range(500):
        name = list(methods)[i % len(methods)]
        n, m = rng.integers(1, 9), rng.integers(1, 9)
        rewards, lengths = rng.integers(0, 5, (n, m)) / 4, rng.integers(1, 50, (n, m))
        expected = compute_advantages((METHODS | more)[name], rewards, lengths=lengths).values

        order = rng.permutation(n * m)  # answers to one question need not be neighbours
        flat = torch.from_numpy(lengths.ravel()[order])
        mask = (torch.arange(50) < flat[:, None]).long()
        token_rewards = torch.zeros(mask.shape)
        token_rewards[torch.arange(n * m), flat - 1] = torch.tensor(rewards.ravel()[order]).float()
        index = np.array([f"question-{i}" for i in np.repeat(np.arange(n), m)], dtype=object)[order]
        arguments = {"config": AlgoConfig(), "index": index, "response_mask": mask}
        advantages, returns = methods[name](token_level_rewards=token_rewards, **arguments)
        assert torch.equal(advantages, returns)
        expected_per_token = torch.from_numpy(expected.ravel()[order])[:, None] * mask
        difference = (advantages - expected_per_token).abs().max() / max(1, np.abs(expected).max())
        largest = max(largest, float(difference))

    try:
        methods["bnpo"](
            token_level_rewards=torch.ones(3, 1),
            response_mask=torch.ones(3, 1),
            index=np.array([0, 0, 1]),
        )
    except ValueError as error:
        refusal = str(error)
    reward = {"path": "pkg://mathequal", "name": "compute_score"}
    score = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": reward}}))
    scores = [
        score(data_source="", solution_str=text, ground_truth="0.5", extra_info={})
        for text in (r"\boxed{1/2}", "1/2")
    ]
    found = {
        "largest_difference": largest,
        "registered": sorted(ADV_ESTIMATOR_REGISTRY),
        "refusal": refusal,
    }
    print(json.dumps(found | {"scores": scores}))


if __name__ == "__main__":
    main()
