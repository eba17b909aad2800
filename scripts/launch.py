"""Start ranks as `deepspeed` does, with the same flags, and pass SIGTERM, SIGHUP and Ctrl-C on to
the ranks only.

    python scripts/launch.py --num_gpus 2 train.py --algo bnpo

The ranks then finish the step, save, and exit with 0. DeepSpeed's launcher exits with an error when
it gets a signal itself, and kills ranks that need more than 30 seconds. Its messages are printed
only if something fails.

Without --master_port the ranks meet at a free port, so that two runs on one machine need no further
flags. Flags and data of train.py are checked here, in a second, and a model folder while the ranks
start, which takes them ten seconds. They check everything again.
"""

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from bnpo.config import TrainConfig, check_config, parse_train_config
from bnpo.environment import (
    expects_cuda,
    forget_launcher,
    launcher_flags,
    setup_environment,
)
from bnpo.errors import error_line
from bnpo.files import InputError


def main() -> None:
    setup_environment()
    forget_launcher()  # of another launcher, of which this process may be a rank
    if not expects_cuda():
        # The ranks hide all GPUs then. Without GPUs, each process would warn that it found none.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    script = next(
        (i for i, flag in enumerate(sys.argv) if i and flag.endswith(".py")), len(sys.argv)
    )
    flags, program = sys.argv[1:script], sys.argv[script:]
    config = None
    with error_line():
        ranks, flags = read_launcher_flags(flags)
        if Path(*program[:1]).name == "train.py":
            config = check_train_flags(program[1:], ranks)
    port = None
    # Launchers on several machines must agree, and cannot choose by themselves.
    if not any(flag.startswith(("--master_port", "--no_ssh", "--node_rank")) for flag in flags):
        port = reserve_port()
        flags = ["--master_port", str(port.getsockname()[1]), *flags]
    # In a process of its own, which imports torch while the ranks start, and frees its memory at
    # its end.
    checker = get_context("fork").Process(target=check_model_folder, args=(config,), daemon=True)
    checker.start()
    status = run_launcher([*flags, *program], checker)
    if port:
        port.close()  # only now, so that no other program gets the port before the ranks meet there
    sys.exit(status)


def read_launcher_flags(flags: list[str]) -> tuple[int, list[str]]:
    """Return the number of ranks on each machine, as far as it is known, and the flags of
    `deepspeed`.

    They name the GPUs of CUDA_VISIBLE_DEVICES, which --num_gpus ignores. Raises InputError.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_gpus", "--num_accelerators")
    given, others = parser.parse_known_args(flags)
    if given.num_gpus is None:
        # For the check: without --num_gpus, `deepspeed` reads CUDA_VISIBLE_DEVICES itself
        launcher_flags(1)
        return 1, flags
    if not given.num_gpus.isdecimal() or int(given.num_gpus) < 1:
        raise InputError(f"--num_gpus: '{given.num_gpus}' is not a number of ranks above 0")
    ranks = int(given.num_gpus)
    if any(
        flag.startswith(("-H", "-i", "-e", "--hostfile", "--include", "--exclude", "--no"))
        for flag in others
    ):
        return ranks, flags  # on several machines, which may have other variables
    flags = [*launcher_flags(ranks), *others]
    if "--include" in flags:  # `deepspeed` would print that it ignores the variable
        del os.environ["CUDA_VISIBLE_DEVICES"]
    return ranks, flags


def run_launcher(flags: list[str], checker: BaseProcess) -> int:
    """Run `deepspeed`, passing signals on to the ranks, and return its exit status.

    If the process `checker` ends with 1 or 2, as `check_model_folder` does for an error, the ranks
    are ended, and this is the status.
    """
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
    checker.join()
    if checker.exitcode in (1, 2) and launched.poll() is None:
        os.killpg(launched.pid, signal.SIGKILL)  # the ranks would find the same, seconds later
        return checker.exitcode
    return launched.wait()


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


def check_train_flags(argv: list[str], ranks: int) -> TrainConfig | None:
    """Raise InputError if train.py would refuse `argv` for a reason that is known without torch.

    Returns the configuration if it names a model folder, which remains to be checked.
    """
    from bnpo.data import check_enough, load_sources
    from bnpo.evaluation.suites import load_suite, suite_problems
    from bnpo.policy.folder import local_folder, model_folder
    from bnpo.runs.folder import check_changes, check_output_dir

    config, _ = parse_train_config(argv, expects_cuda())
    check_config(config, config.planning.gpus or ranks)
    if config.planning.dry_run:
        return None
    resumed = config.folder.resume and (config.folder.output_dir / "config.json").exists()
    if resumed:
        check_changes(config, {})
    else:
        check_output_dir(config)
    # A data set of the hub is downloaded here, once, and all ranks find it in the cache.
    problems, _ = load_sources(config.data.train_data, config.columns)
    check_enough(problems, config.batch.questions_per_step, " ".join(config.data.train_data))
    if config.logging.eval_every:
        suite_problems(load_suite(config.logging.eval_suite))
    if resumed or not local_folder(config.data.model):
        return None
    # Whether the weights are complete is for `check_model_folder`, which imports torch.
    model_folder(config.data.model, tensors=False, adapters=False)
    return config


def check_model_folder(config: TrainConfig | None) -> None:
    """Print a line and exit with 2 if train.py would refuse the model of `config`, or its
    template.
    """
    if config is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent
    setup_environment()
    from bnpo.evaluation.suites import load_suite, longest_sequence
    from bnpo.policy.folder import model_folder
    from bnpo.runs.prepare import prepare_tokenizer

    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    with error_line():
        prepare_tokenizer(config, model_folder(config.data.model), longest_sequence(config, suite))


if __name__ == "__main__":
    main()
