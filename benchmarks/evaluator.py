"""Compare the time of the evaluator with vLLM's `generate` alone, on the same prompts, seeds and
lengths.

    python benchmarks/evaluator.py

Rows, medians of alternating rounds in one process:

- bare_seconds: `generate`
- evaluator_seconds: sampling, grading and writing all samples
- eval_sampler_ratio: the first over the second
"""

import statistics
import tempfile
import time
import zlib
from pathlib import Path

from common import row

from bnpo.environment import setup_environment

setup_environment()

from bnpo.config import TINY_MODEL
from bnpo.data import sampling_seeds
from bnpo.evaluation.protocol import Evaluation, Samples
from bnpo.evaluation.suites import load_suite, override
from bnpo.grading.grader import Grader
from bnpo.policy.folder import load_tokenizer
from bnpo.policy.sampler import Sampler
from bnpo.policy.sampling import EngineSettings
from bnpo.prompts import stop_token_ids

from vllm import SamplingParams  # isort: skip

ROUNDS = 7
QUESTIONS, RUNS = 200, 16


def main() -> None:
    suite = override(load_suite("arithmetic"), (str(RUNS),), QUESTIONS)
    longest = suite.max_prompt_tokens + suite.max_answer_tokens
    tokenizer = load_tokenizer(TINY_MODEL, longest)
    evaluation = Evaluation.prepare(suite, tokenizer, seed=0)
    sampler = Sampler(
        str(TINY_MODEL), tokenizer, EngineSettings(max_tokens=longest, dtype="float32")
    )
    keys, grader = evaluation.sample_keys(), Grader()
    requests = [{"prompt_token_ids": prompt} for prompt in evaluation.prompts["arithmetic"]]
    seeds = sampling_seeds(0, zlib.crc32(b"arithmetic"), range(QUESTIONS))
    common = {
        "n": RUNS,
        "temperature": suite.temperature,
        "max_tokens": suite.max_answer_tokens,
        "detokenize": False,
    }
    params = [
        SamplingParams(seed=seed, stop_token_ids=stop_token_ids(tokenizer), **common)
        for seed in seeds
    ]
    bare, ours = [], []
    for _ in range(1 + ROUNDS):  # the first warms up
        started = time.perf_counter()
        sampler._llm.generate(requests, params, use_tqdm=False)
        bare.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            samples = Samples(Path(folder), keys, {})
            records = evaluation.records(keys, sampler.sample(**evaluation.sampling(keys)))
            for record in evaluation.grade(records, grader):
                samples.add(record)
            samples.close()
            ours.append(time.perf_counter() - started)
    bare_seconds, evaluator_seconds = statistics.median(bare[1:]), statistics.median(ours[1:])
    row("bare_seconds", bare_seconds)
    row("evaluator_seconds", evaluator_seconds)
    row("eval_sampler_ratio", bare_seconds / evaluator_seconds)
    grader.close()
    sampler.close()


if __name__ == "__main__":
    main()
