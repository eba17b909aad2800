"""Settings: presets, flags and their checks; the folder of a run, as a start finds it."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import docstring_parser
import pytest
from test_estimators import rows_of_docs

from bnpo.config import (
    FREE,
    PRESETS,
    REMOVED,
    USUAL,
    DataSettings,
    TrainConfig,
    UpdateSettings,
    check_config,
    flat_settings,
    parse_train_config,
    with_settings,
)
from bnpo.files import ROOT, InputError
from bnpo.grading.rewards import GRADERS
from bnpo.imports import local_sources
from bnpo.runs.checkpoint import Progress, checkpoints, find_checkpoint, rewind
from bnpo.runs.folder import check_changes, claim_folder, lock_run
from bnpo.runs.prepare import other_evaluation, prepare_run
from bnpo_estimators import ESTIMATORS, Method
from conftest import refused


def parse(*flags: str) -> TrainConfig:
    return parse_train_config(list(flags), has_cuda=False)[0]


def test_auto_preset_says_what_it_took_and_why():
    config, line = parse_train_config([], has_cuda=False)
    assert config.data.train_data == ("arithmetic",)
    assert line == "preset tiny (no CUDA device was found; --preset chooses another)"
    config, line = parse_train_config(["--preset", "auto", "--lr", "3e-6"], has_cuda=True)
    assert line.startswith("preset paper-1.5b (a CUDA device was found")
    assert (config.preset, config.update.lr) == ("paper-1.5b", 3e-6)
    assert config.folder.output_dir == Path("runs/paper-1.5b-bnpo-seed0")


def test_paper_settings_are_the_papers():
    """Section 5.1 of the paper, and the choices of its released code that the text leaves open."""
    config = parse("--preset", "paper-1.5b")
    batch, update, sampling = config.batch, config.update, config.sampling
    assert (batch.questions_per_step, batch.samples_per_question) == (32, 16)
    assert (batch.ppo_iterations, batch.mini_batches, batch.epochs) == (1, 1, 5)
    assert (update.lr, update.warmup_steps, update.aggregation) == (1e-6, 10, "seq-mean-token-sum")
    assert (update.weight_decay, update.betas, update.max_grad_norm) == (0, (0.9, 0.999), 1.0)
    assert (sampling.temperature, sampling.max_answer_tokens) == (1.0, 3072)
    table_2 = parse("--preset", "paper-format")
    assert (table_2.data.rewards, table_2.data.template) == (("accuracy", "format"), "think")
    assert table_2.method.decompose


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_flags_override_them(preset):
    config = parse("--preset", preset, "--steps", "7", "--algo", "grpo")
    check_config(config, ranks=2)
    assert (config.preset, config.batch.steps, config.method.algo) == (preset, 7, "grpo")
    model = config.data.model
    if preset.startswith("paper"):
        assert re.fullmatch(r"Qwen/[\w.-]+@[0-9a-f]{40}", model)  # a commit


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("smollm2 --template think", {"template": "think", "system_prompt": None}),
        ("smollm2 --template=examples/base.jinja", {"system_prompt": None}),
        ("smollm2 --template chat", {"system_prompt": ""}),
        ("smollm2 --template examples/base.jinja --system-prompt ''", {"system_prompt": ""}),
        ("smollm2 --system-prompt 'Be brief.'", {"system_prompt": "Be brief."}),
        ("paper-format --system-prompt Hi", {"system_prompt": "Hi", "template": "chat"}),
        ("paper-format --system_prompt=", {"template": "chat", "system_prompt": ""}),
        ("paper-format --template chat", {"template": "chat", "system_prompt": None}),
        ("tiny --epochs 2", {"steps": None, "epochs": 2}),
        ("tiny --epochs 2 --steps 0", {"steps": 0, "epochs": 2}),
        ("tiny --steps=7", {"steps": 7}),
        ("tiny --lora-rank 4", {"lr": 1e-3}),
        ("tiny --lora-rank 4 --lr 3e-6", {"lr": 3e-6}),
        ("tiny --top-k 0 --importance-cap 0", {"top_k": None, "importance_cap": None}),
        ("tiny --rewards accuracy format", {"rewards": ["accuracy", "format"]}),
        ("tiny --rewards accuracy, format", {"rewards": ["accuracy", "format"]}),
        ("tiny --algo examples/estimator.py:median", {"output_dir": "runs/tiny-median-seed0"}),
    ],
)
def test_what_is_typed_holds_against_the_preset(flags, expected):
    settings = flat_settings(parse("--preset", *shlex.split(flags)))
    assert {name: settings[name] for name in expected} == expected


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--epochs 2 --steps 7", "--steps and --epochs both set the number of steps"),
        ("--template think --system-prompt x", "--template think is a system prompt itself"),
        ("--overwrite", "--overwrite: no such flag"),
        ("--signal length", "--signal: there is no reward 'length'; known: accuracy, all"),
        ("--algo beta", "--algo beta and --beta-parameters go together, as in --beta-parameters 2"),
        ("--algo weight --weight '`weight=(`'", "is not a valid expression, or is too large"),
        ("--weight p", r"--algo weight and --weight go together, as in --weight '\(1-p\)\*\*"),
        ("--reward-weights 1 2", "--reward-weights: are 1 2, must be one for each of the 1"),
        ("--algo beta --beta-parameters 0 nan", "--beta-parameters: are 0 nan, must be above 0"),
        ("--algo gdpo --decompose", "--decompose: gdpo takes the rewards apart itself; use --no-"),
        ("--rewards accuracy,luck", "--rewards: unknown reward 'luck'; known: accuracy, format"),
        ("--rewards accuracy,accuracy", "--rewards: accuracy, accuracy: names repeat"),
        ("--rewards accuracy,src/bnpo/loop.py:mean", "the name 'mean' has another meaning in met"),
        (
            "--rewards accuracy,src/bnpo/loop.py:all",
            "the name 'all' has another meaning in metrics",
        ),
        ("--rewards ,", "--rewards: name at least one"),
        (
            "--algo reinforce_pp --samples-per-question 1 --resample-rounds 2",
            "--resample-rounds: a single answer to a question has no signal, so every step would",
        ),
        ("--reward-range 1 0", "--reward-range: 1 0: must be two finite numbers"),
        ("--template no.jinja", "--template: no file 'no.jinja'; known: chat, think, or a Jinja"),
        ("--system-prompt no/such.txt", "--system-prompt: no file 'no/such.txt'; correct the path"),
        ("--mini-batches 5", "32 questions cannot be cut into 5 equal parts"),
        ("--temperature 0.001", r"--temperature: is 0\.001, must be greater than or equal to 0\.0"),
        ("--gpu-memory 1.5", "--gpu-memory: is 1.5, must be less than or equal to 1"),
        ("--lr 0", "--lr: is 0.0, must be greater than 0"),
        ("--clip-low nan", "--clip-low: is nan, must be less than 1"),
        ("--lora-rank 0", "--lora-rank: is 0, must be greater than 0"),
        ("--lora-alpha 8", "--lora-alpha: needs --lora-rank"),
        ("--loss-scale 1000", "--loss-scale: is 1000, must be a power of two"),
        ("--samples-per-question 1", "with 1, all advantages of --algo bnpo are 0"),
        ("--answer-pattern '(a'", r"--answer-pattern '\(a': missing \), unterminated"),
        ("--answer-pattern a", "--answer-pattern 'a': it needs one group, around the answer"),
        ("--steps None", "None: None is not a value; omit the flag"),
        # Found with the data and the model
        ("--model tests", "tests: holds no config.json"),
        ("--max-answer-tokens 250", r"up to 314 tokens do not fit the context of .*; lower .* 58"),
        (
            "--max-prompt-tokens 5",
            "needed, and of the data's 7500 only 0 have prompts of at most 5 to",
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_cure(flags, message, ranks, tmp_path):
    with refused(message):
        prepare_run(parse("--output-dir", str(tmp_path / "run"), *shlex.split(flags)))
    assert not (tmp_path / "run").exists()


def test_groups_check_themselves_however_they_are_made():
    with refused("--lr: is -1, must be greater than 0"):
        UpdateSettings(lr=-1)
    with refused("--mini-batches: 32 questions cannot be cut into 5 equal parts"):
        with_settings(PRESETS["tiny"], mini_batches=5)
    with refused("^there is no setting learning_rate$"):
        with_settings(PRESETS["tiny"], learning_rate=1e-3)
    with refused("--questions-per-step 32 cannot be divided by 3 ranks. Use a multiple of 3"):
        check_config(PRESETS["tiny"], ranks=3)


def test_a_system_prompt_in_python_may_be_a_file_as_on_the_command_line(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Answer in a box.\n")
    assert with_settings(PRESETS["tiny"], system_prompt=str(file)).data.system_prompt == (
        "Answer in a box."
    )
    with refused("^--system-prompt: no file 'missing.txt'"):
        with_settings(PRESETS["tiny"], system_prompt="missing.txt")


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--train-data ~/a.jsonl ~/b.csv", "train_data", ["/home/me/a.jsonl", "/home/me/b.csv"]),
        ("--allow-changes=lr,~/x", "allow_changes", ["lr", "/home/me/x"]),
        ("--system-prompt='Be ~/brief.'", "system_prompt", "Be ~/brief."),
    ],
)
def test_a_tilde_is_the_home_wherever_a_path_begins(flags, name, value, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert flat_settings(parse(*shlex.split(flags)))[name] == value


def test_choices_of_flags_are_those_of_the_code():
    fields = docstring_parser.parse_from_object(Method).params
    [algo] = [field.description for field in fields if field.arg_name == "algo"]
    names = " ".join(algo.partition(": ")[2].partition(" (docs/")[0].split())
    assert set(names.replace(" or ", ", ").split(", ")) == ESTIMATORS.keys()
    assert get_args(get_type_hints(DataSettings)["grader"]) == GRADERS
    assert get_args(get_type_hints(TrainConfig)["preset"]) == ("auto", *PRESETS)
    assert flat_settings(PRESETS["tiny"]).keys() >= FREE | USUAL - {"dry_run", "print_config"}
    assert all(config.preset == name for name, config in PRESETS.items())


@pytest.mark.parametrize(
    ("features", "dtype"),
    [
        ("vendor_id: GenuineIntel\nflags: fpu avx512bw avx512_bf16", "float32"),
        ("vendor_id: GenuineIntel\nflags: fpu avx512bw amx_bf16", "bfloat16"),
        ("vendor_id: AuthenticAMD\nflags: fpu avx512bw avx512_bf16", "bfloat16"),
        ("Features: fp asimd bf16", "bfloat16"),
    ],
)
def test_smollm2_has_the_format_that_the_cpu_multiplies_faster(features, dtype, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_settings: features)  # of /proc/cpuinfo
    assert parse("--preset", "smollm2").hardware.dtype == dtype


def test_help_shows_the_usual_flags_and_help_all_shows_all(capsys):
    everything = {*flat_settings(PRESETS["tiny"]), "dry_run", "print_config"}
    for flag, names in (("--help", USUAL), ("--help-all", everything), ("--help", USUAL)):
        with pytest.raises(SystemExit):
            parse("--preset", "smollm2", flag)
        text = capsys.readouterr().out
        shown = re.findall(r"^[|│ ] --([a-z][a-z-]*)", text, re.MULTILINE)
        assert {name.replace("-", "_") for name in shown} == names
    assert "\nDefaults are those of preset smollm2 (from --preset).\n" in text
    assert "None)" not in text
    assert "{None" not in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--temprature 1", "--temprature: no such flag; did you mean --temperature or --template?"),
        ("--learning-rate 1", "--learning-rate: no such flag; did you mean --lr?"),  # by its text
        ("--nope 1", "--nope: no such flag; --help lists the flags"),
        ("--lr 1e-4 7", "7: no flag takes this word; --help lists the flags"),
    ],
)
def test_an_unknown_flag_is_refused_with_those_that_may_be_meant(words, line):
    with refused(line):
        parse(*words.split())


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ({name: value for name, value in REMOVED.items()}, None),
        ({"config": "runs/x/config.json", "max_bad_steps": 9, "clip_low": 0.2}, None),
        ({"betas": [0.9, 0.95]}, r"has betas \[0.9, 0.95\], and this version has \[0.9, 0.999\]"),
        ({"top_k_in_learner": False}, "has top_k_in_learner False, and this version has True only"),
        ({"lr": 1.0}, r"lr was 1.0, is 0.0001\. Use the old settings, or --allow-changes lr"),
    ],
)
def test_a_run_of_an_earlier_version_is_resumed_if_it_means_the_same(old, message, tmp_path):
    config = parse("--output-dir", str(tmp_path), "--resume")
    saved = flat_settings(config) | old
    (tmp_path / "config.json").write_text(json.dumps(saved))
    if message is None:
        return check_changes(config, {})
    with refused(message):
        check_changes(config, {})


def test_a_hub_model_is_fetched_and_a_failing_download_says_so(ranks, monkeypatch, tmp_path):
    """Without a network this goes as far as the first request."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with refused("Qwen/absent: no such local folder, and the download .* failed"):
        prepare_run(parse("--model", "Qwen/absent", "--output-dir", str(tmp_path / "run")))


