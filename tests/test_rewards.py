import threading

import numpy as np
import pytest

from bnpo import rewards as rewards_module
from bnpo.problems import load_problems
from bnpo.rewards import Grader, format_reward


@pytest.fixture(scope="module")
def grader():
    grader = Grader(("accuracy", "format"), workers=2)
    yield grader
    grader.close()


def test_real_references_in_a_sentence_are_right(grader, data_dir):
    problems = load_problems(data_dir / "math500.jsonl")
    texts = [f"First I thought of \\boxed{{0}}. So the answer is $\\boxed{{{p.answer}}}$." for p in problems]
    rewards = grader(texts, [p.answer for p in problems])
    assert rewards.shape == (500, 2)
    assert [p.id for p, right in zip(problems, rewards[:, 0], strict=True) if not right] == []


@pytest.mark.parametrize(
    ("reference", "text", "right"),
    [
        (r"\frac{5}{4}", r"\boxed{1.25}", True),
        (r"\frac{5}{4}", r"\boxed{5/4}", True),
        (r"\frac{5}{4}", r"\boxed{-5/4}", False),
        (r"\sqrt{8}", r"\boxed{2\sqrt{2}}", True),
        (r"x^2+2x+1", r"\boxed{(x+1)^2}", True),
        (r"(1,2)", r"\boxed{(2,1)}", False),
        ("7", "the answer is 7", False),
        ("7", r"\boxed{7} \boxed{8}", False),
        ("7", r"\boxed{7} and \boxed{8", True),
        ("", r"\boxed{}", False),
        ("", "", False),
        ("7", r"\boxed{}", False),
    ],
)
def test_accuracy(grader, reference, text, right):
    assert grader([text], [reference])[0, 0] == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>a</think><answer>b</answer>", True),
        (" <think>a\n</think>\n<answer>b</answer>\n", True),
        ("<think>a</think><answer>b", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think><think>a</think><answer>b</answer>", False),
        ("so <think>a</think><answer>b</answer>", False),
    ],
)
def test_format(text, right):
    assert format_reward(text) == right


def test_an_answer_that_takes_too_long_is_wrong_and_counted_from_any_thread(monkeypatch):
    monkeypatch.setattr(rewards_module, "TIME_LIMIT", 1.0)
    grader = Grader(workers=1)
    results: dict[str, np.ndarray] = {}
    hostile = [r"\boxed{9^{9^{9^{9}}}+1}", r"\boxed{\frac{x}{2}}"]
    thread = threading.Thread(target=lambda: results.update(r=grader(hostile, ["3^{3^{3^{3}}}", "0.5x"])))
    thread.start()
    thread.join()
    grader.close()
    assert results["r"].tolist() == [[0], [1]]
    assert sum(grader.failures.values()) == 1
