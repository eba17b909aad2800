"""Checks that end in each way a check can, for tests/test_gpu_check.py; processes of their own import this."""

import os


def passes(_args, gpus):
    return f"{gpus} GPUs"


def finds_a_fault(_args, _gpus):
    from gpu_check_parts import require

    require(False, "the sampler kept its memory")


def crashes(_args, _gpus):
    os._exit(3)


OUTCOMES = (passes, finds_a_fault, crashes)