def test_answer_tags_count_if_the_prompt_asks_for_them_without_a_reward(ranks, tmp_path):
    flags = ("--max-prompt-tokens", "128", "--eval-every", "0", "--output-dir", str(tmp_path / "x"))
    for system_prompt, asked in (("End with <answer> </answer>.", True), ("Be brief.", False)):
        prepared = prepare_run(parse("--system-prompt", system_prompt, *flags))
        prepared.lock.release()
        assert prepared.task.answer_tags == asked


def test_a_call_from_python_without_preset_or_folder_is_refused(ranks):
    for config in (TrainConfig(), PRESETS["tiny"]):
        with refused("the settings need a preset and an output_dir: with_settings"):
            prepare_run(config)


def test_an_import_from_above_the_given_path_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = Path("mine.py")
    mine.write_text("try:\n    from ..above import x\nexcept ImportError:\n    pass\n")
    assert local_sources(mine) == {mine}


def test_a_resumed_run_uses_the_prompts_and_rewards_that_it_started_with(ranks, tmp_path):
    """And its estimator. Also what a template makes of the date, and what files import from beside
    them.
    """
    run, reward, helper = tmp_path / "run", tmp_path / "mine.py", tmp_path / "helper.py"
    algo = shutil.copy(ROOT / "examples" / "estimator.py", tmp_path / "own.py")
    template = tmp_path / "dated.jinja"
    reward.write_text("from helper import one\ndef mine(text, reference): return one\n")
    helper.write_text("one = 1\n")
    template.write_text("{{ strftime_now('%Y') }} {{ messages[-1]['content'] }}")
    (tmp_path / "other.py").write_text("not imported")
    assert local_sources(reward) == {reward, helper}
    parts, package = tmp_path / "parts" / "one.py", tmp_path / "package" / "__init__.py"
    for file, text in ((parts, "import package"), (package, "from .inner import two")):
        file.parent.mkdir()
        file.write_text(text)
    inner = package.with_name("inner.py")
    inner.write_text("two = 2")
    helper.write_text("from parts.one import *\none = 1\n")  # parts/ has no __init__.py
    assert local_sources(reward) == {reward, helper, parts, package, inner}
    helper.write_text("one = 1\n")
    rewards = f"accuracy,{reward}:mine"
    flags = ("--output-dir", str(run), "--template", str(template), "--rewards", rewards)
    flags += ("--algo", f"{algo}:median")
    prepared = prepare_run(parse(*flags))
    run.mkdir(exist_ok=True)
    claim_folder(prepared.config, prepared.data_facts)
    prepared.lock.release()
    with refused(r"holds a run\. Continue it with --resume, delete the folder, or choose"):
        prepare_run(parse(*flags, "--model", "nobody/absent"))  # before it is downloaded
    prepare_run(parse(*flags, "--resume")).lock.release()
    saved = run / "config.json"
    facts = saved.read_text()
    saved.write_text(json.dumps(json.loads(facts) | {"prompts_sha256": "of another year"}))
    with refused("other settings would change the run: prompts_sha256 was of another year"):
        prepare_run(parse(*flags, "--resume"))
    saved.write_text(facts)
    helper.write_text("one = 0.5\n")
    named = rf"reward_sha256 has changed \({re.escape(str(reward))}:mine\)\. Use"
    with refused(f"other settings would change the run: {named}"):
        prepare_run(parse(*flags, "--resume"))
    helper.write_text("one = 1\n")
    algo.write_text(algo.read_text() + "# changed\n")
    with refused("would change the run: algo_sha256 has changed"):
        prepare_run(parse(*flags, "--resume"))
    allowed = ("--resume", "--allow-changes", "algo_sha256")
    prepare_run(parse(*flags, *allowed)).lock.release()


