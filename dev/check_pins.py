"""Whether two wheels of requirements.txt install the same file: the later one would break the earlier in silence.

    python dev/check_pins.py                     # downloads the pinned wheels, some 4 GB, and forgets them
    python dev/check_pins.py --wheels DIR        # reads the wheels of a folder

Metadata cannot show this: cuda-python 12.6 once overwrote 28 files of cuda-bindings 13.5, which nothing forbade, and
vLLM no longer started. Ends with 1 and names wheels and files if there are such; needs nothing but Python and pip.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path, PurePosixPath

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements.txt"
HARMLESS = {"site-packages/build_backend.py"}
"""flashinfer-python and torch-c-dlpack-ext each ship the script that builds their wheel; what runs never imports it."""


def installed_files(wheel: Path) -> set[str]:
    """Where pip puts the files of `wheel`, below the environment's folder, commands that it makes itself included.

    After "Binary distribution format" and "Entry points" of the Python Packaging User Guide; the wheel's own
    .dist-info is left out. Raises zipfile.BadZipFile for what is no wheel.
    """
    places = {"purelib": "site-packages", "platlib": "site-packages", "scripts": "bin", "data": ""}
    files = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            first, *rest = PurePosixPath(name).parts
            if name.endswith("/"):
                continue
            if first.endswith(".dist-info"):
                if rest == ["entry_points.txt"]:
                    files |= {f"bin/{command}" for command in commands(archive.read(name).decode())}
            elif first.endswith(".data"):
                # Headers, the fifth kind, go to a folder of the package's own.
                place = places.get(rest[0], f"include/{first}")
                files.add(str(PurePosixPath(place, *rest[1:])))
            else:
                files.add(f"site-packages/{name}")
    return files


def commands(entry_points: str) -> list[str]:
    """Names of the commands that an entry_points.txt asks for."""
    parser = ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # names of commands keep their case
    parser.read_string(entry_points)
    return [name for kind in ("console_scripts", "gui_scripts") if kind in parser for name in parser[kind]]


def shared_files(wheels: Iterable[Path]) -> dict[tuple[str, ...], list[str]]:
    """The files that several of the wheels install, by the names of those wheels; HARMLESS ones left out."""
    owners = defaultdict(list)
    for wheel in sorted(wheels):
        for file in installed_files(wheel) - HARMLESS:
            owners[file].append(wheel.name)
    shared = defaultdict(list)
    for file, names in sorted(owners.items()):
        if len(names) > 1:
            shared[tuple(names)].append(file)
    return dict(shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to read; nothing is downloaded")
    folder = parser.parse_args().wheels
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = Path(temporary)
            # Not `pip download`: what is published as sources only becomes a wheel here as it does when installed.
            download = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), "-r", str(REQUIREMENTS)]
            subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            sys.exit(f"error: --wheels {folder}: no wheels there")
        shared = shared_files(wheels)
    for names, files in shared.items():
        print(f"{' and '.join(names)} both install {len(files)} files:", *files, sep="\n  ")
    if shared:
        sys.exit(1)
    print(f"{len(wheels)} wheels, no file in two of them that matters")


if __name__ == "__main__":
    main()
