"""What the first answers say, and what is refused before a model is loaded."""

import json
from collections import Counter

import numpy as np
import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL, check_config, parse_train_config
from bnpo.data import Problem, encode_prompt
from bnpo.evaluation.suites import check_references
from bnpo.files import InputError
from bnpo.grading.grader import Grader
from bnpo.policy.sampling import Answer
from bnpo.report.summary import summary
from bnpo.rollouts import Rollouts, Task
from bnpo.runs.findings import FirstAnswers, find
from bnpo.runs.prepare import check_format


def answers(**changes) -> FirstAnswers:
    """Answers of which nothing is wrong, but for `changes`: 4 questions, 2 answers each, one of them right."""
    healthy = {
        "reward_names": ["accuracy"],
        "ranges": [(0.0, 1.0)],
        "rewards": np.array([[[0.0], [1.0]]] * 4),
        "failed": np.zeros((4, 2), dtype=bool),
        "failures": {},
        "finished": np.ones((4, 2), dtype=bool),
        "stated": np.ones(8, dtype=bool),
        "box_is_asked_for": True,
        "rule": "default",
    }
    return FirstAnswers(**healthy | changes)


NONE_RIGHT, ALL_RIGHT = np.zeros((4, 2, 1)), np.ones((4, 2, 1))
BY_QUESTION = np.array([[[0.0], [0.0]], [[1.0], [1.0]]] * 2)
NO, YES = np.zeros((4, 2), dtype=bool), np.ones((4, 2), dtype=bool)
MOSTLY_NO = np.arange(8).reshape(4, 2) == 0


@pytest.mark.parametrize(
    ("changes", "kinds", "text"),
    [
        ({}, [], ""),
        ({"rewards": NONE_RIGHT}, ["all_lowest"], "the reward accuracy is 0 for all 8 answers: nothing is ever right"),
        ({"rewards": ALL_RIGHT}, ["all_highest"], "nothing is left to learn; take harder problems"),
        ({"rewards": NONE_RIGHT + 0.5}, ["all_equal"], "is 0.5 for all 8 answers; correct the function"),
        ({"rewards": BY_QUESTION}, ["few_mixed_groups"], "only 0% of the questions have answers with different"),
        ({"finished": NO}, ["cut_off"], "100% of the answers are cut off before their end; raise --max-answer-tokens"),
        ({"finished": MOSTLY_NO}, [], ""),  # half of the groups or more have a signal
        ({"finished": MOSTLY_NO, "rewards": NONE_RIGHT}, ["cut_off", "all_lowest"], "88% of the answers are cut off"),
        (
            {"stated": np.zeros(8, dtype=bool), "rewards": NONE_RIGHT, "box_is_asked_for": False},
            ["no_final_answer", "all_lowest"],
            "the prompt asks for none; ask for it with --system-prompt, or --grader last_number",
        ),
        (
            {"stated": np.zeros(8, dtype=bool), "rewards": NONE_RIGHT},
            ["no_final_answer", "all_lowest"],
            r"100% of the answers have no \boxed{}, though the prompt asks for one; --grader last_number",
        ),
        (
            {"stated": np.zeros(8, dtype=bool), "rewards": NONE_RIGHT, "rule": "last_number"},
            ["no_final_answer", "all_lowest"],
            "have no number",
        ),
        ({"stated": np.zeros(8, dtype=bool), "reward_names": ["format"]}, [], ""),  # which needs no final answer
        (
            {"failed": YES, "failures": {"TypeError": 8}, "reward_names": ["mine"], "rewards": NONE_RIGHT},
            ["failing", "all_lowest"],
            "rewards of 100% of the answers could not be computed (TypeError 8 times) and count as the lowest value; "
            "look at mine",
        ),
        ({"ranges": [(-1.0, 1.0)], "rewards": NONE_RIGHT - 1}, ["all_lowest"], "is -1 for all 8 answers"),
    ],
)
def test_what_the_first_answers_say(changes, kinds, text):
    findings = find(answers(**changes))
    assert [finding.kind for finding in findings] == kinds
    assert not findings or text in findings[0].text


def test_one_of_two_rewards_is_the_same_for_all_answers():
    rewards = np.concatenate([answers().rewards, NONE_RIGHT], axis=2)
    both = answers(reward_names=["accuracy", "format"], ranges=[(0, 1), (0, 1)], rewards=rewards)
    assert [(finding.kind, "reward format is 0" in finding.text) for finding in find(both)] == [("all_lowest", True)]


