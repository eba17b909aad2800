"""Evaluation suites, and grading kept samples again: scripts/regrade.py."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import regrade
from bnpo.config import TINY_MODEL
from bnpo.data import content_hash, load_problems
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import (
    SUITES,
    Dataset,
    Suite,
    dataset_problems,
    encode_prompts,
    load_suite,
    override,
    suite_problems,
)
from bnpo.files import write_json, write_json_lines
from bnpo.grading.grader import Grader
from bnpo.tasks import Problem
from conftest import json_lines, refused

GOOD = {"datasets": {"x": {"data": "arithmetic", "repetitions": 2}}, "temperature": 0.6}
GOOD |= {"top_p": 1.0, "template": "chat", "max_prompt_tokens": 64, "max_answer_tokens": 64}


def data(**fields) -> dict:
    return {"datasets": {"x": {"data": "arithmetic", "repetitions": 1} | fields}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"datasets": {}}, "datasets: Dictionary should have at least 1 item"),
        (data(problems=1), "datasets.x.problems: is 1, must be greater than or equal to 2"),
        (data(references={"a": 2}), "datasets.x.references.a: is 2, must be a valid string"),
        ({"template": "qwen"}, "template: no file 'qwen'; known: chat, think"),
        ({"temperature": 3}, "temperature: is 3, must be less than or equal to 2"),
        ({"thinking": True}, "thinking: is True, must be 'on' or 'off'"),
        ({"template": "think", "system_prompt": "x"}, "template think is a system prompt itself"),
        ({"grader": "mine"}, "unknown grader 'mine'; known: default, paper"),
        ({"system_prompt": "prompts/sytem.txt"}, "system-prompt: no file 'prompts/sytem.txt'"),
    ],
)
def test_a_broken_suite_is_named(tmp_path, fields, message):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD | fields))
    with refused(f"^{path}: not a suite .*{message}.*; evals/paper.json shows the fields"):
        load_suite(str(path))
    path.write_text("{")
    with refused(rf"^{path}: cannot be read \(Expecting property name"):
        load_suite(str(path))


def test_suites_are_what_the_pages_say():
    paper = load_suite("paper")
    assert (paper.temperature, paper.top_p, paper.template) == (0.6, 1.0, "chat")
    assert (paper.max_prompt_tokens, paper.max_answer_tokens) == (1024, 3072)
    sets = ("MATH500", "AMC23", "AIME2024", "AIME2025")
    assert {name: d.repetitions for name, d in paper.datasets.items()} == dict.fromkeys(sets, 16)
    assert replace(load_suite("paper-format"), name="paper", template="chat") == paper
    graders = {"paper": "paper", "quick": "paper", "word": "last_number"}
    for path in SUITES.glob("*.json"):
        optional = {"grader", "both_rules", "system_prompt"}
        assert set(json.loads(path.read_text())) - optional == GOOD.keys()
        assert load_suite(path.stem).grader == graders.get(path.stem.partition("-")[0], "default")


def test_other_numbers_of_repetitions_and_problems(capsys):
    suite = load_suite("paper")
    changed = override(suite, ("4", "MATH500=1"), limit=10).datasets
    found = {name: (dataset.repetitions, dataset.problems) for name, dataset in changed.items()}
    assert found == dict.fromkeys(("AMC23", "AIME2024", "AIME2025"), (4, 10)) | {"MATH500": (1, 10)}
    assert override(suite, (), None) == suite
    assert capsys.readouterr().out == ""
    greedy = load_suite("word-problems-greedy")
    assert [d.repetitions for d in override(greedy, ("16",), None).datasets.values()] == [1]
    assert capsys.readouterr().out == (
        "suite word-problems-greedy: at temperature 0 all answers to a problem are equal, so each "
        "problem is answered once (repetitions asked for: word-problems 16)\n"
    )


def rows(*ids: str, **fields: str) -> list[dict]:
    given = {"problem": "1+1", "answer": "2"} | fields
    return [{"id": i} | {name: text for name, text in given.items() if text} for i in ids]


@pytest.mark.parametrize(
    ("lines", "fields", "message"),
    [
        (rows("a"), {}, "has one problem; the standard error needs at least two"),
        (rows("a", "a", "b"), {}, "the id a occurs more than once; make ids unique"),
        (rows("a", "b"), {"references": {"c": "3"}}, "has no problem c; correct `references`"),
        (rows("a", "b"), {"sha256": "0"}, r"has other problems than before \(their sha256 was 0\)"),
        (rows("a", "b", answer=""), {}, "'answer' is missing; .* in a suite with answer_field"),
    ],
)
def test_a_data_set_that_cannot_be_evaluated(lines, fields, message, tmp_path):
    write_json_lines(tmp_path / "data.jsonl", lines)
    with refused(rf"data\.jsonl:.* {message}"):
        dataset_problems(Dataset(str(tmp_path / "data.jsonl"), repetitions=1, **fields))


def test_two_data_sets_of_one_folder_by_configuration(tmp_path):
    folder = tmp_path / "data"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        write_json_lines(folder / name / "test.jsonl", rows("1", "2"))
    configs = [{"config_name": name, "data_files": f"{name}/*"} for name in ("a", "b")]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    sets = {name: Dataset(f"{folder}:{name}#train", repetitions=1) for name in ("a", "b")}
    problems = suite_problems(replace(load_suite("arithmetic"), datasets=sets))
    assert [len(found) for found in problems.values()] == [2, 2]


def test_prompts_that_are_too_long_and_references_of_no_use(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    suite = replace(load_suite("arithmetic"), max_prompt_tokens=20)
    problems = [Problem("short", "1+1=?", "2"), Problem("long", "1+1+1+1+1+1+1=?", "7")]
    with refused("the prompt of problem long has 23 tokens, max_prompt_tokens is 20; raise it"):
        encode_prompts(problems, suite, tokenizer)
    path = tmp_path / "data.jsonl"
    write_json_lines(path, [*rows("a"), {"id": "b", "problem": "1+1", "answer": ""}])
    dataset = Dataset(str(path), repetitions=1)
    with refused(r"data\.jsonl: no answer can match 1 of 2 references: .* problem b, '', is empty"):
        Evaluation.prepare(replace(suite, datasets={"x": dataset}), tokenizer, seed=0)
    fixed = dataset_problems(replace(dataset, references={"b": r"2 \pm 0.1"}))
    assert [problem.answer for problem in fixed] == ["2", r"2 \pm 0.1"]


@pytest.mark.parametrize("name", ["school", "olympiad", "contests-2025", "contests-2026"])
def test_every_reference_equals_itself_and_a_rewritten_one(name, data_dir):
    grader, pairs = Grader(), []
    for dataset in load_suite(name).datasets.values():
        file = Path(dataset.data).name
        found = [folder / file for folder in (data_dir, data_dir / "more")]
        if not (found := [path for path in found if path.exists()]):
            pytest.skip(f"no {file} in {data_dir}: `python scripts/prepare_data.py --only {name}`")
        for problem in dataset_problems(replace(dataset, data=str(found[0]))):
            rewritten = problem.answer.replace("$", "").replace(r"\frac", r"\dfrac")
            pairs += [(problem.answer, answer) for answer in {problem.answer, rewritten}]
    references, answers = zip(*pairs, strict=True)
    texts = [f"It is $\\boxed{{{answer}}}$." for answer in answers]
    [outcomes] = grader.submit(texts, references, functions=["default"])
    assert [pair for pair, o in zip(pairs, outcomes, strict=True) if o.result() != 1] == []
    grader.close()


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
    protocol = {"ckpt": "x", "run": None, "suite": suite, "seed": 0, "answer_tags": False}
    protocol |= {"grader": "default", "versions": {"sympy": "0"}}
    write_json_lines(out / "samples.jsonl", [sample(*key) for key in TEXTS])
    write_json(out / "protocol.json", protocol)
    return out


def sample(index, repetition):
    verdicts = {"default": index == 1, "paper": RIGHT["paper"][2 * index + repetition] == 1}
    fields = {"dataset": "set", "id": PROBLEMS[index].id, "index": index, "repetition": repetition}
    fields |= {"seed": 1, "text": TEXTS[index, repetition], "answer": "?", "tokens": 3}
    fields |= {"finish_reason": "stop", "correct": verdicts["default"], "verdicts": verdicts}
    return fields


def samples(folder):
    return json_lines(folder / "samples.jsonl")


def regraded(folder, rule=None):
    """Return what results.json and samples.jsonl of a regrade in a new folder hold."""
    out = folder.with_name("again")
    shutil.rmtree(out, ignore_errors=True)
    regrade.main(regrade.Args(folder, rule, out))
    assert (out / "protocol.json").exists()
    return json.loads((out / "results.json").read_text()), samples(out)


def test_a_regrade_writes_verdicts_scores_and_protocol_anew(folder, capsys):
    before = samples(folder)
    results, records = regraded(folder)
    for rule, right in RIGHT.items():
        assert [record["verdicts"][rule] for record in records] == list(map(bool, right))
    assert [record["answer"] for record in records] == [r"\frac12", "0.5", "2", None]
    assert results["results"]["set"]["pass1"] == 0.75
    assert results["average"]["by_rule"]["paper"]["pass1"] == 0.5
    assert results["protocol"]["versions"]["sympy"] != "0"
    # The last answer was right by mistake.
    changes = "3 verdicts changed\n  default: False -> True: 2\n  default: True -> False: 1\n"
    assert changes in capsys.readouterr().out
    assert samples(folder) == before
    with refused("holds the answers; name another folder"):
        regrade.main(regrade.Args(folder, None, folder))
    again = folder.with_name("again")
    file = again / "samples.jsonl"
    whole = file.read_text()
    # As rules that have changed since, and then a kill, leave it
    wrong = whole.replace('"default": true', '"default": false')
    file.write_text("".join(wrong.splitlines(keepends=True)[:2]) + whole[:9])
    regrade.main(regrade.Args(folder, None, again))
    assert file.read_text() == whole


def test_a_regrade_by_another_rule_or_a_function_of_the_users(folder, tmp_path):
    results, records = regraded(folder, "paper")
    assert results["results"]["set"]["pass1"] == 0.5
    assert [record["correct"] for record in records] == list(map(bool, RIGHT["paper"]))
    file = tmp_path / "mine.py"
    file.write_text(
        "def boxed(text, reference):\n"
        "    return {'no box': 2}.get(text, 0.5 + ('0.5' in text) / 2)\n"
    )
    results, records = regraded(folder, f"{file}:boxed")
    # Right is only 1
    assert [record["correct"] for record in records] == [False, True, False, False]
    assert results["protocol"]["grader_sha256"]
    assert set(results["average"]["by_rule"]) == {f"{file}:boxed", "default", "paper"}
    assert results["grading_failures"] == {f"{file}:boxed: OutOfRange": 1}


def test_folders_that_cannot_be_graded_are_refused(folder, tmp_path):
    file, protocol = folder / "samples.jsonl", folder / "protocol.json"
    before, fields = file.read_text(), json.loads(protocol.read_text())
    with refused(r"protocol\.json: cannot be read \(.*; name a folder that eval.py wrote"):
        regraded(tmp_path)
    file.write_text(before[: before[:-1].rfind("\n") + 1])
    with refused("has 3 of 4 samples; finish the evaluation by repeating its command"):
        regraded(folder)
    file.write_text(before)
    data = tmp_path / "data.jsonl"
    data.write_text(data.read_text().replace("1+1", "2+0"))
    with refused(r"data\.jsonl: has other problems than before \(their sha256 was "):
        regraded(folder)
    write_json(protocol, fields | {"suite": fields["suite"] | {"language": "en"}})
    with refused(r"protocol\.json is of another version \("):
        regraded(folder)
