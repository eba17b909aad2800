"""Whole programs; test_resume.py and test_faults.py launch them as a user does."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import Method
from bnpo.batch import has_signal
from bnpo.config import TINY_MODEL, flat_settings, parse_train_config
from bnpo.data import Columns, built_in_problems, content_hash, load_problems
from bnpo.files import write_json_lines
from bnpo.report.run_files import summary
from bnpo.runs.checkpoint import find_checkpoint
from conftest import json_lines, make_model, refused, run_ranks

pytestmark = pytest.mark.sampler


def parsed(*flags: str) -> dict:
    return flat_settings(parse_train_config(["--preset", "tiny", *flags], has_cuda=False)[0])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *((flag, 0) for flag in ("eval_every", "save_every", "rollouts_every", "keep", "steps")),
        *((flag, 0) for flag in ("watch_questions", "resample_rounds", "warmup_steps", "seed")),
        *((flag, None) for flag in ("top_k", "importance_cap")),
    ],
)
def test_0_switches_off_and_is_refused_nowhere_else(flag, value):
    settings = parsed(f"--{flag}", "0")
    assert settings == parsed() | {flag: value}
    assert type(settings[flag]) is type(value)


@pytest.mark.parametrize("flag", ["--epochs", "--lr", "--max-bad-steps", "--mini-batches"])
def test_0_is_refused_where_every_run_needs_a_value(flag):
    with refused(f"^{flag}: is 0.*, must be greater than 0"):
        parsed(flag, "0")


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--rewards", "accuracy", "format"], "--rewards accuracy,format"),
        (["--rewards=accuracy,", "format", "--lr", "1e-3"], "--rewards accuracy,format"),
        (["--allow_changes", "lr", "seed"], "--allow-changes lr,seed"),
    ],
)
def test_names_that_are_separated_by_blanks_get_a_hint(flags, hint):
    with refused(f"separate names by commas, without blanks: {hint}$"):
        parsed(*flags)


def test_a_mistyped_flag_gets_the_right_one(capsys):
    with pytest.raises(SystemExit):
        parsed("--lrr", "1e-3")
    assert "Perhaps you meant" in (printed := "".join(capsys.readouterr()))
    assert "--lr FLOAT" in printed


EVERY_STEP = ("--rollouts-every", 1, "--watch-questions", 0)
"""Answers of all steps are kept; tests of resumed runs have watched questions."""
TINY = ("--preset", "tiny", "--questions-per-step", 8, *EVERY_STEP)
"""A quarter of the preset's questions."""


def metrics_of(run: Path) -> list[dict]:
    """The lines of the steps, without that of the evaluation before the first."""
    lines = json_lines(run / "metrics.jsonl")
    return [line for line in lines if line["step"] > 0]


def rollouts_of(run: Path, step: int) -> list[dict]:
    return json_lines(run / "rollouts" / f"step-{step:06d}.jsonl")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("tiny") / "run"
    flags = ("--algo", "bnpo", *TINY, "--steps", 4, "--eval-every", 3, "--output-dir", run)
    output = run_ranks(2, "train.py", *flags).stdout
    (run / "console").write_text(output)
    return run


def test_console_and_config(tiny_run):
    console = (tiny_run / "console").read_text()
    config = json.loads((tiny_run / "config.json").read_text())
    assert console.startswith("preset tiny (from --preset)\n")
    assert (config["algo"], config["steps"], config["seed"]) == ("bnpo", 4, 0)
    # What differs from the preset
    assert re.search(rf"\n  steps +{config['steps']} +preset: \d+\n", console)
    lines = re.findall(
        r"\nstep (\d)/4: reward 0\.\d+, gradient norm [\d.]+, \d+ tokens per answer, [\d.]+ s, \S+ "
        r"left",
        console,
    )
    assert lines == ["1", "2", "3", "4"]
    assert "Traceback" not in console
    assert summary(tiny_run) in console
    assert "\ndone: 4 steps; the model is in " in console
    assert json.loads((tiny_run / "end.json").read_text()) == {"step": 4, "why": "done"}