def problems(*references: str) -> list[Problem]:
    return [Problem(str(i), "1+1=?", reference) for i, reference in enumerate(references)]


@pytest.mark.parametrize(
    ("references", "rewards", "rule", "message"),
    [
        (("2", "", "4"), ("accuracy",), "default", "1 of 3 reference answers cannot be equalled: .* 1, ''"),
        (("['70']",) * 3, ("accuracy",), "default", r"problem 0, \"\['70'\]\", is a list"),
        (("two", "3"), ("accuracy",), "last_number", "'two', has no number"),
        (("2", ""), ("mine.py:f",), "default", None),
        (("2", ""), ("accuracy",), "mine.py:f", None),
        (("['70']",) * 3, ("accuracy",), "last_number", None),
        (("['a']", "x", "y"), ("accuracy",), "default", None),
        (("2",) * 199 + ("",), ("accuracy",), "default", None),  # as in MATH
    ],
)
def test_references_that_no_answer_can_equal(references, rewards, rule, message):
    if message is None:
        return check_references(problems(*references), ["mine.jsonl"], rewards, rule)
    with pytest.raises(InputError, match=f"mine.jsonl: .*{message}"):
        check_references(problems(*references), ["mine.jsonl"], rewards, rule)


def test_the_reward_format_and_a_template_that_opens_the_tag():
    check_format(("accuracy",), "Solve it.<think>\n")
    check_format(("format",), "Write <think> </think>. <assistant>")
    with pytest.raises(InputError, match="--rewards format: the chat template opens <think> itself"):
        check_format(("accuracy", "format"), "Solve it.<think>\n")


@pytest.mark.parametrize("algo", ["reinforce_pp", "remax"])
def test_one_answer_per_question_where_something_is_learned_from_it(algo):
    flags = ["--preset", "tiny", "--samples-per-question", "1", "--algo", algo]
    check_config(parse_train_config(flags, has_cuda=False)[0], 1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def reward(completions, answer): return [1.0 for _ in completions]", "it returned list, not a number"),
        ("def reward(completions, answer): return completions[0]['content']", "TypeError: string indices"),
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
    assert f"grading: {file}:reward: a trial call failed: ValueError: invalid literal" in capsys.readouterr().err
    assert grader(["x", "1"], ["70", "70"]).rewards.tolist() == [[0], [1]]
    assert f"grading: {file}:reward: ValueError: invalid literal" in capsys.readouterr().err
    grader.close()


def test_the_summary_counts_failures_and_names_findings(tmp_path):
    lines = [{"step": 1, "reward/timeouts": 1, "reward/errors/TypeError": 8}, {"step": 2, "reward/errors/TypeError": 8}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = find(answers(rewards=NONE_RIGHT))
    (tmp_path / "findings.json").write_text(json.dumps([finding._asdict() for finding in found]))
    text = summary(tmp_path)
    assert "failed rewards timeout 1 times, TypeError 16 times" in text
    assert "first steps: all_lowest the reward accuracy is 0 for all 8 answers" in text


def test_findings_of_the_rollouts_of_steps():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    grader = Grader(workers=1)
    prompt = encode_prompt(tokenizer, "1+1=?")
    task = Task(problems("2", "3"), [prompt, prompt], tokenizer, grader, answer_tags=False)

    def step(*texts: str) -> Rollouts:
        groups = [[Answer(tokenizer.encode(text), text != "", np.zeros(1)) for text in texts]] * 2
        grades = grader(texts, ["2"] * len(texts))
        counts = Counter({"timeout": 1})
        rewards, failed = np.stack([grades.rewards] * 2), np.stack([grades.failed] * 2)
        return Rollouts(np.arange(2), groups, rewards, failed, [], None, counts, np.zeros(1))

    found = FirstAnswers.of([step(r"\boxed{2}", "2"), step("", r"\boxed{3}")], task, ["accuracy"], "default")
    assert found.rewards[:, :, 0].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    assert found.finished.tolist() == [[True, True], [True, True], [False, True], [False, True]]
    assert found.stated.tolist() == [True, False, True, False, False, True, False, True]
    assert (found.mixed, found.failures, found.box_is_asked_for) == (0.5, {"timeout": 2}, False)
    assert [finding.kind for finding in find(found)] == ["no_final_answer"]
    grader.close()
