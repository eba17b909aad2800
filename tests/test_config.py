import json
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import docstring_parser
import pytest

from bnpo.algorithm.estimators import Method
from bnpo.algorithm.registry import ESTIMATORS
from bnpo.config import (
    FREE,
    PRESETS,
    TINY_MODEL,
    DataSettings,
    TrainConfig,
    check_config,
    flat_settings,
    parse_train_config,
    preset_config,
)
from bnpo.files import InputError
from bnpo.grading.rewards import GRADERS
from bnpo.runs.checkpoint import Progress, checkpoints, rewind
from bnpo.runs.folder import check_output_dir, claim_folder, delete_earlier, lock_run
from bnpo.runs.prepare import local_sources, prepare_run
from conftest import files_of, refused


def parse(*flags):
    return parse_train_config(list(flags), has_cuda=False)[0]


def test_auto_preset_says_what_it_took_and_why():
    config, line = parse_train_config([], has_cuda=False)
    assert config.data.train_data == ("arithmetic",)
    assert line == "preset tiny (no CUDA device was found; --preset chooses another)"
    config, line = parse_train_config(["--lr", "3e-6"], has_cuda=True)
    assert line.startswith("preset paper-1.5b (a CUDA device was found")
    assert (config.data.model, config.update.lr) == ("Qwen/Qwen2.5-Math-1.5B", 3e-6)


def test_paper_settings_are_the_papers():
    """Section 5.1 of the paper, and the choices of its released code that the text leaves open."""
    config = parse("--preset", "paper-1.5b")
    batch, update, sampling = config.batch, config.update, config.sampling
    assert (batch.questions_per_step, batch.samples_per_question) == (32, 16)
    assert (batch.ppo_iterations, batch.mini_batches, batch.epochs) == (1, 1, 5)
    assert (update.lr, update.warmup_steps, update.aggregation) == (1e-6, 10, "seq-mean-token-sum")
    assert (update.weight_decay, update.betas, update.max_grad_norm) == (0, (0.9, 0.999), 1.0)
    assert (sampling.temperature, sampling.max_prompt_tokens, sampling.max_answer_tokens) == (
        1.0,
        1024,
        3072,
    )
    table_2 = parse("--preset", "paper-format")
    assert (table_2.data.rewards, table_2.data.template) == (("accuracy", "format"), "think")
    assert table_2.method.decompose


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_flags_override_them(preset):
    config = parse("--preset", preset, "--steps", "7", "--algo", "grpo")
    check_config(config, ranks=2)
    assert (config.preset, config.batch.steps, config.method.algo) == (preset, 7, "grpo")


def test_a_run_starts_from_the_settings_of_another_and_flags_win(tmp_path):
    flags = (
        "--algo",
        "grpo",
        "--rewards",
        "accuracy,format",
        "--betas",
        "0.8",
        "0.9",
        "--importance-cap",
        "2",
    )
    first = parse(
        "--preset",
        "tiny",
        *flags,
        "--save-every",
        "7",
        "--overwrite",
        "--output-dir",
        str(tmp_path / "a"),
    )
    (tmp_path / "a").mkdir()
    claim_folder(first, {"data_sha256": "facts are no settings"})
    saved = tmp_path / "a" / "config.json"
    config, line = parse_train_config(["--config", str(saved), "--lr", "1e-5"], has_cuda=True)
    assert line == f"preset tiny (with the settings of {saved})"
    ours, expected = flat_settings(config), flat_settings(first)
    assert ours.pop("config") == str(saved)
    assert (ours.pop("lr"), ours.pop("output_dir")) == (1e-5, "runs/tiny-grpo-seed0")
    assert not ours.pop("overwrite")
    assert ours == {name: expected[name] for name in ours}
    # As --steps 0 was saved once
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"steps": None}))
    assert parse("--config", str(saved)).batch.steps is None


THINK = {"template": "think"}
BRIEF = {"system_prompt": "Be brief."}


