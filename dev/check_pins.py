"""Check the wheels of requirements.txt: no two install the same file, and each gets the versions
that it requires.

    # downloads the pinned wheels, 4 GB, and deletes them again
    python dev/check_pins.py
    # reads the wheels in a folder
    python dev/check_pins.py --wheels DIR

Metadata cannot show shared files: cuda-python 12.6 overwrites 28 files of cuda-bindings 13.5, and
vLLM does not start. Requirements are evaluated for every Python in PYTHONS, because `pip check`
knows only the one that runs it. Prints the problems and exits with 1 if there are any. Needs only
Python and pip.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements.txt"
PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of Python that the pins are for."""
HARMLESS = {"site-packages/build_backend.py"}
"""flashinfer-python and torch-c-dlpack-ext both contain the script that builds their wheel.
Nothing imports it."""


def installed_files(wheel: Path) -> set[str]:
    """Return the files that pip installs from `wheel`, from the environment's folder, with the
    commands that it makes.

    Follows "Binary distribution format" and "Entry points" of the Python Packaging User Guide. The
    wheel's .dist-info is left out. Raises zipfile.BadZipFile if the file is no wheel.
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
                # The fifth kind, headers, has a folder for each package.
                place = places.get(rest[0], f"include/{first}")
                files.add(str(PurePosixPath(place, *rest[1:])))
            else:
                files.add(f"site-packages/{name}")
    return files


def commands(entry_points: str) -> list[str]:
    """Return the names of the commands in an entry_points.txt."""
    parser = ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # names of commands keep their case
    parser.read_string(entry_points)
    return [
        name
        for kind in ("console_scripts", "gui_scripts")
        if kind in parser
        for name in parser[kind]
    ]


def shared_files(wheels: Iterable[Path]) -> dict[tuple[str, ...], list[str]]:
    """Return the files that several wheels install, by the names of these wheels. HARMLESS files
    are left out.
    """
    owners = defaultdict(list)
    for wheel in sorted(wheels):
        for file in installed_files(wheel) - HARMLESS:
            owners[file].append(wheel.name)
    shared = defaultdict(list)
    for file, names in sorted(owners.items()):
        if len(names) > 1:
            shared[tuple(names)].append(file)
    return dict(shared)


def wheel_metadata(wheel: Path) -> Message:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [
            name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
        ]
        return Parser().parsestr(archive.read(name).decode())


def unmet_requirements(packages: Iterable[Message], versions: dict[str, str]) -> list[str]:
    """Return a line for each requirement of `packages`, given by their metadata, that `versions`
    does not meet.

    `versions` are the pins by canonical name. Requirements of extras are left out.
    """
    lines = []
    for package in packages:
        for python in PYTHONS:
            environment = {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "extra": "",
            }
            about = f"{package['Name']} {package['Version']}"
            if python not in SpecifierSet(package["Requires-Python"] or ""):
                lines.append(f"{about} does not support Python {python}")
            for requirement in map(Requirement, package.get_all("Requires-Dist", [])):
                version = versions.get(canonicalize_name(requirement.name), "none")
                if requirement.marker and not requirement.marker.evaluate(environment):
                    continue
                if version == "none" or not requirement.specifier.contains(
                    version, prereleases=True
                ):
                    needed = f"{requirement.name}{requirement.specifier}"
                    lines.append(
                        f"{about} requires {needed} with Python {python}, pinned is {version}"
                    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder of wheels to read. Without it they are downloaded"
    )
    folder = parser.parse_args().wheels
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = Path(temporary)
            # Not `pip download`: packages that are published as source only must be built, as at an
            # installation.
            download = [
                "wheel",
                "--quiet",
                "--no-deps",
                "--wheel-dir",
                str(folder),
                "-r",
                str(REQUIREMENTS),
            ]
            subprocess.run(
                [sys.executable, "-m", "pip", *download], cwd=REQUIREMENTS.parent, check=True
            )
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            sys.exit(f"error: --wheels {folder}: no wheels there")
        shared = shared_files(wheels)
        packages = [wheel_metadata(wheel) for wheel in wheels]
    unmet = unmet_requirements(
        packages, {canonicalize_name(each["Name"]): each["Version"] for each in packages}
    )
    print(*unmet, sep="\n", end="\n" * bool(unmet))
    for names, files in shared.items():
        print(f"{' and '.join(names)} both install {len(files)} files:", *files, sep="\n  ")
    if shared or unmet:
        sys.exit(1)
    print(f"{len(wheels)} wheels, no two of them install the same file, all requirements are met")


if __name__ == "__main__":
    main()
