"""No short string is accepted that has another value than the reference. All strings of cheats.py on 6 references:

    BNPO_DATA=<folder with math_train.jsonl> python tests/answers/test_cheats.py 6

takes a minute of one core, and prints what is accepted without having the value.
"""

import os
import sys
from pathlib import Path
from random import Random

from cheats import candidates
from pair_grader import PairGrader, reference_answers
from references import value_of

REFERENCES, EACH = 300, 25


def tried(folder: Path, references: int, each: int | None) -> list[tuple[str, str, bool, bool]]:
    """Return (reference, text, whether it has the value, whether it is accepted) for plain numbers of MATH."""
    random = Random(0)
    answers = [answer for answer in reference_answers(folder / "math_train.jsonl") if value_of(answer) is not None]
    strings = []
    for reference in random.sample(answers, references):
        texts = list(candidates(value_of(reference)))
        chosen = texts if each is None else random.sample(texts, each)
        strings += [(reference, text, worth == value_of(reference)) for text, worth in chosen]
    grader = PairGrader()
    given = grader([(reference, text) for reference, text, _ in strings])
    grader.close()
    assert grader.failures == {}
    return [(*string, accepted) for string, accepted in zip(strings, given, strict=True)]


def test_a_search_over_short_strings_finds_no_cheat(data_dir):
    strings = tried(data_dir, REFERENCES, EACH)
    assert [string for string in strings if string[3] and not string[2]] == []
    missed = [string for string in strings if string[2] and not string[3]]
    assert len(missed) * 100 <= sum(deserved for _, _, deserved, _ in strings), missed
    assert sum(accepted for _, _, _, accepted in strings) >= 50


if __name__ == "__main__":
    strings = tried(Path(os.environ["BNPO_DATA"]), int(sys.argv[1]), None)
    cheats = [string[:2] for string in strings if string[3] and not string[2]]
    print(*cheats, f"{len(strings)} strings: {len(cheats)} accepted without the value", sep="\n")
