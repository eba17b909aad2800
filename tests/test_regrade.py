"""Kept samples are graded again without a model: `python eval.py --regrade FOLDER`."""

import json
from dataclasses import asdict

import pytest

from bnpo.data import Problem, content_hash, load_problems
from bnpo.evaluation.program import EvalConfig, check, run
from bnpo.evaluation.suites import Dataset, Suite
from bnpo.files import InputError, write_json, write_json_lines
from conftest import json_lines

PROBLEMS = [Problem("half", "What is 2/4?", r"\frac{1}{2}"), Problem("two", "What is 1+1?", "2")]
TEXTS = {(0, 0): r"so \boxed{\frac12}", (0, 1): r"so \boxed{0.5}", (1, 0): r"so \boxed{2}", (1, 1): "no box"}
RIGHT = {"default": [1, 1, 1, 0], "paper": [0, 1, 1, 0]}
"""Verdicts on TEXTS. The released code's rule reads no fraction without braces."""


@pytest.fixture
def folder(tmp_path):
    """A finished evaluation by the default rule, three of whose verdicts are wrong."""
    data = tmp_path / "data.jsonl"
    write_json_lines(data, map(asdict, PROBLEMS))
    suite = asdict(Suite("mine", {"set": Dataset(str(data), 2)}, 0.6, 1.0, "chat", 64, 64))
    del suite["grader"], suite["both_rules"]
    suite["datasets"]["set"] |= {"problems": 2, "sha256": content_hash(load_problems(data))}
    out = tmp_path / "out"
    out.mkdir()
    protocol = {
        "ckpt": "x",
        "run": None,
        "suite": suite,
        "seed": 0,
        "answer_tags": False,
        "grader": "default",
        "versions": {"sympy": "0"},
    }
    write_json(out / "protocol.json", protocol)
    write_json_lines(out / "samples.jsonl", [sample(*key) for key in TEXTS])
    write_json(out / "comparison.json", {})
    return out


def sample(index, repetition):
    verdicts = {"default": index == 1, "paper": RIGHT["paper"][2 * index + repetition] == 1}
    fields = {"dataset": "set", "id": PROBLEMS[index].id, "index": index, "repetition": repetition, "seed": 1}
    fields |= {"text": TEXTS[index, repetition], "answer": "?", "vote": "?", "tokens": 3, "finish_reason": "stop"}
    return fields | {"correct": verdicts["default"], "verdicts": verdicts}


def records(folder):
    return json_lines(folder / "samples.jsonl")


def refused(**flags):
    with pytest.raises(InputError) as error:
        run(EvalConfig(**flags))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_verdicts_scores_and_protocol_are_written_anew(folder):
    outcome = run(EvalConfig(regrade=folder))
    for rule, right in RIGHT.items():
        assert [record["verdicts"][rule] for record in records(folder)] == [bool(verdict) for verdict in right]
    assert [record["answer"] for record in records(folder)] == [r"\frac12", "0.5", "2", None]
    written = json.loads((folder / "results.json").read_text())
    assert outcome.results == [written]
    assert written["results"]["set"]["pass1"] == 0.75
    assert written["average"]["by_rule"]["paper"]["pass1"] == 0.5
    assert json.loads((folder / "protocol.json").read_text()) == written["protocol"]
    assert written["protocol"]["versions"]["sympy"] != "0"
    assert not (folder / "comparison.json").exists()
    changes = [(change["id"], change["repetition"], change["was"], change["now"]) for change in outcome.changes]
    # The last answer was right by mistake.
    assert changes == [("half", 0, False, True), ("half", 1, False, True), ("two", 1, True, False)]
    assert (folder / "changed_verdicts.jsonl").read_text().count("\n") == 3
    assert run(EvalConfig(regrade=folder)).changes == []


def test_by_another_rule_or_a_function_of_the_users(folder, tmp_path):
    assert run(EvalConfig(regrade=folder, grader="paper")).results[0]["results"]["set"]["pass1"] == 0.5
    assert [record["correct"] for record in records(folder)] == [bool(verdict) for verdict in RIGHT["paper"]]
    file = tmp_path / "mine.py"
    file.write_text("def boxed(text, reference):\n    return {'no box': 2}.get(text, 0.5 + ('0.5' in text) / 2)\n")
    [results] = run(EvalConfig(regrade=folder, grader=f"{file}:boxed")).results
    assert [record["correct"] for record in records(folder)] == [False, True, False, False]  # right is only 1
    assert results["protocol"]["grader_sha256"]
    assert set(results["average"]["by_rule"]) == {f"{file}:boxed", "default", "paper"}
    assert results["grading_failures"] == {f"{file}:boxed: OutOfRange": 1}
    assert run(EvalConfig(regrade=folder)).changes == []  # the rule is kept


def test_folders_that_cannot_be_graded_are_refused(folder, tmp_path):
    assert "cannot be read (" in refused(regrade=tmp_path)
    before = (folder / "samples.jsonl").read_text()
    (folder / "samples.jsonl").write_text(before[: before[:-1].rfind("\n") + 1])
    assert "has 3 of 4 samples; finish the evaluation by repeating its command" in refused(regrade=folder)
    (folder / "samples.jsonl").write_text(before)
    (tmp_path / "data.jsonl").write_text((tmp_path / "data.jsonl").read_text().replace("1+1", "2+0"))
    assert "its samples answer other problems than" in refused(regrade=folder)
    protocol = json.loads((folder / "protocol.json").read_text())
    write_json(folder / "protocol.json", protocol | {"suite": protocol["suite"] | {"language": "en"}})
    assert "protocol.json is of another version (" in refused(regrade=folder)
    assert (folder / "samples.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "--ckpt: name the model to evaluate, or a folder of samples with --regrade"),
        ({"regrade": "x", "seed": 3}, "--seed: has no effect with --regrade, which keeps the samples; leave it out"),
        ({"ckpt": "x", "grader": "strict"}, "--grader: unknown grader 'strict'; known: default, paper, last_nu"),
        ({"ckpt": "x", "grader": "none.py:f"}, "--grader: no file none.py; write path/to/file.py:function"),
    ],
)
def test_flags_that_do_not_go_together(flags, message):
    with pytest.raises(InputError, match=message):
        check(EvalConfig(**flags))
