"""The batch of a step: its groups, those that are trained on, and its metrics. The sampler is
replaced; answers are graded as in a run.
"""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.batch import (
    Answer,
    SampledGroup,
    Task,
    all_wrong_energy,
    are_all_wrong,
    has_signal,
    questions_at,
    right_reward,
    sample_batch,
    sampling_seeds,
)
from bnpo.config import PRESETS, TINY_MODEL, naming_flags, with_settings
from bnpo.data import Problem
from bnpo.grading.grader import Grader
from bnpo.loop import one_step
from bnpo.policy.learner import Learner, Update
from bnpo.runs.checkpoint import Progress
from bnpo.runs.metrics import Step, token_rows
from bnpo_estimators import Method, compute_advantages
from conftest import refused

TOKENIZER = AutoTokenizer.from_pretrained(TINY_MODEL)
REWARDS = """
def good(text: str, reference: str) -> float:
    if "fail" in text:
        raise ValueError("no reward")
    return float("good" in text)


def long(text: str, reference: str) -> float:
    return float("long" in text)
"""


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def answer(text: str) -> Answer:
    ids = TOKENIZER.encode(text)
    return Answer(ids, "cut" not in text, np.zeros(len(ids)))


class Sampler:
    """Its answers have the texts of `draws`, [draws][n][m], the last prompt's first. `asked` are
    the arguments of the last draw.
    """

    def __init__(self, draws: list, greedy: list[str]):
        self.draws, self.greedy = iter(draws), greedy

    def sample(self, prompts, seeds, *, n, greedy_too, **sampling) -> Iterator[SampledGroup]:
        self.asked = sampling | {"prompts": prompts, "seeds": seeds}
        assert len(set(seeds)) == len(prompts)
        for i, texts in reversed(list(enumerate(next(self.draws)))):
            assert len(texts) == n
            if greedy_too:
                yield SampledGroup(i, True, [answer(self.greedy[i])])
            yield SampledGroup(i, False, list(map(answer, texts)))


def sampled(tmp_path, draws, greedy=(), functions=("good",), **settings):
    """Return the batch of `draws` of texts, and the settings of its run."""
    (tmp_path / "mine.py").write_text(REWARDS)
    rewards = tuple(f"{tmp_path / 'mine.py'}:{function}" for function in functions)
    n, m = len(draws[0]), len(draws[0][0])
    sizes = {"questions_per_step": n, "samples_per_question": m, "resample_rounds": len(draws) - 1}
    config = with_settings(PRESETS["tiny"], rewards=rewards, **sizes | settings)
    problems = [Problem(str(i), "1+1=?", "2") for i in range(5)]
    with closing(Grader(rewards, workers=1)) as grader:
        task = Task(problems, [[i] for i in range(5)], TOKENIZER, grader, answer_tags=False)
        return sample_batch(task, 0, 0, Sampler(draws, greedy), config), config


MIXED, RIGHT, WRONG = ["good", "bad"], ["good", "good"], ["bad", "bad"]


def test_groups_have_the_answers_and_rewards_of_their_questions(tmp_path):
    texts = [[f"good {i}", f"bad and cut {i}"] for i in range(4)]
    batch, _ = sampled(tmp_path, [texts])
    assert len({group.question for group in batch.groups}) == 4
    for group, written in zip(batch.groups, texts, strict=True):
        assert group.prompt == [group.question]
        assert [TOKENIZER.decode(each.token_ids) for each in group.answers] == written
    assert batch.rewards[:, :, 0].tolist() == [[1, 0]] * 4
    assert batch.finished.tolist() == [[True, False]] * 4
    assert batch.lengths.tolist() == [[len(a.token_ids) for a in g.answers] for g in batch.groups]
    assert (batch.place, batch.seconds.keys()) == (4, {"generate", "reward", "gather"})


