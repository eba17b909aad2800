"""Grade one model by this project and by lm-evaluation-harness, and compare problem by problem.

    python benchmarks/evaluators.py --ckpt MODEL --suite benchmarks/evaluators.json --limit 100

It needs lm-eval 0.4.13 with its extra `math` beside the project's packages. Both evaluators get the
same weights in the same number format, the same prompts, and answer greedily. eval.py samples with
vLLM, and lm-evaluation-harness with transformers. Its rules are those of its own tasks: of
gsm8k_cot_zeroshot (the filter flexible-extract) where all references are numbers, else math_verify
of minerva_math. Both rules grade the answers of both evaluators, which separates differences of the
rules from differences of the answers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
from lm_eval.api.model import CachingLM
from lm_eval.evaluator import evaluate
from lm_eval.filters.extraction import RegexFilter
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import get_task_dict
from math_verify import parse, verify
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import are_numbers, load_suite, suite_problems
from bnpo.files import ROOT, whole_json_lines
from bnpo.grading.grader import Grader

LAST_NUMBER = RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
"""The filter `flexible-extract` of gsm8k_cot_zeroshot."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--suite", required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/evaluators"))
    args = parser.parse_args()
    suite = load_suite(args.suite)
    datasets = {name: replace(one, problems=args.limit) for name, one in suite.datasets.items()}
    suite = replace(suite, datasets=datasets, temperature=0.0)
    ours = answers_of_eval(args)
    theirs = answers_of_lm_eval(args, suite)
    report(suite, ours, theirs)


Answers = dict[str, list[str]]
"""Texts by data set, in the order of the problems."""


def answers_of_eval(args: argparse.Namespace) -> Answers:
    """Return the answers of eval.py, which continues an evaluation that was stopped."""
    folder = args.output_dir / "ours"
    command = [sys.executable, str(ROOT / "eval.py"), "--ckpt", args.ckpt, "--suite", args.suite]
    command += ["--limit", str(args.limit), "--repetitions", "1", "--output-dir", str(folder)]
    subprocess.run(command, check=True)
    answers: Answers = {}
    for record in sorted(whole_json_lines(folder / "samples.jsonl"), key=lambda one: one["index"]):
        answers.setdefault(record["dataset"], []).append(record["text"])
    return answers


def answers_of_lm_eval(args: argparse.Namespace, suite) -> Answers:
    """Return the answers that lm-evaluation-harness generates to the suite's prompts. After
    an interruption, it continues with the first batch that was not finished.
    """
    tokenizer = AutoTokenizer.from_pretrained(args.ckpt)
    evaluation = Evaluation.prepare(suite, tokenizer, seed=0)
    answers: Answers = {}
    with tempfile.TemporaryDirectory() as folder:
        tasks = []
        for name, prompts in evaluation.prompts.items():
            path = Path(folder, f"{name}.jsonl")
            lines = [json.dumps({"prompt": tokenizer.decode(ids)}) for ids in prompts]
            path.write_text("\n".join(lines), encoding="utf-8")
            tasks.append(task(name, path, suite.max_answer_tokens))
        model = HFLM(args.ckpt, dtype="float32", batch_size=args.batch_size, device="cpu")
        model = CachingLM(model, str(args.output_dir / "theirs.db"))
        result = evaluate(model, get_task_dict(tasks), log_samples=True, bootstrap_iters=0)
    for name, samples in result["samples"].items():
        samples = sorted(samples, key=lambda sample: sample["doc_id"])
        answers[name] = [sample["resps"][0][0] for sample in samples]
    return answers


def task(name: str, path: Path, max_tokens: int) -> dict:
    """Return a task of lm-evaluation-harness that generates an answer to each prompt in `path`."""
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "",
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": max_tokens},
        "metric_list": [{"metric": "bypass"}],
    }


def report(suite, ours: Answers, theirs: Answers) -> None:
    """Print, by data set, both scores, and how many texts and verdicts agree. Below the table stand
    the answers on which the rules differ.
    """
    table = Table("data set", "problems", "score", "score of lm-eval", "same text", "same verdict")
    table.add_column("the rules agree on")
    lines = []
    with closing(Grader(grader=suite.grader)) as grader:
        for name, problems in suite_problems(suite).items():
            references = [problem.answer for problem in problems]
            texts = [*ours[name], *theirs[name]]
            # [2, problems] by either rule: our answers, and those of lm-evaluation-harness
            by_ours = grader(texts, references * 2).rewards.reshape(2, -1) == 1
            verdict = verdict_of_gsm8k if are_numbers(problems) else verdict_of_minerva
            by_theirs = np.reshape([*map(verdict, texts, references * 2)], (2, -1))
            count = len(problems)
            table.add_row(
                name,
                str(count),
                f"{100 * by_ours[0].mean():.1f}",
                f"{100 * by_theirs[1].mean():.1f}",
                str(sum(map(str.__eq__, ours[name], theirs[name]))),
                str((by_ours[0] == by_theirs[1]).sum()),
                f"{(by_ours == by_theirs).sum()} of {2 * count} answers",
            )
            for i in np.flatnonzero((by_ours != by_theirs).ravel()):
                found = "right" if by_ours.ravel()[i] else "wrong"
                end = texts[i][-60:]
                lines.append(f"{name} {problems[i % count].id}: {found} by our rule: {end!r}")
    Console().print(table)
    print(*lines, sep="\n")


def verdict_of_gsm8k(text: str, reference: str) -> bool:
    """Return whether gsm8k_cot_zeroshot accepts the answer by its filter flexible-extract."""
    [[number]] = LAST_NUMBER.apply([[text]], [{}])
    return number.replace(",", "").replace("$", "").removesuffix(".") == reference.strip()


def verdict_of_minerva(text: str, reference: str) -> bool:
    """Return whether minerva_math accepts the answer by its metric math_verify."""
    return verify(gold=parse(f"${reference}$"), target=parse(text))


if __name__ == "__main__":
    main()
