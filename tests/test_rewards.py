"""Rewards and rules of grading, and what the first answers say of them."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer

from bnpo.batch import Answer, Batch, Group, Task
from bnpo.config import PRESETS, TINY_MODEL, with_settings
from bnpo.data import Columns, content_hash, describe_gaps, load_problems, load_sources
from bnpo.evaluation.program import EvalConfig
from bnpo.evaluation.suites import check_references
from bnpo.files import ROOT, InputError
from bnpo.grading.grader import Grader, Grades
from bnpo.grading.rewards import format_reward, forms_of, last_number_reward
from bnpo.runs.findings import find
from bnpo.runs.prepare import check_format
from bnpo.tasks import Problem
from bnpo_estimators import Method, compute_advantages
from conftest import refused
from planner.dry_run import dry_run_evaluation, dry_run_training


@pytest.fixture(scope="module")
def grader():
    grader = Grader(("accuracy", "format"), workers=2)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("name", "right"), [("math500", 500), ("amc23", 40), ("aime2024", 30), ("math_train", 7498)]
)
def test_real_references_in_a_sentence_are_right(grader, data_dir, name, right):
    problems = load_problems(data_dir / f"{name}.jsonl")
    text = r"First I thought of \boxed{0}. So the answer is $\boxed{%s}$."
    texts = [text.replace("%s", p.answer) for p in problems]
    rewards = grader(texts, [p.answer for p in problems]).rewards
    wrong = [p for p, verdict in zip(problems, rewards[:, 0], strict=True) if not verdict]
    assert len(problems) - len(wrong) == right, wrong
    assert all(p.answer == "" for p in wrong)


def test_format():
    good = ("<think>a</think><answer>b</answer>", " <think>a\n</think>\n<answer>b</answer>\n")
    bad = ["<think>a</think><answer>b", "<answer>b</answer><think>a</think>", f"so {good[0]}"]
    bad += [f"<think>a</think>{good[0]}", ""]
    assert [format_reward(text, "") for text in (*good, *bad)] == [1] * 2 + [0] * 5


EQUAL = [("She has 12 apples.", "12"), ("That makes 1,234 in all.", "1234"), ("-$3", "-3")]
EQUAL += [("5 - 8 = −3", "-3"), ("40%", "40"), (".5 of it", "0.5"), ("1,2,3", "3")]
EQUAL += [(r"\boxed{12}", "12"), ("#### 12", "#### 12"), ("it is -1234.5", "$-1,234.5$")]
EQUAL += [("so 18", r"\$18"), ("1." * 3000 + "2", "0.2"), ("9" * 20_000 + "," * 20_000 + "7", "7")]
DIFFERENT = [("10 - 3", "-3"), ("12 apples in 2 bags", "12"), ("twelve", "12"), ("", "")]
DIFFERENT += [("it is 6", r"\frac{25}{6}"), ("it is 6", "25/6"), ("it is 2", "(1,2)")]
DIFFERENT += [("it is 5", "1e5"), ("1,111" * 20_000, "7")]


def test_the_last_number_is_read_as_evaluators_of_gsm8k_do():
    assert [pair for pair in EQUAL if not last_number_reward(*pair)] == []
    assert [pair for pair in DIFFERENT if last_number_reward(*pair)] == []
    grader = Grader(("accuracy", "last_number"), grader="last_number", workers=1)
    assert grader(["so 12", r"\boxed{12} or 13"], ["12", "12"]).rewards.tolist() == [[1, 1], [0, 0]]
    grader.close()


def test_an_answer_that_takes_too_long_is_wrong_and_counted_from_any_thread():
    grader = Grader(workers=1, time_limit=1.0)
    hostile = [r"\boxed{9^{9^{9^{9}}}+x}", r"\boxed{\frac{x}{2}}"]
    with ThreadPoolExecutor(1) as thread:
        grades = thread.submit(grader, hostile, ["3^{3^{3^{3}}}+x", "0.5x"]).result()
    assert (grades.rewards.tolist(), grades.failures) == ([[0], [1]], {"timeout": 1})
    assert grades.failed.tolist() == [True, False]
    grader.close()


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
    rewards = grades.rewards[None, :2]
    values = compute_advantages(Method("reinforce"), rewards, ranges=grader.ranges).values
    assert values.tolist() == [[0, 0]]
    grader.close()


def test_the_rules_read_texts_as_their_owners_do(grader):
    """The released one reads only the end of a text, and no spaces in the format. Tags count where
    that is asked for.
    """
    paper = Grader(("accuracy", "format"), grader="paper", workers=1)
    texts = [r"\boxed{\frac{1}{2}}" + "." * n for n in (100, 600)]
    texts += [r"so $\frac{1}{2}$ is \boxed{\frac12}", "<think>a</think> <answer>b</answer>"]
    assert paper(texts, ["0.5"] * 4).rewards.tolist() == [[1, 0], [0, 0], [0, 0], [0, 0]]
    paper.close()
    assert grader(texts[3:], ["b"]).rewards.tolist() == [[0, 1]]
    text = r"<think>\boxed{7}</think><answer>8</answer>"
    assert grader([text, text], ["7", "8"], tags=True).rewards.tolist() == [[0, 1], [1, 1]]
    assert grader([text, text], ["7", "8"]).rewards.tolist() == [[1, 1], [0, 1]]


def batch_of(answers: list, rewards: np.ndarray, failed: np.ndarray, failures: dict) -> Batch:
    """A batch of `answers` [q][m] with rewards [q, m, K]."""
    grades = [Grades(*of_group, Counter()) for of_group in zip(rewards, failed, strict=True)]
    grades[0].failures.update(failures)
    groups = [
        Group(i, [], answers[i], of_group, of_group.failed) for i, of_group in enumerate(grades)
    ]
    lengths = np.array([[len(answer.token_ids) for answer in group] for group in answers])
    return Batch(groups, rewards, failed, lengths, None, np.arange(len(groups)), 0, {}, np.zeros(1))


def findings(**changes) -> list[dict]:
    """Findings of answers of which nothing is wrong, but for `changes`: 4 questions, 2 answers
    each, one is right.
    """
    case = {"rewards": [[[0.0], [1.0]]] * 4, "ranges": [(0.0, 1.0)], "reward_names": ("accuracy",)}
    case |= {"weights": None, "failed": NO, "failures": {}, "finished": YES, "stated": True}
    case |= changes
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    ids = tokenizer.encode(r"\boxed{1}" if case["stated"] else "none")
    groups = [[Answer(ids, bool(end), np.zeros(1)) for end in ends] for ends in case["finished"]]
    step = batch_of(groups, np.array(case["rewards"]), case["failed"], case["failures"])
    task = Task([], [], tokenizer, SimpleNamespace(ranges=case["ranges"]), answer_tags=False)
    settings = {"rewards": case["reward_names"], "reward_weights": case["weights"]}
    settings |= {name: case[name] for name in METHOD if name in case}
    return find([step], task, with_settings(PRESETS["tiny"], **settings))


METHOD = ("algo", "decompose", "resample_rounds", "signal")


NONE_RIGHT, ALL_RIGHT = np.zeros((4, 2, 1)), np.ones((4, 2, 1))
BY_QUESTION = np.array([[[0.0], [0.0]], [[1.0], [1.0]]] * 2)
NO, YES = np.zeros((4, 2), dtype=bool), np.ones((4, 2), dtype=bool)
RECORDED = {"reward_names": ("accuracy", "format"), "ranges": [(0.0, 1.0)] * 2}
RECORDED |= {"rewards": np.array([[[0.0, 0.0], [0.0, 1.0]]] * 4)}

PHANTOM = RECORDED | {"rewards": np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]] * 2)}

USERS = f"{ROOT / 'examples' / 'reward.py'}:shows_work"
FAILING = {"failed": YES, "failures": {"TypeError": 8}, "reward_names": (USERS,)}
FAILING |= {"rewards": NONE_RIGHT}
UNSTATED = r"100% of the answers have no \boxed{}; have the prompt ask for it (--system-prompt), or"


@pytest.mark.parametrize(
    ("changes", "kinds", "text"),
    [
        ({}, [], ""),
        ({"rewards": NONE_RIGHT}, ["all_lowest"], "accuracy is 0 for all 8 answers: no answer is "),
        ({"rewards": ALL_RIGHT}, ["all_highest"], "nothing is left to learn; take harder problems"),
        ({"rewards": NONE_RIGHT + 0.5}, ["all_equal"], "is 0.5 for all 8 answers: correct the fun"),
        ({"rewards": BY_QUESTION}, ["few_mixed_groups"], "only 0% of the questions have answers"),
        ({"finished": NO}, ["cut_off"], "100% of the answers are cut off before their end; raise"),
        ({"stated": False, "rewards": NONE_RIGHT}, ["no_final_answer", "all_lowest"], UNSTATED),
        ({"stated": False, "reward_names": ("format",)}, [], ""),  # which needs no final answer
        (FAILING, ["failing"], "8 of 8 answers are left out, because rewards could not be comput"),
        ({"ranges": [(-1.0, 1.0)], "rewards": NONE_RIGHT - 1}, ["all_lowest"], "is -1 for all 8"),
        ({"reward_names": (USERS,), "rewards": NONE_RIGHT}, ["all_lowest"], "call the function wi"),
        (RECORDED | {"weights": (0.0, 1.0)}, [], ""),
        (PHANTOM, ["phantom_advantages"], "% of the advantages' energy "),
        (PHANTOM | {"weights": (1.0, 0.1)}, [], ""),
        (PHANTOM | {"weights": (1.0, 0.1), "algo": "grpo"}, ["phantom_advantages"], "50% of the a"),
        (RECORDED | {"weights": (1.0, 0.0)}, ["all_lowest"], "the reward accuracy is 0"),
    ],
)
def test_what_the_first_answers_say(changes, kinds, text):
    found = findings(**changes)
    assert [finding["kind"] for finding in found] == kinds
    assert not found or text in found[0]["text"]


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"algo": "grpo"}, "--reward-weights 1 0.1 --decompose"),
        ({"algo": "grpo", "weights": (1.0, 0.3)}, "--reward-weights 1 0.1 --decompose"),
        ({"algo": "bnpo"}, "--reward-weights 1 0.1"),
        ({"algo": "reinforce"}, "--reward-weights 1 0.1"),
        ({"algo": "maxrl", "weights": (1.0, 0.1)}, "--reward-weights 1 0.1 --decompose"),
        ({"algo": "gdpo"}, "--reward-weights 1 0.1"),
    ],
)
@pytest.mark.parametrize("resample_rounds", [0, 4])
def test_what_a_finding_advises_against_phantom_advantages_helps(settings, flags, resample_rounds):
    settings = PHANTOM | settings | {"resample_rounds": resample_rounds}
    [found] = findings(**settings)
    assert f"take {flags} (" in found["text"]
    assert ("set --resample-rounds" in found["text"]) == (resample_rounds == 0)
    advised = {"weights": (1.0, 0.1), "decompose": "--decompose" in flags}
    assert findings(**settings | advised) == []


@pytest.mark.parametrize("lowest_and_highest", [(-np.inf, np.inf), (-1.0, 1.0), (0.0, 10.0)])
def test_phantom_advantages_are_found_with_a_reward_of_ones_own(lowest_and_highest):
    """Its range has no end, or it never reaches one of them."""
    settings = {"algo": "grpo", "ranges": [lowest_and_highest] * 2, "weights": (1.0, 0.1)}
    [found] = findings(**PHANTOM | settings)
    assert found["kind"] == "phantom_advantages"
    all_right = PHANTOM["rewards"].copy()
    all_right[[0, 2], :, 0] = 1  # where they were all wrong
    assert findings(**PHANTOM | settings | {"rewards": all_right}) == []


def test_small_weights_are_not_raised_and_resampling_by_all_rewards_is_no_cure():
    settings = PHANTOM | {"algo": "grpo", "weights": (1.0, 0.01)}
    [found] = findings(**settings)
    assert "take --reward-weights 1 0.01 --decompose (" in found["text"]
    [found] = findings(**settings, signal="all")
    assert "--resample-rounds" not in found["text"]


def problems(*references: str) -> list[Problem]:
    return [Problem(str(i), "1+1=?", reference) for i, reference in enumerate(references)]


ACCURACY, NOT_NUMBERS = ("accuracy",), r"2 of 4 .*problem 1, '\(1,2\)', is not one number"


@pytest.mark.parametrize(
    ("references", "rewards", "rule", "message"),
    [
        (("2", "", "4"), ACCURACY, "default", "1 of 3 reference.*: .* 1, ''"),
        (("['70']",) * 3, ACCURACY, "default", r"problem 0, \"\['70'\]\", is a list"),
        (("2", "(1,2)", "25/6", "4"), ACCURACY, "last_number", NOT_NUMBERS),
        (("2", "(1,2)"), ("accuracy", "last_number"), "default", "is not one number"),
        (("1 + 1 is 2.\n#### 2",) * 2, ACCURACY, "default", "is a whole solution; .*GSM8K"),
        (("We add 1 and 1 and get \\boxed{2}.",) * 2, ACCURACY, "default", "is a whole solution"),
        (("2", "(1,2)"), ACCURACY, "default", None),
        ((r"\boxed{2}", r"so \boxed{2}"), ACCURACY, "default", None),
        (("2",) * 199 + ("25/6",), ACCURACY, "last_number", None),
        (("2",) * 199 + ("",), ACCURACY, "default", None),  # as in MATH
    ],
)
def test_references_that_no_answer_can_equal(references, rewards, rule, message):
    if message is None:
        return check_references(problems(*references), ["mine.jsonl"], rewards, rule)
    with pytest.raises(InputError, match=f"mine.jsonl: .*{message}"):
        check_references(problems(*references), ["mine.jsonl"], rewards, rule)


def test_the_reward_format_and_a_prompt_whose_example_it_rejects():
    """Open-R1's layout has a blank between the tags."""
    spaced = (
        "Write <think> </think> and <answer> </answer>: <think> a </think> <answer> b </answer>."
    )
    check_format(("format",), spaced, "default")
    check_format(("format",), spaced.replace("</think> <a", "</think><a"), "paper")
    with refused("</think> <answer> b </answer>', which --grader paper rej"):
        check_format(("accuracy", "format"), spaced, "paper")
    check_format(("accuracy",), "Solve it.<think>\n")
    with refused("--rewards format: the chat template opens <think> itself"):
        check_format(("accuracy", "format"), "Solve it.<think>\n")


