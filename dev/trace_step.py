"""List the definitions of src/ that run in one training step, file by file, with their lines.

    python dev/trace_step.py                  # --algo bnpo on the tiny model, one rank
    python dev/trace_step.py --algo remax     # any flags of train.py

The second step is traced, so that what runs only once per process does not count. Worker processes
and threads are not traced.
"""

import importlib
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
FLAGS = "--preset tiny --algo bnpo --steps 2 --questions-per-step 4 --eval-every 0"
FLAGS += " --watch-questions 0 --save-every 0 --rollouts-every 0"


def main() -> None:
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 29577)):
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "localhost"
    from bnpo.environment import setup_environment

    setup_environment()
    sys.path.insert(0, str(ROOT))
    import train

    seen: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            seen.add(frame.f_code)

    loop = importlib.import_module("bnpo.loop")
    one_step, calls = loop.one_step, []

    def traced_step(*arguments):
        calls.append(None)
        if len(calls) == 2:
            sys.setprofile(profile)
        try:
            return one_step(*arguments)
        finally:
            sys.setprofile(None)

    loop.one_step = traced_step
    with tempfile.TemporaryDirectory() as run:
        train.run([*FLAGS.split(), "--output-dir", run, *sys.argv[1:]])
    report(seen)


def report(seen: set[CodeType]) -> None:
    """Print the named functions among the code objects `seen`, by file."""
    files: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for code in seen:
        if code.co_name.startswith("<"):  # a comprehension or lambda is part of its function
            continue
        lines = [line for *_, line in code.co_lines() if line]
        file = str(Path(code.co_filename).relative_to(SOURCE))
        files[file].append((min(lines), 1 + max(lines) - min(lines), code.co_qualname))
    for file, definitions in sorted(files.items()):
        print(file)
        for first, length, name in sorted(definitions):
            print(f"  {first:4} {length:4} {name}")
    everything = [length for definitions in files.values() for _, length, _ in definitions]
    print(f"{len(everything)} definitions, {sum(everything)} lines in {len(files)} files")


if __name__ == "__main__":
    main()
