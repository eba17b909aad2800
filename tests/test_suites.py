"""Evaluation suites, and grading kept samples again: `python eval.py --regrade FOLDER`."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.data import Problem, content_hash, load_problems
from bnpo.evaluation.program import EvalConfig, run
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import (
    SUITES,
    Dataset,
    Suite,
    dataset_problems,
    encode_prompts,
    load_suite,
    override,
)
from bnpo.files import InputError, write_json, write_json_lines
from bnpo.grading.grader import Grader
from conftest import json_lines

GOOD = {
    "datasets": {"x": {"data": "arithmetic", "repetitions": 2}},
    "temperature": 0.6,
    "top_p": 1.0,
}
GOOD |= {"template": "chat", "max_prompt_tokens": 64, "max_answer_tokens": 64}


def with_data(**fields) -> str:
    return json.dumps(GOOD | {"datasets": {"x": {"data": "arithmetic", "repetitions": 1} | fields}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read \\(Expecting property name"),
        (json.dumps(GOOD | {"datasets": {}}), "datasets: Dictionary should have at least 1 item"),
        (with_data(repetitions=0), "datasets.x.repetitions: is 0, must be greater than 0"),
        (with_data(rnus=1), "datasets.x.rnus: is 1, Unexpected keyword argument"),
        (with_data(problems=1), "datasets.x.problems: is 1, must be greater than or equal to 2"),
        (with_data(references={"a": 2}), "datasets.x.references.a: is 2, must be a valid string"),
        (json.dumps(GOOD | {"template": "qwen"}), "template: no file 'qwen'; known: chat, think"),
        (json.dumps(GOOD | {"top_p": 0}), "top_p: is 0, must be greater than 0"),
        (
            json.dumps(GOOD | {"temperature": 3}),
            "temperature: is 3, must be less than or equal to 2",
        ),
        (
            json.dumps(GOOD | {"system_prompt": ["x"]}),
            r"system_prompt: is \['x'\], must be a valid string",
        ),
        (json.dumps(GOOD | {"thinking": True}), "thinking: is True, must be 'on' or 'off'"),
        (
            json.dumps(GOOD | {"template": "think", "system_prompt": "x"}),
            "template think is a system prompt itself",
        ),
        (json.dumps(GOOD | {"grader": "mine"}), "unknown grader 'mine'; known: default, paper"),
    ],
)
def test_a_broken_suite_is_named(tmp_path, text, message):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_suite(str(path))
    assert str(path) in str(error.value)


def test_other_numbers_of_runs_and_problems():
    suite = load_suite("paper")
    changed = override(suite, ("4", "MATH500=1"), limit=10).datasets
    found = {name: (dataset.repetitions, dataset.problems) for name, dataset in changed.items()}
    assert found == dict.fromkeys(("AMC23", "AIME2024", "AIME2025"), (4, 10)) | {"MATH500": (1, 10)}
    assert override(suite, (), None) == suite


def test_the_papers_suite_is_the_papers_protocol():
    suite = load_suite("paper")
    assert (suite.temperature, suite.top_p, suite.template) == (0.6, 1.0, "chat")
    assert (suite.max_prompt_tokens, suite.max_answer_tokens) == (1024, 3072)
    assert {name: d.repetitions for name, d in suite.datasets.items()} == dict.fromkeys(
        ("MATH500", "AMC23", "AIME2024", "AIME2025"), 16
    )
    assert replace(load_suite("paper-format"), name="paper", template="chat") == suite


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "1+1")], "has one problem"),
        ([("a", "1+1"), ("a", "1+2"), ("b", "1+3")], "the id a occurs more than once"),
    ],
)
def test_data_sets_without_an_error_bar_or_with_repeated_ids(tmp_path, rows, message):
    path = tmp_path / "data.jsonl"
    path.write_text(
        "".join(json.dumps({"id": i, "problem": p, "answer": "2"}) + "\n" for i, p in rows)
    )
    with pytest.raises(InputError, match=message):
        dataset_problems(Dataset(str(path), repetitions=1))


def test_suites_are_complete():
    graders = {"paper": "paper", "quick": "paper", "word": "last_number"}
    for path in SUITES.glob("*.json"):
        fields = {
            "datasets",
            "temperature",
            "top_p",
            "template",
            "max_prompt_tokens",
            "max_answer_tokens",
        }
        assert (
            set(json.loads(path.read_text())) - {"grader", "both_rules", "system_prompt"} == fields
        )
        assert load_suite(path.stem).grader == graders.get(path.stem.partition("-")[0], "default")


def test_a_prompt_too_long_for_the_suite_is_named():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    suite = replace(load_suite("arithmetic"), max_prompt_tokens=20)
    problems = [Problem("short", "1+1=?", "2"), Problem("long", "1+1+1+1+1+1+1=?", "7")]
    with pytest.raises(
        InputError, match=r"the prompt of problem long has 23 tokens, max_prompt_tokens is 20;"
    ):
        encode_prompts(problems, suite, tokenizer)


def test_a_suite_whose_data_lacks_a_column_or_a_named_problem_is_refused(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(
        "".join(json.dumps({"id": i, "problem": "1+1", "solution": "2"}) + "\n" for i in "ab")
    )
    message = (
        r"data.jsonl:1: field 'answer' is missing; there are id, problem, solution; .* in a suite "
        r"with answer_field$"
    )
    with pytest.raises(InputError, match=message):
        dataset_problems(Dataset(str(path), repetitions=1))
    dataset = Dataset(
        str(path), repetitions=1, answer_field="solution", references={"b": r"2 \pm 0.1"}
    )
    assert [problem.answer for problem in dataset_problems(dataset)] == ["2", r"2 \pm 0.1"]
    with pytest.raises(InputError, match=r"data\.jsonl: has no problem c; correct `references`"):
        dataset_problems(replace(dataset, references={"c": "3"}))


@pytest.mark.parametrize("name", ["school", "olympiad", "contests-2025", "contests-2026"])
def test_every_reference_equals_itself_and_a_rewritten_one(name, data_dir):
    grader, wrong = Grader(), []
    for dataset in load_suite(name).datasets.values():
        folders = [
            folder
            for folder in (data_dir, data_dir / "more")
            if (folder / Path(dataset.data).name).exists()
        ]
        if not folders:
            pytest.skip(
                f"no {Path(dataset.data).name} in {data_dir}: `python scripts/prepare_data.py "
                f"--only {name}`"
            )
        problems = dataset_problems(
            replace(dataset, data=str(folders[0] / Path(dataset.data).name))
        )
        references = [problem.answer for problem in problems]
        answers = [answer.replace("$", "").replace(r"\frac", r"\dfrac") for answer in references]
        pairs = [
            (r, a) for r, rewritten in zip(references, answers, strict=True) for a in {r, rewritten}
        ]
        [outcomes] = grader.submit(
            [f"It is $\\boxed{{{a}}}$." for _, a in pairs],
            [r for r, _ in pairs],
            functions=["default"],
        )
        wrong += [
            pair for pair, outcome in zip(pairs, outcomes, strict=True) if outcome.result() != 1
        ]
    grader.close()
    assert wrong == []


PROBLEMS = [Problem("half", "What is 2/4?", r"\frac{1}{2}"), Problem("two", "What is 1+1?", "2")]
TEXTS = {
    (0, 0): r"so \boxed{\frac12}",
    (0, 1): r"so \boxed{0.5}",
    (1, 0): r"so \boxed{2}",
    (1, 1): "no box",
}
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
    }
    protocol |= {"versions": {"sympy": "0"}}
    write_json(out / "protocol.json", protocol)
    write_json_lines(out / "samples.jsonl", [sample(*key) for key in TEXTS])
    write_json(out / "comparison.json", {})
    return out


def sample(index, repetition):
    verdicts = {"default": index == 1, "paper": RIGHT["paper"][2 * index + repetition] == 1}
    fields = {
        "dataset": "set",
        "id": PROBLEMS[index].id,
        "index": index,
        "repetition": repetition,
        "seed": 1,
    }
    fields |= {
        "text": TEXTS[index, repetition],
        "answer": "?",
        "vote": "?",
        "tokens": 3,
        "finish_reason": "stop",
    }
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
        assert [record["verdicts"][rule] for record in records(folder)] == [
            bool(verdict) for verdict in right
        ]
    assert [record["answer"] for record in records(folder)] == [r"\frac12", "0.5", "2", None]
    written = json.loads((folder / "results.json").read_text())
    assert outcome.results == [written]
    assert written["results"]["set"]["pass1"] == 0.75
    assert written["average"]["by_rule"]["paper"]["pass1"] == 0.5
    assert json.loads((folder / "protocol.json").read_text()) == written["protocol"]
    assert written["protocol"]["versions"]["sympy"] != "0"
    assert not (folder / "comparison.json").exists()
    changes = [
        (change["id"], change["repetition"], change["was"], change["now"])
        for change in outcome.changes
    ]
    # The last answer was right by mistake.
    assert changes == [("half", 0, False, True), ("half", 1, False, True), ("two", 1, True, False)]
    assert (folder / "changed_verdicts.jsonl").read_text().count("\n") == 3
    assert run(EvalConfig(regrade=folder)).changes == []


def test_by_another_rule_or_a_function_of_the_users(folder, tmp_path):
    assert (
        run(EvalConfig(regrade=folder, grader="paper")).results[0]["results"]["set"]["pass1"] == 0.5
    )
    assert [record["correct"] for record in records(folder)] == [
        bool(verdict) for verdict in RIGHT["paper"]
    ]
    file = tmp_path / "mine.py"
    file.write_text(
        "def boxed(text, reference):\n    return {'no box': 2}.get(text, 0.5 + ('0.5' in text) / "
        "2)\n"
    )
    [results] = run(EvalConfig(regrade=folder, grader=f"{file}:boxed")).results
    # Right is only 1
    assert [record["correct"] for record in records(folder)] == [False, True, False, False]
    assert results["protocol"]["grader_sha256"]
    assert set(results["average"]["by_rule"]) == {f"{file}:boxed", "default", "paper"}
    assert results["grading_failures"] == {f"{file}:boxed: OutOfRange": 1}
    assert run(EvalConfig(regrade=folder)).changes == []  # the rule is kept


def test_folders_that_cannot_be_graded_are_refused(folder, tmp_path):
    assert "cannot be read (" in refused(regrade=tmp_path)
    before = (folder / "samples.jsonl").read_text()
    (folder / "samples.jsonl").write_text(before[: before[:-1].rfind("\n") + 1])
    assert "has 3 of 4 samples; finish the evaluation by repeating its command" in refused(
        regrade=folder
    )
    (folder / "samples.jsonl").write_text(before)
    (tmp_path / "data.jsonl").write_text(
        (tmp_path / "data.jsonl").read_text().replace("1+1", "2+0")
    )
    assert "data.jsonl: has other problems than before (their sha256 was " in refused(
        regrade=folder
    )
    protocol = json.loads((folder / "protocol.json").read_text())
    write_json(
        folder / "protocol.json", protocol | {"suite": protocol["suite"] | {"language": "en"}}
    )
    assert "protocol.json is of another version (" in refused(regrade=folder)
    assert (folder / "samples.jsonl").read_text() == before


def test_references_that_no_answer_can_equal_are_refused(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(
        "".join(json.dumps({"problem": "1+1=?", "answer": answer}) + "\n" for answer in ("2", ""))
    )
    suite = replace(load_suite("arithmetic"), datasets={"x": Dataset(str(path), repetitions=1)})
    with pytest.raises(
        InputError, match=r"data\.jsonl: 1 of 2 reference answers cannot be equalled: .* is empty"
    ):
        Evaluation.prepare(suite, AutoTokenizer.from_pretrained(TINY_MODEL), seed=0)