FORGETFUL = """
def reward(text, reference):
    if "boxed" in text:
        return 1.0
"""
UNIMPORTED = "def reward(text, reference): return float(re.search('2', text) is not None)"
LIST = "def reward(prompts, completions): return [1.0 for _ in completions]"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def reward(text): return 1", "TypeError: .* takes 1 positional argument but 2"),
        ("def reward(:", "SyntaxError"),
        ("import time; time.sleep(60)", "timeout"),
        (r"raise OSError('on\ntwo lines')", "OSError: on two lines; it must be function"),
        (LIST, "'prompts' is one that only TRL passes; here the first two are `completions` and"),
        (
            "def reward(completions, completion_ids): return [1]",
            "'completion_ids' is one that only",
        ),
        ("def reward(text, reference): return [1.0]", "it returned list, not a number"),
        ("def reward(text, reference):\n    return text > 1", r"TypeError: .* \(line 2\)"),
        ("if True:\n    def reward(text, reference, level): pass", "asks for the column 'level'"),
        (UNIMPORTED, r"failed for 'I do not know.': NameError: .* \(line 1\); all trial calls fai"),
        (FORGETFUL, "failed for '': NotANumber: it returned NoneType, not a number"),
        ("def reward(completions, answer): return 1.0", "float, not a list of 1 numbers; it must"),
        ("def reward(completions, answer): return []", "returned 0 rewards for 1 completions; it"),
        ("def reward(text, reference, level): return 1.0", "asks for the column 'level', and only"),
        ("def reward(text, reference): print(text)", "it returned NoneType, not a number"),
    ],
)
def test_a_reward_that_cannot_be_used_is_refused_with_its_name(tmp_path, source, message):
    file = tmp_path / "mine.py"
    file.write_text(source)
    with refused(f"{file}:reward.*{message}"):
        Grader((f"{file}:reward",), workers=1, time_limit=0.5)


