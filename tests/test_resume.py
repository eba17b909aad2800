"""Runs that are killed, signalled, damaged or short of disk, and continue: whole programs and real
signals.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import soak
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import demo
from bnpo.config import PRESETS, TINY_MODEL, parse_train_config, with_settings
from bnpo.files import ROOT, write_json
from bnpo.prompts import stop_token_ids
from bnpo.ranks import ECHO_SECONDS
from bnpo.runs.checkpoint import (
    Progress,
    delete_old_checkpoints,
    find_checkpoint,
    link_checkpoints,
    write_progress,
)
from bnpo.runs.folder import (
    check_changes,
    check_output_dir,
    checkpoint_folder,
    claim_folder,
    lock_run,
)
from bnpo.runs.prepare import PreparedRun, prepare_run
from conftest import forked, free_port, make_model, refused, report_of, run_ranks, temporary_folder


def train(run, ranks, kill) -> None:
    """As `soak.train`; the ranks kill the process that started them too."""
    suite = run.with_name("suite.json")
    suite.write_text(json.dumps(soak.SUITE))
    flags = [*soak.FLAGS, "--eval-suite", suite, "--resume", "--output-dir", run]
    environment = {soak.KILL: json.dumps(kill)}
    done = run_ranks(ranks, "dev/soak.py", *flags, check=False, environment=environment)
    with run.with_suffix(".log").open("a") as log:
        log.write(done.stdout)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stdout[-3000:]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    run = tmp_path_factory.mktemp("soak") / "reference"
    train(run, 2, None)
    return run


def files(run) -> list[str]:
    """What a run has left, apart from the optimizer's files."""
    names = (str(file.relative_to(run)) for file in run.rglob("*"))
    return sorted(name for name in names if "/trainer/" not in name)


@pytest.mark.sampler
def test_three_kills_and_resumes_leave_no_trace(reference):
    run = reference.with_name("killed")
    # The first at the sync's start: later it could miss a fast one, and come after a checkpoint.
    went_on = soak.survive(run, 2, [("sync", 2, 0.0), ("save", 3, 0.5), ("sample", 3, 0.5)], train)
    assert went_on[0] == 0
    assert went_on[2] > went_on[1] > 0
    assert soak.outcome(run) == soak.outcome(reference)
    rows, _ = soak.outcome(reference)
    assert [row["step"] for row in rows] == list(range(11))
    assert sum(row.get("grad_norm", 0) > 0 for row in rows) >= 8  # there was something to get wrong
    assert files(run) == files(reference)
    for folder in ("rollouts", "tokens", "watch"):
        for file in (run / folder).iterdir():
            assert file.read_bytes() == (reference / folder / file.name).read_bytes(), file
    assert run.with_suffix(".log").read_text().count(" steps of ") == 4  # starts


@pytest.mark.sampler
def test_what_is_not_the_same_run_is_refused(reference, tmp_path, monkeypatch):
    """Other settings, ranks or files, a damaged checkpoint, and one that came meanwhile."""
    suite = reference.with_name("suite.json")

    def resume(run, *flags, ranks=2) -> None:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        asked = ("--eval-suite", str(suite), "--resume", "--output-dir", str(run), *flags)
        prepare_run(parse_train_config([*soak.FLAGS, *asked], has_cuda=False)[0])

    other = r"algo was bnpo, is grpo\. Use the old settings, or --allow-changes algo$"
    with refused(f"the run: {other}"):
        resume(reference, "--algo", "grpo", "--seed", "3", "--allow-changes", "seed")
    with refused(
        "was saved by 2 ranks, not 1. Start 2 ranks, or convert it: python -m deepspeed.c"
    ):
        resume(reference, ranks=1)
    whole = suite.read_text()
    suite.write_text(whole.replace('"repetitions": 2', '"repetitions": 3'))
    with refused(r"settings would change the run: evaluated has changed \(datasets\)\. Use the"):
        resume(reference)
    suite.write_text(whole)
    run = shutil.copytree(reference, tmp_path / "run", symlinks=True)
    newest = run / "checkpoints" / "step-000010"
    cure = f"Delete {newest}; --resume then continues from the checkpoint before it"
    for name in ("trainer/progress.json", "model.safetensors"):
        content = (newest / name).read_bytes()
        (newest / name).write_bytes(content[:-2])
        with refused(f"^{newest / name}: .*{cure}$"):
            resume(run)
        (newest / name).write_bytes(content)
    newest.rename(tmp_path / "newest")

    def lock_late(folder):  # as if another process had ended just before
        (tmp_path / "newest").rename(newest)
        return lock_run(folder)

    monkeypatch.setattr("bnpo.runs.prepare.lock_run", lock_late)
    with refused(r"run: another process trained in it until now\. Start again"):
        resume(run)
    assert (newest / "trainer" / "progress.json").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict:
    """What tests/programs/checkpoint_check.py found, with the folders and the model's bytes."""
    folder, run = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("saved")
    # Wide enough for its matrices to be partitioned and gathered.
    shape = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8}
    model = make_model(folder, vocab_size=288, **shape)
    for file in TINY_MODEL.glob("tokenizer*"):
        shutil.copy(file, folder)
    settings = {"do_sample": False, "temperature": 0.7, "eos_token_id": [0, 7]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    size = sum(p.numel() * 4 for p in model.parameters())
    report = report_of(2, "checkpoint_check", folder, run, check=False)
    return report | {"model": folder, "run": run, "bytes": size}


@pytest.mark.program
def test_saving_never_holds_a_second_model(saved, tmp_path):
    assert saved["at_once"][0] > saved["bytes"]  # the measurement sees a copy where there is one
    # A layer, its clones and a file, of 8 layers
    assert max(saved["groups"]) < saved["bytes"] / 2
    folders = [saved["run"] / "checkpoints" / f"step-00000{step}" for step in (1, 2)]
    assert len(list(folders[1].glob("model-*.safetensors"))) > 8
    one_file, many_files = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders)
    assert sum(p.numel() * 4 for p in one_file.parameters()) == saved["bytes"]
    for name, weight in many_files.state_dict().items():
        assert torch.equal(one_file.state_dict()[name], weight)
    # Its generation config is not the model's, which cannot be saved. But 7 ends answers of the
    # model in vLLM, and so those of the checkpoint.
    with pytest.raises(ValueError, match="temperature"):
        GenerationConfig.from_pretrained(saved["model"]).save_pretrained(tmp_path)
    ends = stop_token_ids(AutoTokenizer.from_pretrained(folders[0]))
    assert len(ends) == 2
    assert GenerationConfig.from_pretrained(folders[0]).eos_token_id == sorted([*ends, 7])