def test_a_line_of_metrics_a_step(tiny_run):
    lines = metrics_of(tiny_run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    start = json.loads((tiny_run / "metrics.jsonl").read_text().splitlines()[0])
    assert start["step"] == 0
    assert 0 < start["eval/average"] < 1
    for line in lines:
        assert 0 < line["reward/mean"] == line["beta/E"] < 1
        assert line["beta/alpha"] == pytest.approx(1 + line["beta/a"] / 3)
        assert line["beta/beta"] == pytest.approx(1 + line["beta/b"] / 3)
        assert line["grad_norm"] > 0
        assert line["sync/difference"] < 1e-4
        assert line["sampler_learner_gap_max"] < 1e-4
        assert line["clipped_low"] == line["clipped_high"] == 0  # one update a step: the ratio is 1
        assert {"seconds/generate", "seconds/reward", "seconds/update", "seconds/sync"} < set(line)
        assert line["tokens/sampled"] > 128
    assert lines[0]["lr"] == pytest.approx(1e-5)


def test_the_checkpoint_is_a_hugging_face_model_that_eval_reads(tiny_run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    last = tiny_run / "last"
    assert last.resolve() == (tiny_run / "checkpoints" / "step-000004").resolve()
    trained = AutoModelForCausalLM.from_pretrained(last)
    base = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    assert trained.config.to_diff_dict().keys() == base.config.to_diff_dict().keys()
    changes = [
        (a - b).abs().max().item()
        for a, b in zip(trained.parameters(), base.parameters(), strict=True)
    ]
    assert 1e-5 < max(changes) < 1e-3
    assert len(AutoTokenizer.from_pretrained(last)) == len(
        AutoTokenizer.from_pretrained(TINY_MODEL)
    )


def test_evaluations_on_the_way_are_what_eval_says_of_the_checkpoint(tiny_run, tmp_path):
    assert sorted(path.name for path in (tiny_run / "evals").iterdir()) == [
        "step-000000",
        "step-000003",
        "step-000004",
    ]
    lines = metrics_of(tiny_run)
    assert ["eval/average" in line for line in lines] == [False, False, True, True]
    best = max(lines[2:], key=lambda line: line["eval/average"])  # the first of equals
    assert (tiny_run / "best").resolve().name == f"step-{best['step']:06d}"

    # The run's preset says which suite; its quick version has the same problems, so it is asked for
    # here.
    flags = ("--ckpt", tiny_run, "--suite", "arithmetic-quick", "--output-dir", tmp_path / "out")
    console = run_ranks(0, "eval.py", *flags).stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    live = json.loads((tiny_run / "evals" / "step-000004" / "results.json").read_text())
    assert results["results"] == live["results"]
    assert results["protocol"]["run"] == live["protocol"]["run"]
    assert results["protocol"]["suite"] == live["protocol"]["suite"]
    assert lines[3]["eval/arithmetic/pass1"] == results["results"]["arithmetic"]["pass1"]
    assert (
        f"{100 * results['average']['pass1']:.1f} ± {100 * results['average']['se']:.1f}" in console
    )


def test_one_rank_gives_the_answers_advantages_and_gradient_of_two(tiny_run, tmp_path):
    run = tmp_path / "run"
    run_ranks(1, "train.py", *TINY, "--steps", 1, "--eval-every", 0, "--output-dir", run)
    assert metrics_of(run)[0]["reward/mean"] == metrics_of(tiny_run)[0]["reward/mean"]
    # Advantages are float64, written with all their digits
    assert rollouts_of(run, 1) == rollouts_of(tiny_run, 1)
    one, two = metrics_of(run)[0], metrics_of(tiny_run)[0]
    assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-5)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5, abs=1e-8)


