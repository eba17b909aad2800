"""The sampler by itself: what is drawn, which log-probabilities it has, where answers end."""

import shutil
from contextlib import closing

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.batch import sampling_seeds
from bnpo.config import TINY_MODEL
from bnpo.files import RunError
from bnpo.policy.sampling import EngineSettings
from bnpo.prompts import encode_prompt, stop_token_ids
from conftest import make_model

pytestmark = pytest.mark.sampler
TOKENIZER = AutoTokenizer.from_pretrained(TINY_MODEL)
PROMPTS = [encode_prompt(TOKENIZER, f"{k}+17-32+45=?") for k in range(20)]
SEEDS = sampling_seeds(0, 3, range(20))


def open_sampler(model, tokenizer, dtype="float32"):
    # vLLM, where it runs: other workers would import it for nothing
    from bnpo.policy.sampler import Sampler

    return closing(Sampler(str(model), tokenizer, EngineSettings(max_tokens=192, dtype=dtype)))


@pytest.fixture(scope="module")
def sampler():
    with open_sampler(TINY_MODEL, TOKENIZER) as sampler:
        yield sampler


def sample(sampler, prompts=PROMPTS, seeds=SEEDS, max_tokens=64, **sampling):
    """Groups of answers in the order of the prompts, sampled ones first, then greedy ones."""
    sampling = {"temperature": 1.0, "max_tokens": max_tokens} | sampling
    groups = list(sampler.sample(prompts, seeds, **sampling))
    groups.sort(key=lambda group: (group.greedy, group.prompt_index))
    return [group.answers for group in groups]