@pytest.mark.parametrize(
    ("preset", "saved", "flags", "expected"),
    [
        ("smollm2", {}, ["--template", "think"], THINK | {"system_prompt": None}),
        ("smollm2", {}, ["--template=examples/base.jinja"], {"system_prompt": None}),
        ("smollm2", {}, ["--template", "chat"], {"system_prompt": ""}),
        (
            "smollm2",
            {},
            ["--template", "examples/base.jinja", "--system-prompt", ""],
            {"system_prompt": ""},
        ),
        ("smollm2", {}, ["--system-prompt", "Be brief."], BRIEF),
        ("paper-format", {}, ["--system-prompt", "Be brief."], BRIEF | {"template": "chat"}),
        ("paper-format", {}, ["--system_prompt="], {"template": "chat", "system_prompt": ""}),
        ("paper-format", {}, ["--template", "chat"], {"template": "chat", "system_prompt": None}),
        ("tiny", BRIEF, ["--template", "think"], THINK | {"system_prompt": None}),
        ("tiny", BRIEF, ["--template", "examples/base.jinja"], BRIEF),
        ("tiny", THINK, ["--system-prompt", "Be brief."], BRIEF | {"template": "chat"}),
        ("tiny", {}, ["--epochs", "2"], {"steps": None, "epochs": 2}),
        ("tiny", {}, ["--epochs", "2", "--steps", "0"], {"steps": 0, "epochs": 2}),
        ("tiny", {"steps": 7}, ["--epochs=2"], {"steps": None, "epochs": 2}),
        ("tiny", {"epochs": 3}, ["--steps", "7"], {"steps": 7}),
        (
            "tiny",
            {"algo": "beta", "beta_parameters": [2, 2]},
            ["--algo", "grpo"],
            {"beta_parameters": None},
        ),
        (
            "tiny",
            {"algo": "weight", "weight": "p", "weight_wrong": "m"},
            ["--algo", "grpo"],
            {"weight": None},
        ),
        ("tiny", {"algo": "weight", "weight": "p"}, ["--algo", "weight"], {"weight": "p"}),
        ("tiny", {"lr": 1e-5}, ["--lora-rank", "4", "--lr", "3e-6"], {"lr": 3e-6}),
    ],
)
def test_what_is_typed_holds_against_preset_and_config(preset, saved, flags, expected, tmp_path):
    source = ["--preset", preset]
    if saved:
        (tmp_path / "config.json").write_text(json.dumps({"preset": preset} | saved))
        source = ["--config", str(tmp_path / "config.json")]
    config = parse(*source, *flags)
    check_config(config, ranks=1)
    settings = flat_settings(config)
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("saved", "flags", "message"),
    [
        (
            {},
            ["--epochs", "2", "--steps", "7"],
            "--steps and --epochs both set the number of steps",
        ),
        (
            {},
            ["--template", "think", "--system-prompt", "x"],
            "--template think is a system prompt",
        ),
        ({}, ["--template", "think", "--system-prompt", ""], "--template think is a system prompt"),
        (
            {"eval_every": 0},
            ["--eval-suite", "quick"],
            "--eval-suite: has no effect, since --config",
        ),
        ({"rollouts_every": 0}, ["--watch-questions", "2"], "--config has --rollouts-every 0; set"),
    ],
)
def test_flags_that_exclude_each_other_are_one_line(saved, flags, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"preset": "tiny"} | saved))
    with refused(message):
        check_config(parse("--config", str(tmp_path / "config.json"), *flags), ranks=1)


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (None, (), r"config.json: cannot be read \(.*; --config needs the config.json of a run"),
        (
            {"model_type": "qwen2"},
            (),
            "config.json: names no preset, as the config.json of a run does",
        ),
        (
            {"preset": "tiny", "lr": "high"},
            (),
            "config.json: --lr: is high, must be a valid number; correct it",
        ),
        (
            {"preset": "tiny", "betas": [0.5]},
            (),
            r"config.json: --betas: is \[0.5\], Field required",
        ),
        (
            {"preset": "tiny"},
            ("--preset", "paper-7b"),
            "--preset paper-7b: --config sets all defaults, and is of",
        ),
    ],
)
def test_files_that_are_no_settings_of_a_run(content, flags, message, tmp_path):
    file = tmp_path / "config.json"
    if content:
        file.write_text(json.dumps(content))
    with refused(message):
        parse("--config", str(file), *flags)


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--algo", "beta"],
            "--algo beta and --beta-parameters go together, as in --beta-parameters 2 2",
        ),
        (
            ["--algo", "weight", "--weight", "`weight=(`"],
            "is no expression, or is too large to evaluate. Use p, m, n",
        ),
        (["--weight", "p"], r"--algo weight and --weight go together, as in --weight '\(1-p\)\*\*"),
        (
            ["--reward-weights", "1", "2"],
            "--reward-weights: are 1 2, must be one for each of the 1",
        ),
        (
            ["--algo", "beta", "--beta-parameters", "0", "nan"],
            "--beta-parameters: are 0 nan, must be above 0 and at",
        ),
        (["--max-concentration", "inf"], "--max-concentration: is inf, must be above 0 and finite"),
        (
            ["--algo", "gdpo", "--decompose"],
            "--decompose: gdpo takes the rewards apart itself; use --no-decompose",
        ),
        (
            ["--rewards", "accuracy,luck"],
            "--rewards: unknown reward 'luck'; known: accuracy, format",
        ),
        (
            ["--template", "no.jinja"],
            "--template: no file 'no.jinja'; known: chat, think, or a Jinja file",
        ),
        (
            ["--template", "think", "--system-prompt", "x"],
            "--template think is a system prompt itself",
        ),
        (["--mini-batches", "5"], "32 questions cannot be cut into 5 equal parts"),
        (
            ["--temperature", "0.001"],
            r"--temperature: is 0\.001, must be greater than or equal to 0\.01",
        ),
        (["--betas", "0.9", "nan"], "--betas: is nan, must be less than 1"),
        (
            ["--rewards", "accuracy,src/bnpo/loop.py:mean"],
            "--rewards: reward/mean is a metric of every run; give",
        ),
        (
            ["--reward-range", "1", "0"],
            "--reward-range: 1 0: must be two finite numbers, the lower one first",
        ),
        (["--gpu-memory", "1.5"], "--gpu-memory: is 1.5, must be less than or equal to 1"),
        (["--model", "tests"], r"tests: holds no config.json"),
        (
            ["--max-answer-tokens", "250"],
            r"up to 314 tokens do not fit the context of .*, 256 tokens; lower .* by 58",
        ),
        (["--rewards", "tests/no.py:f"], "--rewards: unknown reward 'tests/no.py:f'; known"),
        (
            ["--max-prompt-tokens", "5"],
            "needed, what --max-prompt-tokens 5 leaves of the data has 0; raise",
        ),
        (["--answer-pattern", "(a"], r"--answer-pattern '\(a': missing \), unterminated"),
        (
            ["--answer-pattern", "a"],
            "--answer-pattern 'a': it needs one group, around the answer, as in ",
        ),
        (
            ["--samples-per-question", "1"],
            "--samples-per-question: with 1, all advantages of --algo bnpo are 0",
        ),
        (["--lora-rank", "0"], "--lora-rank: is 0, must be greater than 0"),
        (["--lora-alpha", "8"], "--lora-alpha: needs --lora-rank"),
        (
            ["--dtype", "float16", "--loss-scale", "1000"],
            "--loss-scale: is 1000, must be a power of two",
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_cure(flags, message, ranks, tmp_path):
    with refused(message):
        prepare_run(parse("--output-dir", str(tmp_path / "run"), *flags))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "group", "name", "value"),
    [
        (["--output-dir=~/mine"], "folder", "output_dir", Path("/home/me/mine")),
        (
            ["--train-data", "~/a.jsonl", "~/b.csv"],
            "data",
            "train_data",
            ("/home/me/a.jsonl", "/home/me/b.csv"),
        ),
        (["--rewards=accuracy,~/mine.py:f"], "data", "rewards", ("accuracy", "/home/me/mine.py:f")),
        (["--eval-suite=~/suite.json"], "logging", "eval_suite", "/home/me/suite.json"),
        (["--system-prompt=Be ~/brief."], "data", "system_prompt", "Be ~/brief."),
    ],
)
def test_a_tilde_is_the_home_wherever_a_path_begins(flags, group, name, value, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(getattr(parse(*flags), group), name) == value


def test_config_files_of_windows_and_of_the_home_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, content in (
        ("config.json", '{"preset": "tiny", "lr": 1}'),
        ("prompt.txt", "Be exact.\n"),
    ):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    config = parse("--config=~/config.json", "--system-prompt=~/prompt.txt")
    assert (config.update.lr, config.data.system_prompt) == (1.0, "Be exact.")


def test_choices_of_flags_are_those_of_the_code():
    fields = docstring_parser.parse_from_object(Method).params
    [algo] = [field.description for field in fields if field.arg_name == "algo"]
    names = " ".join(algo.partition(": ")[2].partition(" (docs/")[0].split())
    assert set(names.replace(" or ", ", ").split(", ")) == ESTIMATORS.keys()
    assert get_args(get_type_hints(DataSettings)["grader"]) == GRADERS
    assert get_args(get_type_hints(TrainConfig)["preset"]) == ("auto", *PRESETS)
    assert flat_settings(PRESETS["tiny"]).keys() >= FREE
    assert all(config.preset == name for name, config in PRESETS.items())


@pytest.mark.parametrize(
    ("features", "dtype"),
    [
        ("flags\t\t: fpu sse4_2 fma avx2", "float32"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512bw avx512_bf16", "float32"),
        (
            "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512bw avx512_bf16 amx_bf16",
            "bfloat16",
        ),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512bw avx512_bf16", "bfloat16"),
        ("Features\t: fp asimd bf16", "bfloat16"),
    ],
)
def test_the_format_of_smollm2_is_the_one_that_the_cpu_multiplies_faster(
    features, dtype, monkeypatch
):
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_settings: features)  # of /proc/cpuinfo
    assert parse("--preset", "smollm2").hardware.dtype == dtype
    assert parse("--preset", "smollm2", "--dtype", "float16").hardware.dtype == "float16"
    assert preset_config("smollm2", has_cuda=True).hardware.dtype == "bfloat16"


def test_help_names_the_preset_and_has_no_none(capsys):
    with pytest.raises(SystemExit):
        parse("--preset", "smollm2", "--help")
    text = capsys.readouterr().out
    assert text.splitlines()[2] == "Defaults are those of preset smollm2 (from --preset)."
    assert "None)" not in text
    assert "{None" not in text
    with pytest.raises(SystemExit):
        parse("--preset", "x")
    assert "--preset" in capsys.readouterr().err
    for words in (("--steps", "None"), ("--system-prompt=None",)):
        with pytest.raises(InputError, match="None: there is no such value; leave the flag out"):
            parse(*words)


def test_a_hub_model_is_fetched_and_a_failing_download_says_so(ranks, monkeypatch, tmp_path):
    """Without a network the download itself cannot be shown: this goes as far as the first
    request.
    """
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        InputError, match=r"Qwen/absent: no such local folder, and the download .* failed"
    ):
        prepare_run(parse("--model", "Qwen/absent", "--output-dir", str(tmp_path / "run")))


