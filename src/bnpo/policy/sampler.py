"""vLLM in the learner's own process: sampled answers, scores of given answers, sleep and wake."""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bnpo.batch import Answer, SampledGroup
from bnpo.files import RunError
from bnpo.policy.folder import refused_by
from bnpo.policy.patches import (
    draw_with_one_number,
    exchange_without_files,
    hold_wide_head,
    prepare_reloads,
    rank_no_tokens,
)
from bnpo.policy.sampling import (
    MOST_MEMORY,
    MOST_REQUESTS,
    MOST_SEQUENCES,
    PREFILL_TOKENS,
    EngineSettings,
)
from bnpo.prompts import stop_token_ids, vocabulary_size
from bnpo.ranks import gather

if TYPE_CHECKING:  # vLLM takes seconds to import
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams


class Sampler:
    """A vLLM engine that holds the policy for sampling.

    `tokenizer` says which tokens end an answer, and from which id on the rows of the head are
    padding. Under a launcher every rank holds its own engine, or `tensor_parallel` consecutive
    ranks share one. Each of these runs all requests on its shard of the weights, so they must call
    `sample` and `score` together, every rank with its own prompts.
    """

    def __init__(self, model: str, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings):
        from vllm import LLM  # takes seconds, like all of vLLM below
        from vllm.distributed import get_tp_group

        self._on_gpu = torch.cuda.is_available()
        self._stop_token_ids = stop_token_ids(tokenizer)
        launched = "RANK" in os.environ
        if launched and settings.tensor_parallel > 1:
            exchange_without_files()
        draw_with_one_number()
        with refused_by("vLLM", model):
            self._llm = LLM(
                model,
                dtype=settings.dtype,
                max_model_len=settings.max_tokens,
                skip_tokenizer_init=True,
                # Otherwise vLLM would prefer the files of Mistral's own format, params.json and
                # consolidated*.safetensors, which may be those of another model
                config_format="hf",
                load_format="hf",
                enforce_eager=settings.enforce_eager or not self._on_gpu,
                # With it, vLLM's runner for CPUs raises
                enable_chunked_prefill=False,
                max_num_batched_tokens=max(PREFILL_TOKENS, settings.max_tokens),
                # Log-probabilities after temperature, over the tokens that could be drawn.
                logprobs_mode="processed_logprobs",
                # As in the learner: with a head in bf16 the gap between the two is ten times as
                # large.
                hf_overrides={"head_dtype": "float32"},
                # With a launcher, this process is the only worker that its engine knows
                distributed_executor_backend="external_launcher" if launched else None,
                tensor_parallel_size=settings.tensor_parallel,
                use_tqdm_on_load=False,
                **_device_arguments(settings),
            )
        self._before_reload: list[Callable[[], object]] = []
        if not self._on_gpu:
            rank_no_tokens()
            [experts] = self._llm.apply_model(prepare_reloads)
            self._before_reload = [*self._llm.apply_model(hold_wide_head), *experts]
        self._sharing_ranks = get_tp_group().cpu_group if launched else None
        self.place = get_tp_group().rank_in_group if launched else 0  # among these ranks
        # A hook on the module that computes the logits acts on samples and on scores alike.
        self._llm.apply_model(partial(_mask_padding_rows, vocab_size=vocabulary_size(tokenizer)))

    def sample(
        self,
        prompts: Sequence[list[int]],
        seeds: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        n: int = 1,
        top_p: float = 1.0,
        top_k: int | None = None,
        logprobs: bool = False,
        greedy_too: bool = False,
        stop_token_ids: Sequence[int] = (),
    ) -> Iterator[SampledGroup]:
        """Yield the `n` answers to every prompt (token ids), each group as soon as all of its
        answers are finished.

        Answer j of a prompt is drawn with its seed plus j. With `greedy_too` one greedy answer to
        each comes in a group of its own. `stop_token_ids` end answers as those of the tokenizer do.
        Exhaust this iterator: abandoned requests stay in the engine. Raises RunError.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._forget_prompts()
        all_prompts, all_seeds, own = self._with_sharing_ranks(prompts, seeds)
        parameters = partial(
            SamplingParams,
            max_tokens=max_tokens,
            stop_token_ids=sorted({*self._stop_token_ids, *stop_token_ids}),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,  # each request has parameters of its own
            logprobs=0 if logprobs else None,  # of the drawn token alone
            flat_logprobs=logprobs,
        )
        drawn = {"n": n, "temperature": temperature, "top_p": top_p, "top_k": top_k or 0}  # 0: all
        requests = [(i, False, parameters(**drawn, seed=seed)) for i, seed in enumerate(all_seeds)]
        if greedy_too:
            requests += [(i, True, parameters(temperature=0.0)) for i in range(len(all_prompts))]
        checksum = 0
        for i, greedy, completions in self._run_engine(all_prompts, requests):
            answers = [
                Answer(
                    list(completion.token_ids),
                    completion.finish_reason == "stop",
                    np.array(completion.logprobs.logprobs) if logprobs else None,
                )
                for completion in completions
            ]
            # A sum, since answers end in any order
            checksum += sum(zlib.crc32(np.array(answer.token_ids)) for answer in answers)
            if i in own:
                yield SampledGroup(i - own.start, greedy, answers)
        if len(set(self._of_sharing_ranks(checksum))) > 1:
            problem = "ranks that share a sampler drew different tokens"
            raise RunError(f"{problem}: its vLLM does not work with several ranks")

    def _with_sharing_ranks(
        self, prompts: Sequence[list[int]], seeds: Sequence[int]
    ) -> tuple[list[list[int]], list[int], range]:
        """Return the prompts and seeds of all ranks that share this engine, each of which passes
        all of them to it, and the places of this rank's own among them.
        """
        shared = self._of_sharing_ranks((prompts, seeds))
        first = sum(len(its_prompts) for its_prompts, _ in shared[: self.place])
        all_prompts = [prompt for its_prompts, _ in shared for prompt in its_prompts]
        all_seeds = [seed for _, its_seeds in shared for seed in its_seeds]
        return all_prompts, all_seeds, range(first, first + len(prompts))

    def _forget_prompts(self) -> None:
        """Drop the keys and values of earlier prompts, which vLLM keeps: the weights may be other
        ones since then. They would also change last bits, so that a resumed run would differ.
        """
        if not self._llm.reset_prefix_cache():
            raise RunError("vLLM could not drop the keys and values of earlier prompts")

    def _run_engine(
        self, prompts: list[list[int]], requests: list[tuple[int, bool, "SamplingParams"]]
    ) -> Iterator[tuple[int, bool, list["CompletionOutput"]]]:
        """Yield the answers to `requests` (index of the prompt, whether it is greedy, parameters),
        as they are finished.
        """
        engine, waiting = self._llm.llm_engine, iter(requests)
        unanswered: dict[str, tuple[int, bool]] = {}
        while True:
            for i, greedy, parameters in islice(waiting, MOST_REQUESTS - len(unanswered)):
                request_id = str(next(self._llm.request_counter))
                unanswered[request_id] = i, greedy
                engine.add_request(request_id, {"prompt_token_ids": prompts[i]}, parameters)
            if not engine.has_unfinished_requests():
                break
            for output in engine.step():
                i, greedy = unanswered.pop(output.request_id)
                yield i, greedy, output.outputs
        if unanswered:  # vLLM returns nothing for requests that it aborted
            lost = ", ".join(str(prompts[i]) for i, _ in unanswered.values())
            raise RunError(f"no answers from vLLM to {len(unanswered)} prompts, of tokens {lost}")

    def score(self, prompt: list[int], answer: list[int]) -> np.ndarray:
        """Return the log-probabilities [tokens] of `answer` after `prompt`, at temperature 1."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        asked = [
            {"prompt_token_ids": token_ids} for token_ids in self._of_sharing_ranks(prompt + answer)
        ]
        output = self._llm.generate(asked, parameters, use_tqdm=False)[self.place]
        # A dict of candidates for each token of the answer
        scores = output.prompt_logprobs[len(prompt) :]
        return np.array([score[token].logprob for token, score in zip(answer, scores, strict=True)])

    def _of_sharing_ranks(self, own: object) -> list:
        """Return the objects of the ranks that share this engine, in their order."""
        return gather(own, self._sharing_ranks) if self._sharing_ranks else [own]

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Allocate the memory of the weights, if the sampler is asleep, and replace them by (name,
        tensor) pairs with a checkpoint's names. `wake` must follow before the next call of
        `sample` or `score`.

        Returns the parameters, this rank's shards, that the engine holds under names of a
        checkpoint. Those that vLLM fuses with others, or packs anew (on CPUs), are not among them.
        """
        if self._on_gpu:
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=["weights"])
        for forget in self._before_reload:
            forget()
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        [held] = self._llm.apply_model(
            lambda model: dict(model.named_parameters(remove_duplicate=False))
        )
        # Packed ones leave empty tensors behind.
        return {name: tensor.detach() for name, tensor in held.items() if tensor.numel()}

    def sleep(self) -> bool:
        """Free the GPU memory of weights and cache. Return False on CPUs, where the sampler stays
        awake.

        The weights are lost, so `load_weights` and `wake` must follow.
        """
        if self._on_gpu:
            self._llm.sleep(level=2)
        return self._on_gpu

    def wake(self) -> None:
        """Allocate the memory of the cache, which `sample` and `score` need."""
        if self._on_gpu:
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=["kv_cache"])

    def close(self) -> None:
        """Shut down the engine and, as vLLM does, torch.distributed."""
        self._llm.llm_engine.engine_core.shutdown()


def _device_arguments(settings: EngineSettings) -> dict:
    if not torch.cuda.is_available():
        # vLLM's default of 128 tokens is longer than many prompts, and answers share only whole
        # blocks of their prompt.
        return {"block_size": 32}
    from vllm.utils.flashinfer import has_flashinfer

    # On Blackwell servers (10) vLLM would choose FlashInfer in 16 bits, and fail where its kernels
    # cannot be compiled.
    blackwell = torch.cuda.get_device_capability()[0] == 10
    fails = blackwell and settings.dtype != "float32" and not has_flashinfer()
    return {
        "gpu_memory_utilization": settings.gpu_memory or _free_share(),
        "max_num_seqs": settings.sequences and min(settings.sequences, MOST_SEQUENCES),
        "enable_sleep_mode": settings.sleeps,
        "sleep_mode_offload_cudagraph": settings.sleeps,
        "attention_backend": "FLASH_ATTN" if fails else None,  # None: vLLM chooses
        # It measures kernels with collectives of all ranks, but only where nvcc is installed. Ranks
        # on machines that differ in this would wait for each other for ever.
        "enable_flashinfer_autotune": False,
    }


def _free_share() -> float:
    """Return the share of the memory that is free on all visible GPUs, up to MOST_MEMORY."""
    shares = []
    for gpu in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(gpu)
        shares.append(free / total - 0.03)  # what starting vLLM takes
    return max(0.01, min(MOST_MEMORY, *shares))


def _mask_padding_rows(model: torch.nn.Module, vocab_size: int) -> None:
    """Make ids from `vocab_size` on impossible in `model`. Runs in vLLM's worker, to which it is
    sent by name.
    """

    def mask(_module, _args, logits: torch.Tensor | None) -> None:
        if logits is not None:  # only the first tensor-parallel worker may have them
            logits[..., vocab_size:] = -torch.inf

    model.logits_processor.register_forward_hook(mask)
