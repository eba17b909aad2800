"""scripts/reproduce.py: rows from end to end with the tiny model, a kill in the middle, and what it refuses."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bnpo.files import ROOT, InputError
from bnpo.planning.dry_run import checkpoint_bytes
from bnpo.planning.memory import read_shape
from conftest import run_ranks

SPEC = importlib.util.spec_from_file_location("reproduce", ROOT / "scripts" / "reproduce.py")
reproduce = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reproduce)

TRAIN = "--steps 2 --save-every 1 --eval-every 0 --questions-per-step 4 --samples-per-question 4 --max-answer-tokens 32"
EVAL = "--limit 10 --repetitions 1"


def arguments(output: Path | None = None, table: str = "table1", **changes) -> "reproduce.Args":
    return reproduce.Args(table=table, output_dir=output, **changes)


def tiny(output: Path, **changes) -> "reproduce.Args":
    rows = {"rows": ("base", "grpo", "bnpo"), "train_flags": TRAIN, "eval_flags": EVAL}
    return arguments(output, preset="tiny", **rows | changes)


class Starter:
    """Starts a row's commands by forking, and notes them; with `kill` a training is killed in its second update."""

    def __init__(self, kill: str = ""):
        self.commands, self._kill = [], kill

    def __call__(self, command) -> int:
        self.commands.append(command)
        if "train.py" not in command:
            return run_ranks(0, *command[1:], check=False).returncode
        flags = command[command.index("train.py") + 1 :]
        killed = bool(self._kill) and f"{self._kill}-seed0/train" in " ".join(flags)
        environment = {"BNPO_SOAK_KILL": json.dumps(("update", 2, 0.01) if killed else None)}
        return run_ranks(1, "dev/soak.py", *flags, check=False, environment=environment).returncode


def never(command) -> int:
    raise AssertionError(f"started: {command}")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory) -> Path:
    """The folder of three rows of Table 1 on the tiny model; the last was killed by SIGKILL after its first step."""
    output = tmp_path_factory.mktemp("table1")
    first = Starter(kill="bnpo")
    with pytest.raises(
        InputError, match=r"^tiny-model-bnpo-seed0: python .* ended with status -?\d+; run this script again "
    ):
        reproduce.main(tiny(output), first)
    launch = "scripts/launch.py"
    assert [command[1] for command in first.commands] == ["eval.py", launch, "eval.py", launch]
    assert (output / "tiny-model-bnpo-seed0" / "train" / "last").resolve().name == "step-000001"
    kept = (output / "tiny-model-grpo-seed0" / "eval" / "results.json").stat().st_mtime_ns
    second = Starter()
    reproduce.main(tiny(output), second)
    assert ["bnpo-seed0" in " ".join(command) for command in second.commands] == [True, True]
    assert (output / "tiny-model-grpo-seed0" / "eval" / "results.json").stat().st_mtime_ns == kept
    return output


@pytest.fixture
def rows(reproduced, tmp_path) -> Iterator[Path]:
    """The same folder for tests that damage it. It is restored afterwards."""
    backup = shutil.copytree(reproduced, tmp_path / "backup", symlinks=True)
    yield reproduced
    shutil.rmtree(reproduced)
    shutil.copytree(backup, reproduced, symlinks=True)


def results(output: Path, row: str) -> dict:
    return json.loads((output / f"tiny-model-{row}" / "eval" / "results.json").read_text())


@pytest.mark.sampler
def test_a_killed_row_continues_and_the_table_has_the_numbers_of_the_results(reproduced):
    run = reproduced / "tiny-model-bnpo-seed0" / "train"
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    table = (reproduced / "tables.md").read_text().splitlines()
    for row, label in (("base", "Base"), ("grpo-seed0", "GRPO"), ("bnpo-seed0", "BNPO")):
        score = results(reproduced, row)["results"]["arithmetic"]
        assert score["problems"] == 10
        numbers = f"{100 * score['pass1']:.1f} ± {100 * score['se']:.1f}"
        assert f"| {label} | {numbers} |" in [line.replace("*", "") for line in table]


@pytest.mark.sampler
def test_a_row_is_what_it_says(reproduced):
    assert results(reproduced, "base")["protocol"]["run"] is None
    run = results(reproduced, "grpo-seed0")["protocol"]["run"]
    assert (run["algo"], run["steps"], run["seed"]) == ("grpo", 2, 0)


@pytest.mark.sampler
def test_a_checkpoint_has_the_size_that_was_planned(reproduced):
    run = reproduced / "tiny-model-grpo-seed0" / "train"
    config = reproduce.chosen_rows(tiny(reproduced, rows=("grpo",)))[0].train
    files = (run / "last").resolve().rglob("*")
    size = sum(file.stat().st_size for file in files if file.is_file() and "tokenizer" not in file.name)
    assert size == pytest.approx(checkpoint_bytes(read_shape(run / "last"), config), rel=0.02)


@pytest.mark.sampler
def test_finished_rows_are_started_never_again(reproduced, capsys):
    reproduce.main(tiny(reproduced), never)
    assert "\nNot finished: tiny-model-reinforce-seed0, tiny-model-remax-seed0" in capsys.readouterr().out


