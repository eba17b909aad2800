"""docs/study/theory.md: statements that scripts/verify_theorem.py does not check, and that its table is up to date."""

import re

import numpy as np
import pytest
from scipy.stats import beta as beta_distribution

from bnpo.files import ROOT
from conftest import python
from study.ceiling import best_gain, draw, read_checkpoints

PAGE = (ROOT / "docs" / "study" / "theory.md").read_text(encoding="utf-8")


def test_the_best_density_of_all_is_a_beta_density():
    """Section 1: with f* = Beta(1 + a/3, 1 + b/3), no density on a grid has a smaller E[v / f^2]."""
    a, b = 2, 5
    p = (np.arange(4000) + 0.5) / 4000
    mass = beta_distribution.pdf(p, a, b) * p * (1 - p)
    best = beta_distribution.pdf(p, 1 + a / 3, 1 + b / 3)
    rng = np.random.default_rng(0)
    for size in (0.01, 0.1, 1):
        for _ in range(20):
            waves = sum(rng.normal() * np.cos(k * np.pi * p + rng.uniform(0, 6)) for k in range(1, 6))
            other = best * np.exp(size * waves)
            other /= other.mean()
            assert (mass / other**2).mean() > (mass / best**2).mean()


def test_the_table_of_the_ceiling_is_what_the_program_prints():
    """Section 3, and the numbers of section 4."""
    found = read_checkpoints()
    for name, point in found.items():
        cells = [f"{point.formula:.3f}", f"{point.simulated:.3f}", f"{point.ratio[0]:.3f} ± {point.ratio[1]:.3f}"]
        cells += [f"{value:.3f}" for value in (point.signal, point.noise, point.lowest)]
        assert f"| {name} | {' | '.join(cells)} |" in PAGE
    assert sum(point.signal < point.noise for point in found.values()) == 7
    assert {round(bound(point.rho for point in found.values()), 2) for bound in (min, max)} == {0.04, 0.37}
    assert max(point.gain for point in found.values()) < 1.0005
    assert len(draw(found).axes) == 2


def test_rho_and_the_gain_of_the_best_weight_in_a_simulated_model():
    """Section 4: questions with gradients v d plus noise, measured as the study measures them."""
    rng, rho = np.random.default_rng(0), 40.0
    p = rng.beta(2, 3, size=(200_000, 32))
    v = p * (1 - p)
    gradients = v * np.sqrt(rho) + np.sqrt(v) * rng.normal(size=p.shape)  # along d, which has all the signal

    def signal_over_noise(weights: np.ndarray) -> float:
        batches = (weights * gradients).mean(axis=1)
        return batches.mean() ** 2 / batches.var()

    reinforce, best = signal_over_noise(np.ones_like(v)), signal_over_noise(1 / (1 + rho * v))
    found_rho, gain = best_gain(2, 3, reinforce)
    np.testing.assert_allclose(found_rho, rho, rtol=0.03)
    np.testing.assert_allclose(best / reinforce, gain, rtol=0.02)


@pytest.mark.program
def test_theorem_1_is_confirmed():
    output = python("scripts/verify_theorem.py").stdout
    assert float(re.search(r"minimum_distance: (\S+)", output)[1]) < 1e-6
    assert "domain_errors: 0 " in output
    assert float(re.search(r"monte_carlo_largest_z: (\S+)", output)[1]) < 4
    # At a = b = 3/2 the best Beta density is GRPO's.
    assert re.search(r"1\.5 .* 1\.5 .*0\.822 .* 1\.000 .* 1\.000", output)
    # docs/study/theory.md: no signal under the assumption, the least squared cosine and its limits, the best weight.
    for name in ("mean_gradient_largest_z", "squared_cosine_largest_z"):
        assert float(re.search(rf"{name}: (\S+)", output)[1]) < 4
    assert 0.75 <= float(re.search(r"squared_cosine_least: (\S+)", output)[1]) < 0.751
    assert float(re.search(r"squared_cosine_limits: (\S+)", output)[1]) < 1e-3
    assert float(re.search(r"best_weight_share: (\S+)", output)[1]) <= 1
