"""Processes that must not outlive the program that started them."""

import fcntl
import multiprocessing
import os


def signal_at_program_end(number: int) -> None:
    """Let the kernel send this process, started by `multiprocessing`, a signal when the program ends in any way."""
    # Not PR_SET_PDEATHSIG: the parent process is the fork server, which lives as long as any of its processes. Instead
    # a pipe whose other end the program holds. It closes with the program, and O_ASYNC turns that into the signal.
    program = multiprocessing.parent_process().sentinel
    fcntl.fcntl(program, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(program, fcntl.F_SETSIG, number)
    fcntl.fcntl(program, fcntl.F_SETFL, fcntl.fcntl(program, fcntl.F_GETFL) | os.O_ASYNC)
