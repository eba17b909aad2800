"""Measure two ways to sample faster: no log-probabilities, and speculative decoding with vLLM's n-gram proposer.

    python benchmarks/sampling.py

One process samples with the prompts, seeds and lengths of the tiny preset. The engines take turns. Rows:

- sampling_seconds: the batch of the first step
- sampling_ratio_without_logprobs, sampling_ratio_ngram: sampling_seconds over theirs, above 1 if they are faster
- ngram_agreement: share of the answers that the n-gram proposer does not change
"""

import statistics
import time

from common import row

from bnpo.environment import setup_environment

setup_environment()
from bnpo.config import parse_train_config
from bnpo.data import encode_prompt, load_problems, questions_at, sampling_seeds, stop_token_ids
from bnpo.policy.folder import load_tokenizer, model_folder

from vllm import LLM, SamplingParams  # isort: skip

ROUNDS = 5
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def main() -> None:
    config, _ = parse_train_config(["--preset", "tiny"], has_cuda=False)
    folder = model_folder(config.data.model)
    longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
    tokenizer = load_tokenizer(folder, longest)
    problems = load_problems(config.data.train_data[0])
    questions = questions_at(len(problems), config.batch.questions_per_step, 0, config.sampling.seed)
    prompts = [{"prompt_token_ids": encode_prompt(tokenizer, problems[q].problem)} for q in questions]
    common = {
        "n": config.batch.samples_per_question,
        "max_tokens": config.sampling.max_answer_tokens,
        "detokenize": False,
    }
    common |= {"stop_token_ids": stop_token_ids(tokenizer), "temperature": config.sampling.temperature}
    engine = {"max_model_len": longest, "dtype": "float32", "skip_tokenizer_init": True, "enforce_eager": True}
    engine |= {"enable_chunked_prefill": False, "block_size": 32, "enable_prefix_caching": False}
    plain, ngram = LLM(str(folder), **engine), LLM(str(folder), speculative_config=NGRAM, **engine)
    logprobs = {"logprobs": 0, "flat_logprobs": True}
    kinds = {"plain": (plain, logprobs), "no logprobs": (plain, {}), "ngram": (ngram, logprobs)}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    answers = {}
    for _ in range(ROUNDS + 1):  # the first warms up
        for kind, (llm, extra) in kinds.items():
            params = [
                SamplingParams(seed=seed, **common, **extra)
                for seed in sampling_seeds(config.sampling.seed, 0, questions)
            ]
            started = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds[kind].append(time.perf_counter() - started)
            answers[kind] = [tuple(answer.token_ids) for output in outputs for answer in output.outputs]
    medians = {kind: statistics.median(values[1:]) for kind, values in seconds.items()}
    row("sampling_seconds", medians["plain"])
    row("sampling_ratio_without_logprobs", medians["plain"] / medians["no logprobs"])
    row("sampling_ratio_ngram", medians["plain"] / medians["ngram"])
    same = [a == b for a, b in zip(answers["plain"], answers["ngram"], strict=True)]
    row("ngram_agreement", statistics.mean(same))


if __name__ == "__main__":
    main()
