"""Prompts: chat templates, system prompts, and where an answer ends."""

import json
import re
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from bnpo.config import PRESETS, TINY_MODEL, parse_train_config
from bnpo.evaluation.protocol import Evaluation
from bnpo.evaluation.suites import SUITES, encode_prompts, load_suite, own_settings, suite_template
from bnpo.files import ROOT
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import stated_answer
from bnpo.prompts import (
    THINK_PROMPT,
    asks_for_tags,
    chat_template,
    decode_answers,
    describe_problems,
    encode_problems,
    encode_prompt,
    render_prompt,
    stop_token_ids,
)
from bnpo.tasks import Problem
from conftest import refused

SYSTEM = 'You\'re "exact".\nWrite {{ nothing }} and {% raw %} into \\boxed{}: 😀'
# The parts of Qwen3's chat template that read messages and enable_thinking.
QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
EXACT, THINK = {"system_prompt": "Be exact."}, {"template": "think"}
BASE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_MODEL)


def test_a_problem_whose_prompt_is_too_long_is_left_out_with_its_prompt(tokenizer):
    texts = ("1+1=?", "1+1+1+1+1+1+1+1=?", "2+2=?")
    problems = [Problem(text, text, "2") for text in texts]
    limit = len(encode_prompt(tokenizer, "1+1=?"))
    kept, prompts = encode_problems(problems, tokenizer, limit)
    assert [problem.id for problem in kept] == ["1+1=?", "2+2=?"]
    assert prompts == [encode_prompt(tokenizer, problem.problem) for problem in kept]


def with_template(tokenizer, text):
    tokenizer.chat_template = text
    return tokenizer


def test_a_system_prompt_is_rendered_as_if_it_was_a_message(
    tokenizer, qwen_tokenizer_dir, tmp_path
):
    qwen = AutoTokenizer.from_pretrained(qwen_tokenizer_dir)
    qwen3 = with_template(AutoTokenizer.from_pretrained(TINY_MODEL), QWEN3)
    for each in (tokenizer, qwen, qwen3):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "1+1=?"}]
        expected = each.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        template = chat_template(each, "chat", SYSTEM)
        assert encode_prompt(each, "1+1=?", template) == expected
        # A checkpoint has the template: the same prompt without the setting, and the same template
        # with it.
        with_template(each, template).save_pretrained(tmp_path)
        saved = AutoTokenizer.from_pretrained(tmp_path)
        assert encode_prompt(saved, "1+1=?") == expected
        assert chat_template(saved, "chat") == chat_template(saved, "chat", SYSTEM) == template
        # Another system prompt, as that of a suite, takes its place.
        other = render_prompt(saved, "1+1=?", chat_template(saved, "think"))
        assert THINK_PROMPT in other
        assert SYSTEM not in other


@pytest.mark.parametrize(("before", "now"), [("on", "off"), ("off", "on"), ("on", "on")])
def test_thinking_of_a_checkpoint_gives_way_to_the_flag(before, now, tokenizer):
    checkpoint = chat_template(with_template(tokenizer, QWEN3), "chat", "Be exact.", before)
    template = chat_template(with_template(tokenizer, checkpoint), "chat", None, now)
    prompt = render_prompt(tokenizer, "1+1=?", template)
    assert ("</think>" in prompt) == (now == "off")
    assert "Be exact." in prompt
    again = chat_template(with_template(tokenizer, checkpoint), "chat", "Be exact.", before)
    assert again == checkpoint


def test_an_empty_system_prompt_keeps_a_template_from_adding_its_own(tokenizer):
    own = "{% if messages[0].role != 'system' %}Be brief. {% endif %}"
    tokenizer.chat_template = own + "{% for m in messages %}{{ m.content }}|{% endfor %}"
    assert render_prompt(tokenizer, "1+2=?", chat_template(tokenizer, "chat")) == "Be brief. 1+2=?|"
    template = chat_template(tokenizer, "chat", "")
    assert render_prompt(tokenizer, "1+2=?", template) == "|1+2=?|"
    assert chat_template(with_template(tokenizer, template), "chat", "") == template