COLUMNS = """
def plain(text, reference):
    return 1.0

def asks(text, reference, level, *, unit="none", **others):
    return level == 3 and unit == "cm" and sorted(others) == ["answer", "id", "problem"]

def shortest(completions, answer, level, unit=None):
    assert (answer, level, unit) == (["7"] * 3, [3] * 3, ["cm"] * 3)
    longest = max(map(len, completions))
    return [len(text) < longest for text in completions]

def without(completions, **columns):  # as many functions for TRL
    return [columns["level"][0] / 3 for _ in completions]
"""


def test_a_reward_gets_the_columns_and_all_answers_that_its_parameters_ask_for(tmp_path):
    mine, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    mine.write_text(COLUMNS)
    data.write_text('{"id": 1, "problem": "3+4=?", "answer": 7, "level": 3, "unit": "cm"}\n')
    rewards = [f"{mine}:{name}" for name in ("plain", "asks", "shortest", "without")]
    [problem], _ = load_sources([str(data)], Columns(), forms_of(rewards))
    plain, _ = load_sources([str(data)], Columns(), forms_of(rewards[:1]))
    assert (plain[0].fields, problem.fields["level"]) == ({}, 3)
    assert content_hash([problem]) != content_hash(plain)  # --resume notices other columns
    grader = Grader(rewards, workers=1, example="7", fields=problem.fields)
    outcomes = grader.submit(["a", "bb", "ccc"], ["7"] * 3, fields=problem.fields)
    grades = grader.collect(outcomes)
    grader.close()
    assert grades.rewards.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]]


