"""Scripts that nothing else runs."""

import re
import subprocess
import sys

import pytest

from bnpo.files import ROOT


@pytest.mark.program
def test_theorem_1_is_confirmed():
    command = [sys.executable, "scripts/verify_theorem.py"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert float(re.search(r"minimum_distance: (\S+)", output)[1]) < 1e-6
    assert "domain_errors: 0 " in output
    assert float(re.search(r"monte_carlo_largest_z: (\S+)", output)[1]) < 4
    # At a = b = 3/2 the best Beta density is GRPO's.
    assert re.search(r"1\.5 .* 1\.5 .*0\.822 .* 1\.000 .* 1\.000", output)
    # docs/study/theory.md: no signal under the assumption, the least squared cosine and its limits, the best weight.
    for name in ("mean_gradient_largest_z", "squared_cosine_largest_z"):
        assert float(re.search(rf"{name}: (\S+)", output)[1]) < 4
    assert 0.75 <= float(re.search(r"squared_cosine_least: (\S+)", output)[1]) < 0.751
    assert float(re.search(r"squared_cosine_limits: (\S+)", output)[1]) < 1e-3
    assert float(re.search(r"best_weight_share: (\S+)", output)[1]) <= 1