def test_two_runs_do_not_share_a_folder(tmp_path):
    first = lock_run(tmp_path / "run")
    with refused(r"run: another process is training in it\. Stop that process, or choose"):
        lock_run(tmp_path / "run")
    first.release()
    lock_run(tmp_path / "run").release()


def test_rewinding_takes_what_came_later_and_nothing_else(tmp_path):
    later = ["rollouts/step-000003.jsonl", "evals/step-000004/results.json"]
    later += ["checkpoints/.step-000004.unfinished/x"]
    kept = ["rollouts/step-000002.jsonl", "checkpoints/step-000002/config.json"]
    kept += ["checkpoints/step-000003-good/config.json", "checkpoints/step-000004.keep/x"]
    kept += ["mine/step-000009", "notes/step-final.md"]
    for name in [*later, *kept]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(4)) + '{"step": 4, "lo')
    rewind(tmp_path, Progress(2))
    assert metrics.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'
    assert [name for name in [*later, *kept] if (tmp_path / name).exists()] == kept
    assert (tmp_path / "last").resolve() == tmp_path / "checkpoints" / "step-000002"
    # The user's copy is the user's
    assert checkpoints(tmp_path) == [tmp_path / "checkpoints" / "step-000002"]
    rewind(tmp_path, Progress())  # to the start
    assert [name for name in kept if (tmp_path / name).exists()] == kept[2:]
    metrics.write_text('{"step": 0}\n{"step": \n{"step": 2}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not JSON"):
        rewind(tmp_path, Progress(2))


def test_a_copy_of_a_run_that_followed_links_is_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "last").mkdir()
    with refused("last: is a folder where a run has a link, as in a copy that followed links; del"):
        find_checkpoint(tmp_path, ranks=1)