def test_weights_in_cpu_memory_change_nothing(tiny_run, tmp_path):
    run = tmp_path / "run"
    run_ranks(
        2,
        "train.py",
        *TINY,
        "--steps",
        2,
        "--eval-every",
        0,
        "--offload-weights",
        "--output-dir",
        run,
    )
    for step in (1, 2):
        assert rollouts_of(run, step) == rollouts_of(tiny_run, step)
        for name in ("loss", "grad_norm", "sync/difference", "entropy"):
            assert metrics_of(run)[step - 1][name] == metrics_of(tiny_run)[step - 1][name]


def test_real_math_with_the_real_tokenizer_on_two_ranks(qwen_model, data_dir, tmp_path):
    run, data = tmp_path / "run", tmp_path / "math.jsonl"
    lines = (data_dir / "math_train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    by_id = {problem["id"]: problem for problem in map(json.loads, lines)}
    # Problems whose answers the model can hit, and one too long for a prompt of 512 tokens.
    longest = max(lines, key=lambda line: len(json.loads(line)["problem"]))
    problems = [line for line in lines if json.loads(line)["answer"] in ("1", "2", "3")]
    easy = [line for line in problems if len(json.loads(line)["problem"]) < 150][:80]
    data.write_text("".join(easy) + longest, encoding="utf-8")
    flags = (
        "--preset",
        "tiny",
        "--model",
        qwen_model,
        "--train-data",
        data,
        "--steps",
        2,
        *EVERY_STEP,
    )
    flags += ("--questions-per-step", 4, "--samples-per-question", 8, "--max-prompt-tokens", 512)
    flags += ("--max-answer-tokens", 64, "--eval-every", 0)
    console = run_ranks(2, "train.py", *flags, "--output-dir", run).stdout
    assert "80 questions (1 left out: prompt over 512 tokens)" in console
    rows, metrics = rollouts_of(run, 1), metrics_of(run)
    assert len(rows) == 32
    for row in rows:
        problem = by_id[row["id"]]
        # The template's own system prompt, and the problem as it is in the file.
        assert row["prompt"] == (
            "<|im_start|>system\nPlease reason step by step, and put your final answer within "
            "\\boxed{}.<|im_end|>\n"
            f"<|im_start|>user\n{problem['problem']}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert row["reference"] == problem["answer"]
        assert row["rewards"]["accuracy"] == (f"\\boxed{{{problem['answer']}}}" in row["answer"])
    for line in metrics:
        assert 0 < line["reward/mean"] < 1
        assert line["tokens/trained"] > 0
        assert line["grad_norm"] > 0
        assert line["sampler_learner_gap_mean"] < 1e-4
        # The model is taught here: how sharp it gets differs by machine
        assert line["sync/difference"] < 1e-3
    assert metrics[0]["answers/truncated"] < 0.5
    assert (run / "last" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("algo", "own_flags", "options"),
    [
        ("gdpo", "--reward-weights 1 0.2", {"reward_weights": (1, 0.2)}),
        (
            "weight",
            "--weight 1/(1-p) --weight-wrong p+m/n",
            {"weight": "1/(1-p)", "weight_wrong": "p+m/n"},
        ),
    ],
)
def test_advantages_are_those_of_the_flags(algo, own_flags, options, tmp_path):
    """The options reach the estimator, and lengths and separate rewards do."""
    (tmp_path / "mine.py").write_text("def short(text, reference):\n    return len(text) < 12\n")
    flags = ("--questions-per-step", 8, "--samples-per-question", 4, "--steps", 1, *EVERY_STEP)
    flags += (
        "--eval-every",
        0,
        "--rewards",
        f"accuracy,{tmp_path / 'mine.py'}:short",
        *own_flags.split(),
    )
    run_ranks(
        1, "train.py", "--preset", "tiny", "--algo", algo, *flags, "--output-dir", tmp_path / "run"
    )
    rows = rollouts_of(tmp_path / "run", 1)
    rewards = np.array([list(row["rewards"].values()) for row in rows]).reshape(8, 4, 2)
    lengths = np.array([row["tokens"] for row in rows]).reshape(8, 4)
    expected = compute_advantages(Method(algo, **options), rewards, lengths=lengths).values
    assert expected.any()
    np.testing.assert_array_equal([row["advantage"] for row in rows], expected.ravel())


def test_rewards_decomposed_and_one_of_the_users_whose_failures_are_counted(tmp_path):
    run, file = tmp_path / "run", tmp_path / "mine.py"
    file.write_text(
        "import sys\n"
        "def short(text, reference):\n"
        "    assert 'torch' not in sys.modules\n"  # the worker has imported train.py
        "    if len(text) > 40:\n"
        "        raise ValueError('too long for me')\n"
        "    return len(text) < 12\n"
    )
    flags = ("--questions-per-step", 4, "--samples-per-question", 8, "--steps", 1, *EVERY_STEP)
    flags += ("--eval-every", 0, "--rewards", f"accuracy,format,{file}:short", "--output-dir", run)
    flags += ("--decompose", "--beta-moments", "corrected")
    console = run_ranks(2, "train.py", "--preset", "tiny", "--algo", "bnpo", *flags).stdout
    rows = rollouts_of(run, 1)
    [line] = metrics_of(run)
    # The end token is not part of the text that is graded, and the tiny model writes a character a
    # token.
    texts = [row["answer"].removesuffix("<|im_end|>") for row in rows]
    assert [row["rewards"]["short"] for row in rows] == [float(len(text) < 12) for text in texts]
    failed = np.array([row.get("failed", False) for row in rows])
    assert failed.tolist() == [len(text) > 40 for text in texts]
    assert line["reward/errors"] == line["reward/errors/ValueError"] == failed.sum() > 0
    assert line["answers/left_out"] == failed.mean()
    assert line["reward/timeouts"] == 0
    assert ":short: ValueError: too long for me (the answer is left out, and counted)" in console
    rewards = np.array([list(row["rewards"].values()) for row in rows])  # [answers, K]
    for name, values in zip(("accuracy", "format", "short"), rewards[~failed].T, strict=True):
        assert line[f"reward/{name}"] == pytest.approx(values.mean())
    assert line["reward/mean"] == pytest.approx(rewards[~failed].mean())
    assert not np.array([row["advantage"] for row in rows])[failed].any()
    assert line["reward/format"] == 0  # the tiny model writes no tags
    assert line["beta/format/E"] == 0
    assert line["beta/format/edge"] == 1
    groups = zip(rewards[:, 0].reshape(4, 8), failed.reshape(4, 8), strict=True)
    accuracies = [group[~gone].mean() for group, gone in groups if (~gone).sum() > 1]
    assert line["beta/accuracy/E"] == pytest.approx(np.mean(accuracies))
    assert line["grad_norm"] > 0


@pytest.fixture(scope="module")
def tagging_model(tmp_path_factory) -> Path:
    """Its one answer is a token: 7 as a thought, 8 as the answer, in the tags that `think` asks
    for.
    """
    folder = tmp_path_factory.mktemp("tagging")
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.add_tokens([r"<think>\boxed{7}</think><answer>8</answer>"])
    tokenizer.save_pretrained(folder)
    model = make_model(folder, vocab_size=288, hidden_size=64, tie_word_embeddings=False)
    model.model.embed_tokens.weight.data[:, 0] = 100  # in every state, whatever the layers add
    model.lm_head.weight.data[len(tokenizer) - 1, 0] = 100
    model.save_pretrained(folder)
    return folder


def test_training_and_evaluation_look_for_the_tags_that_the_template_asks_for(
    tagging_model, tmp_path
):
    """Without the format reward too: training asked for it once, and graded the thought."""
    data, suite, run = tmp_path / "data.jsonl", tmp_path / "suite.json", tmp_path / "run"
    data.write_text('{"problem": "1 + 7", "answer": "8"}\n' * 2)
    lengths = {"max_prompt_tokens": 512, "max_answer_tokens": 1}
    sampling = {"temperature": 1.0, "top_p": 1.0, "template": "think"}
    suite.write_text(
        json.dumps(
            {"datasets": {"D": {"data": str(data), "repetitions": 1}}, **sampling, **lengths}
        )
    )
    flags = (
        "--model",
        tagging_model,
        "--train-data",
        data,
        "--template",
        "think",
        "--rewards",
        "accuracy",
    )
    flags += (
        "--questions-per-step",
        2,
        "--samples-per-question",
        2,
        "--steps",
        1,
        "--eval-every",
        1,
    )
    flags += (
        "--max-prompt-tokens",
        512,
        "--max-answer-tokens",
        1,
        "--eval-suite",
        suite,
        "--output-dir",
        run,
    )
    run_ranks(1, "train.py", "--preset", "tiny", *flags)
    [line] = metrics_of(run)
    assert (line["reward/accuracy"], line["eval/D/pass1"]) == (1, 1)


@pytest.mark.parametrize("shared", [(), ("--sampler-ranks", 2)])
def test_more_questions_are_drawn_until_there_are_enough_and_a_resumed_run_draws_the_same(
    shared, tmp_path
):
    data = tmp_path / "data.jsonl"
    # Two steps per epoch, whatever is drawn.
    write_json_lines(data, map(asdict, built_in_problems("arithmetic", "train", 8)))

    def train(name: str, epochs: int, *flags: str) -> list[dict]:
        batch = (
            "--questions-per-step",
            4,
            "--samples-per-question",
            2,
            "--resample-rounds",
            2,
            "--eval-every",
            0,
        )
        batch += ("--train-data", data, "--steps", 0, "--epochs", epochs)
        common = ("--preset", "tiny", *batch, *EVERY_STEP, "--save-every", 2, *shared)
        run_ranks(2, "train.py", *common, "--output-dir", tmp_path / name, *flags)
        return json_lines(tmp_path / name / "metrics.jsonl")

    whole = train("whole", 2)
    assert len(whole) == 4
    drawn = [line["groups/drawn"] for line in whole]
    assert set(drawn) <= {4, 8, 12}
    assert max(drawn) > 4
    for step, (line, count) in enumerate(zip(whole, drawn, strict=True), start=1):
        [file] = (tmp_path / "whole" / "rollouts").glob(f"*{step}.jsonl*")
        rows = json_lines(file)
        rewards = [row["rewards"]["accuracy"] for row in rows]
        assert len(rewards) == 2 * count
        groups = [
            (rows[i]["id"], rows[i]["answer"], rows[i + 1]["answer"])
            for i in range(0, len(rows), 2)
        ]
        if count == 12:  # of 8 questions: those that were drawn again have other answers
            assert len({question for question, *_ in groups}) <= 8
            assert len(set(groups)) > 8
        differ = np.not_equal(rewards[::2], rewards[1::2])  # [questions drawn]
        assert differ.sum() >= 4 or count == 12
        assert differ[:-4].sum() < 4  # no draw was in vain
        assert line["groups/all_equal"] == pytest.approx(1 - differ.mean())
        [file] = (tmp_path / "whole" / "tokens").glob(f"*{step}.jsonl*")
        for row in map(json.loads, file.read_text().splitlines()):
            # Four questions with a signal, or all that have one and the first of the others
            signals = has_signal(np.reshape(rewards, (-1, 2, 1)))  # [questions drawn]
            assert row["place"] // 2 in np.argsort(~signals, kind="stable")[:4]
            np.testing.assert_allclose(row["learner"], row["sampler"], atol=1e-3)
    train("resumed", 1)
    assert [line["groups/drawn"] for line in train("resumed", 2, "--resume")] == drawn
    assert all(
        (tmp_path / name / "last" / "model.safetensors").is_file() for name in ("whole", "resumed")
    )
    assert (
        len(
            {
                (tmp_path / name / "last" / "model.safetensors").read_bytes()
                for name in ("whole", "resumed")
            }
        )
        == 1
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_tiny_preset_trains_in_formats_of_16_bits(dtype, request, tmp_path):
    if dtype == "float16":
        request.getfixturevalue("float16")
    run_ranks(
        1,
        "train.py",
        "--preset",
        "tiny",
        "--dtype",
        dtype,
        "--steps",
        1,
        "--output-dir",
        tmp_path / "run",
    )
    assert [line["updates/skipped"] for line in metrics_of(tmp_path / "run")] == [0]


GSM8K = [
    {
        "question": f"Tom has {n} pens and buys {n}.",
        "answer": f"He has {n} + {n} = {2 * n} pens.\n#### {2 * n}",
    }
    for n in range(1, 9)
]
"""Rows as in GSM8K, short enough for the tiny model."""
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)


@pytest.fixture(scope="module")
def gsm8k_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gsm8k")
    pq.write_table(pa.Table.from_pylist(GSM8K), folder / "train.parquet")
    fields = {"problem_field": "question", "answer_pattern": r"####\s*(.*)"}
    suite = {
        "datasets": {
            "GSM8K": {
                "data": str(folder / "train.parquet"),
                "repetitions": 1,
                "problems": 4,
                **fields,
            }
        }
    }
    suite |= {
        "temperature": 1.0,
        "top_p": 1.0,
        "template": "chat",
        "max_prompt_tokens": 64,
        "max_answer_tokens": 8,
    }
    (folder / "suite.json").write_text(json.dumps(suite))
    flags = ("--train-data", folder / "train.parquet", "--problem-field", "question")
    flags += ("--answer-pattern", r"####\s*(.*)")
    flags += (
        "--questions-per-step",
        4,
        "--samples-per-question",
        2,
        "--max-answer-tokens",
        8,
        "--steps",
        1,
    )
    flags += (
        "--eval-every",
        1,
        "--eval-suite",
        folder / "suite.json",
        "--rollouts-every",
        1,
        "--watch-questions",
        0,
    )
    (folder / "mine.jinja").write_text(TEMPLATE)
    flags += ("--template", folder / "mine.jinja", "--system-prompt", "Be exact.")
    run_ranks(2, "train.py", "--preset", "tiny", *flags, "--output-dir", folder / "run")
    return folder


def test_gsm8k_trains_from_a_local_parquet_file(gsm8k_run):
    run, data = gsm8k_run / "run", gsm8k_run / "train.parquet"
    rows = json_lines(run / "rollouts" / "step-000001.jsonl")
    assert len(rows) == 8
    for row in rows:
        asked = GSM8K[int(row["id"]) - 1]
        assert row["prompt"] == f"system: Be exact.\nuser: {asked['question']}\nassistant:"
        assert row["reference"] == asked["answer"].rpartition("#### ")[2]
    config = json.loads((run / "config.json").read_text())
    digest = content_hash(
        load_problems(data, Columns(problem_field="question", answer_pattern=r"####\s*(.*)"))
    )
    assert config["data_sources"] == {
        str(data): {"problems": 8, "sha256": digest, "revision": None}
    }
    assert (config["data_sha256"], config["evaluated"]["datasets"]["GSM8K"]["problems"]) == (
        digest,
        4,
    )


def test_a_checkpoint_has_a_model_card_which_may_be_edited(gsm8k_run):
    run, data = gsm8k_run / "run", gsm8k_run / "train.parquet"
    card = ModelCard.load(run / "last" / "README.md")
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.base_model is None  # a path is no name on the hub
    config = json.loads((run / "config.json").read_text())
    for part in (
        "- **Method**: algo bnpo, questions_per_step 4, samples_per_question 2, lr 0.0001, rewards "
        "['accuracy'], seed",
        f"- **Data**: {data}, problems 8, sha256 {config['data_sha256']}, revision None\n",
        f"deepspeed --num_gpus 2 train.py --preset tiny --train-data {data} --problem-field "
        "question",
    ):
        assert part in card.text
    (run / "last" / "README.md").write_text("a better one")
    assert find_checkpoint(run, 2).step == 1