@pytest.mark.program
def test_a_full_disk_is_one_line_and_leaves_earlier_checkpoints(saved):
    assert "rank 1 does not see the files of rank 0 there; name an" in saved["not shared"]
    assert saved["probes"] == []
    assert saved["disagreeing"].startswith("rank 1 has other data than rank 0, or another checkpoi")
    assert "cannot be written (" in saved["full"]
    cure = "Earlier files are complete. Free some disk space, then continue with --resume"
    assert cure in saved["full"]
    assert saved["left"] == [".step-000003.unfinished", "step-000001", "step-000002"]
    assert saved["last"] == "step-000002"


ENDLESS = (*soak.FLAGS, "--steps", "1000", "--eval-every", "0", "--resume")


def steps_of(run) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def wait_for(condition, goes_on) -> None:
    while not condition():
        assert goes_on()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def signalled(tmp_path_factory):
    """A run whose launcher and ranks got SIGTERM after three steps or more; its console is in
    run.log.
    """
    run = tmp_path_factory.mktemp("signalled") / "run"
    command = [sys.executable, "scripts/launch.py", "--num_gpus", 2, "--master_port", free_port()]
    command += ["train.py", *ENDLESS, "--output-dir", run]
    with temporary_folder() as folder, run.with_suffix(".log").open("w") as log:
        job = subprocess.Popen(
            [str(part) for part in command],
            **{"cwd": ROOT, "env": os.environ | folder, "stdout": log, "stderr": log},
            start_new_session=True,
        )
        wait_for(lambda: steps_of(run) >= 3, lambda: job.poll() is None)
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait(timeout=300) == 0
    return run


@pytest.mark.sampler
def test_a_signal_finishes_the_step(signalled):
    steps, console = steps_of(signalled), signalled.with_suffix(".log").read_text()
    assert steps >= 3
    assert (signalled / "last").resolve().name == f"step-{steps:06d}"
    assert console.count("stopping after this step; a second signal stops at once") == 1
    assert f"stopped (--resume continues): {steps} steps" in console
    assert json.loads((signalled / "end.json").read_text()) == {"step": steps, "why": "signalled"}


@pytest.mark.sampler
@pytest.mark.extra
def test_a_second_signal_ends_it_at_once(signalled, tmp_path):
    """Also, the resumed run forgets its best score, which was of another evaluation."""
    run = shutil.copytree(signalled, tmp_path / "run", symlinks=True)
    steps = steps_of(run)
    progress = run / "last" / "trainer" / "progress.json"
    write_json(progress, json.loads(progress.read_text()) | {"best": 0.9})
    # Steps of many seconds, so that one is certainly under way.
    slow = ("--questions-per-step", 64, "--samples-per-question", 64, "--eval-every", 10**6)
    slow += ("--allow-changes", "questions_per_step,samples_per_question,eval_every,evaluated")
    with (
        temporary_folder() as folder,
        forked(2, "train.py", *ENDLESS, "--output-dir", run, *slow, environment=folder) as job,
    ):
        ranks = [psutil.Process(rank) for rank in job.processes]

        def go_on() -> bool:
            return all(rank.is_running() for rank in ranks)

        def seconds_of_work() -> float:
            return sum(rank.cpu_times().user for rank in ranks)

        wait_for(lambda: f"continuing after step {steps}" in job.output.read_text(), go_on)
        worked = seconds_of_work()
        wait_for(lambda: seconds_of_work() > worked + 1, go_on)
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        wait_for(lambda: "stopping after this step" in job.output.read_text(), go_on)
        time.sleep(1.5 * ECHO_SECONDS)  # or the second were the same wish
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        assert job.result().returncode != 0
    assert steps_of(run) == steps
    assert not (run / "end.json").exists()  # nothing says why
    assert json.loads(progress.read_text())["best"] == -1
    assert (run / "last").resolve().name == f"step-{steps:06d}"


