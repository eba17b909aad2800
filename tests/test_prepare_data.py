"""Files in the hub's own formats, made from real data and put where the hub's cache would have
them.
"""

import hashlib
import os
from pathlib import Path

import pytest
from huggingface_hub import constants

import prepare_data as script
from bnpo.files import InputError, write_json_lines
from conftest import json_lines, python
from hub_content import hub_files

NAMES = list(script.SOURCES)


def real_rows(name: str, data_dir: Path) -> list[dict]:
    """The rows of a set in BNPO_DATA, or in its folder `more`."""
    for folder in (data_dir, data_dir / "more"):
        if (folder / f"{name}.jsonl").exists():
            return json_lines(folder / f"{name}.jsonl")
    pytest.skip(f"no {name}.jsonl in {data_dir}: see data/README.md")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    return tmp_path / "home" / "hub"


def fill(cache: Path, name: str, rows: list[dict]) -> Path:
    """Write the hub's files for set `name` where the hub's client looks before it asks the
    network. Return the last.
    """
    source = script.SOURCES[name]
    snapshot = cache / f"datasets--{source.repo.replace('/', '--')}" / "snapshots" / source.revision
    for file, content in hub_files(name, rows).items():
        path = snapshot / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_converted_once(name, data_dir, cache, tmp_path, capsys):
    expected = real_rows(name, data_dir)
    source = fill(cache, name, expected)
    if name == "math500":  # the very bytes of the hub's file: this is its sha256
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        assert digest == "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"
    script.prepare(name, tmp_path / "data")
    path = tmp_path / "data" / f"{name}.jsonl"
    found = json_lines(path)
    assert [list(row) for row in found] == [list(row) for row in expected]
    if name == "math_train":  # the hub's file has no ids
        expected = [row | {"id": f"train/{n}"} for n, row in enumerate(expected)]
    # Which spells the names of sets in another way
    if (data_dir / "more" / f"{name}.jsonl").exists():
        expected = [row | {"source": name.upper()} for row in expected]
    assert found == expected
    assert capsys.readouterr().out.endswith(f"{path}: {len(expected)} problems, written\n")

    script.prepare(name, tmp_path / "data")
    assert capsys.readouterr().out == f"{path}: {len(expected)} problems, kept\n"


def change(rows: list[dict], field: str) -> list[dict]:
    return [{**rows[0], field: "7"}, *rows[1:]]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (
            "math500",
            lambda rows: change(rows, "answer"),
            "the sha256 of its problems and answers is .*, expected 41d4",
        ),
        ("aime2025", lambda rows: rows[:-1], "it has 29 problems, expected 30"),
    ],
)
def test_other_content_on_the_hub_is_an_error(name, damage, message, data_dir, cache, tmp_path):
    fill(cache, name, damage(real_rows(name, data_dir)))
    with pytest.raises(InputError, match=f"^{name}: {message}") as error:
        script.prepare(name, tmp_path / "data")
    assert f"nothing was written. Delete {cache}/datasets--" in str(error.value)
    assert script.SOURCES[name].revision in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_wrong_file_in_place_is_not_overwritten(data_dir, cache, tmp_path):
    rows = real_rows("amc23", data_dir)
    fill(cache, "amc23", rows)
    path = tmp_path / "amc23.jsonl"
    write_json_lines(path, change(rows, "answer"))
    for cut, message in ((0, "the sha256 of its problems"), (10, "not JSON")):
        text = path.read_bytes()[: path.stat().st_size - cut]
        path.write_bytes(text)
        with pytest.raises(
            InputError, match=rf"{path}.* {message}.*; delete amc23.jsonl and run this again"
        ):
            script.prepare("amc23", tmp_path)
        assert path.read_bytes() == text


@pytest.mark.program
def test_without_a_network(data_dir, cache, tmp_path):
    """What the cache holds is prepared and stays; the first set that it lacks ends the run in
    one line.
    """
    fill(cache, "amc23", real_rows("amc23", data_dir))
    folder = tmp_path / "data"
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(cache.parent)}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    command = ("scripts/prepare_data.py", "--output-dir", folder, "--only", "amc23", "aime2025")
    done = python(*command, environment=environment | hub)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: aime2025: math-ai/aime25 could not be downloaded")
    assert [file.name for file in folder.iterdir()] == ["amc23.jsonl"]
    assert json_lines(folder / "amc23.jsonl") == real_rows("amc23", data_dir)
