"""GPUs to plan for: what their data sheets say, how well they are used, and what benchmarks/gpu.py has measured."""

import json
from dataclasses import dataclass

from bnpo.files import ROOT, InputError
from bnpo.planning.memory import GIB, Shape
from bnpo.speed import peak_tflops

GPUS = {"H20": (95.0, 4.0), "A100-80GB": (79.1, 2.04), "H100": (79.1, 3.35), "H200": (139.7, 4.8)}
"""GiB of memory that torch reports (rounded down), and bandwidth in 10^12 bytes a second from the data sheet (the SXM
form where there are several)."""
HOST = 256 * GIB
"""Bytes of CPU memory beside every GPU."""
BENCHMARKS = {1536: "1.5b", 3584: "7b"}
"""What benchmarks/gpu.py calls the shape with a hidden state of this size."""


@dataclass(frozen=True)
class Speed:
    """One GPU: bytes of memory, bytes a second, operations a second in bf16, and shares of the last two that are
    reached: of the bandwidth while sampling, of the operations while sampling (products with one row an answer) and in
    the update (MFU). `sync`: seconds of a weight sync, where measured. `measured` are the files that replaced some."""

    name: str
    memory: int
    bandwidth: float
    flops: float
    bandwidth_use: float = 0.6
    sampling_use: float = 0.4
    mfu: float = 0.35
    sync: float | None = None
    measured: str = ""


def check_gpu(gpu: str) -> None:
    """Raise InputError for a GPU that is not known."""
    if gpu not in GPUS:
        raise InputError(f"--gpu: unknown GPU '{gpu}'; known: {', '.join(GPUS)}")


def speed_of(gpu: str, shape: Shape) -> Speed:
    """How fast `gpu` is with a model of `shape`. Raises InputError for a GPU that is not known."""
    check_gpu(gpu)
    memory, bandwidth = GPUS[gpu]
    peak = peak_tflops(" ".join(gpu.split("-")))
    speed = Speed(gpu, int(memory * GIB), bandwidth * 1e12, peak * 1e12)
    for path in sorted((ROOT / "benchmarks" / "rows").glob("*.json")):
        words = path.stem.upper().split("-")
        if set(gpu.upper().split("-")) <= set(words) and peak_tflops(" ".join(words)) == peak:
            return _with_measured(speed, shape, json.loads(path.read_text(encoding="utf-8")), path.name)
    return speed


def _with_measured(speed: Speed, shape: Shape, rows: dict[str, float], file: str) -> Speed:
    benchmark = BENCHMARKS.get(shape.hidden, "")
    # One GPU does not hold the optimizer of the 7B: its update is measured with half the layers.
    mfu = rows.get(f"{benchmark}_mfu", rows.get(f"{benchmark}-half_mfu"))
    sync = rows.get(f"{benchmark}_sync_seconds")
    found = {"mfu": mfu, "sync": sync}
    known = {name: value for name, value in found.items() if value is not None}
    measured = f"{', '.join(known)}: benchmarks/rows/{file}" if known else ""
    return Speed(**vars(speed) | known | {"measured": measured})
