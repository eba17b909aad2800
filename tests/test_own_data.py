"""A user's own data set, from its file to the run's."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from bnpo.data import Columns, content_hash, load_problems, render_prompt
from bnpo.runs.checkpoint import find_checkpoint
from conftest import run_ranks

pytestmark = pytest.mark.sampler

GSM8K = [
    {
        "question": f"Tom has {n} pens and buys {n}.",
        "answer": f"He has {n} + {n} = {2 * n} pens.\n#### {2 * n}",
    }
    for n in range(1, 9)
]
"""Rows as in GSM8K, short enough for the tiny model."""
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def gsm8k_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gsm8k")
    pq.write_table(pa.Table.from_pylist(GSM8K), folder / "train.parquet")
    fields = {"problem_field": "question", "answer_pattern": r"####\s*(.*)"}
    suite = {"datasets": {"GSM8K": {"data": str(folder / "train.parquet"), "repetitions": 1, "problems": 4, **fields}}}
    suite |= {"temperature": 1.0, "top_p": 1.0, "template": "chat", "max_prompt_tokens": 64, "max_answer_tokens": 8}
    (folder / "suite.json").write_text(json.dumps(suite))
    flags = (
        "--train-data",
        folder / "train.parquet",
        "--problem-field",
        "question",
        "--answer-pattern",
        r"####\s*(.*)",
    )
    flags += ("--questions-per-step", 4, "--samples-per-question", 2, "--max-answer-tokens", 8, "--steps", 1)
    flags += ("--eval-every", 1, "--eval-suite", folder / "suite.json", "--rollouts-every", 1, "--watch-questions", 0)
    (folder / "mine.jinja").write_text(TEMPLATE)
    flags += ("--template", folder / "mine.jinja", "--system-prompt", "Be exact.")
    run_ranks(2, "train.py", "--preset", "tiny", *flags, "--output-dir", folder / "run")
    return folder


def test_gsm8k_trains_from_a_local_parquet_file(gsm8k_run):
    run, data = gsm8k_run / "run", gsm8k_run / "train.parquet"
    rows = [json.loads(line) for line in (run / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    for row in rows:
        asked = GSM8K[int(row["id"]) - 1]
        assert row["prompt"] == f"system: Be exact.\nuser: {asked['question']}\nassistant:"
        assert row["reference"] == asked["answer"].rpartition("#### ")[2]
    config = json.loads((run / "config.json").read_text())
    digest = content_hash(load_problems(data, Columns(problem_field="question", answer_pattern=r"####\s*(.*)")))
    assert config["data_sources"] == {str(data): {"problems": 8, "sha256": digest, "revision": None}}
    assert (config["data_sha256"], config["evaluated"]["datasets"]["GSM8K"]["problems"]) == (digest, 4)


def test_a_checkpoint_has_a_model_card_which_may_be_edited(gsm8k_run):
    run, data = gsm8k_run / "run", gsm8k_run / "train.parquet"
    card = ModelCard.load(run / "last" / "README.md")
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.base_model is None  # a path is no name on the hub
    config = json.loads((run / "config.json").read_text())
    scores = json.loads((run / "evals" / "step-000001" / "results.json").read_text())["results"]["GSM8K"]
    for part in (
        f"- **Base model**: {config['model']}\n",
        "- **Method**: `--algo bnpo`, 4 questions x 2 answers per step, learning rate 0.0001, rewards accuracy, seed",
        f"- **Data**: {data}, 8 problems, SHA-256 `{config['data_sha256']}`\n",
        f"- **GSM8K**: pass@1 {100 * scores['pass1']:.1f} ± {100 * scores['se']:.1f} % at step-000001, 4 problems\n",
        f"deepspeed --num_gpus 2 train.py --preset tiny --train-data {data} --problem-field question",
    ):
        assert part in card.text
    (run / "last" / "README.md").write_text("a better one")
    assert find_checkpoint(run, 2).checkpoint == run / "checkpoints" / "step-000001"


def test_a_checkpoint_renders_the_prompts_of_its_run(gsm8k_run):
    rows = [
        json.loads(line) for line in (gsm8k_run / "run" / "rollouts" / "step-000001.jsonl").read_text().splitlines()
    ]
    tokenizer = AutoTokenizer.from_pretrained(gsm8k_run / "run" / "last")
    assert render_prompt(tokenizer, GSM8K[int(rows[0]["id"]) - 1]["question"]) == rows[0]["prompt"]
