import json
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.evaluation.suites import SUITES, Dataset, dataset_problems, encode_prompts, load_suite, override
from bnpo.files import InputError
from bnpo.problems import Problem


def test_the_arithmetic_suite_is_held_out():
    suite = load_suite("arithmetic")
    problems = dataset_problems(suite.datasets["arithmetic"])
    assert len(problems) == 500
    assert problems[0].id.startswith("arithmetic/test/")


GOOD = {
    "datasets": {"x": {"data": "arithmetic", "runs": 2}},
    "temperature": 0.6,
    "top_p": 1.0,
    "template": "chat",
    "max_prompt_tokens": 64,
    "max_answer_tokens": 64,
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a suite"),
        ("[]", "not a suite"),
        ('{"datasets": {}}', "not a suite"),
        (json.dumps(GOOD | {"datasets": {}}), "datasets must not be empty"),
        (json.dumps(GOOD | {"datasets": {"x": {"data": "arithmetic", "runs": 0}}}), "runs of x is 0"),
        (
            json.dumps(GOOD | {"datasets": {"x": {"data": "arithmetic", "rnus": 1}}}),
            "unexpected keyword argument 'rnus'",
        ),
        (
            json.dumps(GOOD | {"datasets": {"x": {"data": "arithmetic", "runs": 1, "problems": 1}}}),
            "problems of x is 1",
        ),
        (json.dumps(GOOD | {"datasets": {"x": {"data": 5, "runs": 1}}}), "data of x is 5"),
        (json.dumps(GOOD | {"template": "qwen"}), "template is 'qwen', known: chat, think"),
        (json.dumps(GOOD | {"top_p": 0}), "top_p above 0"),
        (json.dumps(GOOD | {"max_answer_tokens": "many"}), "max_answer_tokens is 'many'"),
    ],
)
def test_a_broken_suite_is_named(tmp_path, text, message):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_suite(str(path))
    assert str(path) in str(error.value)


def test_unknown_suites_are_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"no evaluation suite 'other'; known: arithmetic, .*paper"):
        load_suite("other")


def test_other_numbers_of_runs_and_problems():
    suite = load_suite("paper")
    changed = override(suite, ("4", "MATH500=1"), limit=10).datasets
    assert {name: (d.runs, d.problems) for name, d in changed.items()} == {
        "MATH500": (1, 10),
        "AMC23": (4, 10),
        "AIME2024": (4, 10),
        "AIME2025": (4, 10),
    }
    assert override(suite, (), None) == suite


def test_the_papers_suite_is_the_papers_protocol():
    suite = load_suite("paper")
    assert (suite.temperature, suite.top_p, suite.template) == (0.6, 1.0, "chat")
    assert (suite.max_prompt_tokens, suite.max_answer_tokens) == (1024, 3072)
    assert {name: d.runs for name, d in suite.datasets.items()} == dict.fromkeys(
        ("MATH500", "AMC23", "AIME2024", "AIME2025"), 16
    )
    assert replace(load_suite("paper-format"), name="paper", template="chat") == suite


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "1+1")], "has one problem"),
        ([("a", "1+1"), ("a", "1+2"), ("b", "1+3")], "the ids a occur more than once"),
    ],
)
def test_data_sets_without_an_error_bar_or_with_repeated_ids(tmp_path, rows, message):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"id": i, "problem": p, "answer": "2"}) + "\n" for i, p in rows))
    with pytest.raises(InputError, match=message):
        dataset_problems(Dataset(str(path), runs=1))


def test_suites_are_complete():
    for path in SUITES.glob("*.json"):
        fields = {"datasets", "temperature", "top_p", "template", "max_prompt_tokens", "max_answer_tokens"}
        assert set(json.loads(path.read_text())) - {"grader"} == fields
        assert load_suite(path.stem).grader == ("reference" if path.stem.startswith(("paper", "quick")) else "default")


def test_a_prompt_too_long_for_the_suite_is_named():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    suite = replace(load_suite("arithmetic"), max_prompt_tokens=20)
    problems = [Problem("short", "1+1=?", "2"), Problem("long", "1+1+1+1+1+1+1=?", "7")]
    with pytest.raises(InputError, match=r"the prompt of problem long has 23 tokens, max_prompt_tokens is 20;"):
        encode_prompts(problems, suite, tokenizer)
