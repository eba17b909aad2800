"""BNPO (arXiv:2506.02864) in one file, with torch and transformers alone.

    python examples/bnpo_in_150_lines.py                                # a tiny model, on a CPU
    python examples/bnpo_in_150_lines.py Qwen/Qwen2.5-0.5B-Instruct     # or another chat model

The tiny model learns to add three numbers: in 40 steps its accuracy rises from 0.58 to 0.92. In
every step the model answers n questions m times each, a rule grades the answers, and the weights
move towards answers that were better than the mean of their question. BNPO divides this advantage
by a Beta density that it fits to the whole batch. src/bnpo/loop.py computes the same on many GPUs;
tests/test_one_file.py compares the two.
"""

import random
import re
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TINY_MODEL = Path(__file__).parents[1] / "data" / "tiny-model"
STEPS, QUESTIONS, ANSWERS = 40, 16, 8  # n questions per step, m answers to each
MAX_TOKENS = 64  # longest answer
LEARNING_RATE, WARMUP, MAX_NORM = 1e-4, 10, 1.0
CLIP = 0.2


def draw_question() -> tuple[str, str]:
    """Return a sum of three numbers and its value, such as 12-5+40=? and 47."""
    terms = [random.randint(1, 49), *(random.choice([-1, 1]) * random.randint(1, 49) for _ in "ab")]
    return f"{terms[0]}{terms[1]:+d}{terms[2]:+d}=?", str(sum(terms))


def reward(text: str, reference: str) -> float:
    r"""Return 1 if the last \boxed{...} of an answer is the reference, else 0."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return float(bool(boxes) and boxes[-1].strip() == reference)


def bnpo_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Return the advantages (R - p) / f(p) of rewards of 0 and 1, both [n, m] in float64.

    p is the accuracy of a question. f is the density of Beta(1 + a/3, 1 + b/3), where Beta(a, b)
    has the mean and the variance of p over the batch: this minimises the variance of the gradient
    (Theorem 1).
    """
    p = rewards.mean(dim=1, keepdim=True)  # [n, 1]
    mean, variance = p.mean(), p.var(correction=1)
    if mean in (0, 1):  # all answers are right or all are wrong: nothing to learn
        return torch.zeros_like(rewards)
    # Beta(a, b) has the variance mean (1 - mean) / (a + b + 1)
    total = (mean * (1 - mean) / variance - 1).clamp(0, 100)  # a + b
    alpha, beta = 1 + total * mean / 3, 1 + total * (1 - mean) / 3
    # Accuracies that nearly coincide differ by noise only, so all questions get the same weight
    x = p if total < 100 else mean.expand_as(p)
    x = torch.where((p > 0) & (p < 1), x, 0.5)  # where p is 0 or 1, R - p is 0 with any weight
    log_density = (alpha - 1) * x.log() + (beta - 1) * (1 - x).log()
    log_density -= torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    return (rewards - p) / log_density.exp()


def sample(model, tokenizer, prompts: list[str]) -> tuple[torch.Tensor, int, torch.Tensor]:
    """Return token ids [N, prompt + answer] of m answers to each prompt, the length of the
    prompts, padded on the left, and a mask [N, prompt + answer] that is 0 at padding.
    """
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    inputs, start = inputs.to(model.device), inputs.input_ids.shape[1]
    vocabulary = tokenizer.get_vocab()  # ends of a text and, in many chat templates, of a turn
    stop = [vocabulary[name] for name in {tokenizer.eos_token, "<|im_end|>"} & vocabulary.keys()]
    ids = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=True,  # from the model's own distribution, whatever its generation_config.json
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        num_return_sequences=ANSWERS,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=stop,
        pad_token_id=tokenizer.pad_token_id,
        # Rows of the embedding behind the last token of the tokenizer
        suppress_tokens=list(range(len(tokenizer), model.config.vocab_size)),
    )
    stops = torch.isin(ids[:, start:], torch.tensor(stop, device=ids.device)).long()
    answer_mask = (stops.cumsum(dim=1) - stops) == 0  # up to the first stop token, with it
    prompt_mask = inputs.attention_mask.repeat_interleave(ANSWERS, dim=0)
    return ids, start, torch.cat([prompt_mask, answer_mask.long()], dim=1)


def answer_logprobs(model, vocabulary: int, ids, start: int, mask) -> torch.Tensor:
    """Return the log-probability [answers, answer tokens] of each answer token after what stands
    before it.
    """
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    logits = logits[:, start - 1 : -1, :vocabulary].float()  # each predicts the next token
    return logits.log_softmax(dim=2).gather(2, ids[:, start:, None])[:, :, 0]


def backward(model, vocabulary: int, ids, start: int, mask, advantages) -> float:
    """Add up the gradient of the loss over a batch of N answers, and return the loss.

    It is the clipped objective of PPO, summed over the tokens of an answer, averaged over answers.
    """
    loss_of_batch = 0.0
    for part in torch.arange(len(ids)).split(ANSWERS):  # a question at a time, to save memory
        logprobs = answer_logprobs(model, vocabulary, ids[part], start, mask[part])
        old = logprobs.detach()  # with one update per step, the policy is still the sampler's
        ratio, advantage = (logprobs - old).exp(), advantages[part, None]
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        objective = torch.minimum(ratio * advantage, clipped * advantage) * mask[part, start:]
        loss = -objective.sum() / len(ids)
        loss.backward()
        loss_of_batch += loss.item()
    return loss_of_batch


def train(name: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0)
    ask = "" if name == str(TINY_MODEL) else " Put the final answer in \\boxed{}."
    for step in range(1, STEPS + 1):
        questions, references = zip(*(draw_question() for _ in range(QUESTIONS)), strict=True)
        chats = [[{"role": "user", "content": question + ask}] for question in questions]
        prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        ids, start, mask = sample(model, tokenizer, prompts)
        answers = [row[start:][kept[start:] == 1] for row, kept in zip(ids, mask, strict=True)]
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        rewards = [reward(text, references[i // ANSWERS]) for i, text in enumerate(texts)]
        rewards = torch.tensor(rewards, dtype=torch.float64).view(QUESTIONS, ANSWERS)
        advantages = bnpo_advantages(rewards).flatten().float().to(device)  # [N]
        backward(model, len(tokenizer), ids, start, mask, advantages)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, step / WARMUP)
        optimizer.step()
        optimizer.zero_grad()
        tokens = mask[:, start:].sum(dim=1).float().mean()
        line = f"step {step}/{STEPS}: accuracy {rewards.mean():.3f}, {tokens:.0f} tokens per answer"
        print(line, flush=True)


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    train(sys.argv[1] if len(sys.argv) > 1 else str(TINY_MODEL))