def test_questions_and_answers_follow_from_the_seed_and_the_settings(tmp_path):
    """Also: with answer tags the answer is what is between them."""
    settings = {"seed": 7, "temperature": 0.6, "top_k": 5, "max_answer_tokens": 9}
    config = with_settings(
        PRESETS["tiny"], questions_per_step=2, samples_per_question=2, **settings
    )
    problems = [Problem(str(i), "1+6=?", "7") for i in range(30)]
    texts = ["<answer>7</answer>", "<answer>8</answer>"]
    sampler = Sampler([[texts, texts]], [])
    with closing(Grader(workers=1)) as grader:
        task = Task(problems, [[i] for i in range(30)], TOKENIZER, grader, answer_tags=True)
        batch = sample_batch(task, 5, 3, sampler, config)
    questions, place = questions_at(30, 2, 5, 7)
    assert (batch.place, sampler.asked["prompts"]) == (place, [[int(i)] for i in questions])
    assert list(sampler.asked["seeds"]) == list(sampling_seeds(7, 3, questions, 0))
    asked = {name: sampler.asked[name] for name in ("temperature", "top_k", "max_tokens")}
    assert asked == {"temperature": 0.6, "top_k": 5, "max_tokens": 9}
    assert batch.rewards[:, :, 0].tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("draws", "trained", "drawn"),
    [
        ([[RIGHT, MIXED], [WRONG, MIXED]], [1, 3], 4),
        ([[RIGHT, WRONG], [MIXED, RIGHT]], [0, 2], 4),  # the first of those without a signal
        ([[WRONG, MIXED], [RIGHT, WRONG]], [1, 2], 4),  # but those that are all wrong come last
        ([[WRONG, MIXED], [WRONG, WRONG]], [0, 1], 4),
        ([[MIXED, MIXED], [MIXED, MIXED]], [0, 1], 2),  # a second draw would be in vain
    ],
)
def test_questions_are_drawn_until_enough_have_a_signal(draws, trained, drawn, tmp_path):
    batch, _ = sampled(tmp_path, draws)
    assert batch.trained_groups.tolist() == trained
    assert len(batch.groups) == batch.place == drawn


def test_the_learner_gets_the_answers_of_the_groups_that_are_trained_on(tmp_path):
    batch, config = sampled(tmp_path, [[RIGHT, MIXED], [WRONG, MIXED]])  # trained: 1 and 3
    advantages = 1 + np.arange(8.0).reshape(4, 2)
    learner = SimpleNamespace(_config=config, device="cpu")
    [micro_batches] = Learner._mini_batches(learner, batch, advantages)
    found = {}
    for micro_batch in micro_batches:
        by_answer = micro_batch.advantages.split(micro_batch.lengths.tolist())
        found |= zip(micro_batch.indices.tolist(), by_answer, strict=True)
    texts = [TOKENIZER.decode(answer.token_ids) for _, answer in batch.trained_answers]
    assert texts == ["good", "bad", "good", "bad"]
    assert {i: set(values.tolist()) for i, values in found.items()} == {
        0: {3},
        1: {4},
        2: {7},
        3: {8},
    }

    task = SimpleNamespace(
        tokenizer=TOKENIZER, problems=[Problem(f"id {i}", "", "") for i in range(5)]
    )
    step = Step(1, batch, advantages, [], None, 0.0, {})
    rows = token_rows(task, step, {0: np.array([0.5]), 2: np.array([0.25])})
    assert [row["place"] for row in rows] == [2, 3, 6, 7]
    assert [row["learner"] for row in rows] == [[0.5], None, [0.25], None]
    ids = [f"id {batch.groups[i].question}" for i in (1, 1, 3, 3)]
    assert [row["id"] for row in rows] == ids


def test_answers_whose_reward_fails_are_left_out_and_without_the_greedy_one_all_are(tmp_path):
    draws, greedy = [[["good", "fail"], MIXED, MIXED]], ["bad", "fail", "bad"]
    batch, config = sampled(tmp_path, draws, greedy, algo="remax")
    assert batch.failed.tolist() == [[False, True], [True, True], [False, False]]
    assert batch.failures == {"ValueError": 2}
    values, _ = compute_advantages(
        config.method, batch.rewards, greedy_rewards=batch.greedy_rewards, failed=batch.failed
    )
    assert values.tolist() == [[0, 0], [0, 0], [1, 0]]  # one answer is no group