def test_a_folder_that_holds_a_run_is_kept_unless_told(tmp_path):
    config = parse("--output-dir", str(tmp_path), "--lr", "2e-5")
    claim_folder(config, {})
    assert json.loads((tmp_path / "config.json").read_text())["lr"] == 2e-5
    (tmp_path / "metrics.jsonl").write_text("precious")
    with pytest.raises(
        InputError,
        match=r"holds a run\. Continue it with --resume, replace it with --overwrite, or choose",
    ):
        check_output_dir(config)
    config = parse("--output-dir", str(tmp_path), "--overwrite")
    check_output_dir(config)
    (tmp_path / "mine.txt").write_text("precious")
    assert (tmp_path / "metrics.jsonl").read_text() == "precious"
    claim_folder(config, {})
    delete_earlier(tmp_path)  # as after the first step
    assert set(files_of(tmp_path)) == {"config.json", "mine.txt"}


def test_a_folder_that_holds_a_run_is_refused_before_a_model_is_downloaded(ranks, tmp_path):
    claim_folder(parse("--output-dir", str(tmp_path)), {})
    with refused("holds a run"):
        prepare_run(parse("--output-dir", str(tmp_path), "--model", "nobody/absent"))


def test_a_run_does_not_delete_the_model_that_it_starts_from(ranks, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    claim_folder(parse("--output-dir", str(run)), {})
    shutil.copytree(TINY_MODEL, run / "checkpoints" / "step-000002")
    (run / "last").symlink_to("checkpoints/step-000002")
    for model in (run / "last", run / "checkpoints" / "step-000002", run):
        with pytest.raises(
            InputError, match=r"belongs to the run in .*run, which a new run would delete\. Choose"
        ):
            prepare_run(parse("--model", str(model), "--output-dir", str(run), "--overwrite"))
    assert (run / "last" / "config.json").exists()


def test_a_resumed_run_uses_the_prompts_and_rewards_that_it_started_with(ranks, tmp_path):
    """Also what a template makes of the date, and what a reward imports from beside it."""
    run, reward, helper = tmp_path / "run", tmp_path / "mine.py", tmp_path / "helper.py"
    template = tmp_path / "dated.jinja"
    reward.write_text("from helper import one\ndef mine(text, reference): return one\n")
    helper.write_text("one = 1\n")
    template.write_text("{{ strftime_now('%Y') }} {{ messages[-1]['content'] }}")
    (tmp_path / "other.py").write_text("not imported")
    assert local_sources(reward) == {reward, helper}
    flags = (
        "--output-dir",
        str(run),
        "--template",
        str(template),
        "--rewards",
        f"accuracy,{reward}:mine",
    )
    prepared = prepare_run(parse(*flags))
    run.mkdir(exist_ok=True)
    claim_folder(prepared.config, prepared.data_facts)
    prepared.lock.release()
    prepare_run(parse(*flags, "--resume")).lock.release()
    saved = run / "config.json"
    facts = saved.read_text()
    saved.write_text(json.dumps(json.loads(facts) | {"prompts_sha256": "of another year"}))
    with pytest.raises(
        InputError, match="other settings would change the run: prompts_sha256 was of another year"
    ):
        prepare_run(parse(*flags, "--resume"))
    saved.write_text(facts)
    helper.write_text("one = 0.5\n")
    with pytest.raises(
        InputError, match="other settings would change the run: reward_sha256 has changed"
    ):
        prepare_run(parse(*flags, "--resume"))


def test_two_runs_do_not_share_a_folder(tmp_path):
    first = lock_run(tmp_path / "run")
    with pytest.raises(
        InputError, match=r"run: another process is training in it\. Stop that process, or choose"
    ):
        lock_run(tmp_path / "run")
    first.release()
    lock_run(tmp_path / "run").release()


def test_rewinding_takes_what_came_later_and_nothing_else(tmp_path):
    later = [
        "rollouts/step-000003.jsonl",
        "evals/step-000004/results.json",
        "checkpoints/.step-000004.unfinished/x",
    ]
    kept = [
        "rollouts/step-000002.jsonl",
        "checkpoints/step-000002/config.json",
        "checkpoints/step-000003-good/config.json",
        "mine/step-000009",
        "notes/step-final.md",
    ]
    for name in [*later, *kept]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"step": {step}}}\n' for step in range(4)) + '{"step": 4, "lo'
    )
    rewind(tmp_path, Progress(2))
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'
    assert [name for name in [*later, *kept] if (tmp_path / name).exists()] == kept
    assert (tmp_path / "last").resolve() == tmp_path / "checkpoints" / "step-000002"
    # The user's copy is the user's
    assert checkpoints(tmp_path) == [tmp_path / "checkpoints" / "step-000002"]
    rewind(tmp_path, Progress())  # to the start
    assert [name for name in kept if (tmp_path / name).exists()] == kept[2:]
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": \n{"step": 2}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not JSON"):
        rewind(tmp_path, Progress(2))
