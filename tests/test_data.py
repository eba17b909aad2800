"""The order in which questions are asked. Reading of data is in test_sources.py."""

import numpy as np

from bnpo.data import next_place, questions_at


def test_an_epoch_visits_every_problem_once_in_an_order_of_its_own():
    epochs = [[questions_at(30, 5, 30 * epoch + 5 * i, seed=1) for i in range(6)] for epoch in range(2)]
    orders = [np.concatenate(epoch).tolist() for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1]
    assert orders[0] != np.concatenate([questions_at(30, 5, 5 * i, seed=2) for i in range(6)]).tolist()


def test_another_number_of_questions_continues_behind_the_last_one():
    """Batches of 4, then of 6, of 30 problems: none is asked twice in an epoch, and only its end is left out."""
    place, asked = 0, []
    for questions in (4, 4, 6, 6, 6, 6):
        asked.append(questions_at(30, questions, place, seed=1).tolist())
        place = next_place(30, questions, place) + questions
    order = np.concatenate([questions_at(30, 1, i, seed=1) for i in range(30)]).tolist()
    assert np.concatenate(asked[:5]).tolist() == order[:26]
    assert asked[5] == questions_at(30, 6, 30, seed=1).tolist()
    assert place == 36
