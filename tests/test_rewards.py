import threading

import pytest

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import Method
from bnpo.data import load_problems
from bnpo.files import InputError
from bnpo.grading.grader import Grader, Grades
from bnpo.grading.rewards import (
    BOTH_RULES,
    GRADERS,
    check_rewards,
    format_reward,
    last_number_reward,
)


@pytest.fixture(scope="module")
def grader():
    grader = Grader(("accuracy", "format"), workers=2)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("name", "right"),
    [("math500", 500), ("amc23", 40), ("aime2024", 30), ("aime2025", 30), ("math_train", 7498)],
)
def test_real_references_in_a_sentence_are_right(grader, data_dir, name, right):
    problems = load_problems(data_dir / f"{name}.jsonl")
    texts = [f"First I thought of \\boxed{{0}}. So the answer is $\\boxed{{{p.answer}}}$." for p in problems]
    rewards = grader(texts, [p.answer for p in problems]).rewards
    wrong = [p for p, verdict in zip(problems, rewards[:, 0], strict=True) if not verdict]
    assert len(problems) - len(wrong) == right, wrong
    assert all(p.answer == "" for p in wrong)


@pytest.mark.parametrize(
    ("reference", "text", "right"),
    [
        (r"\frac{5}{4}", r"\boxed{1.25}", True),
        (r"\frac{5}{4}", r"\boxed{5/4}", True),
        (r"\frac{5}{4}", r"\boxed{-5/4}", False),
        ("7", "the answer is 7", False),
        ("7", r"\boxed{7} and \boxed{8", True),
        ("", "", False),
        ("7", r"\boxed{}", False),
    ],
)
def test_accuracy(grader, reference, text, right):
    assert grader([text], [reference]).rewards[0, 0] == right


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
    assert format_reward(text, "") == right


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        ("She has 12 apples.", "12", True),
        ("That makes 1,234 in all.", "1234", True),
        ("It costs $1,234.50.", "1234.5", True),
        ("-$3", "-3", True),
        ("5 - 8 = −3", "-3", True),
        ("10 - 3", "-3", False),
        ("40%", "40", True),
        (".5 of it", "0.5", True),
        ("007", "7", True),
        ("1,2,3", "3", True),
        ("12 apples in 2 bags", "12", False),
        (r"\boxed{12}", "12", True),
        ("#### 12", "#### 12", True),
        ("twelve", "12", False),
        ("", "", False),
        ("1." * 3000 + "2", "0.2", True),
        ("9" * 20_000 + "," * 20_000 + "7", "7", True),
        ("1,111" * 20_000, "7", False),
    ],
)
def test_the_last_number_is_read_as_evaluators_of_gsm8k_do(text, reference, right):
    assert last_number_reward(text, reference) == right


def test_the_last_number_is_a_rule_of_accuracy_and_a_reward():
    grader = Grader(("accuracy", "last_number"), grader="last_number", workers=1)
    assert grader(["so 12", r"\boxed{12} or 13"], ["12", "12"]).rewards.tolist() == [[1, 1], [0, 0]]
    verdicts = grader.judge("so 12", "12", False, GRADERS)
    assert {rule: verdict.result() for rule, verdict in verdicts.items()} == dict.fromkeys(BOTH_RULES, False) | {
        "last_number": 1
    }
    grader.close()


@pytest.mark.parametrize(("rules", "given"), [("default", 1), ("paper", 0)])
def test_the_grader_takes_the_format_rule_of_its_rules(rules, given):
    grader = Grader(("format",), grader=rules, workers=1)
    assert grader(["<think>a</think> <answer>b</answer>"], ["b"]).rewards.tolist() == [[given]]
    grader.close()


