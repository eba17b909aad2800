"""Checks that end in each way a check can, for tests/test_gpu_check.py; processes of their own import this."""

import os
import subprocess


def passes(_args, gpus, rows):
    rows["gpus"] = gpus


def finds_a_fault(_args, _gpus, rows):
    from gpu_check_parts import require

    rows["freed_gib"] = 0.5
    require(False, "the sampler kept its memory")


def raises(_args, _gpus, _rows):
    raise ValueError("no such kernel")


def crashes(_args, _gpus, rows):
    rows["context_gib"] = 1.5
    os._exit(3)


def hangs(_args, _gpus, rows):
    program = subprocess.Popen(["sleep", "600"])
    rows["program"] = program.pid
    program.wait()


OUTCOMES = (passes, finds_a_fault, raises, crashes, hangs)
