"""The folder of an evaluation: claimed for one protocol, every sample saved as soon as it is graded."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from bnpo.evaluation.records import KeptRecord, Request, SampleRecord, without_text
from bnpo.files import InputError, lock, read_json, write_json, writing


def claim_results_folder(folder: Path, protocol: dict) -> dict:
    """Create `folder` for results under `protocol`, or open it to continue an interrupted evaluation.

    Returns the protocol in the folder. Only its `run` may differ: the training run may have been resumed since, which
    leaves the checkpoint as it was. Raises InputError if the folder holds anything else.
    """
    path = folder / "protocol.json"
    with writing(folder, "choose another --output-dir"):
        if not path.exists():
            if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
                raise InputError(f"{folder}: is not empty and holds no evaluation; --output-dir names another folder")
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, protocol)
        saved = read_json(path, advice="--output-dir names another folder")
    # Through JSON, which turns paths into texts and tuples into lists, as in the file.
    given = json.loads(json.dumps(protocol, default=str))
    keys = (given | saved).keys() - {"run"}
    differing = sorted(key for key in keys if given.get(key) != saved.get(key))
    if differing:
        difference = f"different {', '.join(differing)}; see {path.name}"
        raise InputError(
            f"{folder}: holds results of another evaluation ({difference}); --output-dir names another folder"
        )
    return saved


class Samples:
    """The records in <folder>/samples.jsonl, written as they come. `records` holds them without their texts.

    Opening reads the records of an interrupted evaluation and removes a last line that was cut off. Raises InputError
    for a record that answers none of `requests`, or if another process writes the file.
    """

    def __init__(self, folder: Path, requests: Iterable[Request]):
        self._path = folder / "samples.jsonl"
        self.records: dict[Request, KeptRecord] = {}
        refusal = (
            f"{self._path}: another evaluation is writing it; wait for it, or name another folder with --output-dir"
        )
        self._lock = lock(folder, refusal)
        self._file = self._path.open("a", encoding="utf-8")
        expected = set(requests)
        for where, record, request in self.read():
            if request not in expected or request in self.records:
                reason = "is repeated" if request in self.records else "is not of this suite"
                raise InputError(f"{where}: sample {tuple(request)} {reason}; delete the folder to start again")
            self.records[request] = without_text(record)

    def read(self) -> Iterator[tuple[str, SampleRecord, Request]]:
        """Yield each record, text included, with its place and its request. A last line that was cut off is removed."""
        complete = 0  # bytes
        with self._path.open("rb") as file:
            for line_number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.truncate(self._path, complete)
                    return
                complete += len(line)
                where = f"{self._path}:{line_number}"
                try:
                    record = json.loads(line)
                    request = Request.of(record)
                except (ValueError, KeyError, TypeError) as error:
                    raise InputError(f"{where}: not a sample ({error}); delete the folder to start again") from error
                yield where, record, request

    def add(self, record: SampleRecord) -> None:
        """Add a record. When this returns, a killed process no longer loses it."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        self.records[Request.of(record)] = without_text(record)

    def close(self) -> None:
        """Close the file, and let other processes write it."""
        self._file.close()
        self._lock.release()
