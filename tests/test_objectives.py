"""What the programs say of the objectives: tables, pictures and dry runs, and weights as flags."""

import numpy as np
import pytest
from test_estimators import slope

from bnpo.config import check_config, parse_train_config
from bnpo_estimators import beta_of_moments, exact_weight
from conftest import refused
from objective import gains_of
from paper.objectives import FITS, atlas
from planner.dry_run import objective_lines


@pytest.mark.parametrize("m", [2, 3, 16])
def test_bnpo_is_shown_as_beta_with_the_parameters_of_its_batches(m):
    for mean, variance in FITS:
        fit = beta_of_moments(mean, variance)
        gain = atlas(m)[f"bnpo at E[p] = {mean}, Var[p] = {variance}"]
        for p in (0.02, 0.3, 0.95):
            expected = slope("beta", m, p, beta_parameters=(fit.alpha, fit.beta))
            assert exact_weight(np.array([p]), gain)[0] == pytest.approx(expected)


def test_methods_of_the_picture_are_typed_with_their_flags():
    found = gains_of("weight --weight 'm / (m - 1)'", 8, 32)
    np.testing.assert_allclose(found["weight --weight 'm / (m - 1)'"], 1)
    assert gains_of("bnpo", 8, 32).keys() < atlas(8).keys()
    for algo in ("rloo", "remax", "eb", "shrinkage"):
        np.testing.assert_allclose(gains_of(algo, 8, 32)[algo], 1)
    for text, message in (
        ("reinforce_pp_baseline", "^--algo: reinforce_pp_baseline has no objective of its own: it"),
        ("opo", "^--algo: opo has no objective of its own: it needs lengths, beside one reward"),
        ("pass_at_k --k 8", "^--k: is 8, must be a whole number from 1 to 7"),
        ("weight --weight 'p", "cannot be split into flags: No closing quotation"),
    ):
        with refused(message):
            gains_of(text, 8, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').getcwd()", r'getcwd\(\)" is not allowed. Use p, m, n, numbers'),
        ("", "is not a valid expression"),
        ("log(p)", r"is -2.77259 at p = 0.0625 and m = 16, must be .* max\(0, ...\) around"),
        ("9**9**9**9", r"is inf at p = 0.0625 and m = 16, must be from 0 to 1e\+30$"),
        ("1" + "0" * 400, "is too large"),
        ("-" * 5000 + "p", "is too large"),
    ],
)
@pytest.mark.parametrize("flag", ["--weight", "--weight-wrong"])
def test_other_texts_are_refused_in_one_line(flag, text, message):
    flags = ["--algo", "weight", "--weight", "1", f"{flag}={text}", "--samples-per-question", "16"]
    with refused(f"^{flag} .*({message})"):
        check_config(parse_train_config(flags, has_cuda=False)[0], ranks=1)


@pytest.mark.parametrize("flag", ["--beta-moments corrected", "--rescale-advantages"])
def test_flags_whose_effect_depends_on_the_batch_are_not_shown(flag):
    with refused("depends on the batch, and is not shown; leave them out"):
        gains_of(f"bnpo {flag}", 16, 32)


def test_rewards_of_ones_own_may_have_any_accuracy():
    """So weights must be defined at all of them, before a model is loaded."""
    flags = ["--preset", "tiny", "--algo", "weight", "--weight", "2*m/(m-1)*(m-1-m*p)/(m-2)"]
    parse_train_config(flags, has_cuda=False)
    own = ["--rewards", "examples/reward.py:shows_work"]
    with refused(r"^--weight .* is -.*; write max\(0, ...\) around what may be negative"):
        parse_train_config([*flags, *own], has_cuda=False)


@pytest.mark.parametrize("method", ["weight --weight 4", "pass_at_k --k 1"])
def test_a_dry_run_says_what_a_method_with_settings_maximises(method):
    """By hand: two answers differ with probability 2 p (1 - p), so the weight 4 counts half: the
    objective is 2 p. Pass@1 is p.
    """
    flags = ["--preset", "tiny", "--algo", *method.split(), "--samples-per-question", "2"]
    lines = objective_lines(parse_train_config(flags, has_cuda=False)[0])[1:]
    accuracies, weights, objective = ([float(word) for word in line.split()[-9:]] for line in lines)
    factor = 2.0 if "weight" in method else 1.0
    assert set(weights) == {factor}
    assert objective == pytest.approx([factor * p for p in accuracies])
    config, _ = parse_train_config(["--preset", "tiny", "--algo", "grpo"], has_cuda=False)
    assert objective_lines(config) == []
