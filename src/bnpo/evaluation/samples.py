"""The folder of an evaluation: claimed under its protocol, every sample kept as it comes."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from bnpo.evaluation.suites import Request
from bnpo.files import InputError, claiming, lock, write_json


def claim_results_folder(folder: Path, protocol: dict) -> dict:
    """Create `folder` for results under `protocol`, or take it up again after an interruption; the protocol there.

    The settings of the run that the checkpoint comes from may differ: it may have been resumed since, with the
    checkpoint as it was. Raises InputError when the folder holds anything else, naming the parts that differ.
    """
    path = folder / "protocol.json"
    with claiming(folder):
        if not path.exists():
            if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
                raise InputError(f"{folder}: is not empty and holds no evaluation; --output-dir names another folder")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, protocol)
        try:
            theirs = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path}: not JSON ({error}); --output-dir names another folder") from error
    ours = json.loads(json.dumps(protocol, default=str))
    keys = (ours | theirs).keys() - {"run"}
    if differing := sorted(key for key in keys if ours.get(key) != theirs.get(key)):
        raise InputError(
            f"{folder}: holds results of another evaluation (different {', '.join(differing)}; see "
            f"{path.name}); --output-dir names another folder"
        )
    return theirs


class Samples:
    """The records of <folder>/samples.jsonl, one line each, written as they come.

    Opening reads what an interrupted evaluation has left; a line that was cut off is dropped. Raises InputError when a
    record is of none of the `requests`, or another process writes the file.
    """

    def __init__(self, folder: Path, requests: Iterable[Request]):
        path = folder / "samples.jsonl"
        known = set(requests)
        self.records: dict[Request, dict] = {}
        self._lock = lock(folder, f"{path}: another evaluation is writing it; wait for it, or take another folder")
        self._file = path.open("a", encoding="utf-8")
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                request = Request.of(record)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}:{number}: not a sample ({error}); delete the folder to start again"
                ) from error
            if request not in known or request in self.records:
                raise InputError(f"{path}:{number}: sample {tuple(request)} is not of this suite, or is there twice")
            self.records[request] = record
        if len(whole) < len(content):
            os.truncate(path, len(whole))

    def add(self, record: dict) -> None:
        """Keep a record; it is in the file when this returns."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records[Request.of(record)] = record

    def close(self) -> None:
        """Close the file, and let others write it."""
        self._file.close()
        self._lock.release()
