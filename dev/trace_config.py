"""Print the functions that are handed the settings of a run, from the command line to its first
step: the way that somebody reads who follows a flag.

    python dev/trace_config.py [FLAGS OF train.py]
"""

import runpy
import sys
import tempfile
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
OWN = (f"{ROOT}/src/", f"{ROOT}/train.py")
SMALL = ["--preset", "tiny", "--questions-per-step", "4", "--samples-per-question", "2"]
SMALL += ["--max-answer-tokens", "8", "--eval-every", "0", "--steps", "1"]
handed: dict[tuple[str, str], None] = {}


def trace(frame: FrameType, event: str, _argument: object) -> None:
    """Note a function of the project that is called with a TrainConfig. Stop at the first step."""
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(OWN) or code.co_name.startswith("<"):
        return
    file = Path(code.co_filename)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    kinds = {type(frame.f_locals.get(name)).__name__ for name in arguments}
    if "TrainConfig" in kinds:
        handed.setdefault((str(file.relative_to(ROOT)), code.co_qualname))
    if code.co_name == "one_step":
        sys.setprofile(None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train.py", *(sys.argv[1:] or SMALL), "--output-dir", f"{folder}/run"]
        sys.path.insert(0, str(ROOT))
        sys.setprofile(trace)
        try:
            runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
        finally:
            sys.setprofile(None)
            for file, name in handed:
                print(f"{file}: {name}")
            print(f"{len(handed)} functions in {len({file for file, _ in handed})} files")


if __name__ == "__main__":
    main()
