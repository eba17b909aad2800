"""Grade the kept samples of an evaluation again: after a change of the rules, or by another rule."""

import os
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from bnpo.data import content_hash
from bnpo.evaluation.protocol import GRADING_PACKAGES, LoadedSuite, Verdicts, graded_records, grader_identity, versions
from bnpo.evaluation.records import KeptRecord, Protocol, Request, Results, SampleRecord, Samples, without_text
from bnpo.evaluation.scores import score_all
from bnpo.evaluation.suites import Dataset, Suite, dataset_problems
from bnpo.files import InputError, read_json, write_json, write_json_lines, writing
from bnpo.grading.grader import Grader

CHANGES = "changed_verdicts.jsonl"
"""File with one line per verdict that a regrade has changed."""


def regrade(folder: Path, rule: str | None) -> tuple[Results, list[dict]]:
    """Grade all samples in the folder of a finished evaluation by all rules, and write its files anew.

    `rule` is that of the scores; None keeps the one of the protocol. Returns the results, and the changed verdicts as
    they are in CHANGES. Raises InputError if the folder holds no finished evaluation, or if its problems have changed.
    """
    protocol = read_json(folder / "protocol.json", advice="--regrade needs a folder that eval.py wrote")
    evaluation = _loaded_suite(folder, protocol, rule)
    requests = evaluation.requests()
    samples = Samples(folder, requests)
    if len(samples.records) < len(requests):
        found = f"{len(samples.records)} of {len(requests)} samples"
        raise InputError(f"{folder}: has {found}; finish the evaluation by repeating its command, then regrade it")
    grader = Grader(grader=evaluation.suite.grader)
    tags, records, changes = protocol["answer_tags"], {}, []
    references = {request: evaluation.problems[request.dataset][request.index].answer for request in requests}

    def judged() -> Iterator[tuple[SampleRecord, Verdicts]]:
        for _, record, request in samples.read():
            yield record, grader.judge(record["text"], references[request], tags, evaluation.suite.rules)

    def regraded() -> Iterator[SampleRecord]:
        for record in tqdm(graded_records(judged(), grader, tags), total=len(requests), unit="sample"):
            request = Request.of(record)
            records[request] = without_text(record)
            changes.extend(_changes(samples.records[request], record, references[request]))
            yield record

    # Beside the old file, which stays until all samples are graded.
    new_samples = folder / ".regraded.jsonl"
    write_json_lines(new_samples, regraded())
    grader.close()
    protocol.pop("grader_sha256", None)
    protocol |= grader_identity(evaluation.suite)
    protocol["versions"] = protocol["versions"] | versions(GRADING_PACKAGES)
    results = score_all(evaluation, records, protocol)
    with writing(folder):
        # First of all, so that a regrade that is killed here leaves no scores that its samples do not have.
        for stale in ("results.json", "comparison.json"):
            (folder / stale).unlink(missing_ok=True)
        os.replace(new_samples, folder / "samples.jsonl")
        write_json(folder / "protocol.json", protocol)
        write_json(folder / "results.json", results)
        write_json_lines(folder / CHANGES, changes)
    samples.close()
    return results, changes


def _changes(before: KeptRecord, after: SampleRecord, reference: str) -> Iterator[dict]:
    """Yield a line of CHANGES for each verdict that differs. Rules that have not graded before are left out."""
    for rule, verdict in after["verdicts"].items():
        was = before.get("verdicts", {}).get(rule, verdict)
        if verdict != was:
            place = {"dataset": after["dataset"], "id": after["id"], "repetition": after["repetition"], "rule": rule}
            yield place | {"was": was, "now": verdict, "answer": after["answer"], "reference": reference}


def _loaded_suite(folder: Path, protocol: Protocol, rule: str | None) -> LoadedSuite:
    """Return the suite that `protocol` describes, to be graded by all rules. `rule` is that of the scores."""
    try:
        suite_fields, datasets, hashes = dict(protocol["suite"]), {}, {}
        for name, entry in suite_fields.pop("datasets").items():
            hashes[name] = entry["sha256"]
            datasets[name] = Dataset(**{key: value for key, value in entry.items() if key != "sha256"})
        suite = Suite(datasets=datasets, **suite_fields, grader=rule or protocol["grader"], both_rules=True)
        seed, _ = protocol["seed"], protocol["answer_tags"]
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{folder}: protocol.json is of another version ({reason}); sample it anew") from error
    problems = {name: dataset_problems(dataset) for name, dataset in datasets.items()}
    for name, dataset in datasets.items():
        if content_hash(problems[name]) != hashes[name]:
            raise InputError(
                f"{folder}: its samples answer other problems than {dataset.data} has now: their sha256 was "
                f"{hashes[name][:12]}...; restore that file"
            )
    return LoadedSuite(suite, problems, seed)
