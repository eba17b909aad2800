"""Advantages of policy-gradient methods for language models, exact objectives, and BNPO's fit."""

from bnpo_estimators.beta import BetaFit, beta_of_moments, fit_beta, inverse_density
from bnpo_estimators.compute import (
    AS_THEY_ARE,
    Advantages,
    advantages,
    compute_advantages,
    trained_rewards,
    try_users_estimator,
)
from bnpo_estimators.estimators import Method, RewardBatch
from bnpo_estimators.objectives import exact_objective, exact_weight, gains, method_gains
from bnpo_estimators.registry import ESTIMATORS, SettingError, estimator, find_estimator
from bnpo_estimators.weights import shares, weight_values

__all__ = [
    "AS_THEY_ARE",
    "ESTIMATORS",
    "Advantages",
    "BetaFit",
    "Method",
    "RewardBatch",
    "SettingError",
    "advantages",
    "beta_of_moments",
    "compute_advantages",
    "estimator",
    "exact_objective",
    "exact_weight",
    "find_estimator",
    "fit_beta",
    "gains",
    "inverse_density",
    "method_gains",
    "shares",
    "trained_rewards",
    "try_users_estimator",
    "weight_values",
]
