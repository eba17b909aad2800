"""Rewards and rules of grading, and what the first answers say of them."""

import json
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import Method
from bnpo.batch import Answer, Batch, Group, Task
from bnpo.config import PRESETS, TINY_MODEL, check_config, parse_train_config, with_settings
from bnpo.data import Problem, encode_prompt, load_problems
from bnpo.evaluation.program import EvalConfig
from bnpo.evaluation.suites import check_references
from bnpo.files import ROOT, InputError
from bnpo.grading.grader import Grader, Grades
from bnpo.grading.rewards import (
    BOTH_RULES,
    GRADERS,
    format_reward,
    last_number_reward,
)
from bnpo.planning import dry_run_evaluation, dry_run_training
from bnpo.report.run_files import summary
from bnpo.runs.findings import find, unstated_share
from bnpo.runs.prepare import check_format


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
    texts = [
        f"First I thought of \\boxed{{0}}. So the answer is $\\boxed{{{p.answer}}}$."
        for p in problems
    ]
    rewards = grader(texts, [p.answer for p in problems]).rewards
    wrong = [p for p, verdict in zip(problems, rewards[:, 0], strict=True) if not verdict]
    assert len(problems) - len(wrong) == right, wrong
    assert all(p.answer == "" for p in wrong)


@pytest.mark.parametrize(
    ("reference", "text", "right"),
    [
        (r"\frac{5}{4}", r"\boxed{1.25}", True),
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
        ("-$3", "-3", True),
        ("5 - 8 = −3", "-3", True),
        ("10 - 3", "-3", False),
        ("40%", "40", True),
        (".5 of it", "0.5", True),
        ("1,2,3", "3", True),
        ("12 apples in 2 bags", "12", False),
        (r"\boxed{12}", "12", True),
        ("#### 12", "#### 12", True),
        ("twelve", "12", False),
        ("it is -1234.5", "$-1,234.5$", True),
        ("she earns 18", r"\$18", True),
        ("it is 6", r"\frac{25}{6}", False),
        ("it is 6", "25/6", False),
        ("it is 2", "(1,2)", False),
        ("it is 2", "1,2", False),
        ("it is 10", "2^{10}", False),
        ("it is 5", "1e5", False),
        ("it is 7", "3 + 4 = 7\n#### 7", False),
        ("it is 5", "x = 5", False),
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
    verdicts = grader.submit(["so 12"], ["12"], functions=list(GRADERS))
    assert {
        rule: each.result() for rule, [each] in zip(GRADERS, verdicts, strict=True)
    } == dict.fromkeys(BOTH_RULES, False) | {"last_number": 1}
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
    thread = threading.Thread(
        target=lambda: results.update(r=grader(hostile, ["3^{3^{3^{3}}}+x", "0.5x"]))
    )
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


def test_the_range_of_the_users_is_theirs_alone(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def far(text, reference):\n    return {'up': 2, 'out': -1.5}.get(text, -1)\n")
    grader = Grader(("accuracy", f"{file}:far"), users_range=(-1, 2), workers=1)
    grades = grader([r"\boxed{1}", "up", "out"], ["1"] * 3)
    assert grades.rewards[:2].tolist() == [[1, -1], [0, 2]]
    assert grades.failed.tolist() == [False, False, True]
    assert grades.failures == {"OutOfRange": 1}
    assert grades.outside == {f"{file}:far": [-1.5]}
    assert grader.ranges == [(0, 1), (-1, 2)]
    # One is right, the other has the user's highest value: neither is better.
    advantages = compute_advantages(
        Method("reinforce"), grades.rewards[None, :2], ranges=grader.ranges
    ).values
    assert advantages.tolist() == [[0, 0]]
    grader.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def other(text, reference): return 1", "AttributeError"),
        ("def reward(text): return 1", "TypeError: .* takes 1 positional argument but 2"),
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


def test_equal_answers_are_judged_once(grader):
    texts = [f"so \\boxed{{{n}}}" for n in (5, 5, 6)]
    [[first, again, other]] = grader.submit(texts, ["5"] * 3, functions=["paper"])
    assert first is again
    assert [verdict.result() for verdict in (first, again, other)] == [True, True, False]


def test_the_released_rule_reads_only_the_end_of_a_text():
    grader = Grader(grader="paper", workers=1)
    texts = [r"\boxed{\frac{1}{2}}" + "." * n for n in (100, 600)]
    assert grader(texts, ["0.5", "0.5"]).rewards[:, 0].tolist() == [1, 0]
    # Brace-less
    assert grader([r"so $\frac{1}{2}$ is \boxed{\frac12}"], ["0.5"]).rewards.tolist() == [[0]]
    grader.close()


def batch_of(answers: list, rewards: np.ndarray, failed: np.ndarray, failures: dict) -> Batch:
    """A batch of `answers` [q][m] with rewards [q, m, K]."""
    grades = [Grades(*of_group, Counter()) for of_group in zip(rewards, failed, strict=True)]
    grades[0].failures.update(failures)
    groups = [
        Group(i, [], answers[i], of_group, of_group.failed) for i, of_group in enumerate(grades)
    ]
    lengths = np.array([[len(answer.token_ids) for answer in group] for group in answers])
    places = np.arange(len(groups))
    return Batch(groups, rewards, failed, lengths, None, places, 0, {}, np.zeros(1))


def findings(**changes) -> list[dict]:
    """Findings of answers of which nothing is wrong, but for `changes`: 4 questions, 2 answers
    each, one is right.
    """
    healthy = {
        "reward_names": ("accuracy",),
        "weights": None,
        "ranges": [(0.0, 1.0)],
        "rewards": [[[0.0], [1.0]]] * 4,
    }
    case = healthy | {"failed": NO, "failures": {}, "finished": YES, "stated": True}
    case |= {"problems": []} | changes
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    ids = tokenizer.encode(r"\boxed{1}" if case["stated"] else "none")
    groups = [
        [Answer(ids, bool(finished), np.zeros(1)) for finished in group]
        for group in case["finished"]
    ]
    step = batch_of(groups, np.array(case["rewards"]), case["failed"], case["failures"])
    task = Task(
        case["problems"], [], tokenizer, SimpleNamespace(ranges=case["ranges"]), answer_tags=False
    )
    settings = {"rewards": case["reward_names"], "reward_weights": case["weights"]}
    return find([step], task, with_settings(PRESETS["tiny"], **settings))


NONE_RIGHT, ALL_RIGHT = np.zeros((4, 2, 1)), np.ones((4, 2, 1))
BY_QUESTION = np.array([[[0.0], [0.0]], [[1.0], [1.0]]] * 2)
NO, YES = np.zeros((4, 2), dtype=bool), np.ones((4, 2), dtype=bool)
MOSTLY_NO = np.arange(8).reshape(4, 2) == 0
RECORDED = {"reward_names": ("accuracy", "format"), "ranges": [(0.0, 1.0)] * 2}
RECORDED |= {"rewards": np.array([[[0.0, 0.0], [0.0, 1.0]]] * 4)}


@pytest.mark.parametrize(
    ("changes", "kinds", "text"),
    [
        ({}, [], ""),
        (
            {"rewards": NONE_RIGHT},
            ["all_lowest"],
            "the reward accuracy is 0 for all 8 answers: nothing is ever right",
        ),
        ({"rewards": ALL_RIGHT}, ["all_highest"], "nothing is left to learn; take harder problems"),
        (
            {"rewards": NONE_RIGHT + 0.5},
            ["all_equal"],
            "is 0.5 for all 8 answers: correct the function",
        ),
        (
            {"rewards": BY_QUESTION},
            ["few_mixed_groups"],
            "only 0% of the questions have answers with different",
        ),
        (
            {"finished": NO},
            ["cut_off"],
            "100% of the answers are cut off before their end; raise --max-answer-tokens",
        ),
        ({"finished": MOSTLY_NO}, [], ""),  # half of the groups or more have a signal
        (
            {"stated": False, "rewards": NONE_RIGHT},
            ["no_final_answer", "all_lowest"],
            r"100% of the answers have no \boxed{}; have the prompt ask for it (--system-prompt), "
            r"or take",
        ),
        ({"stated": False, "reward_names": ("format",)}, [], ""),  # which needs no final answer
        ({"stated": False, "reward_names": ("mine.py:accuracy",)}, [], ""),
        (
            {
                "failed": YES,
                "failures": {"TypeError": 8},
                "reward_names": ("mine.py:mine",),
                "rewards": NONE_RIGHT,
            },
            ["failing"],
            "8 of 8 answers are left out, because rewards could not be computed (TypeError 8 "
            "times); look at mine",
        ),
        (
            {"ranges": [(-1.0, 1.0)], "rewards": NONE_RIGHT - 1},
            ["all_lowest"],
            "is -1 for all 8 answers",
        ),
        (RECORDED | {"weights": (1.0, 1.0)}, ["all_lowest"], "the reward accuracy is 0"),
        (RECORDED | {"weights": (0.0, 1.0)}, [], ""),
        (RECORDED | {"weights": (1.0, 0.0)}, ["all_lowest"], "the reward accuracy is 0"),
    ],
)
def test_what_the_first_answers_say(changes, kinds, text):
    found = findings(**changes)
    assert [finding["kind"] for finding in found] == kinds
    assert not found or text in found[0]["text"]


def problems(*references: str) -> list[Problem]:
    return [Problem(str(i), "1+1=?", reference) for i, reference in enumerate(references)]


@pytest.mark.parametrize(
    ("references", "rewards", "rule", "message"),
    [
        (
            ("2", "", "4"),
            ("accuracy",),
            "default",
            "1 of 3 reference answers cannot be equalled: .* 1, ''",
        ),
        (("['70']",) * 3, ("accuracy",), "default", r"problem 0, \"\['70'\]\", is a list"),
        (("two", "3"), ("accuracy",), "last_number", "'two', is not one number"),
        (
            ("2", "(1,2)", "25/6", "4"),
            ("accuracy",),
            "last_number",
            r"2 of 4 .*problem 1, '\(1,2\)', is not one number",
        ),
        (("2", "(1,2)"), ("accuracy", "last_number"), "default", "is not one number"),
        (("2", "(1,2)"), ("accuracy",), "default", None),
        (("2",) * 199 + ("25/6",), ("accuracy",), "last_number", None),
        (("2", ""), ("mine.py:f",), "default", None),
        (("2", ""), ("accuracy",), "mine.py:f", None),
        (("['70']",) * 3, ("accuracy",), "last_number", r"\"\['70'\]\", is not one number"),
        (("['a']", "x", "y"), ("accuracy",), "default", None),
        (("2",) * 199 + ("",), ("accuracy",), "default", None),  # as in MATH
    ],
)
def test_references_that_no_answer_can_equal(references, rewards, rule, message):
    if message is None:
        return check_references(problems(*references), ["mine.jsonl"], rewards, rule)
    with pytest.raises(InputError, match=f"mine.jsonl: .*{message}"):
        check_references(problems(*references), ["mine.jsonl"], rewards, rule)


@pytest.mark.parametrize(("answer", "offered"), [("7", True), (r"\frac{25}{6}", False)])
def test_the_last_number_is_recommended_only_where_the_references_are_numbers(answer, offered):
    found = findings(stated=False, rewards=NONE_RIGHT, problems=problems("7", "8", answer))
    assert ("--grader last_number" in found[0]["text"]) == offered


def test_the_reward_format_and_a_prompt_whose_example_it_rejects():
    """Open-R1's layout has a blank between the tags."""
    spaced = (
        "Write <think> </think> and <answer> </answer>: <think> a </think> <answer> b </answer>."
    )
    check_format(("format",), spaced, "default")
    check_format(("accuracy",), spaced, "paper")
    check_format(("format",), spaced.replace("</think> <a", "</think><a"), "paper")
    with pytest.raises(
        InputError, match="</think> <answer> b </answer>', which --grader paper rej"
    ):
        check_format(("accuracy", "format"), spaced, "paper")


def test_the_reward_format_and_a_template_that_opens_the_tag():
    check_format(("accuracy",), "Solve it.<think>\n")
    check_format(("format",), "Write <think> </think>. <assistant>")
    with pytest.raises(
        InputError, match="--rewards format: the chat template opens <think> itself"
    ):
        check_format(("accuracy", "format"), "Solve it.<think>\n")


@pytest.mark.parametrize("algo", ["reinforce_pp", "remax"])
def test_one_answer_per_question_where_something_is_learned_from_it(algo):
    flags = ["--preset", "tiny", "--samples-per-question", "1", "--algo", algo]
    check_config(parse_train_config(flags, has_cuda=False)[0], 1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def reward(completions, answer): return [1.0 for _ in completions]",
            "it returned list, not a number",
        ),
        (
            "def reward(completions, answer): return completions[0]['content']",
            "TypeError: string indices",
        ),
        ("async def reward(text, reference): return 1.0", "it returned coroutine, not a number"),
        ("def reward(text, reference): print(text)", "it returned NoneType, not a number"),
        ("def reward(text, reference): return 'right'", "it returned str, not a number"),
    ],
)
def test_a_reward_that_returns_no_number_is_refused_with_its_name(tmp_path, source, message):
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(InputError, match=message) as error:
        Grader((f"{file}:reward",), workers=1)
    assert f"{file}:reward" in str(error.value)


def test_a_reward_that_raises_is_named_and_may_go_on(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def reward(text, reference):\n    return int(text)\n")
    grader = Grader((f"{file}:reward",), workers=1, example="70")
    assert (
        f"grading: {file}:reward: a trial call failed: ValueError: invalid literal"
        in capsys.readouterr().err
    )
    assert grader(["x", "1"], ["70", "70"]).rewards.tolist() == [[0], [1]]
    assert f"grading: {file}:reward: ValueError: invalid literal" in capsys.readouterr().err
    grader.close()


def own_reward(tmp_path, body: str) -> str:
    """A reward of the user's own, which returns `body`."""
    file = tmp_path / "mine.py"
    file.write_text(f"def mine(text, reference):\n    return {body}\n")
    return f"{file}:mine"


OUTSIDE = r"^--reward-range: \S+mine gives -0.05 for .*, outside 0 to 1. Set --reward-range LOWEST"


@pytest.mark.parametrize(
    ("body", "algo", "message"),
    [
        ("-len(text) / 500", "bnpo", OUTSIDE),
        ("-len(text) / 500", "maxrl", OUTSIDE),
        ("-len(text) / 500", "grpo", None),
        ("float(len(text) == 0) * 2", "eb", "gives 2 for the text '', outside 0 to 1"),
        ("float(len(text) == 0) * 2", "reinforce_pp", None),
        ("float('nan')", "grpo", "^--rewards: .* gives nan for .*; rewards must be finite"),
        ("float(len(text) > 0)", "bnpo", None),
        ("-1 if not text else int('x')", "bnpo", "gives -1 for the text '', outside 0 to 1"),
    ],
)
def test_a_trial_refuses_rewards_outside_the_range_that_a_method_needs(
    tmp_path, body, algo, message
):
    reward = own_reward(tmp_path, body)
    settings = {"rewards": (reward,), "algo": algo}
    users_range = with_settings(PRESETS["tiny"], **settings).users_range
    if message is None:
        Grader((reward,), users_range=users_range, workers=1).close()
        return
    with pytest.raises(InputError, match=message) as error:
        Grader((reward,), users_range=users_range, workers=1, example="70")
    assert "\n" not in str(error.value)


def test_rewards_of_any_size_are_taken_as_they_are_where_the_method_allows_it(tmp_path):
    reward = own_reward(tmp_path, "-len(text) / 2")
    config = with_settings(PRESETS["tiny"], rewards=(reward,), algo="reinforce")
    grader = Grader((reward,), users_range=config.users_range, workers=1)
    grades = grader(["a", "bcd"], ["", ""])
    grader.close()
    assert (grades.rewards.tolist(), grades.failures) == ([[-0.5], [-1.5]], {})
    values = compute_advantages(config.method, grades.rewards[None], ranges=grader.ranges).values
    assert values.tolist() == [[0.5, -0.5]]
    stated = with_settings(config, reward_range=(-2.0, 0.0))  # mapped, as for every method
    assert stated.users_range == (-2, 0)
    values = compute_advantages(config.method, grades.rewards[None], ranges=(-2, 0)).values
    assert values.tolist() == [[0.25, -0.25]]


@pytest.mark.parametrize(("outside", "ends"), [(0, False), (4, False), (5, True), (8, True)])
def test_rewards_outside_their_range_in_most_answers_end_a_run(tmp_path, outside, ends):
    reward = own_reward(tmp_path, "-0.5 if text[:3] == 'out' else 1")
    grader = Grader((reward,), workers=1)
    texts = [f"out {i % 2}" for i in range(outside)] + ["in"] * (8 - outside)
    grades = grader(texts, ["2"] * 8)
    grader.close()
    assert grades.failures == ({"OutOfRange": outside} if outside else {})  # equal calls count too
    if not ends:
        return grader.check_ranges([grades])
    message = f"mine gave -0.5 to -0.5 for {outside} of 8 answers, outside 0 to 1. Set --reward-r"
    with pytest.raises(InputError, match=message):
        grader.check_ranges([grades])


@pytest.mark.parametrize(("algo", "refused"), [("bnpo", True), ("grpo", False)])
def test_a_dry_run_tries_the_rewards(tmp_path, algo, refused, capsys):
    reward = own_reward(tmp_path, "-len(text) / 500")
    settings = {"rewards": ("accuracy", reward), "algo": algo, "eval_every": 0}
    config = with_settings(PRESETS["tiny"], **settings)
    if not refused:
        dry_run_training(config)
        return
    with pytest.raises(InputError, match="--reward-range"):
        dry_run_training(config)


@pytest.mark.parametrize("eval_only", [False, True])
def test_a_dry_run_refuses_references_that_no_answer_can_equal(eval_only, tmp_path):
    data = tmp_path / "numbers.jsonl"
    data.write_text('{"problem": "1+1=?", "answer": "2"}\n' * 32)
    sources = (str(data),) if eval_only else ("arithmetic",)
    settings = {"grader": "last_number", "train_data": sources, "eval_every": int(eval_only)}
    with pytest.raises(InputError, match=r"^arith.* cannot be equalled: .* is not one number"):
        dry_run_training(with_settings(PRESETS["tiny"], **settings))


def test_a_dry_run_of_an_evaluation_names_all_missing_files(tmp_path):
    datasets = {name: {"data": str(tmp_path / name), "repetitions": 1} for name in ("a", "b")}
    suite = json.loads((ROOT / "evals" / "arithmetic.json").read_text()) | {"datasets": datasets}
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    with pytest.raises(InputError, match=f"{tmp_path}/a, {tmp_path}/b: no such data files"):
        dry_run_evaluation(EvalConfig(str(TINY_MODEL), suite=str(tmp_path / "suite.json")))


def test_the_summary_counts_failures_and_names_findings(tmp_path):
    lines = [
        {"step": 1, "reward/timeouts": 1, "reward/errors/TypeError": 8},
        {"step": 2, "reward/errors/TypeError": 8},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "findings.json").write_text(json.dumps(findings(rewards=NONE_RIGHT)))
    text = summary(tmp_path)
    assert "failed rewards timeouts 1, TypeError 16" in text
    assert "first steps: all_lowest the reward accuracy is 0 for all 8 answers" in text


def test_findings_of_the_rollouts_of_steps():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    grader = Grader(workers=1)
    prompt = encode_prompt(tokenizer, "1+1=?")
    task = Task(problems("2", "3"), [prompt, prompt], tokenizer, grader, answer_tags=False)

    def step(*texts: str) -> Batch:
        groups = [[Answer(tokenizer.encode(text), text != "", np.zeros(1)) for text in texts]] * 2
        grades = grader(texts, ["2"] * len(texts))
        rewards, failed = np.stack([grades.rewards] * 2), np.stack([grades.failed] * 2)
        return batch_of(groups, rewards, failed, {"timeout": 1})

    steps = [step(r"\boxed{2}", "2"), step("", r"\boxed{3}")]
    assert unstated_share(steps, task, PRESETS["tiny"]) == 0.5
    assert [finding["kind"] for finding in find(steps, task, PRESETS["tiny"])] == [
        "no_final_answer"
    ]
    grader.close()
