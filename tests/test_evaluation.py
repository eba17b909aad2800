import json
from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoTokenizer

from bnpo import evaluation
from bnpo.config import TINY_MODEL
from bnpo.evaluation import dataset_problems, encode_prompts, load_suite, pass_at_1
from bnpo.problems import InputError, Problem


def test_the_standard_error_is_that_of_the_problems_not_of_the_answers():
    """With all runs of a problem alike, more runs must not shrink the error."""
    alike = np.repeat(np.array([[1], [0], [1], [0]]), 100, axis=1)
    assert pass_at_1(alike) == (0.5, pytest.approx(np.sqrt(1 / 3) / 2))


def test_the_standard_error_covers():
    rng = np.random.default_rng(0)
    truth, hits = 2 / 5, 0
    for _ in range(1000):
        correct = rng.binomial(1, rng.beta(2, 3, size=(200, 1)), size=(200, 4))
        mean, error = pass_at_1(correct)
        hits += abs(mean - truth) < 1.96 * error
    assert 0.93 < hits / 1000 < 0.97


def test_the_arithmetic_suite_is_held_out():
    suite = load_suite("arithmetic")
    problems = dataset_problems(suite.datasets["arithmetic"])
    assert len(problems) == 500
    assert problems[0].id.startswith("arithmetic/test/")


@pytest.mark.parametrize(("text", "message"), [("{", "not a suite"), ('{"datasets": {}}', "not a suite")])
def test_a_broken_suite_is_named(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(evaluation, "SUITES", tmp_path)
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_suite("mine")
    with pytest.raises(InputError, match=r"no suite 'other' in .*; known: mine"):
        load_suite("other")


def test_suites_are_complete():
    for path in evaluation.SUITES.glob("*.json"):
        assert set(json.loads(path.read_text())) == {
            *("datasets", "temperature", "top_p", "template", "max_prompt_tokens", "max_answer_tokens")
        }


def test_a_prompt_too_long_for_the_suite_is_named():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    suite = replace(load_suite("arithmetic"), max_prompt_tokens=20)
    problems = [Problem("short", "1+1=?", "2"), Problem("long", "1+1+1+1+1+1+1=?", "7")]
    with pytest.raises(InputError, match=r"the prompt of problem long has 23 tokens, max_prompt_tokens is 20;"):
        encode_prompts(problems, suite, tokenizer)
