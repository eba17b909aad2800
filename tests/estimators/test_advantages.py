"""Advantages of batches: order, scale, failed answers, several rewards, ranges, bad input."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import bnpo_estimators
from bnpo_estimators import AS_THEY_ARE, ESTIMATORS, Method, compute_advantages, trained_rewards

GROUP_CENTRED = ("bnpo", "beta", "curverl", "gdpo", "grpo", "maxrl", "pass_at_k", "reinforce")
GROUP_CENTRED += ("rloo", "weight")
CANCELLING = np.array([[[1.0, 0], [1, 0], [0, 1]], *np.zeros((3, 3, 2))])
"""Rewards whose GRPO advantages cancel out up to rounding errors. GDPO's whitening divides these
errors by 1e-4."""


def rounding(algo: str) -> float:
    """Return the largest rounding error where the exact value is 0."""
    return 1e-12 / 1e-4 if algo == "gdpo" else 1e-12


@st.composite
def batches(draw, max_rewards=3):
    """Binary rewards [n, m, K] of any shape. Equal groups, columns and batches are more frequent
    than by chance.
    """
    n, m, k = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, max_rewards))
    values = draw(arrays(np.int8, (n, m, k), elements=st.integers(0, 1))).astype(float)
    if draw(st.booleans()):
        values[: draw(st.integers(0, n))] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        values[:] = values[:, :1]
    lengths = draw(arrays(np.int64, (n, m), elements=st.integers(0, 50)))
    greedy = draw(arrays(np.int8, (n, k), elements=st.integers(0, 1))).astype(float)
    return values, {"lengths": lengths, "greedy_rewards": greedy}


def advantages(algo, rewards, extra, **settings):
    """Advantages [n, m] of a method with any `settings` of `Method`, as far as `algo` allows
    them.
    """
    if algo == "beta":
        settings = {"beta_parameters": (0.5, 2.0)} | settings
    if algo == "weight":
        settings = {"weight": "sqrt(1 - p) / p + m / n"} | settings
    if algo == "pass_at_k":
        settings = {"k": max(1, min(3, np.shape(rewards)[1] - 1))} | settings
    if algo == "gdpo":  # separates the rewards itself
        settings |= {"decompose": False}
    return bnpo_estimators.advantages(Method(algo, **settings), rewards, **extra)


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("moments", ["sample", "corrected"])
@given(batch=batches())
@example(batch=(CANCELLING, {"lengths": np.ones((4, 3)), "greedy_rewards": np.zeros((4, 2))}))
def test_finite_and_centred_where_promised(batch, moments, decompose):
    rewards, extra = batch
    for algo in ESTIMATORS:
        result = advantages(algo, rewards, extra, decompose=decompose, beta_moments=moments)
        assert result.shape == rewards.shape[:2]
        assert np.isfinite(result).all(), algo
        if algo in GROUP_CENTRED:
            np.testing.assert_allclose(
                result.mean(axis=1), 0, atol=rounding(algo) * max(1, np.abs(result).max())
            )


@pytest.mark.parametrize("algo", ESTIMATORS)
@given(batch=batches(max_rewards=1))
def test_decomposition_of_one_reward_and_of_equal_rewards(algo, batch):
    rewards, extra = batch
    plain = advantages(algo, rewards, extra)
    np.testing.assert_array_equal(advantages(algo, rewards, extra, decompose=True), plain)
    tripled = extra | {"greedy_rewards": np.repeat(extra["greedy_rewards"], 3, axis=1)}
    equal = advantages(algo, np.repeat(rewards, 3, axis=2), tripled, decompose=True)
    tolerance = 1e-7 if algo == "gdpo" else 1e-12  # to whose larger variance the same 1e-8 is added
    np.testing.assert_allclose(equal, plain, rtol=tolerance, atol=1e-12)


@given(batch=batches())
def test_rescaled_advantages_have_unit_root_mean_square(batch):
    rewards, extra = batch
    for algo in ESTIMATORS:
        plain = advantages(algo, rewards, extra)
        rescaled = advantages(algo, rewards, extra, rescale_advantages=True)
        if np.abs(plain).max() > 1e-6:  # less is rounding, as where GDPO's parts cancel out
            assert (rescaled**2).mean() == pytest.approx(1)
            np.testing.assert_allclose(rescaled * np.sqrt((plain**2).mean()), plain, rtol=1e-12)
        else:
            np.testing.assert_array_equal(rescaled, plain)


@pytest.mark.parametrize("m", [3, 6, 7, 16])
@pytest.mark.parametrize("values", [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.7,)])
def test_a_constant_group_gets_exactly_0(m, values):
    """Up to the last bit, and also where only the sums of several rewards are equal."""
    extra, k = {"lengths": np.arange(2 * m).reshape(2, m)}, len(values)
    equal_sums = np.tile([values, values[::-1]], (m, 1))[:m]  # [m, K]
    equal = np.tile(values, (m, 1))  # [m, K]
    others = np.tile([(1.0,) * k, (0.0,) * k], (m, 1))[:m]  # [m, K]
    for algo in (*GROUP_CENTRED, "opo"):
        found = advantages(algo, np.array([equal, others]), extra)
        assert not found[0].any(), algo
        # Pass@2 with two of three answers right cannot be raised
        assert found[1].any() or (algo == "pass_at_k" and m == 3), algo
        if algo != "gdpo":  # which takes the rewards apart
            assert not advantages(algo, np.array([equal_sums, others]), extra)[0].any(), algo
    for algo in sorted(ESTIMATORS.keys() - {"remax"}):  # some depend on other questions
        assert not advantages(algo, np.array([equal, equal]), extra).any(), algo
        rescaled = advantages(algo, np.array([equal, equal]), extra, rescale_advantages=True)
        assert not rescaled.any(), algo


@pytest.mark.parametrize("algo", ESTIMATORS)
def test_failed_answers_change_nothing_for_the_others(algo):
    """Every question loses one of four answers, whatever its reward: as if m were three."""
    rng = np.random.default_rng(0)
    for k in (1, 2):
        rewards = rng.integers(0, 2, (6, 3, k)).astype(float)
        lengths, greedy = rng.integers(1, 50, (6, 3)), rng.integers(0, 2, (6, k)).astype(float)
        lost = rng.integers(0, 4, 6)  # place of the failed answer, by question

        def with_lost(values, extra, lost=lost):
            pairs = zip(values, lost, strict=True)
            return np.array([np.insert(group, place, extra, axis=0) for group, place in pairs])

        failed = with_lost(np.zeros((6, 3), bool), True)
        for decompose in (False, True) if algo != "curverl" else ():
            settings = {"decompose": decompose, "beta_moments": "corrected"}
            expected = advantages(
                algo, rewards, {"lengths": lengths, "greedy_rewards": greedy}, **settings
            )
            for reward in (0.0, 1.0, np.nan):
                extra = {"lengths": with_lost(lengths, 7), "greedy_rewards": greedy}
                found = advantages(
                    algo, with_lost(rewards, reward), extra | {"failed": failed}, **settings
                )
                assert not found[failed].any()
                np.testing.assert_allclose(
                    found[~failed].reshape(6, 3), expected, rtol=1e-12, atol=1e-15
                )


@pytest.mark.parametrize("algo", ESTIMATORS)
def test_a_question_with_one_answer_left_does_not_count(algo):
    rng = np.random.default_rng(0)
    rewards, lengths = rng.integers(0, 2, (5, 4, 1)).astype(float), np.full((5, 4), 3)
    greedy, failed = np.ones((5, 1)), np.zeros((5, 4), dtype=bool)
    failed[1, 1:], failed[3] = True, True  # one answer is left of question 1, none of question 3
    kept = [0, 2, 4]
    extra = {"lengths": lengths[kept], "greedy_rewards": greedy[kept]}
    expected = advantages(algo, rewards[kept], extra)
    extra = {"lengths": lengths, "greedy_rewards": greedy, "failed": failed}
    found = advantages(algo, rewards, extra)
    assert not found[[1, 3]].any()
    np.testing.assert_array_equal(found[kept], expected)
    everything = extra | {"failed": np.ones((5, 4), dtype=bool)}
    assert not advantages(algo, rewards, everything, rescale_advantages=True).any()


def test_failed_answers_by_hand():
    """Of question 0 the answers 1, 0, 0 are left, so p = 1/3. Both questions have f = 1."""
    rewards = np.array([[[1.0], [0], [0], [1]], [[1], [1], [0], [0]]])
    failed = np.array([[False, False, False, True], [False] * 4])
    for algo, factor in (("reinforce", (1, 1)), ("rloo", (3 / 2, 4 / 3)), ("maxrl", (3, 2))):
        values = compute_advantages(Method(algo), rewards, failed=failed).values
        expected = np.array([[2 / 3, -1 / 3, -1 / 3, 0], [1 / 2, 1 / 2, -1 / 2, -1 / 2]])
        np.testing.assert_allclose(values, expected * np.array(factor)[:, None])
    # The fit is that of the accuracies 1/3 and 1/2: E = 5/12, V = 1/72
    [fit] = compute_advantages(Method("bnpo"), rewards, failed=failed).fits
    assert (fit.mean, fit.variance) == pytest.approx((5 / 12, 1 / 72))
    values = compute_advantages(Method("reinforce_pp"), [[[1.0]], [[0.0]]], lengths=[[3], [1]])
    assert values.values.ravel() == pytest.approx([0.5, -1.5], rel=1e-4)  # m = 1: nothing failed
    with pytest.raises(ValueError, match=r"failed must be \[n, m\] = \(2, 4\)"):
        compute_advantages(Method("bnpo"), rewards, failed=failed[:1])


@pytest.mark.parametrize("tiny", [1e-4, 1e-9, 1e-300])
@pytest.mark.parametrize("mirrored", [False, True])
def test_graded_rewards_near_0_or_1_do_not_outweigh_the_batch(tiny, mirrored):
    """One question whose answers score up to `tiny` among questions near 0.5."""
    m = 8
    rng = np.random.default_rng(0)
    rewards = rng.uniform(0.3, 0.7, (16, m, 1))
    rewards[0] = tiny * rng.random((m, 1))
    rewards = 1 - rewards if mirrored else rewards
    methods = [
        Method("bnpo"),
        Method("beta", beta_parameters=(6, 6)),
        Method("weight", weight="p**-3 + (1-p)**-3"),
    ]
    for method in methods:
        values = np.abs(compute_advantages(method, rewards).values)  # [n, m]
        assert np.isfinite(values).all()
        # R - p is at most `tiny`, and the weight at most that of an accuracy of 1 / (2m)
        assert values[0].max() <= tiny * 1e4
        assert values[1:].max() > 0.01


def test_rewards_taken_as_they_are():
    rewards = np.array([[[-3.0], [1], [2]], [[7], [7], [7]]])
    for algo, expected in (("reinforce", [-3.0, 1, 2]), ("rloo", [-4.5, 1.5, 3])):
        values = compute_advantages(Method(algo), rewards, ranges=AS_THEY_ARE).values
        np.testing.assert_allclose(values, [expected, [0, 0, 0]])
    needing = [algo for algo, found in ESTIMATORS.items() if found.needs_range]
    assert set(needing) == {"beta", "bnpo", "curverl", "eb", "maxrl", "pass_at_k", "weight"}
    for algo in needing:
        with pytest.raises(ValueError, match=f"{algo} needs rewards in a finite range"):
            advantages(algo, rewards, {"ranges": AS_THEY_ARE})
    with pytest.raises(ValueError, match="is inf, outside"):
        compute_advantages(Method("grpo"), [[[np.inf], [0]]], ranges=AS_THEY_ARE)


def test_the_trained_mean_of_rewards_is_weighted_and_mapped():
    """Rewards 1 and -1 to 1: the second is mapped to 0.75, so (1 * 1 + 0.2 * 0.75) / 1.2."""
    method = Method("grpo", reward_weights=(1, 0.2, 0))
    rewards, failed = np.array([[[1, 0.5, 9], [0, -1, 9]]]), np.array([[False, True]])
    ranges = [(0, 1), (-1, 1), AS_THEY_ARE]
    [[mean, lost]] = trained_rewards(method, rewards, ranges=ranges, failed=failed)
    assert mean == pytest.approx(1.15 / 1.2)
    assert np.isnan(lost)


@pytest.mark.parametrize("decompose", [False, True])
@given(batch=batches())
def test_reward_weights(batch, decompose):
    """Weights of 1 change no bit, and a weight of 0 leaves a reward out, whatever it is."""
    rewards, extra = batch
    k = rewards.shape[2]
    for algo in ESTIMATORS:
        plain = advantages(algo, rewards, extra, decompose=decompose)
        ones = advantages(algo, rewards, extra, decompose=decompose, reward_weights=(1,) * k)
        np.testing.assert_array_equal(ones, plain)
        more = np.concatenate([rewards, 1 - rewards[:, :, :1]], axis=2)
        more_extra = extra | {"greedy_rewards": np.pad(extra["greedy_rewards"], ((0, 0), (0, 1)))}
        zero = advantages(
            algo, more, more_extra, decompose=decompose, reward_weights=(1,) * k + (0,)
        )
        np.testing.assert_allclose(zero, plain, rtol=1e-9, atol=1e-9)


def test_reward_weights_by_hand():
    """One question, two answers that differ in both rewards: 1, 0 and 0, 1. The weights are 1
    and 0.2.
    """
    rewards = np.array([[[1.0, 0], [0, 1]]])
    weighted = {"reward_weights": (1, 0.2)}
    for method, expected in (
        (Method("reinforce", **weighted), (1 - 0.2) / 2),  # of the sums 1 and 0.2
        (Method("reinforce", decompose=True, **weighted), (1 * 0.5 - 0.2 * 0.5) / 1.2),
        # Of the means 1/1.2 and 0.2/1.2
        (Method("beta", beta_parameters=(1, 1), **weighted), (1 - 0.2) / 1.2 / 2),
        # GRPO's advantages are +-0.7071 for each reward, so the sums are +-0.8 of that; then
        # whitened.
        (Method("gdpo", **weighted), 0.7071),
    ):
        values = compute_advantages(method, rewards).values
        np.testing.assert_allclose(values, [[expected, -expected]], rtol=1e-4)


@pytest.mark.parametrize("decompose", [False, True])
def test_every_reward_is_mapped_from_its_own_range(decompose):
    rewards = np.random.default_rng(0).integers(0, 2, (4, 6, 2)).astype(float)
    greedy = rewards[:, 0]
    wide, ranges = np.array([1, 4]), [(0, 1), (-3, 1)]
    for algo in ("bnpo", "remax"):
        method = Method(algo, decompose)
        plain = compute_advantages(method, rewards, greedy_rewards=greedy).values
        extra = {"greedy_rewards": wide * greedy - [0, 3], "ranges": ranges}
        np.testing.assert_array_equal(
            compute_advantages(method, wide * rewards - [0, 3], **extra).values, plain
        )


BLANK, TWO_REWARDS = np.zeros((2, 2, 1)), np.array([[[0.0, 3], [-1, 3]]])
OF_TWO = r"question 1, answer 1, is 2.0, outside \[0, 1\]"
GREEDY_SHAPE, LENGTHS_SHAPE = r"\[n, K\] = \(2, 1\)", r"opo needs lengths \[n, m\] = \(2, 2\)"
K_LIMITS = "`k`: is 2, must be a whole number from 1 to 1, below the answers to a question"
BETA_LIMITS = "are 1 inf, must be above 0 and finite"


@pytest.mark.parametrize(
    ("method", "rewards", "extra", "message"),
    [
        (Method("ppo"), BLANK, {}, "known: beta, bnpo, curverl, eb, gdpo, grpo, maxrl, opo,"),
        (Method(), np.array([[[0.0], [1]], [[0], [2]]]), {}, OF_TWO),
        (Method(), [[[0.0], [np.nan]]], {}, "question 0, answer 1, is nan.*pass its `ranges`"),
        (Method(), TWO_REWARDS, {"ranges": [(0, 1), (0, 4)]}, "reward 0 .* is -1.0, outside"),
        (Method(), [[[1.0], [1.0]]], {"ranges": (1, 1)}, "range of reward 0 is 1 to 1"),
        (Method(), [[[0.0], [1.0]], [[1.0]]], {}, "the same number of answers to every question"),
        (Method(), np.zeros(3), {}, r"must be \[questions, answers\] or \[questions, answers, re"),
        (Method("remax"), BLANK, {}, "grade one greedy answer per question"),
        (Method("remax"), BLANK, {"greedy_rewards": np.zeros((2, 2))}, GREEDY_SHAPE),
        (Method("remax"), BLANK, {"greedy_rewards": [[0], [7]]}, "question 1, greedy answer 0, is"),
        (Method("reinforce_pp"), BLANK, {}, "reinforce_pp needs lengths"),
        (Method("opo"), BLANK, {"lengths": np.ones((2, 1))}, LENGTHS_SHAPE),
        (
            Method("opo"),
            BLANK,
            {"lengths": [[1, 2], [3, np.nan]]},
            "opo needs lengths that are fin",
        ),
        (Method(beta_moments="Corrected"), BLANK, {}, "is Corrected, must be sample or corrected"),
        (Method("beta"), BLANK, {}, "`algo='beta'` and `beta_parameters` go together"),
        (Method("beta", beta_parameters=(1, np.inf)), BLANK, {}, BETA_LIMITS),
        (Method("pass_at_k"), BLANK, {}, "`algo='pass_at_k'` and `k` go together, as in `k=4`"),
        (Method("pass_at_k", k=2), BLANK, {}, K_LIMITS),
        (Method("pass_at_k", k=1.5), np.eye(3), {}, "`k`: is 1.5, must be a whole number from 1"),
        (Method("gdpo", decompose=True), BLANK, {}, "use `decompose=False`"),
        (Method(reward_weights=(1, 0.2)), BLANK, {}, "are 1 0.2, must be one for each of the 1"),
        (Method(reward_weights=(0, 0)), TWO_REWARDS, {"ranges": (-9, 9)}, "are 0 0, must not be"),
        (Method(reward_weights=(np.nan,)), BLANK, {}, "are nan, must not be below 0, nor all 0"),
    ],
)
def test_bad_input_says_where_and_what_to_do(method, rewards, extra, message):
    with pytest.raises(ValueError, match=message):
        compute_advantages(method, rewards, **extra)


def test_equally_hard_questions_get_one_weight():
    """If accuracies differ by less than sampling noise, corrected moments find no variance: all
    weights are equal.
    """
    rewards = np.zeros((3, 8, 1))
    for question, right in enumerate((3, 4, 5)):
        rewards[question, :right] = 1
    result, [fit] = compute_advantages(Method("bnpo", beta_moments="corrected"), rewards)
    assert (fit.variance, fit.edge) == (0, "concentrated")
    weights = result / compute_advantages(Method("reinforce"), rewards).values
    np.testing.assert_allclose(weights, weights[0, 0])
    assert weights[0, 0] > 0
