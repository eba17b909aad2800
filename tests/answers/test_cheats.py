"""No short string is accepted that has another value than the reference."""

from pathlib import Path
from random import Random

from cheats import candidates, value_of
from pair_grader import PairGrader, reference_answers

REFERENCES, EACH = 300, 25


def tried(folder: Path) -> list[tuple[str, str, bool, bool]]:
    """Return (reference, text, whether it has the value, whether it is accepted) for plain numbers of MATH."""
    random = Random(0)
    answers = [answer for answer in reference_answers(folder / "math_train.jsonl") if value_of(answer) is not None]
    strings = []
    for reference in random.sample(answers, REFERENCES):
        chosen = random.sample(list(candidates(value_of(reference))), EACH)
        strings += [(reference, text, worth == value_of(reference)) for text, worth in chosen]
    grader = PairGrader()
    given = grader([(reference, text) for reference, text, _ in strings])
    grader.close()
    assert grader.failures == {}
    return [(*string, accepted) for string, accepted in zip(strings, given, strict=True)]


def test_a_search_over_short_strings_finds_no_cheat(data_dir):
    strings = tried(data_dir)
    assert [string for string in strings if string[3] and not string[2]] == []
    missed = [string for string in strings if string[2] and not string[3]]
    assert len(missed) * 100 <= sum(deserved for _, _, deserved, _ in strings), missed
    assert sum(accepted for _, _, _, accepted in strings) >= 50
