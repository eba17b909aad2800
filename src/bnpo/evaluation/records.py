"""The folder of an evaluation: its protocol, and its samples, each of which is saved as soon as it is graded.

docs/evaluation.md lists the fields of all files. A repetition is one of several answers to the same problem. A run is
always a training run.
"""

import json
import os
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

from bnpo.files import InputError, lock, read_json, whole_json_lines, write_json, writing

Record = dict[str, Any]
"""A sampled answer and its verdicts: one line of samples.jsonl."""
Key = tuple[str, int, int]
"""What identifies a sample: data set, index of the problem in it, and repetition, from 0."""
key_of = itemgetter("dataset", "index", "repetition")
"""Return the key of a record. Raises KeyError or TypeError if it is no record."""


def claim_results_folder(folder: Path, protocol: dict) -> dict:
    """Create `folder` for results under `protocol`, or open it to continue an interrupted evaluation.

    Returns the protocol in the folder. Only its `run` may differ: the training run may have been resumed since, which
    leaves the checkpoint as it was. Raises InputError if the folder holds anything else.
    """
    path, advice = folder / "protocol.json", "--output-dir names another folder"
    with writing(folder, "choose another --output-dir"):
        if not path.exists():
            if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
                raise InputError(f"{folder}: is not empty and holds no evaluation; {advice}")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, protocol)
        saved = read_json(path, advice)
    # Through JSON, which turns paths into texts and tuples into lists, as in the file.
    given = json.loads(json.dumps(protocol, default=str))
    keys = (given | saved).keys() - {"run"}
    differing = ", ".join(sorted(key for key in keys if given.get(key) != saved.get(key)))
    if differing:
        difference = f"different {differing}; see {path.name}"
        raise InputError(f"{folder}: holds results of another evaluation ({difference}); {advice}")
    return saved


class Samples:
    """The records in <folder>/samples.jsonl, to which new ones are added as they come.

    Opening reads the records of an interrupted evaluation and removes a last line that was cut off. Raises InputError
    for a record that is not among `keys`, if another process writes the file, or like `claim_results_folder`.
    """

    def __init__(self, folder: Path, keys: Iterable[Key], protocol: dict):
        self.folder, self.protocol = folder, claim_results_folder(folder, protocol)
        self.records: dict[Key, Record] = {}
        path, expected = folder / "samples.jsonl", set(keys)
        advice = "wait for it, or name another folder with --output-dir"
        self._lock = lock(folder, f"{path}: another evaluation is writing it; {advice}")
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        for line_number, record in enumerate(whole_json_lines(path), 1):
            try:
                expected.remove(key_of(record))
            except (KeyError, TypeError) as error:
                reason = f"is repeated, or no sample of this suite ({error})"
                raise InputError(f"{path}:{line_number}: {reason}; delete the folder to start again") from error
            self.records[key_of(record)] = record
        self._file = path.open("a", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Add a record. When this returns, a killed process no longer loses it."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records[key_of(record)] = record

    def close(self) -> None:
        """Close the file, and let other processes write it."""
        self._file.close()
        self._lock.release()
