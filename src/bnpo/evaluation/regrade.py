"""Grade the kept samples of an evaluation again: after a change of the rules, or by another rule."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from bnpo.evaluation.protocol import GRADING_PACKAGES, Evaluation, grader_identity, versions
from bnpo.evaluation.records import Samples
from bnpo.evaluation.scores import score_all
from bnpo.evaluation.suites import Suite, dataset_problems
from bnpo.files import InputError, line_of, read_json, write_json, write_json_lines, writing
from bnpo.grading.grader import Grader

CHANGES = "changed_verdicts.jsonl"
"""File with one line per verdict that a regrade has changed."""


def regrade(folder: Path, rule: str | None) -> tuple[dict, list[dict]]:
    """Grade all samples in the folder of a finished evaluation by all rules, and write its files anew.

    `rule` is that of the scores; None keeps the one of the protocol. Returns the results, and the changed verdicts as
    they are in CHANGES. Raises InputError if the folder holds no finished evaluation, or if its problems have changed.
    """
    protocol = read_json(folder / "protocol.json", advice="--regrade needs a folder that eval.py wrote")
    evaluation = _evaluation_of(folder, protocol, rule)
    keys = evaluation.sample_keys()
    samples, count = Samples(folder, keys), len(keys)
    before = list(samples.records.values())
    if len(before) < count:
        found = f"{len(before)} of {count} samples"
        raise InputError(f"{folder}: has {found}; finish the evaluation by repeating its command, then regrade it")
    grader = Grader(grader=evaluation.suite.grader)
    records = list(tqdm(evaluation.grade(before, grader), total=count, unit="sample"))
    grader.close()
    changes = []
    for old, new in zip(before, records, strict=True):
        reference = evaluation.problems[new["dataset"]][new["index"]].answer
        for name, verdict in new["verdicts"].items():
            was = old.get("verdicts", {}).get(name, verdict)  # a rule that has not graded before changes nothing
            if verdict != was:
                place = {"dataset": new["dataset"], "id": new["id"], "repetition": new["repetition"], "rule": name}
                changes.append(place | {"was": was, "now": verdict, "answer": new["answer"], "reference": reference})
    protocol.pop("grader_sha256", None)
    protocol |= grader_identity(evaluation.suite)
    protocol["versions"] = protocol["versions"] | versions(GRADING_PACKAGES)
    results = score_all(evaluation.suite, records, protocol)
    with writing(folder):
        # First of all, so that a regrade that is killed here leaves no scores that its samples do not have.
        for stale in ("results.json", "comparison.json"):
            (folder / stale).unlink(missing_ok=True)
        write_json_lines(folder / "samples.jsonl", records)
        write_json(folder / "protocol.json", protocol)
        write_json(folder / "results.json", results)
        write_json_lines(folder / CHANGES, changes)
    samples.close()
    return results, changes


def _evaluation_of(folder: Path, protocol: dict, rule: str | None) -> Evaluation:
    """Return the evaluation that `protocol` describes, to be graded by all rules. `rule` is that of the scores."""
    try:
        # `content_hash` of every data set included, so that other problems are refused.
        suite = TypeAdapter(Suite).validate_python(
            protocol["suite"] | {"grader": rule or protocol["grader"], "both_rules": True}
        )
        seed, tags = protocol["seed"], protocol["answer_tags"]
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(f"{folder}: protocol.json is of another version ({line_of(error)}); sample it anew") from error
    problems = {name: dataset_problems(dataset) for name, dataset in suite.datasets.items()}
    return Evaluation(suite, problems, seed, tags)
