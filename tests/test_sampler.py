import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.data import sampling_seeds
from bnpo.policy.sampling import EngineSettings
from bnpo.prompts import encode_prompt, stop_token_ids
from conftest import make_model

pytestmark = pytest.mark.sampler


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_MODEL)


def open_sampler(model, tokenizer, dtype="float32"):
    # VLLM, where it runs: other workers would import it for nothing
    from bnpo.policy.sampler import Sampler

    return Sampler(str(model), tokenizer, EngineSettings(max_tokens=192, dtype=dtype))


@pytest.fixture(scope="module")
def sampler(tokenizer):
    sampler = open_sampler(TINY_MODEL, tokenizer)
    yield sampler
    sampler.close()


def sample(sampler, prompts, seeds, **sampling):
    """Groups of answers in the order of the prompts, sampled ones first, then greedy ones."""
    groups = list(
        sampler.sample(prompts, seeds, temperature=sampling.pop("temperature", 1.0), **sampling)
    )
    return [
        group.answers
        for group in sorted(groups, key=lambda group: (group.greedy, group.prompt_index))
    ]


def test_what_is_drawn_depends_on_the_seed_alone_not_on_the_batch(sampler, tokenizer):
    prompts = [encode_prompt(tokenizer, f"{k}+17-32+45=?") for k in range(20)]
    seeds = sampling_seeds(0, 3, range(20))
    together = sample(sampler, prompts, seeds, n=8, max_tokens=64)
    alone = [
        sample(sampler, [prompt], [seed], n=8, max_tokens=64)[0]
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert [[a.token_ids for a in group] for group in together] == [
        [a.token_ids for a in group] for group in alone
    ]
    assert len({tuple(answer.token_ids) for answer in together[0]}) > 1


def test_top_k_draws_from_the_most_likely_tokens_with_their_renormalized_probabilities(
    sampler, tokenizer
):
    asked = (
        [encode_prompt(tokenizer, f"{k}+17-32+45=?") for k in range(8)],
        sampling_seeds(0, 3, range(8)),
    )
    likeliest = sample(sampler, *asked, max_tokens=64, top_k=1, logprobs=True)
    greedy = sample(sampler, *asked, max_tokens=64, greedy_too=True)[8:]
    assert [answer.token_ids for [answer] in likeliest] == [answer.token_ids for [answer] in greedy]
    assert all((answer.logprobs == 0).all() for [answer] in likeliest)
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    for prompt, [answer] in zip(
        asked[0], sample(sampler, *asked, max_tokens=64, top_k=3, logprobs=True), strict=True
    ):
        with torch.no_grad():
            # [tokens, V]
            logits = model(torch.tensor([prompt + answer.token_ids])).logits[
                0, len(prompt) - 1 : -1
            ]
        best, tokens = logits.topk(3)  # [tokens, 3]
        drawn = tokens == torch.tensor(answer.token_ids)[:, None]
        assert drawn.any(dim=1).all()
        np.testing.assert_allclose(answer.logprobs, best.log_softmax(dim=1)[drawn], atol=1e-4)


def test_single_answers_in_another_order_are_the_same(sampler, tokenizer):
    prompts = [encode_prompt(tokenizer, f"{k}+17-32+45=?") for k in range(20)]
    seeds = sampling_seeds(0, 3, range(20))
    groups = sample(sampler, prompts, seeds, n=8, max_tokens=64)
    order = np.random.default_rng(0).permutation(160)[:120].tolist()
    asked = [prompts[i // 8] for i in order], [seeds[i // 8] + i % 8 for i in order]
    found = list(sampler.sample(*asked, max_tokens=64, temperature=1.0))
    finished = [group.prompt_index for group in found]
    assert sorted(finished) == list(range(120)) != finished
    for number, _, [answer] in found:
        assert answer == groups[order[number] // 8][order[number] % 8]


def test_many_requests_are_handed_to_the_engine_in_turn(sampler, tokenizer, monkeypatch):
    from bnpo.policy import sampler as module

    engine, held = sampler._llm.llm_engine, []
    step = engine.step

    def count_then_step():
        held.append(engine.get_num_unfinished_requests())
        return step()

    asked = (
        [encode_prompt(tokenizer, f"{k}+17-32+45=?") for k in range(40)],
        sampling_seeds(0, 3, range(40)),
    )
    at_once = sample(sampler, *asked, max_tokens=64, greedy_too=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "MOST_REQUESTS", 8)
        patch.setattr(engine, "step", count_then_step)
        in_turn = sample(sampler, *asked, max_tokens=64, greedy_too=True)
    assert in_turn == at_once
    assert len(in_turn) == 80
    assert max(held) == 8


def test_a_question_that_the_engine_gives_up_is_an_error_that_names_it(sampler, monkeypatch):
    from bnpo.files import RunError

    engine, prompts = sampler._llm.llm_engine, [[k, k + 1, k] for k in range(10, 14)]
    step = engine.step

    def abort_one_then_step():
        engine.abort_request([str(sampler._llm.request_counter.counter - 2)])  # the third of four
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", abort_one_then_step)
        with pytest.raises(
            RunError, match=r"no answers from vLLM to 1 prompts, of tokens \[12, 13, 12\]$"
        ):
            sample(sampler, prompts, range(4), n=2, max_tokens=9)
    assert [len(group) for group in sample(sampler, prompts, range(4), n=2, max_tokens=9)] == [
        2,
        2,
        2,
        2,
    ]


def test_seeds_differ_by_run_step_and_question():
    seeds = [sampling_seeds(seed, step, range(50)) for seed in range(3) for step in range(3)]
    assert len(set(np.ravel(seeds))) == 450


def test_greedy_answers_come_beside_the_samples(sampler, tokenizer):
    prompts = [encode_prompt(tokenizer, f"{k}+7=?") for k in range(4)]
    groups = sample(sampler, prompts, range(4), n=3, max_tokens=64, greedy_too=True)
    assert [len(group) for group in groups] == [3] * 4 + [1] * 4
    again = sample(sampler, prompts, range(4, 8), max_tokens=64, greedy_too=True)
    assert groups[4:] == again[4:]
    assert groups[:4] != again[:4]


def test_logprobs_are_those_of_the_sampling_temperature(sampler, tokenizer):
    prompt = encode_prompt(tokenizer, "12+7-30=?")
    [[answer]] = sample(sampler, [prompt], [0], max_tokens=64, logprobs=True)
    np.testing.assert_allclose(answer.logprobs, sampler.score(prompt, answer.token_ids), atol=1e-5)
    [[cold]] = sample(sampler, [prompt], [0], max_tokens=64, temperature=0.5, logprobs=True)
    assert np.abs(cold.logprobs - sampler.score(prompt, cold.token_ids)).max() > 1e-3


def test_an_answer_cut_off_at_the_limit_is_not_finished(sampler, tokenizer):
    prompt = encode_prompt(tokenizer, "12+7=?")
    [group] = sample(sampler, [prompt], [0], n=8, max_tokens=3)
    assert not any(answer.finished for answer in group)
    assert {len(answer.token_ids) for answer in group} == {3}


def test_both_stop_tokens_end_an_answer(tokenizer, tmp_path):
    """A head that knows two tokens, the end of text and the end of turn: one or the other, as
    the prompt has it.
    """
    model = make_model(tmp_path, vocab_size=288, hidden_size=64, tie_word_embeddings=False)
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_end|>")]
    row = model.lm_head.weight.data[0].clone() * 1000
    model.lm_head.weight.data.zero_()
    model.lm_head.weight.data[ends[0]], model.lm_head.weight.data[ends[1]] = row, -row
    model.save_pretrained(tmp_path)
    for file in [*TINY_MODEL.glob("tokenizer*"), *TINY_MODEL.glob("chat_template*")]:
        shutil.copy(file, tmp_path)
    sampler = open_sampler(tmp_path, tokenizer)
    prompts = [[k, k + 1, k] for k in range(10, 60)]
    answers = sample(sampler, prompts, range(50), max_tokens=20)
    sampler.close()
    assert {tuple(group[0].token_ids) for group in answers if group[0].finished} >= {
        (ends[0],),
        (ends[1],),
    }
    assert all(group[0].finished for group in answers)


def test_the_real_tokenizer_has_two_stop_tokens(qwen_tokenizer_dir):
    real = AutoTokenizer.from_pretrained(qwen_tokenizer_dir)
    assert real.convert_ids_to_tokens(stop_token_ids(real)) == ["<|endoftext|>", "<|im_end|>"]
    assert len(real) == 151665


def test_logits_of_a_bf16_model_are_not_rounded_to_bf16(qwen_model):
    tokenizer = AutoTokenizer.from_pretrained(qwen_model)
    sampler = open_sampler(qwen_model, tokenizer, "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(qwen_model, dtype=torch.bfloat16)
    gaps, gaps_of_rounded = [], []
    for k in range(20):
        prompt = encode_prompt(tokenizer, f"What is {k} + 1?")
        answer = tokenizer.encode(f"\\boxed{{{k % 3 + 1}}}<|im_end|>")
        with torch.no_grad():
            hidden = model.base_model(torch.tensor([prompt + answer])).last_hidden_state[
                0, len(prompt) - 1 : -1
            ]
            logits = (hidden.float() @ model.lm_head.weight.float().T)[:, : len(tokenizer)]
        scores = sampler.score(prompt, answer)
        for each, exact in ((gaps, logits), (gaps_of_rounded, logits.bfloat16().float())):
            logprobs = exact.double().log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
            each.append(np.abs(scores - logprobs.numpy()).mean())
    sampler.close()
    assert np.mean(gaps) < 0.25 * np.mean(gaps_of_rounded)
