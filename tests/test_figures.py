"""Figures of simulated runs, whose files are written by the training program's own code."""

import json

import numpy as np
import pytest

from bnpo.config import parse_train_config
from bnpo.runs.folder import claim_folder
from bnpo.runs.tracking import Tracker
from conftest import refused
from paper.curves import band, group_runs, read_run, variation
from paper.figures import draw_scores


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a run with the given flags. Accuracies are random, norms too
    unless given.
    """

    def run(*flags, steps=40, norms=None):
        folder = tmp_path / ("run" + "".join(flags))
        flags = ("--preset", "tiny", *flags, "--output-dir", str(folder))
        config, _ = parse_train_config(flags, has_cuda=False)
        folder.mkdir()
        claim_folder(config, {})
        tracker = Tracker(config, steps, 0)
        tracker.write(0, {"eval/average": 0.3})
        rng = np.random.default_rng(config.sampling.seed)
        for step in range(1, steps + 1):
            norm = rng.lognormal(1, 0.3) if norms is None else norms[step - 1]
            metrics = {"reward/mean": rng.random(), "grad_norm": norm}
            tracker.write(step, metrics)
        tracker.close()
        return folder

    return run


def test_runs_are_grouped_by_method_and_by_what_differs(write):
    flags = (("--algo", "grpo"), ("--algo", "bnpo"), ("--seed", "1", "--keep", "3"))
    groups = group_runs([read_run(write(*given)) for given in flags])
    seeds = {label: [run.seed for run in runs] for label, runs in groups.items()}
    assert seeds == {"GRPO": [0], "BNPO": [0, 1]}
    flags = (("--lr", "1e-5"), ("--lr", "3e-5"), ("--algo", "opo", "--decompose"))
    groups = group_runs([read_run(write(*given)) for given in flags])
    assert list(groups) == ["BNPO, lr 1e-05", "BNPO, lr 3e-05", "AD-OPO"]
    twins = [read_run(write("--algo", "rloo")), read_run(write("--algo", "rloo", "--keep", "1"))]
    with refused(r"rloo and .*keep1: both are RLOO with seed 0; leave one out"):
        group_runs(twins)


def test_a_band_pools_a_window_of_steps_and_all_seeds(write):
    norms = [1.0, 2, 6, 4, float("nan"), 2]
    doubled = [2 * norm for norm in norms]
    runs = [read_run(write("--seed", "0", steps=6, norms=norms))]
    runs.append(read_run(write("--seed", "1", steps=6, norms=doubled)))
    single = band(runs[:1], "grad_norm", window=1)
    np.testing.assert_array_equal(single.steps, [1, 2, 3, 4, 6])  # nothing is known of step 5
    np.testing.assert_array_equal(single.mean, [1, 2, 6, 4, 2])
    pooled = band(runs, "grad_norm", window=3)
    np.testing.assert_allclose(pooled.mean, [2.25, 4.5, 6, 7.5, 4.5, 3])
    assert (pooled.low[0], pooled.high[0]) == (1, 4)  # of 1, 2, 2, 4: all
    ten = band(runs, "grad_norm", window=6)
    assert (ten.low[2], ten.high[2]) == (1, 8)  # of 1, 2, 2, 2, 4, 4, 4, 6, 8, 12: all but one
    longer = read_run(write("--seed", "2", steps=8, norms=[9.0] * 8))
    assert band([*runs, longer], "grad_norm", window=1).mean[-2:].tolist() == [9, 9]
    expected = np.std([1, 2, 6, 4, 2], ddof=1) / 3
    assert variation(runs[1].metrics["grad_norm"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.jsonl", '{"step": 1}\n{\n', r"metrics.jsonl:2: not JSON \("),
        ("metrics.jsonl", '{"step": 0}\n', "metrics.jsonl: holds no step yet"),
        ("config.json", '{"suite": {}}', "is an evaluation"),
    ],
)
def test_bad_folders_are_named(file, content, message, write):
    run = write("--algo", "grpo", steps=3)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 4, "grad_n')  # cut off, or just being written
    assert read_run(run).metrics["step"].tolist() == [1, 2, 3]
    (run / file).write_text(content)
    with refused(message):
        read_run(run)


def test_the_score_of_a_run_is_found_beside_below_and_in_its_folder(write):
    scores = {"pass1": 0.25, "se": 0.01}
    suite = {"name": "arithmetic", "temperature": 0.6, "top_p": 1.0, "template": "chat"}
    suite |= {"max_prompt_tokens": 1, "max_answer_tokens": 1, "datasets": {"a": {"sha256": ""}}}
    protocol = {"run": None, "ckpt": "model", "suite": suite, "limit": None, "grader": "paper"}
    protocol |= {"dtype": "float32", "seed": 0, "versions": {}}
    results = {"a": {**scores, "problems": 10, "repetitions": 1}}
    content = json.dumps({"protocol": protocol, "results": results, "average": scores})
    runs = [write("--seed", str(seed), steps=3) for seed in range(3)]
    assert read_run(runs[0]).score is None
    with pytest.raises(ValueError, match=r"no run has a results.json"):
        draw_scores(group_runs([read_run(runs[0])]))
    for path in (runs[0], runs[1] / "eval"):
        path.mkdir(exist_ok=True)
        (path / "results.json").write_text(content)
    row = runs[2].parent / "row"
    row.mkdir()
    runs[2] = runs[2].rename(row / "train")
    for stray_or_own in (row.parent / "eval", row / "eval"):
        stray_or_own.mkdir()
        (stray_or_own / "results.json").write_text(content.replace("0.25", "0.75"))
    read = [read_run(run) for run in runs]
    assert [run.score for run in read] == [0.25, 0.25, 0.75]
    [axes] = draw_scores(group_runs(read)).axes
    dots, mean = axes.lines[0], axes.lines[1]
    assert dots.get_xdata().tolist() == [25, 25, 75]
    assert mean.get_xdata() == pytest.approx([125 / 3])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["BNPO"]
    (runs[0] / "results.json").write_text(content.replace('"limit": null', '"limit": 5'))
    with pytest.raises(ValueError, match="evaluated differently: suite arithmetic, limit 5, grad"):
        draw_scores(group_runs([read_run(run) for run in runs]))
    longer = write("--seed", "3", "--steps", "7", steps=3)
    (longer / "results.json").write_text(content)
    assert len(group_runs([read_run(run) for run in (*runs, longer)])) == 2
