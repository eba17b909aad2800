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
from mathequal.released import released_verdict


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{\frac{a}{\sqrt{b}}} end", r"\frac{a}{\sqrt{b}}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed {17}. Then \fbox{18}", "18"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{\left\{ x : x > 1 \right.}", r"\left\{ x : x > 1 \right."),
        (r"\begin{align*} a \\\boxed{3}", "3"),
        (r"a printed string: \\boxed{4}", "4"),
        ("} } {" + r"\boxed{6}", "6"),
        (r"\boxed{  }", ""),
        ("7", None),
        (r"The answer is $\boxed 7$.", "7"),
        (r"\boxed{5} or rather $\boxed7$", "7"),
        (r"\boxed 5 or rather \boxed{7}", "7"),
        ("\\[\\boxed\\frac{1}{2}\\]", r"\frac{1}{2}"),
        (r"\boxed 7 or 8", "7 or 8"),
        (r"\boxed{1} then \boxed", "1"),
        (r"\boxedsomething 7", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{1}</think><answer>so \boxed{2}</answer>", "2"),
        (r"<answer>1</answer><answer> 2 </answer>", "2"),
        (r"<answer>1</answer><answer>2", "1"),
        (r"\boxed{1} and no tags", "1"),
        (r"<answer>2 \boxed{1}", "1"),
        # in linear time
        (r"\boxed{" * 100_000, None),
        (r"\boxed{" * 100_000 + "}" * 100_000, ""),
        (r"\boxed{" + "{" * 1_000_000, None),
    ],
)
def test_final_answer_in_tags(text, answer):
    assert final_answer(text, tags=True) == answer


def test_a_long_answer_is_right_only_letter_by_letter():
    long = "x" * (MAX_LENGTH + 1)
    for answer, expected in ((long, True), (f"{long} ", True), ("y", False)):
        assert (equal(long, answer), equal(answer, long)) == (expected, expected)


def test_an_empty_answer_is_never_right():
    for empty in ("", " ", r"\text{}", "$$", "."):
        assert equal("", empty) is False
        assert equal(empty, "") is False


def test_the_released_rule_on_brace_less_fractions():
    assert released_verdict(r"\frac{3}{4}", r"so $\boxed{\frac{3}{4}}$")
    assert not released_verdict(r"\sec x", r"\boxed{\frac1{\cos x}}")


command = partial(python, "-m", "mathequal")


@pytest.mark.program
def test_labelled_cases_of_other_projects(data_dir):
    result = command(data_dir / "grader_cases.jsonl", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert set(report) == {"n", "agreement", "false_positives", "false_negatives", "failures"}
    assert (report["n"], report["failures"]) == (148, {})
    assert report["agreement"] >= 0.98
    assert report["false_positives"] == []


@pytest.mark.program
@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["--pair", r"-\frac12", "-0.5"], "equal"),
        (["--grader", "paper", "--pair", r"\frac34", r"so \boxed{0.75}"], "equal"),
        (["--pair", "x", "2x"], "different"),
        (["--pair", "x", "9^{9^{9^{9}}}"], "different (no verdict: timeout)"),
    ],
)
def test_one_pair(flags, printed):
    result = command(*flags)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{printed}\n", "")


@pytest.mark.program
def test_importing_the_package_imports_no_parser():
    code = "import sys, mathequal; assert not {'sympy', 'math_verify', 'bnpo'} & {*sys.modules}"
    assert python("-c", code).returncode == 0


@pytest.mark.program
def test_the_report_shows_every_disagreement(tmp_path):
    file = tmp_path / "cases.jsonl"
    rows = [
        ("1", r"\boxed{1}", True),
        ("1", "2", True),
        ("x+1", "1+x", False),
        ("y", r"\frac{", False),
    ]
    cases = [dict(zip(("gold", "prediction", "equal"), row, strict=True)) for row in rows]
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    result = command(file)
    expected = {
        "n": 4,
        "agreement": 0.5,
        "false_positives": [cases[2]],
        "false_negatives": [cases[1]],
        "failures": {},
    }
    assert json.loads(result.stdout) == expected


@pytest.mark.program
def test_bad_cases_name_file_and_line(tmp_path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"gold": "1", "prediction": "1"}\n{"gold": "1", "prediction": 1}\n')
    result = command(cases)
    assert result.returncode == 1
    assert f"{cases}:2: is no JSON object with the strings gold and prediction" in result.stderr
    cases.write_text('{"gold": "1", "prediction": "1"}\n')
    assert json.loads(command(cases).stdout)["agreement"] is None
    assert "--pair" in command().stderr  # which it needs, or cases


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
    pairs = [
        (rf"\sqrt{{{n + 2}}}+\sin {n}", rf"\sin {n}+\sqrt{{{n + 2 + n % 2}}}") for n in range(40)
    ]
    for compare in (equal, verify, lambda *pair: verify(*pair, timeout_seconds=None)):
        with ThreadPoolExecutor(8) as threads:
            verdicts = list(threads.map(lambda pair, compare=compare: compare(*pair), pairs))
        assert verdicts == [n % 2 == 0 for n in range(40)]


@pytest.mark.parametrize(
    ("gold", "target", "reason"),
    [
        ("1+1", "2", "equal"),
        (r"\frac12", "0.25", r"different: the reference is \frac{1}{2}, the answer is 0.25"),
        (
            "(1,2)",
            "[1,2]",
            "different: the reference is a tuple (1; 2), the answer is an interval (1; 2)",
        ),
        ("5 cm", "5 kg", "different: the reference is 5 centimeter, the answer is 5 kilogram"),
        ("x", r"\frac10", r"different: the reference is x, the answer is \frac{1}{0}"),
        ("yes", "x>2", "different: the reference is the word yes, the answer is a condition"),
        ("3", [], "different: one is empty or has more than 500 characters"),
        ("x" * 501, "y", "different: one is empty or has more than 500 characters"),
        ("3", HUGE, "no verdict: timeout"),
    ],
)
def test_explain(gold, target, reason):
    assert explain(gold, target, timeout_seconds=2) == reason


def test_rewards_need_a_box():
    completions = [
        r"\boxed{\frac12}",
        "0.5",
        [{"role": "assistant", "content": r"\boxed{0.5}"}],
        r"\boxed{0.7}",
    ]
    golds = ["0.5", "0.5", r"so \boxed{1/2}", "0.5"]
    assert accuracy_reward(completions, solution=golds, prompts=[]) == [1.0, 0.0, 1.0, 0.0]
    assert [
        compute_score("", text, gold) for text, gold in zip(completions[:2], golds, strict=False)
    ] == [1.0, 0.0]
