"""The notebook's cells run in order, in a fresh process, and print what stands in the notebook."""

import json
import os

import pytest

from bnpo.files import ROOT
from conftest import python

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
END = "\nend of a cell\n"


@pytest.mark.sampler
def test_the_notebook_prints_what_it_shows(tmp_path):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    code = f"\nprint({END!r}, end='', flush=True)\n".join(sources)
    code = code.replace('"runs/notebook"', repr(str(tmp_path / "run")))  # not the user's run
    done = python("-c", code, environment=os.environ | {"MPLBACKEND": "Agg"})
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = done.stdout.split(END)
    shown = [
        "".join(line for output in cell["outputs"] for line in output.get("text", []))
        for cell in cells
    ]
    *computed, training, page = zip(outputs, shown, strict=True)
    assert len(computed) == 4
    for printed, expected in computed:
        assert printed == expected
    for printed in training:  # its numbers depend on the processor
        assert printed.count("tokens per answer") == 5
        assert "\ndone: 5 steps; the model is in " in printed
    for printed in page:
        assert "report.html has " in printed
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000