def test_a_suite_has_the_prompt_settings_of_training(tokenizer, tmp_path):
    """The system prompt as text or in a file, `thinking`, and the template in a file."""
    with_template(tokenizer, QWEN3)
    fields = json.loads((SUITES / "arithmetic.json").read_text()) | {"thinking": "off"}
    (tmp_path / "system.txt").write_text("Be exact.\n")
    expected = render_prompt(
        tokenizer, "2+2=?", chat_template(tokenizer, "chat", "Be exact.", "off")
    )
    suite, problems = tmp_path / "mine.json", [Problem("1", "2+2=?", "4")]
    for prompt in ("Be exact.", str(tmp_path / "system.txt")):
        suite.write_text(json.dumps(fields | {"system_prompt": prompt}))
        [prompt] = encode_prompts(problems, load_suite(str(suite)), tokenizer)
        assert tokenizer.decode(prompt) == expected
    with refused("suite mine: --thinking: .* has a chat template without enable_thinking"):
        encode_prompts([], load_suite(str(suite)), with_template(tokenizer, BASE))
    (tmp_path / "base.jinja").write_text(BASE)
    suite.write_text(
        json.dumps(fields | {"template": str(tmp_path / "base.jinja"), "thinking": None})
    )
    with_template(tokenizer, None)
    [prompt] = encode_prompts(problems, load_suite(str(suite)), tokenizer)
    assert tokenizer.decode(prompt) == "user: 2+2=?\nassistant:"


def test_a_suite_with_a_template_of_its_own_ends_answers_as_that_template_does(tokenizer, tmp_path):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    (tmp_path / "gemma.jinja").write_text(GEMMA)
    suite = load_suite("arithmetic")
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    for template, is_end in (("chat", False), (str(tmp_path / "gemma.jinja"), True)):
        evaluation = Evaluation.prepare(replace(suite, template=template), tokenizer, seed=0)
        assert (end in evaluation.sampling([])["stop_token_ids"]) == is_end


def test_answer_tags_are_looked_for_where_the_prompt_asks_for_them(tokenizer):
    asking = Problem("1", "1+2=? Put the result into <answer> </answer>.", "3")
    for template, problems, expected in (
        (None, [], False),
        (chat_template(tokenizer, "think"), [], True),
        (chat_template(tokenizer, "chat", "End with <answer> </answer>."), [], True),
        (None, [Problem("0", "1+1=?", "2"), asking], True),
        (None, [Problem("0", "1+1=?", "2")], False),
    ):
        assert asks_for_tags(tokenizer, template, problems) == expected