@pytest.mark.deadline
def test_an_answer_that_takes_too_long_is_wrong_and_counted_from_any_thread():
    grader = Grader(workers=1, time_limit=1.0)
    results: dict[str, Grades] = {}
    hostile = [r"\boxed{9^{9^{9^{9}}}+x}", r"\boxed{\frac{x}{2}}"]
    thread = threading.Thread(target=lambda: results.update(r=grader(hostile, ["3^{3^{3^{3}}}+x", "0.5x"])))
    thread.start()
    thread.join()
    assert results["r"].rewards.tolist() == [[0], [1]]
    assert results["r"].failed.tolist() == [True, False]
    assert results["r"].failures == {"timeout": 1}
    grader.close()


def test_accuracy_reads_the_answer_tags_only_when_told(grader):
    text = r"<think>\boxed{7}</think><answer>8</answer>"
    assert grader([text, text], ["7", "8"], tags=True).rewards.tolist() == [[0, 1], [1, 1]]
    assert grader([text, text], ["7", "8"]).rewards.tolist() == [[1, 1], [0, 1]]


def test_a_users_file_may_have_dataclasses(tmp_path):
    lines = ["from __future__ import annotations", "from dataclasses import dataclass", "@dataclass", "class Parts:"]
    lines += ["    length: int", "def short(text, reference):", "    return Parts(len(text)).length < 3"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    grader = Grader((f"{tmp_path / 'mine.py'}:short",), workers=1)
    assert grader(["1", "long"], ["1", "1"]).rewards.tolist() == [[1], [0]]
    grader.close()


def test_the_range_of_the_users_is_theirs_alone(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def far(text, reference):\n    return {'up': 2, 'out': -1.5}.get(text, -1)\n")
    grader = Grader(("accuracy", f"{file}:far"), users_range=(-1, 2), workers=1)
    grades = grader([r"\boxed{1}", "up", "out"], ["1"] * 3)
    assert grades.rewards.tolist() == [[1, -1], [0, 2], [0, -1]]
    assert grades.failed.tolist() == [False, False, True]
    assert grades.failures == {"OutOfRange": 1}
    assert grader.ranges == [(0, 1), (-1, 2)]
    # One is right, the other has the user's highest value: neither is better.
    advantages = compute_advantages(Method("reinforce"), grades.rewards[None, :2], ranges=grader.ranges).values
    assert advantages.tolist() == [[0, 0]]
    grader.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def other(text, reference): return 1", "AttributeError"),
        ("def reward(text): return 1", "TypeError: too many positional arguments"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def reward(:", "SyntaxError"),
        ("import time; time.sleep(60)", "timeout"),
        (r"raise OSError('on\ntwo lines')", "OSError: on two lines; it must be function"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_at_once(tmp_path, source, message):
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(InputError, match=message) as error:
        Grader((f"{file}:reward",), workers=1, time_limit=0.5)
    assert f"{file}:reward" in str(error.value)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (("accuracy", "luck"), "unknown reward 'luck'; known: accuracy, format, last_number"),
        (("missing.py:reward",), "no file missing.py"),
        (("missing.py",), "unknown reward 'missing.py'"),
        (("accuracy", "accuracy"), "names repeat"),
    ],
)
def test_bad_names_of_rewards(rewards, message):
    with pytest.raises(InputError, match=message):
        check_rewards(rewards, (0, 1))


def test_equal_answers_are_judged_once_by_the_released_rule(grader):
    first, again, other = (grader.judge(f"so \\boxed{{{n}}}", "5", False, BOTH_RULES) for n in (5, 5, 6))
    assert first["paper"] is again["paper"]
    assert [verdict["paper"].result() for verdict in (first, again, other)] == [True, True, False]


def test_the_released_rule_reads_only_the_end_of_a_text():
    grader = Grader(grader="paper", workers=1)
    texts = [r"\boxed{\frac{1}{2}}" + "." * n for n in (100, 600)]
    assert grader(texts, ["0.5", "0.5"]).rewards[:, 0].tolist() == [1, 0]
    assert grader([r"so $\frac{1}{2}$ is \boxed{\frac12}"], ["0.5"]).rewards.tolist() == [[0]]  # brace-less
    grader.close()
