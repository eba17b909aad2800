"""What stands in for math-verify: parse, verify and explain, and the rewards for TRL and verl."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mathequal import accuracy_reward, compute_score, equal, explain, parse, verify

HUGE = "9^{9^{9^9}}"


@pytest.mark.parametrize(
    ("gold", "target", "expected"),
    [
        (parse("$1/2$"), parse(r"so \boxed{\frac12}"), True),
        (["1", "x+1"], "1+x", True),
        ("x+1", ["1", "2"], False),
        ("x+1", parse(""), False),
        ("x+1", HUGE, False),
    ],
)
def test_verify(gold, target, expected):
    assert verify(gold, target, timeout_seconds=1, strict=True) is expected


def test_a_failure_is_raised_where_that_is_asked_for():
    with pytest.raises(RuntimeError, match=r"no verdict on .*timeout"):
        verify("x+1", HUGE, timeout_seconds=1, raise_on_error=True)


@pytest.fixture
def threads_that_alternate():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("threads_that_alternate")
def test_threads_get_the_verdicts_of_one_thread():
    """mpmath has one precision for all threads. Without a lock some of these verdicts are wrong."""
    pairs = [(rf"\sqrt{{{n + 2}}}+\sin {n}", rf"\sin {n}+\sqrt{{{n + 2 + n % 2}}}") for n in range(40)]
    for compare in (equal, verify, lambda *pair: verify(*pair, timeout_seconds=None)):
        with ThreadPoolExecutor(8) as threads:
            verdicts = list(threads.map(lambda pair, compare=compare: compare(*pair), pairs))
        assert verdicts == [n % 2 == 0 for n in range(40)]


@pytest.mark.parametrize(
    ("gold", "target", "reason"),
    [
        ("1+1", "2", "equal"),
        (r"\frac12", "0.25", "different: the reference is 0.5, the answer is 0.25"),
        ("(1,2)", "[1,2]", "different: the reference is a tuple (1; 2), the answer is an interval (1; 2)"),
        ("5 cm", "5 kg", "different: the reference is 5 centimeter, the answer is 5 kilogram"),
        (
            "x",
            r"\frac10",
            r"different: the reference is x, the answer is \frac{1}{0}, which is no formula with a value",
        ),
        ("yes", "x>2", "different: the reference is the word yes, the answer is a condition"),
        ("3", [], "different: an empty answer equals nothing"),
        ("x" * 501, "y", "different: not letter by letter the same, and one has more than 500 characters"),
        ("3", HUGE, "no verdict: timeout"),
    ],
)
def test_explain(gold, target, reason):
    assert explain(gold, target, timeout_seconds=2) == reason


def test_rewards_need_a_box():
    completions = [r"\boxed{\frac12}", "0.5", [{"role": "assistant", "content": r"\boxed{0.5}"}], r"\boxed{0.7}"]
    golds = ["0.5", "0.5", r"so \boxed{1/2}", "0.5"]
    assert accuracy_reward(completions, solution=golds, prompts=[]) == [1.0, 0.0, 1.0, 0.0]
    assert [compute_score("", text, gold) for text, gold in zip(completions[:2], golds, strict=False)] == [1.0, 0.0]