@pytest.mark.parametrize("kind", ["jsonl", "built in"])
def test_a_column_that_a_data_set_lacks_is_refused_with_its_line(kind, tmp_path):
    mine, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    mine.write_text(COLUMNS)
    row = '{"problem": "1+1=?", "answer": "2"%s}\n'
    data.write_text(row % ', "level": 1' + row % "")  # the second line lacks it
    source, line = ("arithmetic", "arithmetic") if kind == "built in" else (str(data), f"{data}:2")
    with refused(f"^{line}: has no field 'level', which the reward {mine}:asks asks for; there"):
        load_sources([source], Columns(), forms_of(["accuracy", f"{mine}:asks"]))


def test_a_function_of_all_answers_may_compare_them(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n\n\ndef z(completions, references):\n"
        "    lengths = np.array([len(text) for text in completions])\n"
        "    return (lengths - lengths.mean()) / lengths.std()\n"
    )
    grader = Grader((f"{file}:z",), workers=1, users_range=(-np.inf, np.inf))
    assert grader(["a", "bbb"], ["", ""]).rewards.tolist() == [[-1], [1]]
    grader.close()


@pytest.mark.parametrize(
    ("parameters", "refused_name"),
    [
        ("text, level", "level"),
        ("completions, solution, **others", "solution"),
        ("completions, result", None),  # the reference
        ("text, reference", None),  # although the data set has such a field
        ("text, gold, level", None),
    ],
)
def test_a_second_parameter_named_after_another_column_is_refused(
    parameters, refused_name, tmp_path
):
    mine, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    mine.write_text(f"def mine({parameters}): return 1.0")
    row = {"problem": "1+1=?", "result": "2", "level": 3, "solution": "1+1=2", "reference": "Euler"}
    data.write_text(json.dumps(row) + "\n")
    forms = forms_of([f"{mine}:mine"])
    columns = Columns(answer_field="result")
    problem = f"^{data}:1: has a field '{refused_name}', but the second parameter of {mine}:mine"
    with refused(problem) if refused_name else nullcontext():
        load_sources([str(data)], columns, forms)