@pytest.mark.sampler
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("foreign", r"^tiny-model-bnpo-seed0: .*bnpo-seed0/eval/results.json belongs to another row: algo is grpo"),
        ("base", r"^tiny-model-bnpo-seed0: .* belongs to another row: algo is None, not bnpo, "),
        ("cut", r"bnpo-seed0/eval/results.json: not a results.json of eval.py \("),
        ("last", r"^tiny-model-bnpo-seed0: .*/train/last is missing, but .*/end.json says done; delete that"),
        ("model", r"^tiny-model-bnpo-seed0: .*bnpo-seed0/train: neither a run nor an evaluation; "),
        ("settings", r"^tiny-model-bnpo-seed0: .*: other settings would change the run: lr was 0.1, is 0.0001. Use "),
    ],
)
def test_what_is_not_the_rows_own_is_refused_by_its_name(damage, message, rows):
    bnpo, grpo = rows / "tiny-model-bnpo-seed0", rows / "tiny-model-grpo-seed0"
    if damage in ("foreign", "base"):
        other = grpo if damage == "foreign" else rows / "tiny-model-base"
        shutil.copy(other / "eval" / "results.json", bnpo / "eval")
    elif damage == "cut":
        (bnpo / "eval" / "results.json").write_text("{")
    else:
        shutil.rmtree(bnpo / "eval")
    if damage == "last":
        (bnpo / "train" / "last").unlink()
    elif damage == "model":
        shutil.copy(bnpo / "train" / "last" / "config.json", bnpo / "train")
    elif damage == "settings":
        config = bnpo / "train" / "config.json"
        config.write_text(config.read_text().replace('"lr": 0.0001', '"lr": 0.1'))
    before = sorted(rows.rglob("*"))
    with pytest.raises(InputError, match=message) as error:
        reproduce.main(tiny(rows), never)
    assert "\n" not in str(error.value)
    assert sorted(rows.rglob("*")) == before


@pytest.mark.sampler
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"eval_flags": "--limit 5 --repetitions 1"}, r"^tiny-model-base: .* belongs to another row: --limit is 1"),
        ({"eval_flags": "--limit 10"}, r"^tiny-model-base: .* another row: repetitions of arithmetic is 1, not "),
        ({"train_flags": TRAIN + " --lr 0.1"}, r"^tiny-model-grpo-seed0: .* another row: lr is 0.0001, not 0.1; g"),
    ],
)
def test_a_row_of_other_flags_is_not_finished(flags, message, reproduced):
    with pytest.raises(InputError, match=message):
        reproduce.main(tiny(reproduced, show=True, **flags), never)


@pytest.mark.sampler
def test_a_table_may_be_moved(reproduced, tmp_path, capsys):
    moved = shutil.copytree(reproduced, tmp_path / "moved", symlinks=True)
    reproduce.main(tiny(moved), never)
    assert "| BNPO | " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rows": ("AD-bnpo",)}, r"^--rows: table1 has no 'AD-bnpo'; it has base, reinforce, remax, grpo, "),
        ({"models": ("Qwen2.5-7B",)}, r"^--models: table1 has no 'Qwen2.5-7B'; it has Qwen2.5-Math-1.5B, Qwen"),
        ({"dry_run": True, "gpu": "H20O", "rows": ("bnpo",)}, r"^--gpu: unknown GPU 'H20O'; known: H20, A100-80GB"),
        ({"dry_run": True, "gpus": 5, "rows": ("base", "bnpo")}, r"^--questions-per-step 32 cannot be divided by"),
        ({"dry_run": True, "gpus": 0}, r"^--gpus: is 0, must be greater than 0"),
        ({"gpus": 4}, r"^--gpus: needs --dry-run"),
        ({"train_flags": "--lr 0"}, r"^--lr: is 0.0, must be greater than 0"),
        ({"train_flags": "--algo=grpo"}, r"^--train-flags: --algo=grpo follows from the row; choose rows with --r"),
        ({"eval_flags": "--output_dir x"}, r"^--eval-flags: --output_dir follows from the row; "),
        ({"train_flags": "--model 'Qwen"}, r"^--train-flags: cannot be read \(No closing quotation\)"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(flags, message, tmp_path, capsys):
    with pytest.raises(InputError, match=message) as error:
        reproduce.main(arguments(tmp_path / "rows", **flags), never)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "rows").exists()


def test_a_table_of_nothing_is_the_papers(tmp_path, capsys):
    reproduce.main(arguments(tmp_path / "rows", show=True, rows=("base",)), never)
    printed = capsys.readouterr().out
    assert "| BNPO, paper | 77.0 | **68.8** | 32.1 | 13.3 | **47.8** |" in printed
    assert printed.endswith("No row is finished yet: all numbers are the paper's.\n")
    assert "\nNot finished: Qwen2.5-Math-1.5B-base, Qwen2.5-Math-1.5B-reinforce-seed0, " in printed
    assert "Table 2" not in printed
    assert not (tmp_path / "rows").exists()


def test_the_rows_are_the_papers():
    rows = [row for table in ("table1", "table2") for row in reproduce.chosen_rows(arguments(table=table))]
    assert len(rows) == 18
    settings = [row.train for row in rows if row.train]
    assert len({(config.data.model, config.method.algo, config.method.decompose) for config in settings}) == 15
    assert {config.data.rewards for config in settings if "Math" in config.data.model} == {("accuracy",)}
    assert {config.data.rewards for config in settings if "Math" not in config.data.model} == {("accuracy", "format")}
    assert [row.train.method.decompose for row in rows[12:] if row.train] == [False, False, True, True, True]
    seeds = reproduce.chosen_rows(
        arguments(seeds=(1, 2), rows=("base", "bnpo"), models=("some/where/Qwen2.5-Math-7B",))
    )
    assert [row.name.removeprefix("Qwen2.5-Math-7B-") for row in seeds] == ["base", "bnpo-seed1", "bnpo-seed2"]
    assert {row.train.data.model for row in seeds if row.train} == {"some/where/Qwen2.5-Math-7B"}
