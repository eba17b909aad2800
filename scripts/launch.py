"""Start ranks as `deepspeed` does, with the same flags, and pass SIGTERM, SIGHUP and Ctrl-C on to
the ranks only.

    python scripts/launch.py --num_gpus 2 train.py --algo bnpo

The ranks then finish the step, save, and exit with 0. DeepSpeed's launcher exits with an error when
it gets a signal itself, and kills ranks that need more than 30 seconds. Its messages are printed
only if something fails.

Without --master_port the ranks meet at a free port, so that two runs on one machine need no further
flags. --num_gpus takes the first GPUs of CUDA_VISIBLE_DEVICES, which `deepspeed` would ignore.
"""

import argparse
import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from bnpo.environment import expects_cuda, forget_launcher, setup_environment
from bnpo.errors import error_line
from bnpo.files import InputError, read_text

# With one of these flags the ranks are on several machines, or on chosen GPUs
PLACES = ("-H", "-i", "-e", "--hostfile", "--include", "--exclude", "--no")


def main() -> None:
    setup_environment()
    forget_launcher()  # of another launcher, of which this process may be a rank
    if not expects_cuda():
        # The ranks hide all GPUs then. Without GPUs, each process would warn that it found none.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    words = sys.argv[1:]
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
    flags, program = words[:script], words[script:]
    with error_line():
        flags = with_visible_gpus(flags)
        check_words(flags, program)
    port = None
    # Launchers on several machines must agree, and cannot choose by themselves.
    if not any(flag.startswith(("--master_port", "--no_ssh", "--node_rank")) for flag in flags):
        port = reserve_port()
        flags = ["--master_port", str(port.getsockname()[1]), *flags]
    status = run_launcher([*flags, *program])
    if port:
        port.close()  # only now, so that no other program gets the port before the ranks meet there
    sys.exit(status)


def check_words(flags: list[str], program: list[str]) -> None:
    """Raise InputError for a word that the shells of other machines would change. DeepSpeed gives
    them a word as it is, or in double quotes if it has a blank, where it writes `"` as \\".
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--hostfile")
    parser.add_argument("--no_ssh", action="store_true")
    given, _ = parser.parse_known_args(flags)
    if given.no_ssh or not given.hostfile or not os.path.isfile(given.hostfile):
        return
    lines = read_text(given.hostfile).splitlines()
    hosts = [line for line in lines if line.partition("#")[0].strip()]
    for word in program if len(hosts) > 1 else ():
        if " " in word:
            is_changed = re.search(r'[$`]|\\([$`"\\\n]|$)', word)
        else:  # a # begins a comment only at the start of a word
            plain = word[:1] + word[1:].replace("#", "")
            is_changed = shlex.quote(plain) != plain
        if is_changed:
            raise InputError(
                f"{word!r}: the shells of the other machines would change this word; start each "
                "machine with --no_ssh (docs/gpus.md)"
            )


def with_visible_gpus(flags: list[str]) -> list[str]:
    """Return the flags of `deepspeed` with the GPUs of CUDA_VISIBLE_DEVICES in place of --num_gpus.
    Raises InputError if they cannot be named.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_gpus", "--num_accelerators")
    given, others = parser.parse_known_args(flags)
    if any(flag.startswith(PLACES) for flag in flags) or not (given.num_gpus or "").isdecimal():
        return flags
    chosen = launcher_flags(int(given.num_gpus))
    if "--include" in chosen:  # `deepspeed` would print that it ignores the variable
        del os.environ["CUDA_VISIBLE_DEVICES"]
    return [*chosen, *others]


def launcher_flags(ranks: int) -> list[str]:
    """Return the flags of `deepspeed` that start `ranks` ranks on the visible GPUs, which
    --num_gpus ignores. Raises InputError.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not names or not expects_cuda():
        return ["--num_gpus", str(ranks)]
    gpus = [name.strip() for name in names.split(",")]
    if len(gpus) < ranks or not all(gpu.isdecimal() for gpu in gpus):
        raise InputError(
            f"CUDA_VISIBLE_DEVICES={names}: DeepSpeed's launcher needs the numbers of GPUs, as "
            f"nvidia-smi -L lists them, one for each of {ranks} ranks (--num_gpus)"
        )
    return ["--include", "localhost:" + ",".join(gpus[:ranks])]


def run_launcher(flags: list[str]) -> int:
    """Run `deepspeed`, passing signals on to the ranks, and return its exit status."""
    launcher = Path(sys.executable).with_name("deepspeed")
    # A new session: the terminal sends Ctrl-C to this process only.
    launched = subprocess.Popen(
        [str(launcher), "--quiet", *flags], start_new_session=True, preexec_fn=end_with_this_process
    )

    def pass_on(number: int, _frame) -> None:
        starters, ranks = [], []
        with suppress(psutil.NoSuchProcess):  # they have ended
            # The launcher starts one process per machine, which starts the ranks.
            starters = psutil.Process(launched.pid).children()
            for starter in starters:
                ranks += starter.children()
        for process in ranks or [*starters, launched]:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    # A terminal that closes sends SIGHUP
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # under nohup, SIGHUP stays ignored
            signal.signal(number, pass_on)
    status = launched.wait()
    if status == 256 - signal.SIGKILL:  # of a rank, as DeepSpeed passes it on
        print(
            "error: a rank was killed by signal 9. Often it is the kernel, for lack of memory "
            "(`dmesg` says so). DeepSpeed's line above may name another rank. --resume continues "
            "from the last checkpoint",
            file=sys.stderr,
        )
    return status


def end_with_this_process() -> None:
    """Let the kernel kill `deepspeed` when this program is killed. The ranks notice, and stop
    after their step.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def reserve_port() -> socket.socket:
    """Return a socket with a free port, which the system gives to no other program until the socket
    is closed.

    Rank 0 asks for this port, and can listen there: this socket does not listen, and both set
    SO_REUSEADDR.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


if __name__ == "__main__":
    main()