@pytest.fixture
def earlier(tmp_path):
    """A folder with a run, as far as a new start looks at it."""
    run = tmp_path / "run"
    run.mkdir()
    config, _ = parse_train_config(["--preset", "tiny", "--output-dir", str(run)], False)
    claim_folder(config, {"which": "earlier"})
    return run


def check_start(run, *flags: str) -> None:
    """Check what a start finds in the run's folder before it reads data."""
    config, _ = parse_train_config(["--preset", "tiny", "--output-dir", str(run), *flags], False)
    return check_changes(config, {}) if config.folder.resume else check_output_dir(config)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--resume --lr 1e-3", "lr was 0.0001, is 0.001. Use the old settings, or --allow-changes"),
        ("--resume --allow-changes luck", "--allow-changes: there is no setting 'luck'"),
        ("--train-data absent.jsonl", "holds a run. Continue it with --resume, delete"),
        ("--resume --lr 1e-3 --allow-changes lr,which --steps 200", None),
    ],
)
def test_a_start_compares_settings_with_those_of_the_run_before_it_reads_data(
    flags, message, earlier
):
    if message is None:
        return check_start(earlier, *flags.split())
    with refused(re.escape(message)):
        check_start(earlier, *flags.split())


def test_a_folder_with_files_of_a_run_is_not_taken_for_an_empty_one(earlier):
    (earlier / "config.json").write_text('{"model_type": "qwen2"}')
    with refused("has config.json, which a run would write over; choose another --output-dir"):
        check_start(earlier)
    with refused("its config.json is of no run; choose another --output-dir"):
        check_start(earlier, "--resume")
    (earlier / "config.json").unlink()
    (earlier / "error.txt").write_text("of a start that failed before it wrote more")
    check_start(earlier)


@pytest.mark.parametrize(("keep", "left"), [(2, [2, 4, 5]), (1, [2, 5]), (0, [1, 2, 3, 4, 5])])
def test_the_newest_checkpoints_and_the_best_are_kept(keep, left, tmp_path):
    for step in range(1, 6):
        checkpoint_folder(tmp_path, step).mkdir(parents=True)
    mine = tmp_path / "checkpoints" / "step-000001.keep"
    mine.mkdir()
    link_checkpoints(tmp_path, Progress(step=5, best_step=2))
    delete_old_checkpoints(tmp_path, keep)
    folders = {checkpoint_folder(tmp_path, step) for step in left}
    assert set((tmp_path / "checkpoints").iterdir()) == folders | {mine}
    assert (tmp_path / "best").resolve() == checkpoint_folder(tmp_path, 2)


def test_a_checkpoint_of_another_number_of_ranks_must_be_converted(tmp_path):
    folder = checkpoint_folder(tmp_path, 3)
    shutil.copytree(TINY_MODEL, folder)
    (folder / "trainer").mkdir()
    write_progress(folder, Progress(step=3, ranks=2))
    assert find_checkpoint(tmp_path, 2).step == 3
    with refused("was saved by 2 ranks, not 1. Start 2 ranks, or convert it: python -m deepspeed"):
        find_checkpoint(tmp_path, 1)
    (folder / "trainer" / "latest_universal").touch()  # which the converter writes last
    assert find_checkpoint(tmp_path, 1).step == 3


@pytest.mark.parametrize(("n", "step", "place"), [(4, 0, 0), (4, 2, 8), (4, 3, 14), (5, 1, 4)])
def test_two_epochs_of_ten_problems_end_after_four_steps(n, step, place):
    """Also where a run continues: in its second epoch, or with other questions per step."""
    config = with_settings(PRESETS["tiny"], steps=None, epochs=2, questions_per_step=n)
    task = SimpleNamespace(problems=range(10))
    facts = (None, None, None, 0, bool(step), None, Progress(step=step, place=place), {}, None)
    assert PreparedRun(config, task, *facts).steps == 4


def test_a_demo_replaces_demos_only_and_keeps_a_finished_one(tmp_path):
    folder, old = tmp_path / "demo", tmp_path / "demo.old"
    for mine in (folder, old):
        mine.mkdir()
        (mine / "thesis.tex").write_text("mine")
        with refused(f"{mine}: holds no demo; move it away, or choose another --output-dir"):
            demo.move_aside(folder)
        (mine / "thesis.tex").unlink()
    (folder / "base").mkdir()
    for name in ("base/protocol.json", "summary.json"):
        (folder / name).touch()
    (folder / "grpo").mkdir()  # a run of the user's
    with refused(f"{folder}: holds grpo beside a demo; move it away, or choose another --output"):
        demo.move_aside(folder)
    (folder / "grpo").rmdir()
    for _ in range(2):  # the second time there is none, as after a demo that failed
        assert demo.move_aside(folder) == old
        assert not folder.exists()
        assert (old / "summary.json").exists()