@pytest.mark.parametrize(
    ("rewards", "failed", "signal"),
    [
        ([[1, 0], [1, 0]], [0, 0], False),
        ([[1, 0], [1, 1]], [0, 0], True),
        ([[1], [0], [0]], [1, 0, 0], False),  # the one right answer has failed
        ([[0], [1], [0]], [1, 0, 0], True),
        ([[1], [0], [0]], [0, 1, 1], False),  # one answer is left
        ([[1], [0], [0]], [1, 1, 1], False),
    ],
)
def test_a_group_has_a_signal_if_a_reward_of_answers_that_count_differs(rewards, failed, signal):
    assert has_signal(np.array([rewards]), np.array([failed], dtype=bool)).tolist() == [signal]


SIDE = [["good and long", "good"], ["bad and long", "bad"], ["good", "bad"], ["bad", "bad"]]


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({}, [0, 2]),  # and the first of the others, as only one question differs in `good`
        ({"reward_weights": (0.0, 1.0)}, [0, 1]),  # `good` is only recorded
        ({"reward_weights": (0.0, 1.0), "signal": "good"}, [0, 2]),
        ({"signal": "long"}, [0, 1]),
        ({"signal": "all"}, [0, 1]),
    ],
)
def test_the_first_reward_or_that_of_the_flag_is_the_signal(settings, trained, tmp_path):
    batch, _ = sampled(tmp_path, [SIDE[:2], SIDE[2:]], functions=("good", "long"), **settings)
    assert batch.trained_groups.tolist() == trained


def test_groups_that_are_all_wrong_fill_a_batch_last(tmp_path):
    """Answers of the first question differ in length alone, as do those of the third."""
    draws = [[SIDE[1], SIDE[2]], [SIDE[0], SIDE[3]]]
    batch, _ = sampled(tmp_path, draws, functions=("good", "long"))
    assert batch.trained_groups.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("algo", "decompose", "share", "share_of_weight_1"),
    [
        ("grpo", False, 0.53, 0.53),
        ("maxrl", False, 0.23, 0.55),
        ("grpo", True, 0.01, 0.37),
        ("gdpo", False, 0.01, 0.37),
        ("reinforce", False, 0.005, 0.26),
        ("rloo", False, 0.005, 0.26),
        ("opo", False, 0.005, 0.26),
        ("bnpo", False, 0.005, 0.22),
    ],
)
def test_estimators_that_divide_by_a_deviation_learn_from_a_side_reward_of_wrong_answers(
    algo, decompose, share, share_of_weight_1
):
    """docs/is-it-working.md has this table."""
    for weight, expected in ((0.1, share), (1.0, share_of_weight_1)):
        rng, shares = np.random.default_rng(0), []
        for _ in range(20):
            p = np.append(np.zeros(16), rng.uniform(size=16))  # half of the questions are all wrong
            rewards = np.stack([rng.random((32, 16)) < p[:, None], rng.random((32, 16))], axis=2)
            method = Method(algo, decompose=decompose, reward_weights=(1.0, weight))
            values = compute_advantages(method, rewards, lengths=np.ones((32, 16))).values
            failed = np.zeros((32, 16), dtype=bool)
            shares.append(all_wrong_energy(values, rewards[:, :, 0], failed, 1.0))
        assert np.mean(shares) == pytest.approx(expected, abs=0.006)


def test_what_is_right_by_a_reward_without_a_highest_value_is_told_from_the_batch():
    failed = np.array([[False, False], [False, False], [False, True], [False, False]])
    rewards = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 9.0], [1.0, 1.0]])
    assert right_reward(rewards, failed, 2.0) == right_reward(rewards, failed, np.inf) == 1
    assert are_all_wrong(rewards, failed, 1.0).tolist() == [True, False, True, False]
    assert right_reward(rewards[:1], failed[:1], 2.0) == 2
    nothing = right_reward(rewards[:1], failed[:1], np.inf)  # which may be right, or wrong
    assert np.isnan(nothing)
    assert np.isnan(all_wrong_energy(np.ones((1, 2)), rewards[:1], failed[:1], nothing))


