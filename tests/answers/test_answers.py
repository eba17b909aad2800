"""Final answers of texts, and the functions and the program that other projects call."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from conftest import python
from mathequal import (
    MAX_LENGTH,
    accuracy_reward,
    compute_score,
    equal,
    explain,
    final_answer,
    parse,
    verify,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{\frac{a}{\sqrt{b}}} end", r"\frac{a}{\sqrt{b}}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\left\{ x : x > 1 \right.}", r"\left\{ x : x > 1 \right."),
        (r"\begin{align*} a \\\boxed{3}", "3"),
        (r"\boxed{  }", ""),
        ("7", None),
        (r"\boxed{5} or rather $\boxed7$", "7"),
        ("\\[\\boxed\\frac{1}{2}\\]", r"\frac{1}{2}"),
        (r"\boxedsomething 7", None),
        # Tags
        (r"<think>\boxed{1}</think><answer>so \boxed{2}</answer>", "2"),
        (r"<answer>1</answer><answer> 2 </answer>", "2"),
        (r"<answer>2 \boxed{1}", "1"),
        # In linear time
        (r"\boxed{" * 100_000, None),
        (r"\boxed{" * 100_000 + "}" * 100_000, ""),
        (r"\boxed{" + "{" * 1_000_000, None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text, tags=True) == answer
    if "<" not in text:
        assert final_answer(text) == answer


def test_long_and_empty_answers():
    long = "x" * (MAX_LENGTH + 1)
    for answer, expected in ((long, True), (f"{long} ", True), ("y", False)):
        assert (equal(long, answer), equal(answer, long)) == (expected, expected)
    for empty in ("", " ", r"\text{}", "$$", "."):
        assert (equal("", empty), equal(empty, "")) == (False, False)


command = partial(python, "-m", "mathequal")


@pytest.mark.program
@pytest.mark.extra
def test_the_program(tmp_path, data_dir):
    assert command("--pair", r"-\frac12", "-0.5").stdout == "equal\n"
    assert command("--grader", "paper", "--pair", r"\frac34", r"\boxed{0.75}").stdout == "equal\n"
    assert "--pair" in command().stderr  # which it needs, or cases
    report = json.loads(command(data_dir / "grader_cases.jsonl", "--json").stdout)
    assert (report["n"], report["failures"], report["false_positives"]) == (148, {}, [])
    assert report["agreement"] >= 0.98
    file = tmp_path / "cases.jsonl"
    rows = [("1", r"\boxed{1}", True), ("1", "2", True), ("x+1", "1+x", False), ("y", "{", False)]
    cases = [dict(zip(("gold", "prediction", "equal"), row, strict=True)) for row in rows]
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    wrong = {"false_positives": [cases[2]], "false_negatives": [cases[1]], "failures": {}}
    assert json.loads(command(file).stdout) == {"n": 4, "agreement": 0.5} | wrong
    file.write_text('{"gold": "1", "prediction": "1"}\n{"gold": "1", "prediction": 1}\n')
    message = f"{file}:2: is no JSON object with the strings gold and prediction"
    assert message in command(file).stderr


@pytest.mark.program
def test_importing_the_package_imports_no_parser():
    code = "import sys, mathequal; assert not {'sympy', 'math_verify', 'bnpo'} & {*sys.modules}"
    assert python("-c", code).returncode == 0


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
    if target == HUGE:
        with pytest.raises(RuntimeError, match=r"no verdict on .*timeout"):
            verify("x+1", HUGE, timeout_seconds=1, raise_on_error=True)


def test_threads_get_the_verdicts_of_one_thread():
    """mpmath has one precision for all threads. Without a lock some of these verdicts are wrong."""
    interval, root = sys.getswitchinterval(), r"\sqrt{%s}+\sin %s"
    pairs = [(root % (n + 2, n), root % (n + 2 + n % 2, n)) for n in range(40)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for compare in (equal, verify, partial(verify, timeout_seconds=None)):
                verdicts = list(threads.map(compare, *zip(*pairs, strict=True)))
                assert verdicts == [n % 2 == 0 for n in range(40)]
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("gold", "target", "reason"),
    [
        ("1+1", "2", "equal"),
        (r"\frac12", "0.25", r"different: the reference is \frac{1}{2}, the answer is 0.25"),
        ("5 cm", "5 kg", "different: the reference is 5 centimeter, the answer is 5 kilogram"),
        ("yes", "x>2", "different: the reference is the word yes, the answer is a condition"),
        ("3", [], "different: one is empty or has more than 500 characters"),
        ("3", HUGE, "no verdict: timeout"),
    ],
)
def test_explain(gold, target, reason):
    assert explain(gold, target, timeout_seconds=2) == reason


def test_rewards_need_a_box():
    completions = [r"\boxed{\frac12}", "0.5", [{"content": r"\boxed{0.5}"}], r"\boxed{0.7}"]
    golds = ["0.5", "0.5", r"so \boxed{1/2}", "0.5"]
    assert accuracy_reward(completions, solution=golds, prompts=[]) == [1.0, 0.0, 1.0, 0.0]
    assert compute_score("", completions[0], "0.5") == 1.0
    assert compute_score("", completions[1], "0.5") == 0.0