def test_a_finished_run_without_checkpoints_keeps_its_records(tmp_path):
    end = tmp_path / "end.json"
    end.write_text('{"step": 3, "why": "signalled"}')
    assert find_checkpoint(tmp_path, ranks=1) == Progress()
    end.write_text('{"step": 3, "why": "done"}')
    with refused(r"this run is done, but its checkpoints are gone, .* name another --output-dir"):
        find_checkpoint(tmp_path, ranks=1)


def test_the_best_score_of_another_evaluation_does_not_count(tmp_path):
    flags = ("--preset", "tiny", "--output-dir", str(tmp_path / "run"))
    config, _ = parse_train_config(flags, has_cuda=False)
    easy, hard = ({"evaluated": {"name": name}} for name in ("easy", "hard"))
    config.folder.output_dir.mkdir()
    claim_folder(config, easy)
    assert not other_evaluation(config, easy)
    assert other_evaluation(config, hard)
    assert not other_evaluation(config, {"evaluated": {}})  # nothing is evaluated now
    config, _ = parse_train_config((*flags, "--grader", "last_number"), has_cuda=False)
    assert other_evaluation(config, easy)


def test_flags_of_the_table_of_names_are_taken():
    cells = [row[1] for row in rows_of_docs("\n", "| estimator |") if len(row) == 3]
    flags = [shlex.split(cell) for cell in cells if "--algo " in cell]
    for row in flags:
        config, _ = parse_train_config(["--preset", "paper-1.5b", *row], has_cuda=True)
        check_config(config, ranks=1)
    assert {row[row.index("--algo") + 1] for row in flags} == ESTIMATORS.keys()