@pytest.mark.parametrize(
    ("template", "settings", "message"),
    [
        ("{{ raise_exception('No system') }}", {}, r"1\+2=\?' \(TemplateError: No system"),
        ("{% for %}", {}, r"TemplateSyntaxError: .*\); correct it"),
        ("{{ 1 / 0 }}", {}, r"\(ZeroDivisionError: division by zero\); correct it"),
        ("Question: {{ problem }}", {}, r"--template: the chat template leaves out '1\+2=\?', and"),
        ("{{ messages[-1].content }}", EXACT, "--system-prompt: the chat t"),
        ("{{ messages[-1].content }}", {"thinking": "off"}, "--thinking: .* without enable_think"),
    ],
)
def test_templates_that_cannot_work_are_one_line(template, settings, message, tokenizer, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text(template)
    with refused(message):
        chat_template(tokenizer, str(file), **settings)


def test_a_tokenizer_without_a_template_or_a_default_among_several(tokenizer):
    template = tokenizer.chat_template
    with refused("its tokenizer has no chat template; set one with --template FILE"):
        chat_template(with_template(tokenizer, None), "chat")
    with refused(r"several chat templates \(rag, tool_use\), but no default; choose one with"):
        chat_template(with_template(tokenizer, {"tool_use": template, "rag": template}), "chat")
    several = {"tool_use": template, "default": template}
    assert chat_template(with_template(tokenizer, several), "chat") == template


def test_a_system_prompt_is_a_text_or_a_file_that_must_be_there(tmp_path):
    (tmp_path / "system.txt").write_text("From a file.\n")
    texts = {str(tmp_path / "system.txt"): "From a file."}
    for text in ("Be exact. " * 99, "/no_think", "See notes/a.txt", "<answer>7</answer>"):
        texts[text] = text
    for given, text in texts.items():
        config, _ = parse_train_config(["--preset", "tiny", "--system-prompt", given], False)
        assert config.data.system_prompt == text
    suite = tmp_path / "suite.json"
    for given, text in texts.items():
        fields = json.loads((ROOT / "evals" / "word-problems.json").read_text())
        suite.write_text(json.dumps(fields | {"system_prompt": given}))
        assert load_suite(str(suite)).system_prompt == text
    for path in ("sytem.txt", "prompts/sytem", "/prompts/s.md", "~/x", "prompts/"):
        with refused("--system-prompt: no file '.*'; correct the path, or write the prompt itself"):
            parse_train_config(["--preset", "tiny", "--system-prompt", path], False)


# The parts of Gemma's and Phi-3's chat templates that say how a turn ends.
GEMMA = "{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content | trim + "
GEMMA += "'<end_of_turn>\n' }}{% endfor %}"
PHI = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (GEMMA, ["<end_of_turn>"]),
        (PHI, ["<|end|>"]),
        (QWEN3, []),  # of these parts none writes an answer
        ("{% for m in messages %}{{ m.content }} and more {% endfor %}", []),  # no special token
        ("{{ messages[0].content }}{{ messages[1].missing.part }}", []),  # a template that raises
        (None, []),
    ],
)
def test_answers_end_with_the_special_token_that_the_template_writes_behind_them(
    tokenizer, template, end
):
    added = ["<start_of_turn>", "<end_of_turn>", "<|end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    names = tokenizer.convert_ids_to_tokens(stop_token_ids(with_template(tokenizer, template)))
    assert set(names) == {"<|endoftext|>", "<|im_end|>", *end}


TAGGED = "<think>1+2 is 3</think><answer>3</answer>"


def test_tags_that_are_special_tokens_stay_in_answers(tokenizer):
    ids = tokenizer.encode(f"{TAGGED}<|im_end|>", add_special_tokens=False)
    assert decode_answers(tokenizer, [ids]) == [TAGGED]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</answer>"]})
    ids = tokenizer.encode(f"{TAGGED}<|im_end|>", add_special_tokens=False)
    assert decode_answers(tokenizer, [ids, ids[:1]]) == [TAGGED, "<think>"]


def test_prompts_have_the_same_date_every_day(tokenizer):
    dated = "{{ strftime_now('%Y-%m-%d') }} is {{ strftime_now('%d %b %Y') }}.\n" + BASE
    tokenizer.chat_template = dated
    tokenizer.chat_template = chat_template(tokenizer, "chat")
    assert render_prompt(tokenizer, "1+1=?").startswith("2024-07-26 is 26 Jul 2024.\nuser: 1+1=?")
    assert chat_template(tokenizer, "chat") == tokenizer.chat_template


WITHOUT_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + BASE
)


def test_a_template_without_a_system_role(tokenizer):
    tokenizer.chat_template = WITHOUT_SYSTEM
    assert chat_template(tokenizer, "chat", "") == WITHOUT_SYSTEM  # no system prompt is asked for
    with refused("^--system-prompt: the chat template of .* takes no system message; leave the fl"):
        chat_template(tokenizer, "chat", "Use a box.")
    with refused("^--template think: the chat template of .* takes no system message; leave the f"):
        chat_template(tokenizer, "think")


def test_a_template_that_needs_a_system_message_gets_it(tokenizer, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }} {{ messages[1].content }}")
    tokenizer.chat_template = chat_template(tokenizer, str(file), "Use a box.")
    assert render_prompt(tokenizer, "1+1=?") == "Use a box. 1+1=?"


def test_lines_say_which_problems_have_a_system_message_or_control_tokens(tokenizer):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
    problems = [Problem("a", chat, "2"), Problem("b", "What is <|im_end|> for?", "2")]
    assert describe_problems(problems, tokenizer, "Use a box.") == [
        "1 of 2 problems have a system message of their own, so that --system-prompt or "
        "--template think does not reach them",
        "1 of 2 problems contain special tokens such as <|im_end|> (problem b), which the model "
        "reads as control tokens and not as text",
    ]
    assert describe_problems(problems[:1], tokenizer, None) == []


def test_an_empty_prompt_is_refused(tokenizer):
    with refused("the prompt of the problem '' is empty; correct it"):
        encode_prompt(tokenizer, "", "{{ messages[0].content }}")