def test_what_is_drawn_depends_on_the_seed_alone_not_on_the_batch(sampler):
    groups = sample(sampler, n=8)
    for i in (0, 7, 19):
        assert sample(sampler, PROMPTS[i : i + 1], SEEDS[i : i + 1], n=8)[0] == groups[i]
    assert len({tuple(answer.token_ids) for answer in groups[0]}) > 1
    # Answer j has the prompt's seed plus j
    order = np.random.default_rng(0).permutation(160)[:120].tolist()
    prompts, seeds = [PROMPTS[i // 8] for i in order], [SEEDS[i // 8] + i % 8 for i in order]
    found = list(sampler.sample(prompts, seeds, max_tokens=64, temperature=1.0))
    finished = [group.prompt_index for group in found]
    assert sorted(finished) == list(range(120)) != finished
    assert all(
        group.answers == [groups[order[group.prompt_index] // 8][order[group.prompt_index] % 8]]
        for group in found
    )


def test_top_k_draws_from_the_most_likely_tokens_with_their_renormalized_probabilities(sampler):
    likeliest = sample(sampler, top_k=1, logprobs=True)
    greedy = sample(sampler, greedy_too=True)[20:]
    assert [answer.token_ids for [answer] in likeliest] == [answer.token_ids for [answer] in greedy]
    assert all((answer.logprobs == 0).all() for [answer] in likeliest)
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    for prompt, [answer] in zip(PROMPTS, sample(sampler, top_k=3, logprobs=True), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer.token_ids])).logits[0]
        best, tokens = logits[len(prompt) - 1 : -1].topk(3)  # [tokens, 3]
        drawn = tokens == torch.tensor(answer.token_ids)[:, None]
        assert drawn.any(dim=1).all()
        np.testing.assert_allclose(answer.logprobs, best.log_softmax(dim=1)[drawn], atol=1e-4)


def test_draws_have_the_probabilities_of_the_model_within_top_p(sampler):
    prompt = [10, 11, 10]  # after which many tokens are likely
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1, : len(TOKENIZER)]
    likeliest = (logits / 2).softmax(0).sort(descending=True)
    for top_p in (1.0, 0.8):
        before = likeliest.values.cumsum(0) - likeliest.values  # probability of likelier tokens
        kept = likeliest.indices[before < top_p]
        expected = 2000 * (logits / 2)[kept].softmax(0).double().numpy()
        settings = {"temperature": 2.0, "top_p": top_p, "max_tokens": 1}
        [group] = sample(sampler, [prompt], [0], n=2000, **settings)
        counts = np.bincount([answer.token_ids[0] for answer in group], minlength=len(logits))
        assert counts[kept].sum() == 2000
        statistic, common = (counts[kept] - expected) ** 2 / expected, expected > 5
        assert common.sum() > 5
        assert chi2.sf(statistic[common].sum(), common.sum()) > 0.01


def test_greedy_answers_come_beside_the_samples(sampler):
    groups = sample(sampler, n=3, greedy_too=True)
    assert [len(group) for group in groups] == [3] * 20 + [1] * 20
    again = sample(sampler, seeds=range(20), greedy_too=True)
    assert groups[20:] == again[20:]
    assert groups[:20] != again[:20]


def test_logprobs_are_those_of_the_sampling_temperature(sampler):
    for temperature, is_scored in ((1.0, True), (0.5, False)):
        [[answer]] = sample(sampler, PROMPTS[:1], [0], temperature=temperature, logprobs=True)
        difference = np.abs(answer.logprobs - sampler.score(PROMPTS[0], answer.token_ids)).max()
        assert difference < 1e-5 if is_scored else difference > 1e-3


def test_an_answer_cut_off_at_the_limit_is_not_finished(sampler):
    [group] = sample(sampler, PROMPTS[:1], [0], n=8, max_tokens=3)
    assert {(answer.finished, len(answer.token_ids)) for answer in group} == {(False, 3)}


def test_many_requests_are_handed_to_the_engine_in_turn(sampler, monkeypatch):
    from bnpo.policy import sampler as module

    engine, held = sampler._llm.llm_engine, []
    step = engine.step

    def count_then_step():
        held.append(engine.get_num_unfinished_requests())
        return step()

    at_once = sample(sampler, greedy_too=True)
    monkeypatch.setattr(module, "MOST_REQUESTS", 8)
    monkeypatch.setattr(engine, "step", count_then_step)
    assert sample(sampler, greedy_too=True) == at_once
    assert max(held) == 8


def test_a_question_that_the_engine_gives_up_is_an_error_that_names_it(sampler, monkeypatch):
    engine, prompts = sampler._llm.llm_engine, [[k, k + 1, k] for k in range(10, 14)]
    step = engine.step

    def abort_one_then_step():
        engine.abort_request([str(sampler._llm.request_counter.counter - 2)])  # the third of four
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", abort_one_then_step)
        message = r"no answers from vLLM to 1 prompts, of tokens \[12, 13, 12\]$"
        with pytest.raises(RunError, match=message):
            sample(sampler, prompts, range(4), n=2, max_tokens=9)
    assert [len(group) for group in sample(sampler, prompts, range(4), n=2)] == [2] * 4


def test_both_stop_tokens_end_an_answer(tmp_path):
    """A head that knows two tokens, the end of text and the end of turn: one or the other, as
    the prompt has it. The folder also has weights in Mistral's format, which are not read.
    """
    model = make_model(tmp_path, vocab_size=288, hidden_size=64, tie_word_embeddings=False)
    ends = [TOKENIZER.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_end|>")]
    assert sorted(stop_token_ids(TOKENIZER)) == sorted(ends)
    row = model.lm_head.weight.data[0].clone() * 1000
    model.lm_head.weight.data.zero_()
    model.lm_head.weight.data[ends] = torch.stack([row, -row])
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    shutil.copy(TINY_MODEL / "model.safetensors", tmp_path / "consolidated.safetensors")
    (tmp_path / "params.json").write_text('{"dim": 32, "n_layers": 1}')
    for file in [*TINY_MODEL.glob("tokenizer*"), *TINY_MODEL.glob("chat_template*")]:
        shutil.copy(file, tmp_path)
    with open_sampler(tmp_path, TOKENIZER) as sampler:
        groups = sample(sampler, [[k, k + 1, k] for k in range(10, 60)], range(50), max_tokens=20)
    assert {tuple(answer.token_ids) for [answer] in groups} >= {(end,) for end in ends}
    assert all(answer.finished for [answer] in groups)


@pytest.mark.extra
def test_logits_of_a_bf16_model_are_not_rounded_to_bf16(qwen_model):
    tokenizer, gaps = AutoTokenizer.from_pretrained(qwen_model), []
    model = AutoModelForCausalLM.from_pretrained(qwen_model, dtype=torch.bfloat16)
    with open_sampler(qwen_model, tokenizer, "bfloat16") as sampler:
        for k in range(20):
            prompt = encode_prompt(tokenizer, f"What is {k} + 1?")
            answer = tokenizer.encode(f"\\boxed{{{k % 3 + 1}}}<|im_end|>")
            with torch.no_grad():
                hidden = model.base_model(torch.tensor([prompt + answer])).last_hidden_state[0]
                exact = hidden[len(prompt) - 1 : -1].float() @ model.lm_head.weight.float().T
            scores, targets = sampler.score(prompt, answer), torch.tensor(answer)[:, None]
            for logits in (exact, exact.bfloat16()):
                logprobs = logits[:, : len(tokenizer)].double().log_softmax(-1).gather(1, targets)
                gaps.append(np.abs(scores - logprobs[:, 0].numpy()).mean())
    assert np.mean(gaps[::2]) < 0.25 * np.mean(gaps[1::2])
