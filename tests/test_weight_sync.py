import json

import numpy as np
import pytest
from conftest import launch

from bnpo.config import TINY_MODEL
from bnpo.weight_sync import SyncError, check_sync


def report(model) -> dict:
    output = launch(2, "tests/programs/sync_check.py", model).stdout
    return json.loads(next(line for line in output.splitlines() if line.startswith("REPORT "))[len("REPORT ") :])


@pytest.mark.sampler
def test_tied_head():
    found = report(TINY_MODEL)
    assert max(found["differences"]) < 1e-4
    assert found["gap_max"] < 1e-4  # sampler and learner agree on every token that was trained on, too
    assert set(found["errors"]) == {"skipped", "head left out"}
    for message in found["errors"].values():
        assert message.startswith("weight sync after step 4 failed")


@pytest.mark.sampler
def test_untied_head_and_padding_rows_that_are_never_sampled(untied_model):
    """The rows past the tokenizer's length have by far the largest logits: unmasked, nearly every token is one."""
    found = report(untied_model)
    assert max(found["differences"]) < 1e-4
    assert found["gap_max"] < 1e-4
    assert found["ids_ok"]
    assert set(found["errors"]) == {"skipped"}  # an untied head is a parameter of its own: nothing to leave out


@pytest.mark.parametrize("difference", [0.2, np.nan, np.inf])
def test_the_error_names_the_sync(difference):
    check_sync(1e-5, tolerance=1e-4, step=7)
    with pytest.raises(SyncError, match="weight sync after step 7 failed"):
        check_sync(difference, tolerance=1e-4, step=7)
