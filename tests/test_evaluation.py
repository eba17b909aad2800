import json
import tracemalloc

import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.records import Samples, claim_results_folder
from bnpo.evaluation.scores import compare, score_all
from bnpo.evaluation.suites import load_suite, override
from bnpo.files import InputError


@pytest.fixture(scope="module")
def evaluation():
    suite = override(load_suite("arithmetic"), ("2",), limit=3)
    return Evaluation.prepare(suite, AutoTokenizer.from_pretrained(TINY_MODEL), seed=0)


@pytest.fixture(scope="module")
def records(evaluation):
    """Right on the first repetition, without a box on the second, the last one cut off."""
    rows = {}
    for request in evaluation.requests():
        right = request.repetition == 0
        rows[request] = {
            "dataset": request.dataset,
            "index": request.index,
            "repetition": request.repetition,
            "answer": "5" if right else None,
            "vote": "5" if right else None,
            "correct": right,
            "verdicts": {"default": right, "paper": False},
            "tokens": 10,
            "finish_reason": "length" if request == ("arithmetic", 2, 1) else "stop",
        }
    return rows


def test_scores(evaluation, records):
    result = score_all(evaluation, records, {"seed": 0})
    arithmetic = result["results"]["arithmetic"]
    assert (arithmetic["pass1"], arithmetic["no_box"], arithmetic["majority"]) == (0.5, 0.5, 1.0)
    assert arithmetic["truncated"] == pytest.approx(1 / 6)
    by_rule = {"default": {"pass1": 0.5, "se": 0.0}, "paper": {"pass1": 0.0, "se": 0.0}}
    assert arithmetic["by_rule"] == by_rule
    assert result["average"] == {"pass1": 0.5, "se": 0.0, "by_rule": by_rule}
    assert result["grading_failures"] == {}
    assert compare(evaluation, records, records)["arithmetic"]["difference"] == 0


def test_other_prompts_of_the_same_suite_make_another_protocol(tmp_path, evaluation):
    """The template may come from a file of the model, which no hash of the suite covers."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template = "Be brief. " + tokenizer.chat_template
    other = Evaluation.prepare(evaluation.suite, tokenizer, seed=0)
    first, second = (one.protocol("x", TINY_MODEL, None, "float32") for one in (evaluation, other))
    assert {key for key in first if first[key] != second[key]} == {"prompts_sha256"}
    claim_results_folder(tmp_path / "out", first)
    with pytest.raises(InputError, match=r"holds results of another evaluation \(different prompts_sha256; see proto"):
        claim_results_folder(tmp_path / "out", second)


def test_samples_are_taken_up_again_without_the_line_that_was_cut_off(tmp_path, evaluation, records):
    samples = Samples(tmp_path, evaluation.requests())
    for record in list(records.values())[:4]:
        samples.add(record)
    samples.close()
    path = tmp_path / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Samples(tmp_path, evaluation.requests())
    again.close()
    assert list(again.records) == list(records)[:3]
    assert path.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]


def test_the_memory_of_20_000_samples_holds_no_texts(tmp_path):
    """Texts of 8,000 characters, which is 160 MB in all, are written, taken up again and read."""
    suite = override(load_suite("arithmetic"), ("2000",), limit=10)
    requests = Evaluation.prepare(suite, AutoTokenizer.from_pretrained(TINY_MODEL), seed=0).requests()
    assert len(requests) == 20_000
    tracemalloc.start()
    samples = Samples(tmp_path, requests)
    for n, request in enumerate(requests):
        name, index, repetition = request
        record = {"dataset": name, "id": f"test/{index}", "index": index, "repetition": repetition, "seed": n}
        record |= {"answer": "5", "correct": True, "verdicts": {"default": True, "paper": False}, "vote": "5"}
        samples.add(record | {"tokens": 10, "finish_reason": "stop", "text": f"{n:08}" * 1000})
    samples.close()
    again = Samples(tmp_path, requests)
    assert sum(len(record["text"]) for _, record, _ in again.read()) == 160_000_000
    again.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(samples.records) == len(again.records) == 20_000
    assert peak < 80e6  # of two sets of records


def test_two_evaluations_do_not_write_the_same_samples(tmp_path, evaluation):
    first = Samples(tmp_path, evaluation.requests())
    with pytest.raises(InputError, match="another evaluation is writing it"):
        Samples(tmp_path, evaluation.requests())
    first.close()
    Samples(tmp_path, evaluation.requests()).close()


@pytest.mark.parametrize("line", ['{"dataset": "other", "index": 0, "repetition": 0}', "[]", "nonsense", "twice"])
def test_samples_of_something_else_are_refused(tmp_path, evaluation, records, line):
    first = json.dumps(records["arithmetic", 0, 0])
    (tmp_path / "samples.jsonl").write_text(f"{first}\n{first if line == 'twice' else line}\n")
    with pytest.raises(InputError, match=r"samples\.jsonl:2: "):
        Samples(tmp_path, evaluation.requests())


def test_a_results_folder_is_only_taken_up_under_the_same_protocol(tmp_path):
    folder = tmp_path / "results"
    protocol = {"seed": 0, "checkpoint_sha256": "a", "suite": {"repetitions": 16}}
    protocol |= {"run": {"steps": 2}}
    claim_results_folder(folder, protocol)
    assert claim_results_folder(folder, protocol | {"run": {"steps": 4}}) == protocol  # resumed since
    (folder / "samples.jsonl").write_text("precious")
    for change, name in (({"checkpoint_sha256": "b"}, "checkpoint_sha256"), ({"suite": {"repetitions": 1}}, "suite")):
        with pytest.raises(InputError, match=rf"another evaluation \(different {name}; see protocol.json\)"):
            claim_results_folder(folder, protocol | change)
    assert (folder / "samples.jsonl").read_text() == "precious"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="is not empty and holds no evaluation"):
        claim_results_folder(tmp_path, {})
    blocked = tmp_path / "thesis.tex" / "results"
    with pytest.raises(InputError, match="cannot be written"):
        claim_results_folder(blocked, {})