@pytest.mark.parametrize("bos", ["<|endoftext|>", None])
def test_the_template_for_base_models(tokenizer, bos):
    tokenizer.bos_token = bos
    template = chat_template(tokenizer, str(ROOT / "examples" / "base.jinja"), "Be brief.")
    prompt = render_prompt(tokenizer, "1+1=?", template)
    assert prompt == (bos or "") + "Be brief.\n\n1+1=?\n\nAnswer:"


R1_PROMPT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
    "it. The assistant first thinks about the reasoning process in the mind and then provides the "
    "user with the answer. The reasoning process and answer are enclosed within <think> </think> "
    "and <answer> </answer> tags, respectively, i.e., <think> reasoning process here "
    "</think><answer> answer here </answer>."
)


def test_table_2_has_the_prompt_of_the_released_code(tokenizer):
    """`r1_prompt` of its data_prepare.py as the one system message, and the bare question."""
    data = PRESETS["paper-format"].data
    template = chat_template(tokenizer, data.template, data.system_prompt)
    expected = f"<|im_start|>system\n{R1_PROMPT}<|im_end|>\n<|im_start|>user\n1+1=?<|im_end|>\n"
    assert render_prompt(tokenizer, "1+1=?", template) == expected + "<|im_start|>assistant\n"
    for name in ("paper-format", "quick-format"):
        assert suite_template(load_suite(name), tokenizer) == template


CASES = [(name, preset.data.rewards, preset.data.grader) for name, preset in PRESETS.items()]
CASES += [(file.stem, ("accuracy",), None) for file in sorted(SUITES.glob("*.json"))]


@pytest.mark.parametrize(("name", "rewards", "rule"), CASES)
def test_an_answer_as_the_prompt_shows_it_earns_every_reward(name, rewards, rule, tokenizer):
    if rule:
        data = PRESETS[name].data
        template, rules = chat_template(tokenizer, data.template, data.system_prompt), [rule]
    else:
        suite = load_suite(name)
        template, rules = suite_template(suite, tokenizer), suite.rules
    prompt, tags = render_prompt(tokenizer, "3+4=?", template), asks_for_tags(tokenizer, template)
    shown = re.search(r"(<think> \w[^<]*</think>\s*<answer>)[^<]*(</answer>)", prompt)
    answer = rf"{shown[1]}\boxed{{7}}{shown[2]}" if shown else r"So it is \boxed{7}."
    assert tags == ("format" in name)
    for rule in rules:
        grader = Grader(rewards, grader=rule, workers=1)
        assert grader([answer], ["7"], tags).rewards.tolist() == [[1.0] * len(rewards)], rule
        assert stated_answer(answer, rule, tags) == "7"
        grader.close()


@pytest.mark.parametrize(
    ("answer", "paper"),
    [("7", 0), (" 7 ", 0), ("$7$", 1), (r"\(7\)", 1), (r"\boxed{7}", 1), ("x = 7", 0)],
)
def test_the_papers_rule_reads_only_latex_between_the_tags(answer, paper):
    """It finds no plain number, which the findings of a run must say."""
    text = f"<think> 3+4 </think><answer>{answer}</answer>"
    grader = Grader(grader="paper", workers=1)
    assert grader([text], ["7"], tags=True).rewards.tolist() == [[paper]]
    assert (stated_answer(text, "paper", tags=True) is not None) == paper
    assert stated_answer(text, "default", tags=True) is not None
    grader.close()


@pytest.mark.parametrize(
    ("training", "suite", "lines"),
    [
        (EXACT, {}, 0),
        (EXACT, EXACT, 0),
        (EXACT, {"system_prompt": "No."}, 1),
        ({}, THINK, 1),
        (THINK, THINK | {"grader": "paper"}, 1),
    ],
)
def test_a_line_says_what_an_evaluation_does_not_share_with_the_training(
    training, suite, lines, tokenizer, tmp_path
):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(json.loads((SUITES / "arithmetic.json").read_text()) | suite))
    tokenizer.chat_template = chat_template(tokenizer, **{"template": "chat"} | training)
    found = own_settings(load_suite(str(file)), "default", tokenizer)
    assert len(found) == lines
    assert all("mine" in line for line in found)
