"""Grade the kept answers of an evaluation again, without a model: after a change of the rules, or
by another rule.

    python scripts/regrade.py evals/results/FOLDER --grader paper

The answers with their new verdicts go to a folder of their own, by default FOLDER-regraded, which
all programs read like one of eval.py. FOLDER stays as it is. All answers are graded by `default`,
by `paper`, and by --grader.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from bnpo.environment import run_program
from bnpo.evaluation.program import GRADER_FLAG
from bnpo.evaluation.protocol import (
    GRADING_PACKAGES,
    REPEAT,
    Evaluation,
    Record,
    Samples,
    grader_identity,
    key_of,
    versions,
)
from bnpo.evaluation.scores import describe_scores, score_all
from bnpo.evaluation.suites import Suite, check_references, suite_problems
from bnpo.files import InputError, line_of, read_json, whole_json_lines, write_json, writing
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import GRADERS, check_function


@dataclass(frozen=True)
class Args:
    folder: tyro.conf.Positional[Path]
    """Folder of a finished evaluation by eval.py."""
    grader: Annotated[str | None, GRADER_FLAG] = None
    """Rule of the scores, as for eval.py. The default is the rule of the evaluation."""
    output_dir: Path | None = None
    """Folder for the results, by default FOLDER-regraded."""


def kept_evaluation(folder: Path, protocol: dict, rule: str | None) -> Evaluation:
    """Return the evaluation in `folder`, to be scored by `rule`. Raises InputError if its problems
    are not there any more.
    """
    try:
        rules = {"grader": rule or protocol["grader"], "both_rules": True}
        # The hash of every data set is among the fields, so other problems are refused.
        suite = TypeAdapter(Suite).validate_python(protocol["suite"] | rules)
        seed, tags = protocol["seed"], protocol["answer_tags"]
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"{folder}: protocol.json is of another version ({line_of(error)}); sample it anew"
        ) from error
    problems = suite_problems(suite)
    for name, dataset in suite.datasets.items():
        check_references(problems[name], [dataset.data], ["accuracy"], suite.grader)
    return Evaluation(suite, problems, seed, tags)


def print_changes(before: Sequence[Record], after: Samples) -> None:
    """Print how many verdicts have changed, by rule."""
    changes = Counter[str]()
    for old in before:
        for rule, verdict in after.records[key_of(old)]["verdicts"].items():
            was = old["verdicts"].get(rule, verdict)
            if was != verdict:
                changes[f"{rule}: {was} -> {verdict}"] += 1
    print(f"{changes.total()} verdicts changed")
    for change, count in sorted(changes.items()):
        print(f"  {change}: {count}")


def main(args: Args) -> None:
    folder = args.folder
    if args.grader:
        check_function("grader", args.grader, GRADERS)
    protocol = read_json(folder / "protocol.json", "name a folder that eval.py wrote")
    evaluation = kept_evaluation(folder, protocol, args.grader)
    before, keys = whole_json_lines(folder / "samples.jsonl"), evaluation.sample_keys()
    if len(before) < len(keys):
        raise InputError(
            f"{folder}: has {len(before)} of {len(keys)} samples; finish the evaluation by "
            "repeating its command, then regrade it"
        )
    graded = {name: value for name, value in protocol.items() if name != "grader_sha256"}
    graded |= grader_identity(evaluation.suite)
    graded["versions"] = protocol["versions"] | versions(GRADING_PACKAGES)
    whole = folder.resolve()  # `.` has no name
    out = args.output_dir or whole.with_name(f"{whole.name}-regraded")
    if out.resolve() == whole:
        raise InputError(f"--output-dir {out}: holds the answers; name another folder")
    samples = Samples(out, keys, graded)
    samples.clear()  # the rules may have changed since they were graded last
    grader = Grader(grader=evaluation.suite.grader, example=evaluation.first_reference)
    for record in tqdm(evaluation.grade(before, grader), total=len(before), unit="sample"):
        samples.add(record)
    grader.close()
    samples.close()
    results = score_all(evaluation.suite, samples.records.values(), graded)
    with writing(out, REPEAT):
        write_json(out / "results.json", results)
    print_changes(before, samples)
    print(f"{describe_scores(results)}\nresults and samples: {out}")


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
