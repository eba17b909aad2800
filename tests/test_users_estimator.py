"""Estimators in a user's own file: --algo path/to/file.py:function."""

import random
from pathlib import Path

import numpy as np
import pytest

from bnpo.config import check_config, parse_train_config
from bnpo.runs.prepare import prepare_run
from bnpo_estimators import AS_THEY_ARE, ESTIMATORS, Method, SettingError, compute_advantages
from conftest import refused

HEAD = "import numpy as np\nfrom bnpo_estimators import RewardBatch, estimator\n"
CENTRED = "batch.rewards - batch.accuracies"


@pytest.fixture
def write(tmp_path):
    """Write a user's file, and return what --algo takes for its function `mine`."""

    def write(text: str, head: str = HEAD) -> str:
        path = tmp_path / f"mine{random.random()}.py"
        path.write_text(head + text)
        return f"{path}:mine"

    return write


def returning(expression: str, decorator: str = "@estimator()") -> str:
    return f"{decorator}\ndef mine(batch: RewardBatch) -> np.ndarray:\n    return {expression}\n"


def parse(algo, *flags):
    return parse_train_config(["--preset", "tiny", "--algo", algo, *flags], has_cuda=False)[0]


@pytest.mark.parametrize("name", ["bnpo", "gdpo", "remax", "reinforce_pp"])
def test_a_built_in_estimator_in_a_users_file_gives_the_same_bits(write, name):
    """With one reward and with several, weighted, decomposed and with failed answers."""
    found = ESTIMATORS[name]
    decorator = (
        f"@estimator(needs={','.join(found.needs)!r}, unit_interval={found.unit_interval}, "
        f"group={found.group})"
    )
    head = HEAD + f"from bnpo_estimators.estimators import {name}\n"
    algo = write(returning(f"{name}(batch)", decorator), head)
    rng = np.random.default_rng(0)
    for k, settings in ((1, {}), (3, {"reward_weights": (1, 0.2, 3)}), (3, {"decompose": True})):
        if name == "gdpo" and "decompose" in settings:
            with pytest.raises(SettingError, match="takes the rewards apart itself"):
                compute_advantages(Method(algo, decompose=True), np.zeros((2, 2, 3)))
            continue
        rewards, extra = rng.random((6, 4, k)), {"lengths": rng.integers(1, 9, (6, 4))}
        extra |= {"greedy_rewards": rng.random((6, k)), "failed": rng.random((6, 4)) < 0.2}
        own, expected = (
            compute_advantages(Method(method, **settings), rewards, **extra)
            for method in (algo, name)
        )
        np.testing.assert_array_equal(own.values, expected.values)
        assert own.fits == expected.fits
    config = parse(algo)
    assert (config.users_range == AS_THEY_ARE) == (name not in ("bnpo", "maxrl", "eb"))
    single = ("--samples-per-question", "1")
    if found.group:
        with refused("--samples-per-question: with 1, all advantages of --algo .*:mine are 0"):
            parse(algo, *single)
    else:
        parse(algo, *single)


def test_an_estimator_may_change_the_rewards_in_place(write):
    """It gets the same advantages, and the metrics still have the fit to the rewards."""
    algo = write(returning("np.subtract(batch.rewards, batch.accuracies, out=batch.rewards)"))
    rewards = [[1, 0, 0, 0], [1, 1, 1, 0]]
    found, expected = (compute_advantages(Method(name), rewards) for name in (algo, "reinforce"))
    np.testing.assert_array_equal(found.values, expected.values)
    assert found.fits == expected.fits


def test_an_estimator_may_need_several_things_and_gets_nothing_else(write):
    needs = '@estimator(needs="lengths, greedy_rewards")'
    expression = "(batch.rewards - batch.greedy_rewards[:, None]) / batch.lengths"
    algo = write(returning(expression, needs))
    arguments = {"lengths": [[2, 4]], "greedy_rewards": [[0.5]]}
    values = compute_advantages(Method(algo), [[[1.0], [0.0]]], **arguments).values
    np.testing.assert_array_equal(values, [[0.25, -0.125]])
    with pytest.raises(ValueError, match=r"mine needs lengths \[n, m\]"):
        compute_advantages(Method(algo), [[[1.0], [0.0]]], greedy_rewards=[[0.5]])
    not_asked = write(returning("batch.rewards / batch.lengths"))
    with pytest.raises(SettingError, match="mine: line 5: TypeError: unsupported operand"):
        compute_advantages(Method(not_asked), [[[1.0], [0.0]]], **arguments)


def test_a_name_of_a_built_in_estimator_replaces_none(write):
    file = write("@estimator()\ndef grpo(batch):\n    return batch.rewards\n").rpartition(":")[0]
    algo = f"{file}:grpo"
    values = compute_advantages(Method(algo), [[[1.0], [0.0]]]).values
    np.testing.assert_array_equal(values, [[1, 0]])
    values = compute_advantages(Method("grpo"), [[[1.0], [0.0]]]).values
    np.testing.assert_allclose(values, [[0.5**0.5, -(0.5**0.5)]], rtol=1e-5)
    assert not any(":" in name for name in ESTIMATORS)


def test_an_edited_file_is_read_again(write):
    algo = write("@estimator()\ndef mine(batch):\n    return batch.rewards\n")
    first = compute_advantages(Method(algo), [[[1.0], [0.0]]]).values
    file = Path(algo.rpartition(":")[0])
    file.write_text(file.read_text().replace("batch.rewards", "2 * batch.rewards"))
    np.testing.assert_array_equal(
        compute_advantages(Method(algo), [[[1.0], [0.0]]]).values, 2 * first
    )


KNOWN = "known: beta, bnpo, curverl, .*, shrinkage, weight, or path/to/file.py:function$"


def test_unknown_names_are_refused():
    for algo in ("median", "examples/estimator.py", "examples:median"):
        with refused(f"^--algo: unknown estimator '{algo}'; {KNOWN}"):
            check_config(parse(algo), ranks=1)
    with refused("^--algo: there is no file '/no/file.py'$"):
        check_config(parse("/no/file.py:median"), ranks=1)


NEEDS = '@estimator(needs="length")'
DEVIATION = "batch.rewards / batch.rewards.std(axis=1, keepdims=True)"
NOT_FINITE = "mine: returned an advantage that is not finite; leave out rewards that are nan, as"
SHAPE = r"mine: returned shape \[4, 1\], must be \[n, m\] = \[4, 16\], like batch.rewards"
TWO_CALLS = "mine: two calls for one batch gave different advantages; let it depend on the batch"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other = 1\n", r"mine: is not a function that @estimator\(\) registers: `@estimator"),
        (returning(CENTRED, "@estimator"), "cannot be imported: line 3: TypeError: estimator"),
        (returning(CENTRED, NEEDS), "line 3: ValueError: @estimator: needs='length' is unknown"),
        (returning(CENTRED).replace("batch: RewardBatch", ""), "mine: TypeError: mine.. takes 0"),
        ("def mine(:\n", r"cannot be imported: SyntaxError: invalid syntax .*line 3\)"),
        (returning("1 / 0"), "mine: line 5: ZeroDivisionError: division by zero"),
        (returning("batch.accuracies"), SHAPE),
        (returning(DEVIATION), NOT_FINITE),
        (returning(f"({CENTRED}) * np.random.random()"), TWO_CALLS),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_file_that_cannot_be_used_is_refused_in_one_line(write, text, message, monkeypatch):
    algo = write(text)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with refused(message):
        prepare_run(parse(algo))
