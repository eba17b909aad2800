"""Start ranks as `deepspeed` does, with the same flags, and pass SIGTERM, SIGHUP and Ctrl-C on to the ranks only.

    python scripts/launch.py --num_gpus 2 train.py --algo bnpo

The ranks then finish the step, save, and exit with 0. DeepSpeed's launcher exits with an error when it gets a signal
itself, and kills ranks that need more than 30 seconds. Its messages are printed only if something fails.

Without --master_port the ranks meet at a free port, so that two runs on one machine need no further flags. Flags and
data of train.py are checked here, in a second, and a model folder while the ranks start, which takes them ten seconds.
They check everything again.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bnpo.environment import setup_environment

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from bnpo.config import TrainConfig


def main() -> None:
    setup_environment()
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    if not has_gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise each process warns that it found no GPU
    flags = sys.argv[1:]
    script = next((i for i, flag in enumerate(flags) if flag.endswith(".py")), len(flags))
    # In a process of its own, which imports torch while the flags are checked, and frees its memory at its end.
    answer, checker_end = get_context("fork").Pipe()
    config = None
    if Path(*flags[script : script + 1]).name == "train.py":
        checker = get_context("fork").Process(target=answer_model_problem, args=(answer, checker_end), daemon=True)
        checker.start()
        has_cuda = has_gpu and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
        # Of several machines only the number of ranks on each is known, which must divide the questions, too.
        ranks = flags[flags.index("--num_gpus") + 1] if "--num_gpus" in flags[:script] else "1"
        if not ranks.isdecimal() or int(ranks) < 1:
            print(f"error: --num_gpus: '{ranks}' is not a number of ranks above 0", file=sys.stderr)
            sys.exit(2)
        config = check_train_flags(flags[script + 1 :], has_cuda, int(ranks))
    port = None
    # Launchers on several machines must agree, and cannot choose by themselves.
    if not any(flag.startswith(("--master_port", "--no_ssh", "--node_rank")) for flag in flags[:script]):
        port = reserve_port()
        flags = ["--master_port", str(port.getsockname()[1]), *flags]
    checker_end.close()
    with suppress(OSError):  # nobody asks
        answer.send(config)
    launcher = Path(sys.executable).with_name("deepspeed")
    # A new session: the terminal sends Ctrl-C to this process only.
    program = subprocess.Popen([str(launcher), "--quiet", *flags], start_new_session=True)

    def pass_on(number: int, _frame) -> None:
        starters, ranks = [], []
        with suppress(psutil.NoSuchProcess):  # they have ended
            # The launcher starts one process per machine, which starts the ranks.
            starters = psutil.Process(program.pid).children()
            for starter in starters:
                ranks += starter.children()
        for process in ranks or [*starters, program]:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal that closes sends SIGHUP
        signal.signal(number, pass_on)
    with suppress(EOFError, OSError):  # nothing is wrong with the model, or nothing was checked
        problem = answer.recv()
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)  # the ranks would find the same, seconds later
            print(f"error: {problem}", file=sys.stderr)
            sys.exit(2)
    status = program.wait()
    if port:
        port.close()  # only now, so that no other program gets the port before the ranks meet there
    sys.exit(status)


def reserve_port() -> socket.socket:
    """Return a socket with a free port, which the system gives to no other program until the socket is closed.

    Rank 0 asks for this port, and can listen there: this socket does not listen, and both set SO_REUSEADDR.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def check_train_flags(argv: list[str], has_cuda: bool, ranks: int) -> "TrainConfig | None":
    """Exit with one line if train.py would refuse `argv` for a reason that is known without torch.

    Returns the configuration if it names a model folder, which remains to be checked.
    """
    from bnpo.config import check_config, parse_train_config
    from bnpo.data import check_enough, load_sources
    from bnpo.evaluation.suites import dataset_problems, load_suite
    from bnpo.files import InputError
    from bnpo.policy.folder import local_folder, model_folder
    from bnpo.runs.folder import check_output_dir

    try:
        config, _ = parse_train_config(argv, has_cuda)
        check_config(config, config.planning.gpus or ranks)
        if config.planning.dry_run:
            return None
        # A data set of the hub is downloaded here, once, and all ranks find it in the cache.
        problems, _ = load_sources(config.data.train_data, config.columns)
        check_enough(problems, config.batch.questions_per_step, config.data.train_data)
        if config.logging.eval_every:
            for dataset in load_suite(config.logging.eval_suite).datasets.values():
                dataset_problems(dataset)
        if not config.folder.resume:
            check_output_dir(config)
            if local_folder(config.data.model):
                model_folder(config.data.model)
                return config
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    return None


def answer_model_problem(others_end: "Connection", asker: "Connection") -> None:
    """Send a line if train.py would refuse the model of the configuration that `asker` sends, or its template."""
    others_end.close()  # otherwise this process would wait for ever for a parent that was killed
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the parent, which ends this process
    setup_environment()
    from bnpo.evaluation.suites import load_suite, longest_sequence
    from bnpo.files import InputError
    from bnpo.policy.folder import model_folder
    from bnpo.runs.prepare import prepare_tokenizer

    config = None
    with suppress(EOFError):  # the parent has ended
        config = asker.recv()
    if config is None:
        return
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    try:
        prepare_tokenizer(config, model_folder(config.data.model), longest_sequence(config, suite))
    except InputError as error:
        asker.send(str(error))


if __name__ == "__main__":
    main()