def test_a_batch_that_fails_leaves_out_all_its_answers(tmp_path):
    file = tmp_path / "mine.py"
    body = "[int(x) if len(x) == 1 else 0 for x in completions]"
    file.write_text(f"def mine(completions, answers): return {body}")
    grader = Grader((f"{file}:mine",), workers=1)
    assert grader(["1", "0"], ["", ""]).rewards.tolist() == [[1], [0]]
    assert grader(["1", "x"], ["", ""]).failures == {"ValueError": 2}
    grader.close()


def test_a_batch_leaves_out_only_the_answers_that_got_no_number(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def mine(completions): return [None if x == 'x' else 1 for x in completions]")
    grader = Grader((f"{file}:mine",), workers=1)
    grades = grader(["1", "x", "2"], [""] * 3)
    grader.close()
    assert (grades.failed.tolist(), grades.failures) == ([False, True, False], {"NotANumber": 1})


def test_a_rule_that_compares_answers_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def mine(completions, references): return [1.0] * len(completions)")
    with refused(f"^--grader: {file}:mine compares the answers to a question, and a rule judges"):
        Grader(("accuracy",), grader=f"{file}:mine", workers=1)


def test_the_trial_says_what_a_reward_was_called_with(tmp_path, capsys):
    file, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    file.write_text("def mine(text, gold, *, tolerence=0.1, unit=''): return tolerence")
    rows = [
        '{"problem": "p", "answer": "7", "tolerance": 0.5, "unit": "cm"}',
        '{"problem": "q", "answer": "8"}',
    ]
    data.write_text("\n".join(rows))
    forms = forms_of([f"{file}:mine"])
    problems, _ = load_sources([str(data)], Columns(), forms)
    Grader((f"{file}:mine",), workers=1, example="7", fields=problems[0].fields).close()
    called = "with the reference '7' as gold, the default of tolerence, unit 'cm': 0.1 for 'The"
    assert called in capsys.readouterr().out
    assert describe_gaps(problems, forms) == [
        f"1 of 2 problems have no field 'unit': {file}:mine takes its default for them"
    ]


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
        ("-len(text) / 500", "grpo", None),
        ("float(len(text) == 0) * 2", "eb", "gives 2 for the text '', outside 0 to 1"),
        ("float('nan')", "grpo", "^--rewards: .* gives nan for .*; rewards must be finite"),
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
    with refused(message):
        Grader((reward,), users_range=users_range, workers=1, example="70")


def test_rewards_outside_their_range_in_most_answers_end_a_run(tmp_path):
    reward = own_reward(tmp_path, "-0.5 if text[:3] == 'out' else 1")
    grader = Grader((reward,), workers=1)
    texts = ["out 0", "out 1", "out 0", "out 0", "in", "in", "in", "in"]
    grades = grader(texts, ["2"] * 8)
    assert grades.failures == {"OutOfRange": 4}  # equal calls count too
    grader.check_grades([grades])
    message = "mine gave -0.5 to -0.5 for 5 of 8 answers, outside 0 to 1. Set --reward-range"
    with refused(message):
        grader.check_grades([grader(["out", *texts[:7]], ["2"] * 8)])
    grader.close()


def test_a_reward_that_fails_for_most_answers_ends_a_run(tmp_path):
    reward = own_reward(tmp_path, "1 if 'x' not in text else int(text)")
    grader = Grader((reward,), workers=1)
    most, half = (grader([*"xyx", last], ["2"] * 4) for last in "xz")
    fault = f"^--rewards: {reward} could not be computed for 3 of 4 answers \\(ValueError: inv"
    with refused(fault):
        grader.check_grades([most])
    grader.check_grades([half])
    grader.check_grades([most])  # what it depends on may come back
    grader.close()


def test_a_dry_run_tries_the_rewards(tmp_path):
    settings = {"rewards": ("accuracy", own_reward(tmp_path, "-len(text) / 500")), "eval_every": 0}
    with refused("--reward-range"):
        dry_run_training(with_settings(PRESETS["tiny"], **settings, algo="bnpo"))


@pytest.mark.parametrize("eval_only", [False, True])
def test_a_dry_run_refuses_what_would_fail_later(eval_only, tmp_path):
    data = tmp_path / "numbers.jsonl"
    data.write_text('{"problem": "1+1=?", "answer": "2"}\n' * 32)
    sources = (str(data),) if eval_only else ("arithmetic",)
    settings = {"grader": "last_number", "train_data": sources, "eval_every": int(eval_only)}
    with refused("^arith.* is not one number"):
        dry_run_training(with_settings(PRESETS["tiny"], **settings))
    datasets = {name: {"data": str(tmp_path / name), "repetitions": 1} for name in ("a", "b")}
    suite = json.loads((ROOT / "evals" / "arithmetic.json").read_text()) | {"datasets": datasets}
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    with refused(f"{tmp_path}/a, {tmp_path}/b: no such data files"):
        dry_run_evaluation(EvalConfig(str(TINY_MODEL), suite=str(tmp_path / "suite.json")))
