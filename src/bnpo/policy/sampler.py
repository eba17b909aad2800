"""vLLM in the learner's own process: n sampled answers a prompt, scores of given answers, sleep and wake."""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

if not torch.cuda.is_available():
    # vLLM would have one small function compiled: seconds in every process, and nothing gained on CPUs.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from transformers import PreTrainedTokenizerBase

from vllm import LLM, SamplingParams  # isort: skip - reads it when imported
from vllm.sampling_params import RequestOutputKind

from bnpo.policy.settings import MOST_SEQUENCES, PREFILL_TOKENS, SamplerSettings
from bnpo.problems import stop_token_ids


@dataclass(frozen=True)
class Answer:
    """One sampled answer: token ids (with the stop token, if it came), whether it ended by itself or was cut off at the
    length limit, and its log-probabilities [tokens] under the sampler at the sampling temperature, if asked for."""

    token_ids: list[int]
    finished: bool
    logprobs: np.ndarray | None


class SamplingError(RuntimeError):
    """The engine gave no answers to some of the prompts."""


class Sampler:
    """A vLLM engine that holds the policy in inference form.

    `model` is a Hugging Face folder and `tokenizer` its tokenizer, which says what ends an answer and from which id on
    the head's rows are padding. Under a launcher every rank holds its own engine.
    """

    def __init__(self, model: str, tokenizer: PreTrainedTokenizerBase, settings: SamplerSettings):
        on_gpu = torch.cuda.is_available()
        self._stop_token_ids = stop_token_ids(tokenizer)
        self._can_sleep = on_gpu
        gc.freeze()  # vLLM collects five times as it starts: a third of a second each for all that was imported
        backend = "external_launcher" if "RANK" in os.environ else "mp" if settings.tensor_parallel > 1 else "uni"
        self._llm = LLM(
            model,
            dtype=settings.dtype,
            max_model_len=settings.max_tokens,
            skip_tokenizer_init=True,
            enforce_eager=settings.enforce_eager or not on_gpu,
            # A prompt that is prefilled in parts draws and discards a token a part, after which vLLM's runner for
            # CPUs does not turn the request's random generator back, but raises.
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(PREFILL_TOKENS, settings.max_tokens),
            # The log-probabilities of what was sampled: after temperature, over the tokens that could be drawn.
            logprobs_mode="processed_logprobs",
            # As the learner: rounded to bf16, logits of 152k tokens make the gap between the two ten times as large.
            hf_overrides={"head_dtype": "float32"},
            distributed_executor_backend=backend,
            tensor_parallel_size=settings.tensor_parallel,
            use_tqdm_on_load=False,
            **(_gpu_settings(settings) if on_gpu else _CPU_SETTINGS),
        )
        gc.unfreeze()

        # On the module that computes the logits, so that it holds for samples and for scores alike.
        self._llm.apply_model(partial(_mask_padding_rows, vocab_size=len(tokenizer)))

    def sample(
        self,
        prompts: Sequence[list[int]],
        seeds: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        n: int = 1,
        top_p: float = 1.0,
        logprobs: bool = False,
        greedy_too: bool = False,
    ) -> Iterator[tuple[int, list[Answer]]]:
        """`n` answers to every prompt (token ids): the prompt's number and its answers, as soon as all n are finished.

        Answer j of a prompt is drawn with the prompt's seed plus j. With `greedy_too` one greedy answer to every prompt
        comes besides, under the prompt's number plus the number of prompts. Draw from this to the end: the engine
        goes on with what it was asked. Log-probabilities cost some time. Raises SamplingError for what got no answers.
        No prefix is taken from the cache of earlier calls, which changes last bits: what was asked before, in a process
        that died since, must not matter.
        """
        self._llm.reset_prefix_cache()
        common = {"max_tokens": max_tokens, "stop_token_ids": self._stop_token_ids, "detokenize": False}
        # skip_clone: each request has parameters of its own.
        common |= {"output_kind": RequestOutputKind.FINAL_ONLY, "skip_clone": True}
        if logprobs:
            common |= {"logprobs": 0, "flat_logprobs": True}
        params = [SamplingParams(n=n, temperature=temperature, top_p=top_p, seed=seed, **common) for seed in seeds]
        if greedy_too:
            params += [SamplingParams(temperature=0.0, **common) for _ in prompts]
        engine = self._llm.llm_engine
        for number, param in enumerate(params):
            engine.add_request(str(number), {"prompt_token_ids": prompts[number % len(prompts)]}, param)
        waiting = dict.fromkeys(range(len(params)))
        while engine.has_unfinished_requests():
            for output in engine.step():
                del waiting[int(output.request_id)]
                yield (
                    int(output.request_id),
                    [
                        Answer(
                            list(answer.token_ids),
                            answer.finish_reason == "stop",
                            np.array(answer.logprobs.logprobs) if logprobs else None,
                        )
                        for answer in output.outputs
                    ],
                )
        if waiting:  # vLLM returns nothing for requests that it aborted
            lost = ", ".join(str(prompts[number % len(prompts)]) for number in waiting)
            raise SamplingError(f"no answers from vLLM to {len(waiting)} of {len(params)} prompts, of tokens {lost}")

    def score(self, prompt: list[int], answer: list[int]) -> np.ndarray:
        """Log-probabilities [tokens] of the given answer at temperature 1."""
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        [output] = self._llm.generate([{"prompt_token_ids": prompt + answer}], params, use_tqdm=False)
        scores = output.prompt_logprobs[len(prompt) :]
        return np.array([score[token].logprob for token, score in zip(answer, scores, strict=True)])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the weights by (name, tensor) pairs with a checkpoint's names, and forget cached prefixes."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        self._llm.reset_prefix_cache()

    def parameters(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The parameters that the engine holds under these names of a checkpoint, without those that vLLM fuses with
        others or, on CPUs, packs anew. Weights must be awake."""
        [held] = self._llm.apply_model(partial(_parameters, names=names))
        return held

    def sleep(self) -> bool:
        """Free the GPU memory of weights and cache; `load_weights` must follow before the next sample. False: it stays
        awake, as always on CPUs."""
        if self._can_sleep:
            self._llm.sleep(level=2)
        return self._can_sleep

    def wake(self, part: str) -> None:
        """Take the memory of `part`, "weights" or "kv_cache", again."""
        if self._can_sleep:
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=[part])

    def close(self) -> None:
        """Shut the engine down, and torch.distributed with it: vLLM destroys every process group."""
        self._llm.llm_engine.engine_core.shutdown()


# Answers share whole blocks of their prompt; vLLM's blocks on CPUs, 128 tokens, are longer than many are. How many are
# drawn at once stays vLLM's default there, whatever the batch: which answers share a pass changes their last bits.
_CPU_SETTINGS = {"block_size": 32}


def _gpu_settings(settings: SamplerSettings) -> dict:
    return {
        "gpu_memory_utilization": settings.gpu_memory,
        "max_num_seqs": settings.sequences and min(settings.sequences, MOST_SEQUENCES),
        # CUDA graphs keep their memory otherwise while weights and cache sleep.
        "enable_sleep_mode": True,
        "sleep_mode_offload_cudagraph": True,
    }


def _mask_padding_rows(model: torch.nn.Module, vocab_size: int) -> None:
    """Make ids from `vocab_size` on impossible in `model`; runs in vLLM's worker, to which it is sent by name."""

    def mask(_module, _args, logits: torch.Tensor | None) -> None:
        if logits is not None:  # of tensor-parallel workers only the first may have them
            logits[..., vocab_size:] = -torch.inf

    model.logits_processor.register_forward_hook(mask)


def _parameters(model: torch.nn.Module, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Those of `names` that vLLM's `model` has, and that hold values: packed ones leave empty tensors behind."""
    held = dict(model.named_parameters(remove_duplicate=False))
    return {name: held[name].detach() for name in names if name in held and held[name].numel()}
