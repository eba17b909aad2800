"""Methods compared by training: which runs are made, and what is said of their differences."""

import numpy as np
import pytest
from scipy import stats

from compare import Args, compare, main, methods_of, over_seeds, runs_of
from conftest import json_lines, refused


def test_a_suite_that_cannot_be_used_is_refused_before_anything_is_trained(tmp_path):
    args = Args(("grpo", "bnpo"), eval_flags="--suite nothing.json", output_dir=tmp_path)
    with refused("nothing.json"):
        main(args, ("--preset", "tiny"))


def test_flags_that_only_fit_the_methods_are_no_fault_of_the_default_one():
    flags = ("--preset", "tiny", "--samples-per-question", "1")
    assert len(runs_of(Args(("reinforce_pp", "remax")), flags)) == 6


@pytest.mark.parametrize(
    ("algos", "flags", "message"),
    [
        (("grpo",), (), "--algos: name at least two different methods, as in --algos grpo,bnpo"),
        (("grpo", "bnpo"), ("--seed", "1"), "--seed: cannot come after `--`"),
        (("grpo", "beta"), (), "--algo beta and --beta-parameters go together"),
        (("grpo", "bnpo '"), (), '--algos: "bnpo \'" cannot be read'),
        (("grpo", "bnpo --seed 7"), (), "--algos: 'bnpo --seed 7' cannot have --seed; compare.py"),
        (
            ("grpo", "bnpo --preset tiny"),
            (),
            "'bnpo --preset tiny' cannot have --preset; write it after `--`",
        ),
    ],
)
def test_wrong_methods_and_flags_are_refused_before_anything_starts(algos, flags, message):
    with refused(message):
        main(Args(algos), ("--preset", "tiny", *flags))


@pytest.mark.parametrize(
    ("words", "methods"),
    [
        (["grpo,grpo --decompose, bnpo"], ("grpo", "grpo --decompose", "bnpo")),
        (["grpo", "bnpo"], ("grpo", "bnpo")),
        (["grpo,weight --weight 'max(0, p)'"], ("grpo", "weight --weight 'max(0, p)'")),
        (["weight --weight max(0,p),grpo"], ("weight --weight max(0,p)", "grpo")),
        (["grpo", "gdpo --rewards accuracy,format"], ("grpo", "gdpo --rewards accuracy,format")),
    ],
)
def test_commas_separate_methods_except_in_their_flags(words, methods):
    assert methods_of(words) == methods


def test_each_method_and_seed_has_a_run_of_its_own(tmp_path):
    args = Args(("grpo", "beta --beta-parameters 2 2"), seeds=2, output_dir=tmp_path)
    runs = runs_of(args, ["--preset", "smollm2", "--lr", "3e-5"])
    assert [run.name for run in runs] == [
        "grpo-seed0",
        "grpo-seed1",
        "beta_--beta-parameters_2_2-seed0",
        "beta_--beta-parameters_2_2-seed1",
    ]
    last = runs[-1]
    assert last.train.method.beta_parameters == (2, 2)
    assert (last.train.sampling.seed, last.train.update.lr) == (1, 3e-5)
    assert last.train.folder.output_dir == last.run
    assert (last.evaluate.suite, last.evaluate.ckpt) == ("word-problems", f"{last.run}/last")


def test_flags_of_a_method_count_more_than_those_of_all(tmp_path):
    args = Args(("grpo", "grpo --lr 3e-5"), seeds=1, output_dir=tmp_path)
    runs = runs_of(args, ["--preset", "tiny", "--lr", "1e-5", "--steps", "7"])
    assert [run.train.update.lr for run in runs] == [1e-5, 3e-5]
    assert [run.train.batch.steps for run in runs] == [7, 7]


def test_methods_whose_names_are_alike_do_not_share_a_folder(tmp_path):
    methods = tuple(f"weight --weight {w}" for w in ("p*2", "p**2"))
    first, second = runs_of(Args(methods, seeds=1, output_dir=tmp_path), ["--preset", "tiny"])
    assert first.folder != second.folder


def test_methods_are_compared_over_the_seeds_that_both_have_and_over_problems():
    rng = np.random.default_rng(0)
    drawn = {
        method: {s: {"a": rng.random(30), "b": rng.random(50)} for s in seeds}
        for method, seeds in {"grpo": (0, 1, 2, 3), "bnpo": (0, 2, 3), "rloo": (5,)}.items()
    }
    seeds, problems = compare(drawn)
    assert (seeds.method, seeds.pairs) == ("bnpo", "3 seeds")
    assert (problems.method, problems.pairs) == ("bnpo", "80 problems")
    scores = [
        [np.mean([x.mean() for x in drawn[method][seed].values()]) for seed in (0, 2, 3)]
        for method in ("bnpo", "grpo")
    ]
    expected = stats.ttest_rel(*scores)
    assert seeds.test["p_value"] == pytest.approx(expected.pvalue)
    assert seeds.test["difference"] == pytest.approx(np.subtract(*scores).mean())
    assert problems.test["difference"] == pytest.approx(seeds.test["difference"])


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_detectable_difference_is_found_in_80_percent(count):
    rng = np.random.default_rng(0)
    spread = over_seeds(np.arange(count) / 10)
    true = spread["detectable"] / np.std(np.arange(count) / 10, ddof=1)  # in standard deviations
    drawn = true + rng.normal(size=(20_000, count))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.extra
@pytest.mark.sampler
def test_runs_are_trained_once_and_a_failing_one_stops_no_other(tmp_path, capfd):
    broken = tmp_path / "broken.py"  # in a step of 8 questions, not when it is tried
    broken.write_text(
        "import numpy as np\nfrom bnpo_estimators import estimator\n\n\n"
        "@estimator()\ndef broken(batch):\n"
        "    return batch.rewards * (np.nan if len(batch.rewards) == 8 else 0)\n"
    )
    folder = tmp_path / "compared"
    args = Args((f"{broken}:broken", "grpo", "bnpo"), 2, "--limit 20", folder)
    flags = ["--preset", "tiny", "--questions-per-step", "8", "--samples-per-question", "4"]
    flags += ["--steps", "2", "--eval-every", "0", "--micro-batch-tokens", "512"]
    with refused("2 of 6 runs failed or were stopped; repeat the command"):
        main(args, flags)
    metrics = {run.name: json_lines(run.run / "metrics.jsonl") for run in runs_of(args, flags)[2:]}
    assert [len(lines) for lines in metrics.values()] == [2] * 4
    assert (folder / "report.html").stat().st_size > 100_000
    capfd.readouterr()
    main(Args(("grpo", "bnpo"), 2, "--limit 20", folder), flags)  # nothing is left to train
    printed = capfd.readouterr().out
    assert "train.py" not in printed
    assert "2 seeds" in printed
    assert "20 problems" in printed
    with refused("compared: holds the runs of another comparison; choose another --output-dir"):
        main(Args(("grpo", "bnpo"), 2, "--limit 20", folder), [*flags, "--lr", "1"])
