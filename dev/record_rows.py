"""Copy the results of finished rows of `scripts/reproduce.py` into the repository, without weights.

    python dev/record_rows.py table1 --preset smollm2

They go to studies/<preset>/<table>, where `reproduce.py --show` and `scripts/figures.py` read them.
Of each row these are results.json and, of its training, config.json, metrics.jsonl and end.json.
"""

import sys

from bnpo.environment import run_program
from bnpo.files import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from paper.rows import Choice, chosen_rows


def main(choice: Choice) -> None:
    for row in chosen_rows(choice):
        if not row.results.exists():
            continue
        folder = choice.records / row.name
        folder.mkdir(parents=True, exist_ok=True)
        files = [row.results]
        if row.train:
            files += [row.run / name for name in ("config.json", "metrics.jsonl", "end.json")]
        for file in files:
            # Without the clone's path
            text = file.read_text(encoding="utf-8").replace(f"{ROOT}/", "")
            (folder / file.name).write_text(text, encoding="utf-8")
        print(folder)


if __name__ == "__main__":
    run_program(main, Choice, description=__doc__)