def test_a_baseline_that_is_not_the_mean_of_the_group_is_no_side_reward():
    """Half of the questions are all wrong, and the second reward is worth nearly nothing."""
    rng = np.random.default_rng(0)
    right = np.append(np.zeros((16, 8)), rng.random((16, 8)) < 0.9, axis=0)
    rewards, failed = np.stack([right, rng.random((32, 8))], axis=2), np.zeros((32, 8), dtype=bool)
    arguments = {"lengths": np.ones((32, 8)), "greedy_rewards": np.ones((32, 2))}
    for algo in ("remax", "reinforce_pp"):
        method = Method(algo, reward_weights=(1.0, 0.001))
        values = compute_advantages(method, rewards, **arguments).values
        assert all_wrong_energy(values, right, failed, 1.0) < 1e-5


def test_metrics_are_those_of_what_is_trained(tmp_path):
    draws = [[["bad, good", "bad, long and cut"], ["good and long", "fail"]]]
    weights = {"functions": ("good", "long"), "reward_weights": (1.0, 0.2)}
    batch, config = sampled(tmp_path, draws, **weights)
    ranges = [(0.0, 1.0)] * 2
    values, fits = compute_advantages(
        config.method, batch.rewards, ranges=ranges, failed=batch.failed
    )
    update = Update({"updates/skipped": 0.0, "tokens/trained": 0.0}, {}, 1.0)
    seconds = {"total": 4.0, "update": 1.0}
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    for parameter in model.parameters():
        parameter.ds_numel = parameter.numel()  # as ZeRO-3 notes it
    metrics = Step(1, batch, values, fits, update, 0.0, seconds).metrics(config, ranges, model)
    means = [1 / 1.2, 0.2 / 1.2, 1]  # of the three answers that count
    questions = [np.mean(means[:2]), means[2]]
    lengths = batch.lengths.astype(float)
    expected = {
        "reward/mean": np.mean(means),
        "reward/se": np.std(questions, ddof=1) / np.sqrt(2),
        "reward/good": 2 / 3,
        "reward/long": 2 / 3,
        "groups/all_equal": 0.5,
        "groups/all_equal/good": 0.5,  # an answer that has failed leaves one
        "groups/all_equal/long": 0.5,
        "advantage/energy_all_wrong": 0.0,
        "answers/mean_tokens/right": (lengths[0, 0] + lengths[1, 0]) / 2,
        "answers/mean_tokens/wrong": lengths[0, 1],
        "answers/left_out": 0.25,
        "answers/truncated": 0.25,
        "answers/mean_tokens": lengths.mean(),
        "reward/timeouts": 0,
        "reward/errors": 1,
        "reward/errors/ValueError": 1,
        # One question is left with two answers: the fit is that of its p
        "beta/E": questions[0],
        "tokens/per_second": lengths.sum() / 4,
    }
    # Each parameter 6 times per token; 12 per layer, hidden unit and pair of tokens. Only the first
    # question's answers have a gradient. Their texts have a prompt of one token, but not the last
    # token of the answer, and begin alike: with the prompt and "bad, ".
    common = 1 + 5
    pairs = sum(length**2 / 2 for length in lengths[0]) - common**2 / 2
    shape = model.config
    operations = 6 * model.num_parameters() * (lengths[0].sum() - common)
    operations += 12 * shape.num_hidden_layers * shape.hidden_size * pairs
    expected["update/tflop"] = operations / 1e12
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


LATE = """import numpy as np
from bnpo_estimators import RewardBatch, estimator


@estimator(needs="lengths")
def late(batch: RewardBatch) -> np.ndarray:
    if len(batch.rewards) == 2:  # not so when it is tried
        raise RuntimeError("two\\nquestions")
    return batch.rewards
"""


def test_an_estimator_of_ones_own_that_fails_in_training_is_named_in_one_line(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    settings = {"algo": f"{tmp_path}/late.py:late", "rewards": ("last_number",)}
    settings |= {"questions_per_step": 2, "samples_per_question": 2}
    config = with_settings(PRESETS["tiny"], **settings)
    problems = [Problem(str(i), "1+1=?", "2") for i in range(2)]
    with closing(Grader(config.data.rewards, workers=1)) as grader:
        task = Task(problems, [[0], [1]], TOKENIZER, grader, answer_tags=False)
        # As around the steps in `train`
        with refused("late.py:late: line 8: RuntimeError: two questions$"), naming_flags():
            one_step(Progress(), task, None, Sampler([[MIXED, MIXED]], []), None, config)
