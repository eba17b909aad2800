"""Write the families of docs/models.md: train a random model of every one in tests/families.py, or
see it refused.

    python dev/models_table.py               # all families, half an hour
    python dev/models_table.py llama gpt2    # print what comes out for these families only

Families that train pass the checks of tests/test_families.py, with two ranks in fp32 and in bf16.
"""

import re
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from bnpo.environment import setup_environment

setup_environment()

from bnpo.files import InputError
from bnpo.policy.folder import check_model
from families import ALSO_TRAINED, NOT_TRAINED, REFUSED_LATER, TRAINED, family_config
from test_families import DTYPES, check_report, refuse_family, train_family

HEAD = "| refused | reason |\n| --- | --- |\n"


def train(family: str, folder: Path) -> str:
    """Train a model of `family`, check what was seen, and return it with the largest
    differences.
    """
    differences = []
    for dtype in DTYPES:
        report = train_family(folder / dtype, family, dtype)
        check_report(report, dtype)
        differences.append(f"{max(report[name] for name in ('transformers', 'vllm', 'sync')):.1g}")
    return f"`{family}` trains: {' in fp32, '.join(differences)} in bf16"


def refused_row(family: str, folder: Path) -> str:
    """Return the row of a family that is refused, with the reason that a user reads."""
    if family in REFUSED_LATER:
        return f"| `{family}` | {refuse_family(folder, family)} |"
    family_config(family, **NOT_TRAINED[family][0]).save_pretrained(folder)
    try:
        check_model(folder, 192)
    except InputError as refusal:
        reason = re.sub(
            r" \(.*", "", str(refusal).partition("cannot be trained: ")[2].rpartition(";")[0]
        )
        return f"| `{family}` | {reason} |"
    raise AssertionError(f"{family} is not refused")


def main() -> None:
    trained, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        for family in sys.argv[1:] or sorted(TRAINED | ALSO_TRAINED | NOT_TRAINED | REFUSED_LATER):
            if family in TRAINED | ALSO_TRAINED:
                print(train(family, Path(folder) / family), flush=True)
                trained.append(f"`{family}`")
            else:
                rows.append(refused_row(family, Path(folder) / family))
                print(rows[-1], flush=True)
    if sys.argv[1:]:
        return
    page = ROOT / "docs" / "models.md"
    text = page.read_text(encoding="utf-8")
    count, names = f"\\g<1>{len(trained)}\\2", textwrap.fill(", ".join(trained), 120)
    text = re.sub(r"(These\s)\d+(\sfamilies)", count, text)
    text = re.sub(r"(families train:\n\n).*?(\n\n)", rf"\1{names}\2", text, flags=re.DOTALL)
    table = HEAD + "\n".join(rows) + "\n"
    page.write_text(
        re.sub(r"\| refused .*?\n(?!\|)", lambda _: table, text, flags=re.DOTALL), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
